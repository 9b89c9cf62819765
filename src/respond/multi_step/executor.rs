//! The seams to whoever executes a step: tools, and the model.

use async_trait::async_trait;
use serde_json::Value;

use super::{ExecutorError, ToolError};
use crate::protocol::ModelDelta;

/// What belongs to one request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RequestContext {
    /// The model that was asked for.
    pub model: Option<String>,
    /// Anything that whoever executes needs to know.
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

/// A tool, as it describes itself.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSchema {
    /// Its name, the only one of the request.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// The JSON Schema of its arguments.
    pub parameters: Value,
    /// Whether the provider shall hold the model to it.
    pub strict: bool,
    /// How it is executed.
    pub kind: ToolKind,
}

/// How a tool is executed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ToolKind {
    /// By [`ToolExecutor::execute`].
    #[default]
    Http,
    /// By a loop below the step: it never reaches `execute`.
    Agent,
}

/// Executes tools.
#[async_trait]
pub trait ToolExecutor: Send + Sync {
    /// The tools of a request; asked once for each loop.
    async fn tools(&self, context: &RequestContext) -> Vec<ToolSchema>;

    /// Executes one call. May be called again for the same id after a crash.
    ///
    /// # Errors
    /// When there is no such tool, or it fails.
    async fn execute(
        &self,
        tool_name: &str,
        tool_call_id: &str,
        arguments: &Value,
        context: &RequestContext,
    ) -> Result<Value, ToolError>;
}

/// Asks a model.
#[async_trait]
pub trait Model: Send + Sync {
    /// Asks what a step asks; pieces of the answer go to `heard` as they come.
    ///
    /// # Errors
    /// When there is no answer.
    async fn call(
        &self,
        request: &Value,
        heard: &(dyn Fn(ModelDelta) + Send + Sync),
    ) -> Result<Value, ExecutorError>;
}
