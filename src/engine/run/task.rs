//! An open task, and how far its attempt is.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::{
    blueprint::CompiledAgent,
    engine::run::{
        feed::Feed,
        follows::Follows,
        question::Question,
        reply::{Answer, ReplyTo},
    },
    flow::{Backoff, TaskRequest},
    middleware::About,
    operator::{Inquiry, Residence},
    store::TaskRow,
};

/// An open task.
pub(crate) struct OpenTask {
    pub(crate) request: TaskRequest,
    pub(crate) agent: Arc<CompiledAgent>,
    pub(crate) operator: Arc<str>,
    pub(crate) residence: Residence,
    /// Whether an undelivered attempt is given to the operator again after a restart.
    pub(crate) redelivers: bool,
    /// Whether its operator asks people, or has sessions.
    pub(crate) asks_people: bool,
    pub(crate) holds_session: bool,
    pub(crate) retry: Backoff,
    pub(crate) timeout_ms: Option<u64>,
    pub(crate) park_ms: Option<u64>,
    pub(crate) attempt: u32,
    pub(crate) counted: u32,
    pub(crate) phase: Phase,
    /// The stored row of an attempt that leaves the process.
    pub(crate) row: Option<Box<TaskRow>>,
    /// The worker in the host, if there is one.
    pub(crate) live: Option<Live>,
    /// Whether it holds a place of its agent.
    pub(crate) place: bool,
    /// Results of this attempt that broke the schema.
    pub(crate) invalid: u32,
    /// Whether its worker itself said how this attempt ended.
    pub(crate) reported: bool,
    /// The agent, while another stands in for it.
    pub(crate) home: Option<Arc<CompiledAgent>>,
    /// What the step has left to others.
    pub(crate) follows: Option<Box<Follows>>,
    /// Who this attempt is, from its dispatch until the layers heard what came of it.
    pub(crate) about: Option<Arc<About>>,
    /// Whether this attempt was dispatched before the run was read into memory.
    pub(crate) again: bool,
    /// How often in a row its time was made longer because nobody could have been heard.
    pub(crate) graces: u32,
    /// The pull worker that gets it once every layer has let it pass.
    pub(crate) leasing: Option<(String, ReplyTo<Answer>)>,
    /// What this attempt asked a senior and was not answered yet.
    pub(crate) question: Option<Question>,
    /// Whom it asks and what they said so far, for people.
    pub(crate) inquiry: Option<Inquiry>,
}

/// How far the open attempt of a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Waits for a place of its agent.
    Capacity,
    /// Waits for the time of its next attempt.
    Retry,
    /// Waits for somebody to take it.
    Pending,
    /// Somebody has it.
    Delivered,
}

/// A worker in the host.
#[derive(Clone)]
pub(crate) struct Live {
    pub(crate) cancel: CancellationToken,
    pub(crate) reported: CancellationToken,
    /// What it says.
    pub(crate) feed: Arc<Feed>,
}

/// (blueprint name, agent).
pub(crate) type AgentKey = (Arc<str>, Arc<str>);
