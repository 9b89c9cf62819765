//! Fires the timers of a run.

use crate::{
    engine::{
        run::{
            due::{Due, Times},
            perform::Perform,
        },
        turn::{attempts, ending, facts::Turn, opening, reminders, steps, wholes},
    },
    fault,
    journal::{Outcome, RunState},
    protocol::{Failure, Json, failure::kind},
    store::Write,
};

/// The maximum number of times in a row that a lease or deadline is postponed.
const GRACES: u32 = 3;

/// Lets happen what is due.
pub(crate) fn wake(turn: &mut Turn<'_>) {
    if turn.run.chain.paused().is_some() || turn.run.is_ended() {
        return;
    }
    let now = Times { wall: turn.now_ms, steady: turn.steady_ms };
    while let Some((at, number, due)) = turn.run.timers.pop(now) {
        if !is_put_off(turn, number, due, at) {
            fire(turn, number, due);
        }
        if turn.run.is_ended() {
            break;
        }
    }
}

/// Puts off the end of a time in which somebody had to be heard, if for a part of it nobody
/// could have been: the host was away or paused, or so busy that it was late by a second.
fn is_put_off(turn: &mut Turn<'_>, number: u32, due: Due, at: u64) -> bool {
    let lease_ms = turn.shared.settings.lease_ms;
    let resumed = turn.shared.clock.resumed_ms().max(turn.shared.booted_ms);
    let Some(task) = turn.run.task_mut(number) else { return false };
    let given = match due {
        Due::Lease => Some(task.own_lease_ms().unwrap_or(lease_ms)),
        Due::Attempt => task.timeout_ms,
        Due::Park => task.park_ms,
        Due::Timer
        | Due::SignalDeadline
        | Due::Retry
        | Due::Child
        | Due::State
        | Due::Wall
        | Due::Compensation
        | Due::Reminder
        | Due::Loop
        | Due::LoopNear
        | Due::Conversation => None,
    };
    let Some(given) = given else { return false };
    if task.handing_ms.is_some() && matches!(due, Due::Lease | Due::Attempt) {
        // Its worker does not have it yet: the time begins then.
        turn.run.timers.insert((turn.steady_ms + given, number, due));
        return true;
    }
    let until = match due {
        Due::Lease => resumed + given,
        _ => resumed + given.min(lease_ms),
    };
    if at.saturating_sub(given) >= resumed || until <= turn.steady_ms || task.graces >= GRACES {
        return false;
    }
    task.graces += 1;
    if let Some(row) = &mut task.row {
        row.graces = task.graces;
        match due {
            Due::Lease => row.lease_ms = Some(until),
            Due::Attempt => row.deadline_ms = Some(until),
            _ => {}
        }
        let hold = Box::new(row.hold());
        turn.run.pending.writes.push(Write::HoldTask(hold));
    }
    turn.run.timers.insert((until, number, due));
    true
}

fn fire(turn: &mut Turn<'_>, number: u32, due: Due) {
    fault::point("engine.timer");
    match due {
        Due::Timer => {
            steps::finish_step(turn, number, Outcome::Completed(Json::null()), None, None);
        }
        Due::SignalDeadline => {
            let value = crate::engine::run::values::timeout_value();
            steps::finish_step(turn, number, Outcome::Completed(value), None, None);
        }
        Due::Attempt => {
            let Some(task) = turn.run.task(number) else { return };
            let timeout = task.timeout_ms.unwrap_or_default();
            let message = match task.inquiry {
                Some(_) => format!("nobody answered within {timeout} ms"),
                None => format!("the attempt took longer than {timeout} ms"),
            };
            let failure = Failure::new(kind::TIMEOUT, message);
            attempts::attempt_failed(turn, number, failure.retryable(), None);
        }
        Due::Lease => attempts::lease_over(turn, number),
        Due::Park => {
            let operator = turn.run.task(number).map(|task| task.operator.to_string());
            let failure = Failure::new(
                kind::OPERATOR_UNAVAILABLE,
                format!("nobody took the task from {}", operator.unwrap_or_default()),
            );
            attempts::attempt_failed(turn, number, failure.retryable(), None);
        }
        Due::Loop => wholes::loop_timed_out(turn, number),
        Due::LoopNear => wholes::loop_near_its_end(turn, number),
        Due::Conversation => wholes::overtake(turn, number),
        Due::Reminder => reminders::remind(turn, number),
        Due::Retry => opening::next_attempt(turn, number),
        Due::Child => {
            turn.run.pending.after.performs.push(Perform::StartChild { step: number });
        }
        Due::State => {
            turn.run.pending.after.performs.push(Perform::State { step: number });
        }
        Due::Wall => {
            let failure = Failure::new(kind::LIMIT, "the run took longer than its wall limit");
            ending::wind_up(turn, Outcome::Failed(failure));
        }
        Due::Compensation => {
            if let RunState::Compensating(ending) = turn.run.chain.state() {
                let ending = ending.clone();
                ending::end(turn, ending);
            }
        }
    }
}
