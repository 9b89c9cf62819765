//! A step until it ends, and what holds for all spans.

use std::collections::HashMap;

use super::{
    message::{self, Event},
    talk::Talk,
};
use crate::{
    engine::OperatorFacts,
    journal::{AttemptClosed, Scheduled},
    protocol::{StepKind, TraceParent},
};

/// The maximum number of events of a span.
const EVENTS: usize = 64;
/// The approximate size of a step and of an event, in bytes.
const STEP: usize = 256;
const EVENT: usize = 128;

/// The choices that hold for all spans.
pub(super) struct Style {
    /// True if names of older GenAI conventions are left out.
    pub latest_only: bool,
    /// True if inputs, outputs and messages of failures are exported.
    pub contents: bool,
    /// The operators of the host.
    pub operators: HashMap<String, OperatorFacts>,
}

/// A step that has not ended.
pub(super) struct OpenStep {
    pub(super) kind: StepKind,
    pub(super) name: String,
    pub(super) parent: Option<u32>,
    pub(super) call_id: Option<String>,
    pub(super) attempts: u32,
    pub(super) worker: Option<String>,
    /// True if an attempt left follow-up work, which others than its operator may do.
    pub(super) is_followed: bool,
    pub(super) input: Option<String>,
    /// The system instructions of a question to a model.
    pub(super) system: Option<String>,
    /// The conversation of a task with its model, if contents are exported.
    pub(super) talk: Option<Box<Talk>>,
    /// The step that sent the signal which a wait took.
    pub(super) sender: Option<TraceParent>,
    pub(super) started_ms: u64,
    /// The attempts that failed.
    pub(super) events: Vec<Event>,
    /// The number of those that are left out.
    pub(super) dropped: u32,
}

impl OpenStep {
    pub(super) fn new(step: &Scheduled, started_ms: u64, input: Option<String>) -> Self {
        Self {
            kind: step.kind,
            name: step.name.clone(),
            parent: step.parent,
            call_id: step.call_id.clone(),
            attempts: step.attempt,
            worker: None,
            is_followed: false,
            input,
            system: None,
            talk: None,
            sender: None,
            started_ms,
            events: Vec::new(),
            dropped: 0,
        }
    }

    /// Returns the approximate size in bytes.
    pub(super) fn size(&self) -> usize {
        STEP + self.name.len()
            + self.events.len() * EVENT
            + self.input.as_ref().map_or(0, String::len)
            + self.system.as_ref().map_or(0, String::len)
            + self.talk.as_ref().map_or(0, |talk| talk.size())
    }

    /// Adds an attempt that failed.
    pub(super) fn close(&mut self, closed: &AttemptClosed, at_ms: u64) {
        if self.events.len() >= EVENTS {
            self.dropped = self.dropped.saturating_add(1);
            return;
        }
        self.events.push(Event {
            time_unix_nano: nanos(at_ms),
            name: "moonswarm.attempt_failed".to_owned(),
            attributes: vec![
                message::whole("moonswarm.attempt", closed.attempt.into()),
                message::text("error.type", closed.error.kind.clone()),
            ],
        });
    }
}

/// Returns a time in nanoseconds.
pub(super) fn nanos(ms: u64) -> u64 {
    ms.saturating_mul(1_000_000)
}
