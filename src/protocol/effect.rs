//! What an operator wants done: declared in its output, applied by the engine.

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use super::scope::Scope;
use super::{
    DurationMs, OperatorId, OperatorInput, WorkflowId,
    state::{ContentKind, Lifetime, MemoryLink, MemoryTier},
};

/// One thing that an operator wants done; applied exactly once, with the result it came with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Effect {
    /// Write a value to state.
    WriteMemory {
        /// Where.
        scope: Scope,
        /// Under which key.
        key: String,
        /// What.
        value: Value,
        /// How fast it should be at hand.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tier: Option<MemoryTier>,
        /// How long it should live.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lifetime: Option<Lifetime>,
        /// What kind of knowledge it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        content_kind: Option<ContentKind>,
        /// How important it is, from 0 to 1.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        salience: Option<f64>,
        /// When it expires, counted from the write.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ttl: Option<DurationMs>,
    },
    /// Delete a key of state.
    DeleteMemory {
        /// Where.
        scope: Scope,
        /// Which key.
        key: String,
    },
    /// Send a signal and do not wait.
    Signal {
        /// To which workflow.
        target: WorkflowId,
        /// What.
        payload: SignalPayload,
    },
    /// Ask another operator; its result goes to the flow.
    Delegate {
        /// Whom.
        operator: OperatorId,
        /// What.
        input: Box<OperatorInput>,
    },
    /// Leave the rest to another operator.
    Handoff {
        /// To whom.
        operator: OperatorId,
        /// The little that it needs to go on.
        state: Value,
    },
    /// Write a line to the run's log.
    Log {
        /// How grave it is.
        level: LogLevel,
        /// The line.
        message: String,
        /// Anything more.
        data: Option<Value>,
    },
    /// Link two keys of state.
    LinkMemory {
        /// Where.
        scope: Scope,
        /// Which to which.
        link: MemoryLink,
    },
    /// Remove a link between two keys of state.
    UnlinkMemory {
        /// Where.
        scope: Scope,
        /// The key that it starts from.
        from_key: String,
        /// The key that it leads to.
        to_key: String,
        /// What the one is to the other.
        relation: String,
    },
    /// Ask a person before a tool is called.
    ToolApprovalRequired {
        /// The tool.
        tool_name: String,
        /// The provider's id of the call.
        call_id: String,
        /// The arguments.
        input: Value,
    },
    /// An effect that this vocabulary has no word for; what becomes of it is the host's policy.
    Custom {
        /// What it is.
        effect_type: String,
        /// Its data.
        data: Value,
    },
}

/// What a signal carries.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SignalPayload {
    /// Which signal.
    pub signal_type: String,
    /// Its data.
    pub data: Value,
}

impl SignalPayload {
    /// A signal with data.
    pub fn new(signal_type: impl Into<String>, data: Value) -> Self {
        Self { signal_type: signal_type.into(), data }
    }
}

/// How grave a line of the log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LogLevel {
    /// Every little thing.
    Trace,
    /// For whoever debugs.
    Debug,
    /// Worth knowing.
    Info,
    /// Worth a look.
    Warn,
    /// Something failed.
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
