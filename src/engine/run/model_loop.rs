//! An open loop of calls of a model and its tools.

use std::{collections::BTreeSet, sync::Arc};

use crate::{
    blueprint::{CompiledAgent, LoopJudge},
    flow::{
        TaskRequest,
        response::{Begin, ResponseFlow},
    },
    protocol::Failure,
};

/// An open loop.
pub(crate) struct OpenLoop {
    pub(crate) request: TaskRequest,
    pub(crate) agent: Arc<CompiledAgent>,
    pub(crate) operator: Arc<str>,
    pub(crate) flow: ResponseFlow,
    pub(crate) judge: LoopJudge,
    pub(crate) instructions: Option<String>,
    pub(crate) max_duration_ms: Option<u64>,
    /// Which scope of state turns are written to; the run's own if absent.
    pub(crate) flush_scope: Option<String>,
    /// What began, by place.
    pub(crate) begun: Vec<Begin>,
    /// How many of those have a step.
    pub(crate) recorded: usize,
    /// The places that wait until others have ended.
    pub(crate) held: BTreeSet<usize>,
    /// Why it cannot go on: its history is not what it would do.
    pub(crate) broken: Option<Failure>,
    /// The bytes of what came of its parts.
    pub(crate) came: usize,
}

/// The agent that asks a person.
pub(crate) const APPROVE: &str = "approve";

/// What a step is called in which a model sums up.
pub(crate) const COMPACT: &str = "compact";

/// What a step is called that writes a turn to state.
pub(crate) const FLUSH: &str = "flush";
