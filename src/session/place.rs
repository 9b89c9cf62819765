//! Where an attempt goes: by its run's seats, or to wait for a session.

use std::sync::Arc;

use crate::protocol::{SessionId, TaskId, Ticket};

/// Who a run says should have a task.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seat {
    /// The session that takes every task of the run.
    pub delegate: Option<SessionId>,
    /// The session that holds the operator's seat in the run.
    pub holder: Option<SessionId>,
    /// The session that started the run.
    pub starter: Option<SessionId>,
}

/// An attempt on its way to a session.
#[derive(Debug, Clone)]
pub struct Spawn {
    /// The attempt.
    pub ticket: Ticket,
    /// Its task.
    pub task: TaskId,
    /// Its epoch.
    pub epoch: u32,
    /// The run's nonce.
    pub nonce: u64,
    /// The operator's name.
    pub operator: Arc<str>,
    /// Who should have it.
    pub seat: Seat,
    /// The attempt's time from its delivery on, in milliseconds.
    pub timeout_ms: Option<u64>,
    /// What a session is told that fetches the prompt itself: a JSON object.
    pub thin: Arc<str>,
    /// The same with the prompts in it, where they are small enough for a frame.
    pub full: Option<Arc<str>>,
    /// Whether the operator sends the prompts to every session.
    pub direct: bool,
}

/// What a waiting attempt waits for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Key {
    /// Room in a session.
    Session(SessionId),
    /// A session of an operator.
    Operator(Arc<str>),
}

/// Where an attempt is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// A session has it, or is about to be told.
    Held(SessionId),
    /// It waits.
    Waiting,
}

/// How a task's way to a session looks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outlook {
    /// To this session.
    To {
        /// The session.
        session: SessionId,
        /// Whether it is connected now.
        connected: bool,
    },
    /// The seat names a session that is closed or unknown.
    Vacant(SessionId),
    /// No session of the operator is open.
    NoSession,
    /// Several are, and no seat says which.
    Several(usize),
}
