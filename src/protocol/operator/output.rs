//! The output of an operator.

use std::fmt;

use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};

use crate::protocol::{Content, DurationMs, Effect};

/// The output of one call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OperatorOutput {
    /// The answer.
    pub message: Content,
    /// The reason why the operator stopped.
    pub exit_reason: ExitReason,
    /// Usage.
    pub metadata: OperatorMetadata,
    /// The effects for the engine to apply; the operator applies none itself.
    #[serde(default)]
    pub effects: Vec<Effect>,
}

impl OperatorOutput {
    /// Creates an output without usage and effects.
    pub fn new(message: Content, exit_reason: ExitReason) -> Self {
        Self { message, exit_reason, metadata: OperatorMetadata::default(), effects: Vec::new() }
    }
}

/// Usage of one call; a value that the operator does not track is zero.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OperatorMetadata {
    /// Input tokens.
    pub tokens_in: u64,
    /// Output tokens.
    pub tokens_out: u64,
    /// Cost in US dollars; a string in JSON.
    pub cost: Decimal,
    /// The number of model calls.
    pub turns_used: u32,
    /// The operators and tools that were called, in order, failures included.
    #[serde(alias = "tools_called")]
    pub sub_dispatches: Vec<SubDispatchRecord>,
    /// The duration.
    pub duration: DurationMs,
    /// The effects that the host has applied, in the order in which they were declared.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub applied_effects: Vec<Effect>,
}

/// One call of a sub-operator or tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SubDispatchRecord {
    /// The operator or tool.
    pub name: String,
    /// The duration.
    pub duration: DurationMs,
    /// True if it succeeded.
    pub success: bool,
}

impl SubDispatchRecord {
    /// Creates a record of one call.
    pub fn new(name: impl Into<String>, duration: DurationMs, success: bool) -> Self {
        Self { name: name.into(), duration, success }
    }
}

/// The reason why an operator stopped.
///
/// When several apply, the first of these wins: a halt, an approval, the turns, the budget, the
/// time.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ExitReason {
    /// The operator finished.
    Complete,
    /// The maximum number of turns was reached.
    MaxTurns,
    /// The budget of money or tool calls was used up.
    BudgetExhausted,
    /// There were too many consecutive failures.
    CircuitBreaker,
    /// The maximum duration was reached.
    Timeout,
    /// A middleware stopped the operator.
    #[serde(alias = "middleware_halt")]
    InterceptorHalt {
        /// The reason.
        reason: String,
    },
    /// An unrecoverable error.
    Error,
    /// The provider refused to answer.
    SafetyStop {
        /// The reason.
        reason: String,
    },
    /// A tool call needs approval first; the effects say which.
    AwaitingApproval,
    /// Any other reason.
    Custom(String),
}

impl ExitReason {
    /// Creates a stop by a middleware.
    pub fn interceptor_halt(reason: impl Into<String>) -> Self {
        Self::InterceptorHalt { reason: reason.into() }
    }

    /// Creates a stop by the provider.
    pub fn safety_stop(reason: impl Into<String>) -> Self {
        Self::SafetyStop { reason: reason.into() }
    }

    /// Creates a custom reason.
    pub fn custom(reason: impl Into<String>) -> Self {
        Self::Custom(reason.into())
    }
}

impl fmt::Display for ExitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Complete => f.write_str("complete"),
            Self::MaxTurns => f.write_str("max_turns"),
            Self::BudgetExhausted => f.write_str("budget_exhausted"),
            Self::CircuitBreaker => f.write_str("circuit_breaker"),
            Self::Timeout => f.write_str("timeout"),
            Self::InterceptorHalt { reason } => write!(f, "interceptor_halt: {reason}"),
            Self::Error => f.write_str("error"),
            Self::SafetyStop { reason } => write!(f, "safety_stop: {reason}"),
            Self::AwaitingApproval => f.write_str("awaiting_approval"),
            Self::Custom(reason) => write!(f, "custom: {reason}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::protocol::{OperatorConfig, OperatorInput, SessionId, TriggerType};

    #[test]
    fn money_is_a_string_and_never_a_number() {
        let config = OperatorConfig::default().with_max_cost(Decimal::new(250, 2));
        assert_eq!(serde_json::to_value(&config).unwrap()["max_cost"], json!("2.50"));
        let output = OperatorOutput::new(Content::text("x"), ExitReason::Complete);
        assert_eq!(serde_json::to_value(&output).unwrap()["metadata"]["cost"], json!("0"));
    }

    #[test]
    fn only_message_and_trigger_are_required() {
        let input: OperatorInput =
            serde_json::from_value(json!({"message": "hi", "trigger": "user"})).unwrap();
        assert_eq!(input, OperatorInput::new(Content::text("hi"), TriggerType::User));
        assert!(serde_json::from_value::<OperatorInput>(json!({"trigger": "user"})).is_err());
    }

    #[test]
    fn metadata_passes_through_untouched() {
        let metadata = json!({"trace_id": "t", "n": [1, 2.5, null]});
        let input = OperatorInput::new(Content::text("x"), TriggerType::Task)
            .with_session(SessionId::new("s"))
            .with_metadata(metadata.clone());
        let wire = serde_json::to_value(&input).unwrap();
        let read: OperatorInput = serde_json::from_value(wire).unwrap();
        assert_eq!(read.metadata, metadata);
        assert_eq!(read.session, Some(SessionId::new("s")));
    }

    #[test]
    fn earlier_field_names_are_still_read() {
        let config: OperatorConfig =
            serde_json::from_value(json!({"allowed_tools": ["grep"]})).unwrap();
        assert_eq!(config, OperatorConfig::default().with_allowed_operators(vec!["grep".into()]));
        let metadata: OperatorMetadata = serde_json::from_value(json!({
            "tokens_in": 1, "tokens_out": 2, "cost": "0.1", "turns_used": 1, "duration": 5,
            "tools_called": [{"name": "grep", "duration": 3, "success": false}],
        }))
        .unwrap();
        let record = SubDispatchRecord::new("grep", DurationMs::from_millis(3), false);
        assert_eq!(metadata.sub_dispatches, [record]);
        assert!(serde_json::to_value(&metadata).unwrap().get("sub_dispatches").is_some());
    }

    #[test]
    fn an_output_without_effects_is_read_as_having_none() {
        let mut wire =
            serde_json::to_value(OperatorOutput::new(Content::text("x"), ExitReason::MaxTurns))
                .unwrap();
        wire.as_object_mut().unwrap().remove("effects");
        let output: OperatorOutput = serde_json::from_value(wire).unwrap();
        assert_eq!(output.effects, []);
    }
}
