//! The actions that wait for a batch to be durable.

use tokio::sync::{OwnedMutexGuard, OwnedRwLockReadGuard};
use tokio_util::sync::CancellationToken;

use crate::{
    engine::{
        EngineError,
        run::{
            reply::{Answer, ReplyTo},
            task::{AgentKey, Live},
        },
    },
    middleware::Promise,
    operator::{Claim, TaskLease, Ticket},
    protocol::{Json, RunId},
    session::Note,
};

/// The right to write to a scope that somebody else keeps, alone.
pub(crate) type Held = OwnedMutexGuard<()>;

/// While it lives, no version of a blueprint is deleted.
pub(crate) type Stored = OwnedRwLockReadGuard<()>;

/// An action that leaves the engine.
pub(crate) enum Perform {
    /// Dispatches an attempt to its operator.
    Dispatch { step: u32, attempt: u32 },
    /// Gives a pull worker its lease.
    Handed { to: Taker, lease: Box<TaskLease> },
    /// Cancels a worker in the host.
    CancelWorker(CancellationToken),
    /// Notifies a worker in the host that its result came through the worker API.
    Reported(Live),
    /// Reads or changes shared state for a step.
    State { step: u32 },
    /// Hands a change to the lane of a scope that somebody else keeps.
    Change { scope: String },
    /// Lets others write to a scope that somebody else keeps.
    LetGo(Held),
    /// Lets blueprints be deleted again: the new run is stored.
    Begun(Stored),
    /// Starts the child run of a step.
    StartChild { step: u32 },
    /// Cancels the child run of a step.
    CancelChild { step: u32, child: RunId, reason: String },
    /// Reports the end of this run to its parent.
    TellParent,
    /// Sends a signal to another run.
    SendSignal { step: u32, to: u64, name: String, payload: Json },
    /// Notifies the sessions that an attempt is over, and tells its session to stop if there is a
    /// reason.
    Retire { ticket: Ticket, reason: Option<String> },
    /// Sends a notification to the session of an attempt.
    TellSession(Note),
    /// Hands an opened task to the webhooks.
    Announce,
    /// Stores what a layer has promised with a result that is accepted now.
    Keep(Promise),
    /// Releases a place of an agent.
    Release(AgentKey),
}

/// The receiver of a lease.
pub(crate) enum Taker {
    /// The poller that was claimed for the task.
    Claimed(Claim),
    /// Whoever asked for the task.
    Asked(ReplyTo<Answer>),
}

impl Taker {
    /// Refuses the lease. A poller that was claimed waits on: it has asked for no certain task.
    pub(crate) fn refuse(self, error: EngineError) {
        if let Self::Asked(reply) = self {
            // The caller may be gone.
            let _ = reply.send(Err(error));
        }
    }
}
