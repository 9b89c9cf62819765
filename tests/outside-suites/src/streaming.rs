//! The events of a loop, by the names of the crate `onwards`.

use std::sync::Mutex;

use async_trait::async_trait;
use moonswarm::respond::multi_step as own;
use serde_json::{Value, json};

/// An event.
#[derive(Debug, Clone)]
pub struct LoopEvent {
    pub sequence: i64,
    pub kind: LoopEventKind,
    pub data: Value,
}

/// The kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoopEventKind {
    Created,
    OutputTextDelta,
    OtherDelta,
    OutputItemDone,
    Completed,
    Failed,
}

impl From<own::LoopEvent> for LoopEvent {
    fn from(event: own::LoopEvent) -> Self {
        let own::LoopEvent { sequence, kind, data } = event;
        let text = data["type"] == "text";
        let (kind, data) = match kind {
            own::LoopEventKind::Created => (LoopEventKind::Created, data),
            own::LoopEventKind::Delta if text => {
                (LoopEventKind::OutputTextDelta, json!({ "delta": data["delta"] }))
            }
            own::LoopEventKind::Delta => (LoopEventKind::OtherDelta, data),
            own::LoopEventKind::OutputItemDone => (LoopEventKind::OutputItemDone, data),
            own::LoopEventKind::Completed => (LoopEventKind::Completed, data),
            own::LoopEventKind::Failed => (LoopEventKind::Failed, data),
        };
        Self { sequence, kind, data }
    }
}

/// Keeps what it receives.
#[derive(Default)]
pub struct RecordingSink(Mutex<Vec<LoopEvent>>);

impl RecordingSink {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn events(&self) -> Vec<LoopEvent> {
        self.0.lock().unwrap().clone()
    }
}

#[async_trait]
impl own::EventSink for RecordingSink {
    async fn emit(&self, event: own::LoopEvent) -> Result<(), own::SinkError> {
        self.0.lock().unwrap().push(event.into());
        Ok(())
    }
}
