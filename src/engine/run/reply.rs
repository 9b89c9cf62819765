//! The receivers of a run's replies.

use tokio::sync::oneshot;

use crate::engine::{EngineError, RunView};

/// The sender of a reply. A dropped receiver cancels nothing.
pub(crate) type ReplyTo<T> = oneshot::Sender<Result<T, EngineError>>;

/// A waiter for a condition of a run.
pub(crate) struct Waiter {
    pub(crate) until: WaitFor,
    pub(crate) reply: oneshot::Sender<RunView>,
}

/// A task that was leased.
#[derive(Debug, Clone)]
pub(crate) struct Lease {
    pub(crate) handle: String,
    pub(crate) scheduled_ms: u64,
    pub(crate) lease_ms: u64,
}

/// The condition to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitFor {
    /// The run has ended.
    Ended,
    /// The run has ended, or only people are left to wait for.
    EndedOrPeople,
}
