//! Tasks for people while they are open: who is asked, reminders, and an end before their time.
//!
//! What a task asks, and what was said so far, stands in its row, beside what its attempt was
//! rendered to. Refuses an answer of whoever asked: a bearer that comes from a run's own attempt, or
//! of whoever stands behind one, decides nothing that the run asks people.

use crate::{
    engine::{
        Caller, EngineError, IdempotencyKey,
        run::{
            answers::closed, due::Due, question::inquiry, reply::ReplyTo, resident::Run,
            task::OpenTask,
        },
        shard::owner::Shard,
        turn::lineage::refuse_own,
    },
    fault,
    journal::{Decision, Fact},
    operator::{Inquiry, Prompt},
    protocol::{Failure, failure::kind},
    session::Hub,
    store::{Check, TaskRow, Write},
};

/// An open task that asks people, if this caller may say anything to it.
pub(crate) fn asked<'a>(
    sessions: &Hub,
    run: &'a Run,
    step: u32,
    caller: &Caller,
) -> Result<(&'a OpenTask, &'a Inquiry), EngineError> {
    let Some(task) = run.task(step).filter(|task| task.row.is_some()) else {
        return Err(match run.chain.step(step) {
            None => EngineError::NotFound { what: "task", id: format!("{}/{step}", run.id) },
            Some(_) if run.is_ended() => closed(run),
            Some(_) => EngineError::Conflict {
                code: "already_accepted",
                message: "answer the task: it has ended".into(),
            },
        });
    };
    let Some(inquiry) = &task.inquiry else {
        let message = "answer the task: it is not one for people; its worker reports".into();
        return Err(EngineError::Conflict { code: "not_human", message });
    };
    refuse_own(sessions, run, caller)?;
    Ok((task, inquiry))
}

impl Shard {
    /// Takes up what an open attempt asks of people, and when it is due.
    pub(crate) fn take_up_inquiry(&self, run: &mut Run, number: u32, row: &TaskRow) {
        let Some(inquiry) = inquiry(row) else { return };
        if let Some(at) = inquiry.remind_at_ms {
            run.timers.insert((at, number, Due::Reminder));
        }
        if let Some(at) = row.deadline_ms {
            run.timers.insert((at, number, Due::Attempt));
        }
        if let Some(task) = run.task_mut(number) {
            task.inquiry = Some(inquiry);
        }
    }

    /// Writes down what an open task asks now.
    pub(crate) fn keep_inquiry(&self, run: &mut Run, number: u32) {
        let Some(task) = run.task_mut(number) else { return };
        let (Some(row), Some(inquiry)) = (&mut task.row, &task.inquiry) else { return };
        let Ok(mut prompt) = serde_json::from_str::<Prompt>(&row.prompt) else { return };
        prompt.inquiry = Some(inquiry.clone());
        row.prompt = serde_json::to_string(&prompt).expect("a prompt is plain data");
        let row = row.clone();
        run.pending.writes.push(Write::PutTask(row));
    }

    /// Recalls a task that nobody answered.
    pub(crate) fn remind(&mut self, run: &mut Run, number: u32) {
        let now = self.time_of(run);
        let Some(task) = run.task_mut(number).filter(|task| task.row.is_some()) else { return };
        let attempt = task.attempt;
        let Some(inquiry) = &mut task.inquiry else { return };
        let count = inquiry.remind(now);
        if let Some(at) = inquiry.remind_at_ms {
            run.timers.insert((at, number, Due::Reminder));
        }
        self.keep_inquiry(run, number);
        self.append(run, Fact::Decided(Decision::Remind { step: number, attempt, count }));
    }

    /// Ends the time of a task for people, as if it had run out.
    pub(crate) fn expire(
        &mut self,
        run: &mut Run,
        step: u32,
        caller: &Caller,
        key: Option<IdempotencyKey>,
        reply: ReplyTo<()>,
    ) {
        let attempt = match asked(&self.shared.sessions, run, step, caller) {
            Ok((task, _)) => task.attempt,
            Err(error) => {
                drop(reply.send(Err(error)));
                return;
            }
        };
        fault::point("engine.expire");
        run.pending.checks.push(Check::TokenLive(caller.jti.clone()));
        if let Some(key) = &key {
            self.keep_answer(run, &caller.subject, key, "null".into());
        }
        let by = caller.subject.clone();
        let failure = Failure::new(kind::TIMEOUT, format!("{by} ended the wait for an answer"));
        self.append(run, Fact::Decided(Decision::Expire { by, step, attempt }));
        self.attempt_failed(run, step, failure.retryable(), None);
        run.pending.after.replies.push(Box::new(move |result| {
            drop(reply.send(result.map(|_| ())));
        }));
    }
}
