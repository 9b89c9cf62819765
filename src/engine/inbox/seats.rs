//! Seats: which session a run's tasks go to, and what a change of it means for open attempts.
//!
//! | happens | an attempt that waits | one that the former session was told of |
//! |---|---|---|
//! | a seat is taken | goes to the new holder | ends uncounted; the next goes to the new holder |
//! | a session ends | waits on | ends uncounted; the next is placed anew |

use std::sync::Arc;

use crate::engine::{
    EngineError, WaitingOn,
    inbox::receive::closed,
    run::resident::{OpenTask, Perform, Phase, Run},
    shard::serve::Shard,
    shared::message::ReplyTo,
    turn::lineage::session_in,
};
use crate::{
    journal::{AttemptClosed, Decision, Fact},
    operator::Ticket,
    protocol::{Failure, SessionId, failure::kind},
    session::{Hub, Outlook, Seat},
    store::Check,
};

/// The epoch of an operator's seat in a run; 0 where nobody took it.
pub(crate) fn seat_epoch(run: &Run, operator: &str) -> u32 {
    run.chain.seats().get(operator).map_or(0, |held| held.epoch)
}

/// Who should have the tasks of an operator in a run.
fn seat(run: &Run, operator: &str) -> Seat {
    let holder = run.chain.seats().get(operator);
    let (delegate, starter) = run.chain.started().map_or((None, None), |(started, _)| {
        (started.delegate.as_deref(), session_in(&started.principal))
    });
    Seat {
        delegate: delegate.map(SessionId::from),
        holder: holder.map(|held| SessionId::from(held.session.as_str())),
        starter: starter.map(SessionId::from),
    }
}

/// Says of a task that waits for a session which one that is, and what would help.
pub(crate) fn wait(
    run: &Run,
    number: u32,
    task: &OpenTask,
    sessions: &Hub,
    on: WaitingOn,
) -> WaitingOn {
    let of_session = task.row.as_ref().is_some_and(|row| row.kind == "main_ai");
    if !of_session || task.phase != Phase::Pending {
        return on;
    }
    let operator = &task.operator;
    let ticket = Ticket { run: run.num, step: number, attempt: task.attempt };
    let open = format!("moonswarm sessions open {operator}");
    let take = format!("moonswarm seat {} {operator} <session>", run.id);
    let (what, command) = match sessions.outlook(ticket, operator, &seat(run, operator)) {
        Outlook::To { session, connected: true } => (format!("session {session}"), None),
        Outlook::To { session, connected: false } => {
            (format!("session {session}, which is not connected"), Some(take))
        }
        Outlook::Vacant(session) => (format!("session {session}, which is closed"), Some(take)),
        Outlook::NoSession => ("a session to open".to_owned(), Some(open)),
        Outlook::Several(many) => (format!("a seat: {many} sessions are open"), Some(take)),
    };
    WaitingOn { what: format!("{} for {what}", on.what), command, ..on }
}

impl Shard {
    /// The session that takes every task of a run.
    pub(crate) fn delegate_of(&self, run: &Run) -> Option<SessionId> {
        let (started, _) = run.chain.started()?;
        started.delegate.as_deref().map(SessionId::from)
    }

    /// Who should have a task of an operator.
    pub(crate) fn seat_of(&self, run: &Run, operator: &Arc<str>) -> Seat {
        seat(run, operator)
    }

    /// Lets a session hold an operator's seat from now on.
    pub(crate) fn take_seat(
        &mut self,
        run: &mut Run,
        operator: String,
        session: &SessionId,
        (by, jti): (String, Option<String>),
        reply: ReplyTo<u32>,
    ) {
        if run.is_ended() {
            drop(reply.send(Err(closed(run))));
            return;
        }
        let held = run.chain.seats().get(&operator);
        let same = held.is_some_and(|held| held.session == session.as_str());
        let mut epoch = held.map_or(0, |held| held.epoch);
        run.pending.checks.extend(jti.map(Check::TokenLive));
        if !same {
            epoch += 1;
            self.note_joined(run, session.as_str());
            let session = session.to_string();
            let seat = Decision::Seat { by, operator: operator.clone(), session, epoch };
            self.append(run, Fact::Decided(seat));
            self.move_tasks(run, &operator, session_reason(epoch));
        }
        run.pending.after.replies.push(Box::new(move |result| {
            drop(reply.send(result.map(|_| epoch)));
        }));
    }

    /// Moves the open tasks of an operator to whoever holds its seat now.
    fn move_tasks(&mut self, run: &mut Run, operator: &str, reason: String) {
        if self.delegate_of(run).is_some() {
            return;
        }
        let holder = seat(run, operator).holder;
        let mut open: Vec<u32> = run.open.numbers().collect();
        open.sort_unstable();
        for number in open {
            let Some(task) = run.task(number).filter(|task| *task.operator == *operator) else {
                continue;
            };
            let (attempt, in_flight) = (task.attempt, task.live.is_some());
            let with = self.shared.sessions.holder(Ticket { run: run.num, step: number, attempt });
            match (task.phase, with) {
                (Phase::Capacity | Phase::Retry, _) => {}
                (Phase::Pending | Phase::Delivered, with) if with.is_some() && with == holder => {}
                (Phase::Pending, None) if !in_flight => {
                    let ticket = Ticket { run: run.num, step: number, attempt };
                    // It leaves the line that it stands in, and is placed by its new seat.
                    let reason = Some(reason.clone());
                    run.pending.after.performs.push(Perform::Retire { ticket, reason });
                    run.pending.after.performs.push(Perform::Dispatch { step: number, attempt });
                }
                (Phase::Pending | Phase::Delivered, _) => self.reassign(run, number, &reason),
            }
        }
    }

    /// Ends an attempt that somebody may have been told of, without counting it; the next is
    /// placed anew.
    pub(crate) fn reassign(&mut self, run: &mut Run, number: u32, reason: &str) {
        let now = self.time_of(run);
        let Some(task) = run.task(number) else { return };
        let attempt = task.attempt;
        let failure = Failure::new(kind::INTERRUPTED, reason).retryable();
        match task.phase {
            Phase::Capacity | Phase::Retry => {}
            Phase::Delivered => self.attempt_failed(run, number, failure, None),
            Phase::Pending => {
                // Nobody began: it is no interruption, whatever the agent says of those.
                let error = self.located(run, number, failure);
                self.leave(run, number, reason);
                self.append(
                    run,
                    Fact::AttemptClosed(Box::new(AttemptClosed {
                        step: number,
                        attempt,
                        error,
                        usage: None,
                        retry_at_ms: now,
                        counts: false,
                    })),
                );
                self.next_attempt(run, number);
            }
        }
    }
}

fn session_reason(epoch: u32) -> String {
    format!("another session took the seat (its epoch is {epoch})")
}

/// The refusal of a session that is not what it would have to be.
pub(crate) fn wrong_seat(message: String) -> EngineError {
    EngineError::Conflict { code: "wrong_seat", message }
}
