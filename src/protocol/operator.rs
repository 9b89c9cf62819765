//! The operator: one call in, one answer out, everything within is its own affair.

mod input;
mod output;

use std::fmt;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::OperatorError;

pub use input::{OperatorConfig, OperatorInput};
pub use output::{OperatorMetadata, OperatorOutput, SubDispatchRecord};

/// Executes one task; atomic for whoever calls it.
#[async_trait]
pub trait Operator: Send + Sync {
    /// Turns an input into an output; it reads state as it likes and writes it only by effects.
    ///
    /// # Errors
    /// When there is no output at all; an answer that fell short is an output with another
    /// [`ExitReason`].
    async fn execute(&self, input: OperatorInput) -> Result<OperatorOutput, OperatorError>;
}

/// What set an operator to work.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TriggerType {
    /// A person wrote.
    User,
    /// A flow or another agent assigned it.
    Task,
    /// A signal arrived.
    Signal,
    /// The clock.
    Schedule,
    /// Something outside happened: a file changed, a webhook was called.
    SystemEvent,
    /// Something else.
    Custom(String),
}

impl TriggerType {
    /// A trigger of the author's own.
    pub fn custom(name: impl Into<String>) -> Self {
        Self::Custom(name.into())
    }
}

impl fmt::Display for TriggerType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User => f.write_str("user"),
            Self::Task => f.write_str("task"),
            Self::Signal => f.write_str("signal"),
            Self::Schedule => f.write_str("schedule"),
            Self::SystemEvent => f.write_str("system_event"),
            Self::Custom(name) => write!(f, "custom: {name}"),
        }
    }
}

/// Why an operator stopped.
///
/// When several apply, the first of these wins: a halt, an approval, the turns, the budget, the
/// time.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ExitReason {
    /// It was done.
    Complete,
    /// It used up its turns.
    MaxTurns,
    /// It used up its money or its tool calls.
    BudgetExhausted,
    /// Too many failures in a row.
    CircuitBreaker,
    /// It used up its time.
    Timeout,
    /// A middleware stopped it.
    #[serde(alias = "middleware_halt")]
    InterceptorHalt {
        /// Why.
        reason: String,
    },
    /// It failed beyond repair.
    Error,
    /// The provider refused to answer.
    SafetyStop {
        /// Why.
        reason: String,
    },
    /// Somebody must approve a tool call first; the effects say which.
    AwaitingApproval,
    /// Something else.
    Custom(String),
}

impl ExitReason {
    /// A stop by a middleware.
    pub fn interceptor_halt(reason: impl Into<String>) -> Self {
        Self::InterceptorHalt { reason: reason.into() }
    }

    /// A stop by the provider.
    pub fn safety_stop(reason: impl Into<String>) -> Self {
        Self::SafetyStop { reason: reason.into() }
    }

    /// A reason of the author's own.
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

/// How a tool presents itself to a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolMetadata {
    /// The name that a model calls it by.
    pub name: String,
    /// What it does.
    pub description: String,
    /// The JSON Schema of its arguments.
    pub input_schema: Value,
    /// Whether it may run beside other tools; one that may not runs alone.
    pub parallel_safe: bool,
}

impl ToolMetadata {
    /// Describes a tool.
    pub fn new(
        name: impl Into<String>,
        description: impl Into<String>,
        input_schema: Value,
        parallel_safe: bool,
    ) -> Self {
        Self { name: name.into(), description: description.into(), input_schema, parallel_safe }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::protocol::Content;

    #[test]
    fn reasons_and_triggers_are_snake_case_on_the_wire_and_in_text() {
        assert_eq!(serde_json::to_value(TriggerType::SystemEvent).unwrap(), json!("system_event"));
        assert_eq!(TriggerType::custom("cron").to_string(), "custom: cron");
        let stop = ExitReason::safety_stop("filtered");
        assert_eq!(
            serde_json::to_value(&stop).unwrap(),
            json!({"safety_stop": {"reason": "filtered"}})
        );
        assert_eq!(stop.to_string(), "safety_stop: filtered");
        assert_eq!(ExitReason::custom("stuck_detected").to_string(), "custom: stuck_detected");
    }

    #[test]
    fn a_middlewares_halt_is_read_under_both_of_its_names() {
        for name in ["interceptor_halt", "middleware_halt"] {
            let halt: ExitReason = serde_json::from_value(json!({name: {"reason": "no"}})).unwrap();
            assert_eq!(halt, ExitReason::interceptor_halt("no"));
        }
    }

    #[test]
    fn an_operator_is_a_trait_object() {
        struct Echo;
        #[async_trait]
        impl Operator for Echo {
            async fn execute(&self, input: OperatorInput) -> Result<OperatorOutput, OperatorError> {
                Ok(OperatorOutput::new(input.message, ExitReason::Complete))
            }
        }
        use futures::FutureExt;
        let echo: Box<dyn Operator> = Box::new(Echo);
        let input = OperatorInput::new(Content::text("hi"), TriggerType::User);
        let output = echo.execute(input).now_or_never().expect("echo never waits").unwrap();
        assert_eq!(output.message, Content::text("hi"));
    }
}
