//! Who takes a task from outside: a pull worker that leases it, a person who answers it.

use crate::{
    engine::{
        Answer, Caller, EngineError, IdempotencyKey,
        inbox::inquiry::asked,
        run::{
            due::Due,
            reply::{Lease, ReplyTo},
            resident::Run,
            task::Phase,
        },
        shard::owner::Shard,
        shared::message::refuse_lease,
        turn::lineage::is_same,
        view,
    },
    fault,
    journal::{Decision, Fact, Outcome},
    operator::{Delivery, Given, Inquiry, says_no},
    protocol::{Failure, Json, failure::kind},
    store::Check,
    token::Handle,
};

impl Shard {
    pub(crate) fn lease(
        &mut self,
        run: &mut Run,
        step: u32,
        attempt: u32,
        worker: String,
        reply: ReplyTo<Lease>,
    ) {
        let lease_ms = self.steady_ms + self.shared.settings.lease_ms;
        let paused = run.chain.paused().is_some();
        let scheduled_ms = run.chain.step(step).map(|step| step.scheduled_ms);
        let free = run.task(step).is_some_and(|task| {
            task.attempt == attempt && task.phase == Phase::Pending && task.row.is_some()
        });
        let (true, false, Some(scheduled_ms)) = (free, paused, scheduled_ms) else {
            refuse_lease(reply);
            return;
        };
        if reply.is_closed() {
            // Who asked is gone: another takes it now, not when the lease would have ended.
            if let Some(task) = run.task(step) {
                self.offer_again(task, run.num, step);
            }
            return;
        }
        if let Some(task) = run.task_mut(step)
            && !task.about.as_ref().is_some_and(|about| about.has_passed())
        {
            // A queue has tasks from the start that no layer has seen since: the dispatch that
            // follows from reading the run decides whether the worker gets it.
            if let Some((_, other)) = task.leasing.replace((worker, reply)) {
                refuse_lease(other);
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
        let handle = Handle::mint(&self.shared.handles, &run.attempt_id(step, attempt)).expose();
        let lease_ms = self.shared.clock.wall_of(lease_ms);
        run.pending.after.replies.push(Box::new(move |result| {
            drop(reply.send(result.map(|_| Lease { handle, scheduled_ms, lease_ms })));
        }));
    }

    /// Every layer has let an attempt pass: who wanted to lease it gets it, or else whoever asks.
    pub(crate) fn passed(&mut self, run: &mut Run, step: u32, attempt: u32) {
        let paused = run.chain.paused().is_some();
        let Some(task) = run.task_mut(step) else { return };
        let waits = task.phase == Phase::Pending && !paused;
        match task.leasing.take() {
            Some((worker, reply)) => self.lease(run, step, attempt, worker, reply),
            None if waits => {
                let task = run.task(step).expect("it was there just now");
                self.offer_again(task, run.num, step);
            }
            None => {}
        }
    }

    /// Ends a task with what a person said, or goes on with what its step has left to others.
    fn answered(&mut self, run: &mut Run, step: u32, outcome: Outcome) {
        match outcome {
            Outcome::Completed(output) if self.is_followed(run, step, &[]) => {
                if let Err(failure) = self.follow_result(run, step, output, &[], None) {
                    let outcome = Outcome::Failed(self.located(run, step, failure));
                    self.finish_step(run, step, outcome, None, None);
                }
            }
            outcome => self.finish_step(run, step, outcome, None, None),
        }
    }

    /// Takes what a person says to a task.
    ///
    /// | they say | the task |
    /// |---|---|
    /// | no: `reject` | ends; the flow hears `human_rejected` |
    /// | no: an answer that is `false`, or whose `approved` is | ends with that answer |
    /// | yes, and more must | stays open, and shows who said what |
    /// | yes, and it is enough | ends with this last answer |
    pub(crate) fn answer(&mut self, run: &mut Run, step: u32, said: Said, reply: ReplyTo<()>) {
        fault::point("engine.answer");
        let Said { answer, revision, caller, key } = said;
        let outcome = match self.heard(run, step, answer, revision.as_deref(), &caller) {
            Ok(outcome) => outcome,
            Err(error) => {
                drop(reply.send(Err(error)));
                return;
            }
        };
        let approval = run
            .task(step)
            .and_then(|task| task.follows.as_ref())
            .is_some_and(|follows| follows.asks_a_person());
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
        match outcome {
            Outcome::Completed(output) if !says_no(&output) && self.wants_more(run, step) => {
                self.count_answer(run, step, &caller, output, true);
            }
            outcome => {
                if let Outcome::Completed(output) = &outcome {
                    self.count_answer(run, step, &caller, output.clone(), false);
                }
                let attempt = run.task(step).map_or(1, |task| task.attempt);
                self.delivered(run, step, attempt, Delivery { worker: caller.subject });
                self.answered(run, step, outcome);
            }
        }
        run.pending.after.replies.push(Box::new(move |result| {
            drop(reply.send(result.map(|_| ())));
        }));
    }

    /// What an answer comes to, if this caller may give it to what the task is now.
    fn heard(
        &self,
        run: &Run,
        step: u32,
        answer: Answer,
        revision: Option<&str>,
        caller: &Caller,
    ) -> Result<Outcome, EngineError> {
        let sessions = &self.shared.sessions;
        let (task, inquiry) = asked(sessions, run, step, caller)?;
        let denied = |code, message: String| Err(EngineError::Conflict { code, message });
        if !inquiry.asks(&caller.subject, caller.grant.role) {
            let message = format!("answer the task: it asks {}", inquiry.by.join(", "));
            return denied("wrong_role", message);
        }
        if revision.is_some_and(|seen| seen != inquiry.revision) {
            let message = format!(
                "answer the task: it is not what you were shown any more; its revision is {}",
                inquiry.revision
            );
            return denied("stale_task", message);
        }
        let of_party = |by: &str| is_same(sessions, by, &caller.subject);
        let heard = inquiry.has_heard(&caller.subject);
        if heard || inquiry.answers.iter().any(|given| of_party(&given.by)) {
            let message = format!("answer the task: {} has answered already", caller.subject);
            return denied("already_answered", message);
        }
        match answer {
            Answer::Reject { reason } => {
                let failure = Failure::new(kind::HUMAN_REJECTED, reason);
                Ok(Outcome::Failed(self.located(run, step, failure)))
            }
            Answer::Output(output) => match task.agent.output().accept_json(&output) {
                Ok(output) => Ok(Outcome::Completed(output)),
                Err(violations) => {
                    let violations = violations.into_iter().map(view::breach).collect();
                    Err(EngineError::Invalid { what: "the result", violations })
                }
            },
        }
    }

    fn wants_more(&self, run: &Run, step: u32) -> bool {
        let inquiry = run.task(step).and_then(|task| task.inquiry.as_ref());
        inquiry.is_some_and(Inquiry::wants_more)
    }

    /// Keeps one of several answers in the history, and, while the task stays open, with the task.
    fn count_answer(
        &mut self,
        run: &mut Run,
        step: u32,
        caller: &Caller,
        output: Json,
        stays: bool,
    ) {
        let now = self.time_of(run);
        let Some(task) = run.task_mut(step) else { return };
        let attempt = task.attempt;
        let Some(inquiry) = task.inquiry.as_mut().filter(|it| it.required > 1) else { return };
        let by = caller.subject.clone();
        inquiry.answers.push(Given { by: by.clone(), at_ms: now, output: output.clone() });
        let heard = u32::try_from(inquiry.answers.len()).unwrap_or(u32::MAX);
        let missing = inquiry.required.saturating_sub(heard);
        if stays {
            self.keep_inquiry(run, step);
        }
        let missing = if stays { missing } else { 0 };
        let answered = Decision::Answered { by, step, attempt, output, missing };
        self.append(run, Fact::Decided(answered));
    }
}

/// What somebody says to a task, and who.
pub(crate) struct Said {
    pub(crate) answer: Answer,
    /// What they were shown.
    pub(crate) revision: Option<String>,
    pub(crate) caller: Caller,
    pub(crate) key: Option<IdempotencyKey>,
}
