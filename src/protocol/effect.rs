//! Effects: declared in the output of an operator, applied by the engine.

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use super::scope::Scope;
use super::{
    DurationMs, OperatorId, OperatorInput, WorkflowId,
    state::{ContentKind, Lifetime, MemoryLink, MemoryTier},
};

/// One effect of an operator; applied exactly once, together with the result that declares it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Effect {
    /// Writes a value to state.
    WriteMemory {
        /// The scope.
        scope: Scope,
        /// The key.
        key: String,
        /// The value.
        value: Value,
        /// The storage tier.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tier: Option<MemoryTier>,
        /// The lifetime.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lifetime: Option<Lifetime>,
        /// The kind of knowledge.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        content_kind: Option<ContentKind>,
        /// The importance, from 0 to 1.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        salience: Option<f64>,
        /// The time until the value expires, from the write.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ttl: Option<DurationMs>,
    },
    /// Deletes a key of state.
    DeleteMemory {
        /// The scope.
        scope: Scope,
        /// The key.
        key: String,
    },
    /// Sends a signal and does not wait.
    Signal {
        /// The workflow that receives it.
        target: WorkflowId,
        /// The signal.
        payload: SignalPayload,
    },
    /// Calls another operator, whose result goes to the flow.
    Delegate {
        /// The operator.
        operator: OperatorId,
        /// The input.
        input: Box<OperatorInput>,
    },
    /// Hands the remaining work to another operator.
    Handoff {
        /// The operator.
        operator: OperatorId,
        /// The minimal state that the operator needs to continue.
        state: Value,
    },
    /// Writes a line to the log of the run.
    Log {
        /// The level.
        level: LogLevel,
        /// The line.
        message: String,
        /// Additional data.
        data: Option<Value>,
    },
    /// Links two keys of state.
    LinkMemory {
        /// The scope.
        scope: Scope,
        /// The link.
        link: MemoryLink,
    },
    /// Removes a link between two keys of state.
    UnlinkMemory {
        /// The scope.
        scope: Scope,
        /// The source key.
        from_key: String,
        /// The target key.
        to_key: String,
        /// The relation of the link.
        relation: String,
    },
    /// Requests a person's approval of a tool call.
    ToolApprovalRequired {
        /// The tool.
        tool_name: String,
        /// The provider's id of the call.
        call_id: String,
        /// The arguments.
        input: Value,
    },
    /// An effect of any other type; the policy of the host decides about it.
    Custom {
        /// The type.
        effect_type: String,
        /// The data.
        data: Value,
    },
}

/// The content of a signal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SignalPayload {
    /// The name of the signal.
    pub signal_type: String,
    /// The data.
    pub data: Value,
}

impl SignalPayload {
    /// Creates a signal with data.
    pub fn new(signal_type: impl Into<String>, data: Value) -> Self {
        Self { signal_type: signal_type.into(), data }
    }
}

/// The level of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LogLevel {
    /// Every detail.
    Trace,
    /// Useful for debugging.
    Debug,
    /// Normal operation.
    Info,
    /// Possible problems.
    Warn,
    /// Failures.
    Error,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_effect_survives_a_round_trip() {
        let global = json!("global");
        let wire = [
            json!({"type": "write_memory", "scope": {"session": "s"}, "key": "k", "value": 1,
                "tier": "cold", "lifetime": "durable", "content_kind": "semantic",
                "salience": 0.5, "ttl": 60000}),
            json!({"type": "delete_memory", "scope": {"workflow": "w"}, "key": "k"}),
            json!({"type": "signal", "target": "w",
                "payload": {"signal_type": "go", "data": null}}),
            json!({"type": "delegate", "operator": "o", "input": {"message": "hi",
                "trigger": "task", "session": null, "config": null, "metadata": null}}),
            json!({"type": "handoff", "operator": "o", "state": {"n": 1}}),
            json!({"type": "log", "level": "warn", "message": "m", "data": null}),
            json!({"type": "link_memory", "scope": {"operator": {"workflow": "w", "operator": "o"}},
                "link": {"from_key": "a", "to_key": "b", "relation": "r"}}),
            json!({"type": "unlink_memory", "scope": {"custom": "c"}, "from_key": "a",
                "to_key": "b", "relation": "r"}),
            json!({"type": "tool_approval_required", "tool_name": "rm", "call_id": "c1",
                "input": {}}),
            json!({"type": "custom", "effect_type": "x", "data": global}),
        ];
        for document in wire {
            let effect: Effect = serde_json::from_value(document.clone()).unwrap();
            assert_eq!(serde_json::to_value(&effect).unwrap(), document);
        }
    }

    #[test]
    fn a_write_without_hints_names_none() {
        let write: Effect = serde_json::from_value(
            json!({"type": "write_memory", "scope": "global", "key": "k", "value": null}),
        )
        .unwrap();
        let wire = serde_json::to_value(&write).unwrap();
        assert_eq!(wire.as_object().unwrap().len(), 4);
    }

    #[test]
    fn an_unknown_effect_is_an_error_and_not_dropped() {
        assert!(serde_json::from_value::<Effect>(json!({"type": "teleport"})).is_err());
    }
}
