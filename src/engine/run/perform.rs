//! Effects that wait for a batch to be durable.

use tokio_util::sync::CancellationToken;

use crate::{
    engine::run::task::{AgentKey, Live},
    operator::Ticket,
    protocol::{Json, RunId},
    session::Note,
};

/// Something that leaves the engine.
pub(crate) enum Perform {
    /// Give an attempt to its operator.
    Dispatch { step: u32, attempt: u32 },
    /// Tell a worker in the host to stop.
    CancelWorker(CancellationToken),
    /// Tell a worker in the host that its result came through the worker API.
    Reported(Live),
    /// Read or change shared state for a step.
    State { step: u32 },
    /// Begin the run that a child step calls.
    StartChild { step: u32 },
    /// Cancel the run that a child step called.
    CancelChild { step: u32, child: RunId, reason: String },
    /// Tell the calling run how this one ended.
    TellParent,
    /// Carry a signal to another run.
    SendSignal { step: u32, to: u64, name: String, payload: Json },
    /// Tell the sessions that an attempt is over, and its session to stop where there is a reason.
    Retire { ticket: Ticket, reason: Option<String> },
    /// Tell the session of an attempt something.
    TellSession(Note),
    /// Give back a place of an agent.
    Release(AgentKey),
}
