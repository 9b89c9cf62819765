//! The vocabulary of a multi-step chain.

use serde::{Deserialize, Serialize};

/// What a step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StepKind {
    /// An operator executes it.
    Task,
    /// A model is asked.
    ModelCall,
    /// A tool is called for a model.
    ToolCall,
    /// Time passes.
    Timer,
    /// A signal is awaited.
    Signal,
    /// Another run is called.
    Child,
    /// State is read or written.
    State,
    /// Something within the host: an artifact, a signal to another run.
    Local,
}

impl StepKind {
    /// A number that never changes, for hashes.
    pub fn code(self) -> u8 {
        match self {
            Self::Task => 1,
            Self::ModelCall => 2,
            Self::ToolCall => 3,
            Self::Timer => 4,
            Self::Signal => 5,
            Self::Child => 6,
            Self::State => 7,
            Self::Local => 8,
        }
    }

    /// The word that APIs use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Task => "task",
            Self::ModelCall => "model_call",
            Self::ToolCall => "tool_call",
            Self::Timer => "timer",
            Self::Signal => "signal",
            Self::Child => "child",
            Self::State => "state",
            Self::Local => "local",
        }
    }
}

/// How far a step is. The last three never change again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StepState {
    /// Decided, with no worker yet.
    Pending,
    /// A worker has it.
    Processing,
    /// It has a value.
    Completed,
    /// It has an error.
    Failed,
    /// It was given up.
    Canceled,
}

impl StepState {
    /// Whether it never changes again.
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Pending | Self::Processing => false,
            Self::Completed | Self::Failed | Self::Canceled => true,
        }
    }
}
