//! The operator trait: one input, one output.

mod input;
mod output;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::OperatorError;

pub use input::{OperatorConfig, OperatorInput, TriggerType};
pub use output::{ExitReason, OperatorMetadata, OperatorOutput, SubDispatchRecord};

/// Executes one task; atomic for the caller.
#[async_trait]
pub trait Operator: Send + Sync {
    /// Turns an input into an output. May read state freely, and writes it only by effects.
    ///
    /// # Errors
    /// Fails when there is no output at all. An incomplete answer is an output with another
    /// [`ExitReason`].
    async fn execute(&self, input: OperatorInput) -> Result<OperatorOutput, OperatorError>;
}

#[async_trait]
impl<T: Operator + ?Sized> Operator for std::sync::Arc<T> {
    async fn execute(&self, input: OperatorInput) -> Result<OperatorOutput, OperatorError> {
        (**self).execute(input).await
    }
}

#[async_trait]
impl<T: Operator + ?Sized> Operator for Box<T> {
    async fn execute(&self, input: OperatorInput) -> Result<OperatorOutput, OperatorError> {
        (**self).execute(input).await
    }
}

/// The description of a tool for a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolMetadata {
    /// The name by which a model calls the tool.
    pub name: String,
    /// The purpose of the tool.
    pub description: String,
    /// The JSON Schema of its arguments.
    pub input_schema: Value,
    /// True if the tool may run in parallel with others; otherwise it runs alone.
    pub parallel_safe: bool,
}

impl ToolMetadata {
    /// Creates the description of a tool.
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
