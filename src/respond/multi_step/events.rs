//! What is heard of a loop under way.

use async_trait::async_trait;
use serde_json::Value;

/// Something that happened in a response, in its order.
#[derive(Debug, Clone, PartialEq)]
pub struct LoopEvent {
    /// The number of the step that it belongs to; of an end the number behind the last step.
    pub sequence: i64,
    /// What.
    pub kind: LoopEventKind,
    /// Its data.
    pub data: Value,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoopEventKind {
    /// The response exists; once, also across restarts.
    Created,
    /// A piece of the model's answer.
    Delta,
    /// A tool's output.
    OutputItemDone,
    /// The end, with a value.
    Completed,
    /// The end, with an error.
    Failed,
}

impl LoopEventKind {
    /// Whether nothing follows it.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed)
    }
}

/// Nobody took the event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("hand on an event: {0}")]
pub struct SinkError(pub String);

/// Hears what happens. What it cannot take is lost and stops nothing.
#[async_trait]
pub trait EventSink: Send + Sync {
    /// Takes an event.
    ///
    /// # Errors
    /// When it cannot; the loop goes on.
    async fn emit(&self, event: LoopEvent) -> Result<(), SinkError>;
}
