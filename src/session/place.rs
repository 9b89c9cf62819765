//! The placement of an attempt: with a session, or in a queue for one.

use std::sync::Arc;

use serde::Deserialize;

use crate::protocol::{SessionId, TaskId, Ticket};

/// The operator under which the history of a run keeps who its delegate is, once that has changed.
/// No operator has this name.
pub const EVERY: &str = "*";

/// The candidates that a run names for a task.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seat {
    /// The session that takes every task of the run.
    pub delegate: Option<SessionId>,
    /// The session that holds the operator's seat in the run.
    pub holder: Option<SessionId>,
    /// The session that started the run.
    pub starter: Option<SessionId>,
}

/// A successor for the tasks of a delegate, or of the holder of a seat, whose session is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fallback {
    /// The holder of the operator's seat, for a run whose delegate is gone.
    Seat,
    /// The session that started the run, if it is one of the operator.
    Starter,
    /// The only open session of the operator.
    Only,
}

impl Seat {
    /// Returns true if a session is one of the candidates.
    pub(super) fn names(&self, session: &SessionId) -> bool {
        [&self.delegate, &self.holder, &self.starter].into_iter().flatten().any(|it| it == session)
    }

    /// Returns the session that a task goes to.
    ///
    /// | the run has | the task goes to |
    /// |---|---|
    /// | a delegate | the delegate, or no session |
    /// | a holder of the seat | the holder, or no session |
    /// | neither, and a session of the operator started it | that session |
    /// | none of these | the only session of the operator, if there is exactly one |
    ///
    /// If the session that the first two rows name is closed, the order of [`Fallback`] decides.
    pub(super) fn choose(
        &self,
        fallback: &[Fallback],
        is_open: impl Fn(&SessionId) -> bool,
        starter: impl Fn() -> Option<SessionId>,
        only: impl Fn() -> Option<SessionId>,
    ) -> Option<SessionId> {
        let Some(named) = self.delegate.as_ref().or(self.holder.as_ref()) else {
            return starter().or_else(only);
        };
        if is_open(named) {
            return Some(named.clone());
        }
        fallback.iter().find_map(|fallback| match fallback {
            Fallback::Seat => self.holder.clone().filter(|holder| is_open(holder)),
            Fallback::Starter => starter(),
            Fallback::Only => only(),
        })
    }
}

/// An attempt that is to be given to a session.
#[derive(Debug, Clone)]
pub struct Spawn {
    /// The attempt.
    pub ticket: Ticket,
    /// Its task.
    pub task: TaskId,
    /// The attempt's epoch.
    pub epoch: u32,
    /// The run's nonce.
    pub nonce: u64,
    /// The operator's name.
    pub operator: Arc<str>,
    /// The candidates for the task.
    pub seat: Seat,
    /// The timeout of the attempt, counted from its delivery, in milliseconds.
    pub timeout_ms: Option<u64>,
    /// The parameters for a session that fetches the prompt itself: a JSON object.
    pub thin: Arc<str>,
    /// The parameters with the prompts, if these are small enough for a frame.
    pub full: Option<Arc<str>>,
    /// True if the operator sends the prompts to every session.
    pub direct: bool,
}

impl Spawn {
    /// Returns the approximate size in bytes.
    pub(super) fn size(&self) -> usize {
        self.thin.len() + self.full.as_ref().map_or(0, |full| full.len()) + 256
    }
}

/// The resource that a waiting attempt needs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Key {
    /// Room in a session.
    Session(SessionId),
    /// A session of an operator.
    Operator(Arc<str>),
}

/// The place of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Assignment {
    /// Held by a session, or its frame is queued for one.
    Held(SessionId),
    /// In this queue, with its number there.
    Waiting(Key, u64),
}

/// The destination of a task at this moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outlook {
    /// The task goes to this session.
    To {
        /// The session.
        session: SessionId,
        /// True if a client is connected now.
        connected: bool,
    },
    /// The seat names a session that is closed or unknown.
    Vacant(SessionId),
    /// No session of the operator is open.
    NoSession,
    /// Several sessions are open, and no seat selects one.
    Several(usize),
}
