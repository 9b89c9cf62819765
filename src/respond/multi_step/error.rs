//! What can go wrong, apart by who it went wrong with.

use serde_json::{Value, json};

/// A chain could not be read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// There is no such response, or no such step.
    #[error("Response not found: {0}")]
    NotFound(String),
    /// What was stored cannot be, or cannot be reached.
    #[error("Storage error: {0}")]
    StorageError(String),
    /// What was stored cannot be read.
    #[error("Serialization error: {0}")]
    SerializationError(String),
    /// The step has ended, and what has ended never changes.
    #[error("Step has ended: {0}")]
    AlreadyTerminal(String),
}

/// A tool did not do what it was called for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ToolError {
    /// There is no such tool.
    #[error("Tool not found: {0}")]
    NotFound(String),
    /// It failed.
    #[error("Tool execution error: {0}")]
    ExecutionError(String),
    /// The arguments are not what it takes.
    #[error("Invalid arguments: {0}")]
    InvalidArguments(String),
    /// It took too long.
    #[error("Tool timeout: {0}")]
    Timeout(String),
}

/// A step could not be executed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExecutorError {
    /// There is nobody who executes that.
    #[error("executor target not found: {0}")]
    NotFound(String),
    /// It failed.
    #[error("executor error: {0}")]
    ExecutionError(String),
}

/// A response that did not come to a value.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LoopError {
    /// What follows from the chain is a failure.
    #[error("response loop failed: {0}")]
    Failed(Value),
    /// There were too many transitions.
    #[error("response loop exceeded max_response_iterations cap")]
    MaxIterationsExceeded,
    /// Loops lie too deep within each other.
    #[error("response loop sub-agent recursion exceeded max_response_step_depth cap")]
    MaxDepthExceeded,
    /// What follows from the chain is a batch without steps.
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
    /// The error as a step and a terminal event carry it.
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
