//! What a run does when its time comes.

use crate::{
    engine::{
        run::{
            due::{Due, Times},
            perform::Perform,
            resident::Run,
        },
        shard::owner::Shard,
    },
    fault,
    journal::{Outcome, RunState},
    protocol::{Failure, Json, failure::kind},
    store::Write,
};

/// How often in a row one lease or deadline is put off.
const GRACES: u32 = 3;

impl Shard {
    /// Lets happen what is due.
    pub(crate) fn wake(&mut self, run: &mut Run) {
        if run.chain.paused().is_some() || run.is_ended() {
            return;
        }
        let now = Times { wall: self.now_ms, steady: self.steady_ms };
        while let Some((at, number, due)) = run.timers.pop(now) {
            if !self.is_put_off(run, number, due, at) {
                self.due(run, number, due);
            }
            if run.is_ended() {
                break;
            }
        }
    }

    /// Puts off the end of a time in which somebody had to be heard, if for a part of it nobody
    /// could have been: the host was away or paused, or so busy that it was late by a second.
    fn is_put_off(&mut self, run: &mut Run, number: u32, due: Due, at: u64) -> bool {
        let lease_ms = self.shared.settings.lease_ms;
        let resumed = self.shared.clock.resumed_ms().max(self.shared.booted_ms);
        let Some(task) = run.task_mut(number) else { return false };
        let given = match due {
            Due::Lease => Some(lease_ms),
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
            | Due::LoopNear => None,
        };
        let Some(given) = given else { return false };
        let until = resumed + given.min(lease_ms);
        if at.saturating_sub(given) >= resumed || until <= self.steady_ms || task.graces >= GRACES {
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
            let row = row.clone();
            run.pending.writes.push(Write::PutTask(row));
        }
        run.timers.insert((until, number, due));
        true
    }

    fn due(&mut self, run: &mut Run, number: u32, due: Due) {
        fault::point("engine.timer");
        match due {
            Due::Timer => {
                self.finish_step(run, number, Outcome::Completed(Json::null()), None, None);
            }
            Due::SignalDeadline => {
                let value = crate::engine::run::values::timeout_value();
                self.finish_step(run, number, Outcome::Completed(value), None, None);
            }
            Due::Attempt => {
                let Some(task) = run.task(number) else { return };
                let timeout = task.timeout_ms.unwrap_or_default();
                let message = match task.inquiry {
                    Some(_) => format!("nobody answered within {timeout} ms"),
                    None => format!("the attempt took longer than {timeout} ms"),
                };
                let failure = Failure::new(kind::TIMEOUT, message);
                self.attempt_failed(run, number, failure.retryable(), None);
            }
            Due::Lease => {
                let failure = Failure::new(kind::INTERRUPTED, "the worker's lease ran out");
                self.attempt_failed(run, number, failure.retryable(), None);
            }
            Due::Park => {
                let operator = run.task(number).map(|task| task.operator.to_string());
                let failure = Failure::new(
                    kind::OPERATOR_UNAVAILABLE,
                    format!("nobody took the task from {}", operator.unwrap_or_default()),
                );
                self.attempt_failed(run, number, failure.retryable(), None);
            }
            Due::Loop => self.loop_timed_out(run, number),
            Due::LoopNear => self.loop_near_its_end(run, number),
            Due::Reminder => self.remind(run, number),
            Due::Retry => self.next_attempt(run, number),
            Due::Child => {
                run.pending.after.performs.push(Perform::StartChild { step: number });
            }
            Due::State => {
                run.pending.after.performs.push(Perform::State { step: number });
            }
            Due::Wall => {
                let failure = Failure::new(kind::LIMIT, "the run took longer than its wall limit");
                self.wind_up(run, Outcome::Failed(failure));
            }
            Due::Compensation => {
                if let RunState::Compensating(ending) = run.chain.state() {
                    let ending = ending.clone();
                    self.end(run, ending);
                }
            }
        }
    }
}
