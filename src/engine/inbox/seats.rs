//! Seats: which session a run's tasks go to, and what a change of it means for open attempts.
//!
//! | happens | an attempt that waits | one that the former session was notified of |
//! |---|---|---|
//! | a seat is taken | goes to the new holder | ends uncounted; the next goes to the new holder |
//! | a seat of a delegated run is taken | goes to the new delegate | the same; so does all else |
//! | a session ends | waits on | ends uncounted; the next is placed anew |

use crate::{
    engine::{
        EngineError,
        run::{
            answers::refuse_ended,
            perform::Perform,
            reply::Answer,
            task::{OpenTask, Phase},
        },
        turn::{
            attempts, counting,
            facts::{self, Turn},
            lineage, opening, places, seats, settle,
        },
    },
    journal::{AttemptClosed, Decision, Fact},
    operator::{Residence, Ticket},
    protocol::{Code, Failure, SessionId, failure::kind},
    session::{EVERY, Seat},
    store::Check,
};

/// Lets a session hold an operator's seat from now on.
pub(crate) fn take_seat(
    turn: &mut Turn<'_>,
    operator: String,
    session: &SessionId,
    (by, jti): (String, Option<String>),
) -> Result<Answer, EngineError> {
    refuse_ended(turn.run)?;
    // Of a delegated run, every seat is the delegate's.
    let delegate = seats::delegate_of(turn.run);
    let operator = if delegate.is_some() { EVERY.to_owned() } else { operator };
    let held = turn.run.chain.seats().get(&operator);
    let same = match &delegate {
        Some(delegate) => delegate == session,
        None => held.is_some_and(|held| held.session == session.as_str()),
    };
    let mut epoch = held.map_or(u32::from(delegate.is_some()), |held| held.epoch);
    turn.run.pending.checks.extend(jti.map(Check::TokenLive));
    if !same {
        epoch += 1;
        lineage::note_joined(turn, session.as_str());
        let session = session.to_string();
        let seat = Decision::Seat { by, operator: operator.clone(), session, epoch };
        facts::append(turn, Fact::Decided(seat));
        move_tasks(turn, &operator, session_reason(epoch));
    }
    Ok(Answer::Epoch(epoch))
}

/// Moves the open tasks of an operator to whoever holds its seat now; of a delegated run, all that
/// its delegate has.
fn move_tasks(turn: &mut Turn<'_>, operator: &str, reason: String) {
    let Seat { delegate, holder, .. } = seats::seat(turn.run, operator);
    let holder = delegate.or(holder);
    let mut open: Vec<u32> = turn.run.open.numbers().collect();
    open.sort_unstable();
    for number in open {
        let is_moved = |task: &&OpenTask| match operator {
            EVERY => task.holds_session && task.row.is_some(),
            _ => *task.operator == *operator,
        };
        let Some(task) = turn.run.task(number).filter(is_moved) else { continue };
        let (attempt, in_flight) = (task.attempt, task.live.is_some());
        let with = turn.shared.sessions.holder(Ticket { run: turn.run.num, step: number, attempt });
        match (task.phase, with) {
            (Phase::Capacity | Phase::Retry, _) => {}
            (Phase::Pending | Phase::Delivered, with) if with.is_some() && with == holder => {}
            (Phase::Pending, None) if !in_flight => {
                let ticket = Ticket { run: turn.run.num, step: number, attempt };
                // It leaves the line that it stands in, and is placed by its new seat.
                let reason = Some(reason.clone());
                turn.run.pending.after.performs.push(Perform::Retire { ticket, reason });
                turn.run.pending.after.performs.push(Perform::Dispatch { step: number, attempt });
            }
            (Phase::Pending | Phase::Delivered, _) => reassign(turn, number, &reason),
        }
    }
}

/// Ends an attempt that somebody may have been notified of, without counting it; the next is
/// placed anew.
pub(crate) fn reassign(turn: &mut Turn<'_>, number: u32, reason: &str) {
    let Some(task) = turn.run.task(number) else { return };
    match task.phase {
        Phase::Capacity | Phase::Retry => {}
        Phase::Delivered => {
            let failure = Failure::new(kind::INTERRUPTED, reason).retryable();
            attempts::attempt_failed(turn, number, failure, None);
        }
        Phase::Pending => withdraw(turn, number, reason),
    }
}

/// Ends an attempt that nobody began, and opens the next. It is no interruption, whatever the agent
/// says of those.
pub(crate) fn withdraw(turn: &mut Turn<'_>, number: u32, reason: &str) {
    let now = facts::time_of(turn);
    let Some(attempt) = turn.run.task(number).map(|task| task.attempt) else { return };
    let failure = Failure::new(kind::INTERRUPTED, reason).retryable();
    let error = settle::located(turn.run, number, failure);
    places::leave(turn, number, reason);
    counting::close((&mut *turn.run, &turn.shared.registry), number, &error, None);
    facts::append(
        turn,
        Fact::AttemptClosed(Box::new(AttemptClosed {
            step: number,
            attempt,
            error,
            usage: None,
            retry_at_ms: now,
            counts: false,
        })),
    );
    opening::next_attempt(turn, number);
}

/// Interrupts the attempts of a run in this process at once, though the commit of that may have to wait.
pub(crate) fn interrupt(turn: &mut Turn<'_>, reason: &str) {
    let steps: Vec<u32> = turn.run.open.numbers().collect();
    for step in steps {
        let task = turn.run.task(step).filter(|task| task.residence == Residence::Host);
        let Some(live) = task.and_then(|task| task.live.as_ref()) else { continue };
        let cancel = live.cancel.clone();
        reassign(turn, step, reason);
        cancel.cancel();
    }
}

fn session_reason(epoch: u32) -> String {
    format!("another session took the seat (its epoch is {epoch})")
}

/// The refusal of a session that is not what it would have to be.
pub(crate) fn wrong_seat(message: String) -> EngineError {
    EngineError::Conflict { code: Code::WrongSeat, message }
}
