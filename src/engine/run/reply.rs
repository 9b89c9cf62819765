//! Where answers of a run go.

use tokio::sync::oneshot;

use crate::engine::{EngineError, RunView};

/// Where an answer goes. A receiver that went away cancels nothing.
pub(crate) type ReplyTo<T> = oneshot::Sender<Result<T, EngineError>>;

/// Somebody who waits for a run.
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

/// When to stop waiting for a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitFor {
    /// It ended.
    Ended,
    /// It ended, or only people are left to wait for.
    EndedOrPeople,
}
