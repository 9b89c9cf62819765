//! Escalation: an attempt asks a senior, its step waits, the answer goes to the same attempt.
//!
//! The question stands in the open task's row, with the time that the attempt had left: nothing
//! is counted against it while it waits.

use crate::{
    engine::{
        Caller, EngineError, Holder, IdempotencyKey,
        run::{
            answers::closed, due::Due, perform::Perform, question::Question, reply::ReplyTo,
            resident::Run,
        },
        shard::owner::Shard,
        turn::lineage::refuse_own,
    },
    journal::{Decision, Fact},
    operator::{Delivery, Ticket},
    protocol::{Json, TaskId},
    session::{Method, Note},
    store::{Check, Write},
};

/// The largest question and the largest answer, in bytes.
const WORDS: usize = 64 << 10;

impl Shard {
    /// Lets an attempt wait for a senior.
    pub(crate) fn escalate(
        &mut self,
        run: &mut Run,
        holder: &Holder,
        asked: Json,
    ) -> Result<(), EngineError> {
        if asked.len() > WORDS {
            return Err(EngineError::TooLarge {
                what: "the question",
                size: asked.len(),
                limit: WORDS,
            });
        }
        let (step, attempt) = (holder.step, holder.attempt);
        if run.task(step).is_some_and(|task| task.question.is_some()) {
            return Err(EngineError::Conflict {
                code: "question_open",
                message: "escalate: this attempt waits for an answer already".into(),
            });
        }
        let worker = holder.session.as_ref().map_or_else(|| "handle".to_owned(), |s| s.0.clone());
        self.delivered(run, step, attempt, Delivery { worker });
        let (now, steady) = (self.time_of(run), self.steady_ms);
        run.timers.remove(step, Due::Attempt);
        let Some(task) = run.task_mut(step) else { return Ok(()) };
        let Some(row) = &mut task.row else { return Ok(()) };
        let left_ms = row.deadline_ms.take().map(|deadline| deadline.saturating_sub(steady));
        let question =
            Question { asked: asked.clone(), asked_ms: now, left_ms, answer: None, by: None };
        row.question = Some(serde_json::to_string(&question).expect("plain data"));
        let row = row.clone();
        task.question = Some(question);
        run.pending.writes.push(Write::PutTask(row));
        let decision = Decision::Escalate { step, attempt, question: asked };
        self.append(run, Fact::Decided(decision));
        Ok(())
    }

    /// Hands a senior's answer to the attempt that asked.
    pub(crate) fn advise(
        &mut self,
        run: &mut Run,
        step: u32,
        answer: Json,
        caller: &Caller,
        key: Option<IdempotencyKey>,
        reply: ReplyTo<()>,
    ) {
        let refusal = if run.is_ended() {
            Some(closed(run))
        } else if answer.len() > WORDS {
            Some(EngineError::TooLarge { what: "the answer", size: answer.len(), limit: WORDS })
        } else if run.task(step).is_none_or(|task| task.question.is_none()) {
            let message = "advise: the task asks nothing".into();
            Some(EngineError::Conflict { code: "no_question", message })
        } else {
            refuse_own(&self.shared.sessions, run, caller).err()
        };
        if let Some(refusal) = refusal {
            drop(reply.send(Err(refusal)));
            return;
        }
        let (now, by) = (self.steady_ms, caller.subject.clone());
        let Some(task) = run.task_mut(step) else { return };
        let (Some(mut question), Some(row)) = (task.question.take(), &mut task.row) else { return };
        question.answer = Some(answer.clone());
        question.by = Some(by.clone());
        row.deadline_ms = question.left_ms.map(|left| now + left);
        row.question = Some(serde_json::to_string(&question).expect("plain data"));
        let (row, attempt) = (row.clone(), task.attempt);
        if let Some(deadline) = row.deadline_ms {
            run.timers.insert((deadline, step, Due::Attempt));
        }
        let task = TaskId::new(run.num, step, row.scheduled_ms);
        let params = serde_json::json!({
            "task": task,
            "attempt": attempt,
            "question": question.asked.to_value().get("question"),
            "answer": answer,
            "by": by,
        });
        run.pending.after.performs.push(Perform::TellSession(Note {
            method: Method::Answer,
            ticket: Ticket { run: run.num, step, attempt },
            task,
            epoch: row.epoch,
            nonce: 0,
            timeout_ms: None,
            params: params.to_string().into(),
        }));
        run.pending.writes.push(Write::PutTask(row));
        run.pending.checks.push(Check::TokenLive(caller.jti.clone()));
        if let Some(key) = &key {
            self.keep_answer(run, &caller.subject, key, "null".into());
        }
        self.append(run, Fact::Decided(Decision::Advise { by, step, attempt, answer }));
        run.pending.after.replies.push(Box::new(move |result| {
            drop(reply.send(result.map(|_| ())));
        }));
    }
}
