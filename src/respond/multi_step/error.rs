//! The errors of a loop, separated by their source.

use serde_json::{Value, json};

/// A chain could not be read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The response or step does not exist.
    #[error("Response not found: {0}")]
    NotFound(String),
    /// The store failed or cannot be reached.
    #[error("Storage error: {0}")]
    StorageError(String),
    /// The stored data cannot be decoded.
    #[error("Serialization error: {0}")]
    SerializationError(String),
    /// The step has ended and can no longer change.
    #[error("Step has ended: {0}")]
    AlreadyTerminal(String),
}

/// The failure of a tool.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ToolError {
    /// The tool does not exist.
    #[error("Tool not found: {0}")]
    NotFound(String),
    /// The tool failed.
    #[error("Tool execution error: {0}")]
    ExecutionError(String),
    /// The arguments are invalid.
    #[error("Invalid arguments: {0}")]
    InvalidArguments(String),
    /// The tool timed out.
    #[error("Tool timeout: {0}")]
    Timeout(String),
}

/// A step could not be executed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExecutorError {
    /// No executor exists for the step.
    #[error("executor target not found: {0}")]
    NotFound(String),
    /// The executor failed.
    #[error("executor error: {0}")]
    ExecutionError(String),
}

/// The reason why a response failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LoopError {
    /// The next action of the chain is a failure.
    #[error("response loop failed: {0}")]
    Failed(Value),
    /// The limit of transitions was exceeded.
    #[error("response loop exceeded max_response_iterations cap")]
    MaxIterationsExceeded,
    /// The limit of nested loops was exceeded.
    #[error("response loop sub-agent recursion exceeded max_response_step_depth cap")]
    MaxDepthExceeded,
    /// The next action of the chain is a batch without steps.
    #[error("transition function returned AppendSteps with no descriptors")]
    EmptyAction,
    /// The store failed.
    #[error("response loop storage error: {0}")]
    Store(#[from] StoreError),
    /// A step could not be executed.
    #[error("response loop executor error: {0}")]
    Executor(#[from] ExecutorError),
}

impl From<ToolError> for ExecutorError {
    fn from(error: ToolError) -> Self {
        match error {
            ToolError::NotFound(name) => Self::NotFound(name),
            ToolError::ExecutionError(_)
            | ToolError::InvalidArguments(_)
            | ToolError::Timeout(_) => Self::ExecutionError(error.to_string()),
        }
    }
}

impl LoopError {
    /// Returns the error as JSON, for a step or a terminal event.
    pub fn payload(&self) -> Value {
        let kind = match self {
            Self::Failed(payload) => return payload.clone(),
            Self::MaxIterationsExceeded => "max_iterations_exceeded",
            Self::MaxDepthExceeded => "max_depth_exceeded",
            Self::EmptyAction => "empty_action",
            Self::Store(_) => "store_error",
            Self::Executor(ExecutorError::NotFound(_)) => "not_found",
            Self::Executor(ExecutorError::ExecutionError(_)) => "executor_error",
        };
        json!({ "type": kind, "message": self.to_string() })
    }
}
