//! Seats: which session a run's tasks go to, and what a change of it means for open attempts.
//!
//! | happens | an attempt that waits | one that the former session was told of |
//! |---|---|---|
//! | a seat is taken | goes to the new holder | ends uncounted; the next goes to the new holder |
//! | a session ends | waits on | ends uncounted; the next is placed anew |

use std::sync::Arc;

use crate::{
    engine::{
        EngineError,
        run::{answers::closed, perform::Perform, reply::ReplyTo, resident::Run, task::Phase},
        shard::owner::Shard,
        turn::waiting::seat,
    },
    journal::{AttemptClosed, Decision, Fact},
    operator::Ticket,
    protocol::{Failure, SessionId, failure::kind},
    session::Seat,
    store::Check,
};

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
