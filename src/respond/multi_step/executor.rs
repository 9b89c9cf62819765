//! The interfaces for the execution of steps: tools and the model.

use async_trait::async_trait;
use serde_json::Value;

use super::{ExecutorError, ToolError};
use crate::protocol::ModelDelta;

/// The context of one request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RequestContext {
    /// The requested model.
    pub model: Option<String>,
    /// Custom data for the executors.
    pub data: Value,
}

impl RequestContext {
    /// Nothing that is known yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same, with the model that was asked for.
    #[must_use]
    pub fn with_model(mut self, model: impl Into<String>) -> Self {
        self.model = Some(model.into());
        self
    }
}

/// The description of a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSchema {
    /// The name, unique within the request.
    pub name: String,
    /// The purpose, for the model.
    pub description: String,
    /// The JSON Schema of its arguments.
    pub parameters: Value,
    /// True if the provider must enforce the schema.
    pub strict: bool,
    /// The way of execution.
    pub kind: ToolKind,
}

/// The way in which a tool is executed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ToolKind {
    /// By [`ToolExecutor::execute`].
    #[default]
    Http,
    /// By a nested loop below the step. Never passed to `execute`.
    Agent,
}

/// Executes tools.
#[async_trait]
pub trait ToolExecutor: Send + Sync {
    /// Returns the tools of a request. Called once per loop.
    async fn tools(&self, context: &RequestContext) -> Vec<ToolSchema>;

    /// Executes one call. May be called again with the same id after a crash.
    ///
    /// # Errors
    /// Fails when the tool does not exist or fails.
    async fn execute(
        &self,
        tool_name: &str,
        tool_call_id: &str,
        arguments: &Value,
        context: &RequestContext,
    ) -> Result<Value, ToolError>;
}

/// Calls a model.
#[async_trait]
pub trait Model: Send + Sync {
    /// Sends the request of a step to the model. Passes deltas to `heard` as they arrive.
    ///
    /// # Errors
    /// Fails when there is no answer.
    async fn call(
        &self,
        request: &Value,
        heard: &(dyn Fn(ModelDelta) + Send + Sync),
    ) -> Result<Value, ExecutorError>;
}
