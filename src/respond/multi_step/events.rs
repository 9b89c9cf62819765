//! The events of a running loop.

use async_trait::async_trait;
use serde_json::Value;

/// An event of a response. Events are ordered.
#[derive(Debug, Clone, PartialEq)]
pub struct LoopEvent {
    /// The number of the step. For a terminal event, the number after the last step.
    pub sequence: i64,
    /// The kind.
    pub kind: LoopEventKind,
    /// Its data.
    pub data: Value,
}

/// The kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoopEventKind {
    /// The response was created. Emitted once, also across restarts.
    Created,
    /// A piece of the model's answer.
    Delta,
    /// A tool's output.
    OutputItemDone,
    /// The response completed with a value.
    Completed,
    /// The response failed.
    Failed,
}

impl LoopEventKind {
    /// Returns true if no event follows.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed)
    }
}

/// The event was not delivered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("hand on an event: {0}")]
pub struct SinkError(pub String);

/// Receives events. A lost event does not stop the loop.
#[async_trait]
pub trait EventSink: Send + Sync {
    /// Receives an event.
    ///
    /// # Errors
    /// Fails when the event cannot be delivered. The loop continues.
    async fn emit(&self, event: LoopEvent) -> Result<(), SinkError>;
}
