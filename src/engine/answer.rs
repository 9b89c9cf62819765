//! Who takes a task from outside: a pull worker that leases it, a person who answers it.

use super::{
    Answer, Caller, EngineError, IdempotencyKey,
    due::Due,
    message::{Lease, ReplyTo},
    receive::closed,
    run::{Phase, Run},
    shard::Shard,
    view,
};
use crate::{
    fault,
    journal::Outcome,
    operator::Delivery,
    protocol::{Failure, failure::kind},
    store::Check,
    token::{Handle, Role},
};

impl Shard {
    pub(super) fn lease(
        &mut self,
        run: &mut Run,
        step: u32,
        attempt: u32,
        worker: String,
        reply: ReplyTo<Lease>,
    ) {
        let now = self.time_of(run);
        let lease_ms = now + self.shared.settings.lease_ms;
        let paused = run.chain.paused().is_some();
        let scheduled_ms = run.chain.step(step).map(|step| step.scheduled_ms);
        let free = run.task(step).is_some_and(|task| {
            task.attempt == attempt && task.phase == Phase::Pending && task.row.is_some()
        });
        let (true, false, Some(scheduled_ms)) = (free, paused, scheduled_ms) else {
            drop(reply.send(Err(EngineError::Conflict {
                code: "fenced",
                message: "lease the task: it is not waiting any more".into(),
            })));
            return;
        };
        if reply.is_closed() {
            // Who asked is gone: another takes it now, not when the lease would have ended.
            if let Some(task) = run.task(step) {
                self.offer_again(task, run.num, step);
            }
            return;
        }
        fault::point("engine.lease");
        if let Some(task) = run.task_mut(step)
            && let Some(row) = &mut task.row
        {
            row.lease_ms = Some(lease_ms);
        }
        run.timers.insert((lease_ms, step, Due::Lease));
        self.delivered(run, step, attempt, Delivery { worker });
        let epoch = run.header.epoch;
        let handle = Handle::mint(&self.shared.handles, run.num, step, attempt, epoch).expose();
        run.pending.after.replies.push(Box::new(move |result| {
            drop(reply.send(result.map(|_| Lease { handle, scheduled_ms, lease_ms })));
        }));
    }

    pub(super) fn answer(
        &mut self,
        run: &mut Run,
        step: u32,
        answer: Answer,
        caller: &Caller,
        key: Option<IdempotencyKey>,
        reply: ReplyTo<()>,
    ) {
        let refuse = |reply: ReplyTo<()>, error| drop(reply.send(Err(error)));
        fault::point("engine.answer");
        let Some(task) = run.task(step).filter(|task| task.row.is_some()) else {
            let error = match run.chain.step(step) {
                None => EngineError::NotFound { what: "task", id: format!("{}/{step}", run.id) },
                Some(_) if run.is_ended() => closed(run),
                Some(_) => EngineError::Conflict {
                    code: "already_accepted",
                    message: "answer the task: it has ended".into(),
                },
            };
            return refuse(reply, error);
        };
        if task.row.as_ref().is_some_and(|row| row.kind != "human") {
            let message = "answer the task: it is not one for people; its worker reports".into();
            return refuse(reply, EngineError::Conflict { code: "not_human", message });
        }
        if let Some(by) = &task.request.opts.by
            && by != caller.grant.role.as_str()
            && caller.grant.role != Role::Admin
        {
            let message = format!("answer the task: only the role {by} may");
            return refuse(reply, EngineError::Conflict { code: "wrong_role", message });
        }
        let outcome = match answer {
            Answer::Reject { reason } => {
                let failure = Failure::new(kind::HUMAN_REJECTED, reason);
                Outcome::Failed(self.located(run, step, failure))
            }
            Answer::Output(output) => match task.agent.output().accept_json(&output) {
                Ok(output) => Outcome::Completed(output),
                Err(violations) => {
                    let violations = violations.into_iter().map(view::breach).collect();
                    let error = EngineError::Invalid { what: "the result", violations };
                    return refuse(reply, error);
                }
            },
        };
        let approval = task.follows.as_ref().is_some_and(|follows| follows.asks_a_person());
        let outcome = match outcome {
            // A tool that is not allowed is an answer too: the operator goes on without it.
            Outcome::Failed(failure) if approval => {
                let answer = serde_json::json!({ "approved": false, "note": failure.message });
                Outcome::Completed(answer.into())
            }
            outcome => outcome,
        };
        run.pending.checks.push(Check::TokenLive(caller.jti.clone()));
        if let Some(key) = &key {
            self.keep_answer(run, &caller.subject, key, "null".into());
        }
        if run.task(step).is_some_and(|task| task.phase == Phase::Pending) {
            let attempt = run.task(step).map_or(1, |task| task.attempt);
            self.delivered(run, step, attempt, Delivery { worker: caller.subject.clone() });
        }
        match outcome {
            Outcome::Completed(output) if self.is_followed(run, step, &[]) => {
                if let Err(failure) = self.follow_result(run, step, output, &[], None) {
                    let outcome = Outcome::Failed(self.located(run, step, failure));
                    self.finish_step(run, step, outcome, None, None);
                }
            }
            outcome => self.finish_step(run, step, outcome, None, None),
        }
        run.pending.after.replies.push(Box::new(move |result| {
            drop(reply.send(result.map(|_| ())));
        }));
    }
}
