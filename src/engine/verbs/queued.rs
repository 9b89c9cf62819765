//! Takes up the open tasks of queues and sessions when the host starts.

use crate::{
    engine::{
        inbox::escalate,
        shared::{message::Internal, shards::Shared},
    },
    operator::Ticket,
    protocol::{SessionId, TaskId},
    store::{StoreError, TaskPhase, TaskRow},
};

/// Takes up an open task of a session when the host starts.
pub(crate) fn take_up(shared: &Shared, row: &TaskRow) {
    let ticket = ticket_of(row);
    match (row.phase, &row.worker) {
        (TaskPhase::Delivered, Some(worker)) => {
            let task = TaskId::new(row.run, row.step, row.scheduled_ms);
            let session = SessionId::from(worker.as_str());
            if !shared.sessions.adopt(&session, ticket, task, row.epoch) {
                // The session ended, and the host died before the run was notified.
                let reason = format!("session {session} ended");
                let Ticket { run, step, attempt } = ticket;
                shared.tell(run, Internal::Unseat { step, attempt, reason });
            } else if let Some(answer) = escalate::answer_note(row) {
                // It was only in memory until its frame was stored.
                shared.sessions.tell_again(answer);
            }
        }
        (TaskPhase::Pending, _) if !shared.sessions.knows(ticket) => shared.sessions.expect_more(),
        (TaskPhase::Pending | TaskPhase::Delivered, _) => {}
    }
}

/// Retires the attempts of sessions that are no longer open in the store.
pub(crate) fn reconcile(shared: &Shared) -> Result<(), StoreError> {
    for ticket in shared.sessions.placed() {
        let row = shared.store.task(ticket.run, ticket.step)?;
        if row.is_none_or(|row| row.attempt != ticket.attempt) {
            shared.sessions.retire(ticket, Some("the attempt is over"));
        }
    }
    Ok(())
}

pub(crate) fn ticket_of(row: &TaskRow) -> Ticket {
    Ticket { run: row.run, step: row.step, attempt: row.attempt }
}

/// The time for which closed sessions are listed, in milliseconds.
pub(crate) const SHOWN_MS: u64 = 24 * 3_600 * 1_000;
