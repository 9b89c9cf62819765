//! An open loop of model calls and tool calls.

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
    /// The scope of state that turns are written to; the run's own if absent.
    pub(crate) flush_scope: Option<String>,
    /// The parts that began, by index.
    pub(crate) begun: Vec<Begin>,
    /// The number of those that have a step.
    pub(crate) recorded: usize,
    /// The indexes of parts that wait for others.
    pub(crate) held: BTreeSet<usize>,
    /// The reason why it cannot continue: its history differs from what it would do.
    pub(crate) broken: Option<Failure>,
    /// The size of the results of its parts, in bytes.
    pub(crate) came: usize,
}

/// The agent that asks a person for approval.
pub(crate) const APPROVE: &str = "approve";

/// The name of a step in which a model summarizes.
pub(crate) const COMPACT: &str = "compact";

/// The name of a step that reads the conversation of a session.
pub(crate) const RECALL: &str = "recall";

/// The name of a step that writes the conversation of a session.
pub(crate) const KEEP: &str = "keep";

/// The name of a step that writes a turn to state.
pub(crate) const FLUSH: &str = "flush";
