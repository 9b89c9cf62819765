//! What a run does when its time comes.

use super::{
    due::Due,
    run::{Perform, Run},
    shard::Shard,
};
use crate::{
    fault,
    journal::{Outcome, RunState},
    protocol::{Failure, Json, failure::kind},
};

impl Shard {
    /// Lets happen what is due.
    pub(super) fn wake(&mut self, run: &mut Run) {
        if run.chain.paused().is_some() || run.is_ended() {
            return;
        }
        while let Some((_, number, due)) = run.timers.pop(self.now_ms) {
            self.due(run, number, due);
            if run.is_ended() {
                break;
            }
        }
    }

    fn due(&mut self, run: &mut Run, number: u32, due: Due) {
        fault::point("engine.timer");
        match due {
            Due::Timer => {
                self.finish_step(run, number, Outcome::Completed(Json::null()), None, None);
            }
            Due::SignalDeadline => {
                let value = super::drive::timeout_value();
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
