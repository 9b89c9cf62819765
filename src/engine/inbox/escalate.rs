//! Escalation: an attempt asks a senior, its step waits, the answer goes to the same attempt.
//!
//! The question stands in the open task's row, with the time that the attempt had left: nothing
//! is counted against it while it waits.

use crate::{
    engine::{
        Caller, EngineError, Holder, IdempotencyKey,
        inbox::answers,
        run::{
            answers::closed, due::Due, perform::Perform, question::Question, reply::Answer,
            task::OpenTask,
        },
        turn::{
            facts::{self, Turn},
            leases,
            lineage::refuse_own,
        },
    },
    journal::{Decision, Fact},
    operator::{Delivery, Ticket},
    protocol::{Code, Json, TaskId},
    session::{Method, Note},
    store::{Check, Write},
};

/// The largest question and the largest answer, in bytes.
const WORDS: usize = 64 << 10;

/// Lets an attempt wait for a senior.
pub(crate) fn escalate(
    turn: &mut Turn<'_>,
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
    if turn.run.task(step).is_some_and(|task| task.question.is_some()) {
        return Err(EngineError::Conflict {
            code: Code::QuestionOpen,
            message: "escalate: this attempt waits for an answer already".into(),
        });
    }
    let worker = holder.session.as_ref().map_or_else(|| "handle".to_owned(), |s| s.0.clone());
    leases::delivered(turn, step, attempt, Delivery { worker });
    let (now, steady) = (facts::time_of(turn), turn.steady_ms);
    turn.run.timers.remove(step, Due::Attempt);
    let own = turn.run.task(step).and_then(OpenTask::own_lease_ms);
    if own.is_some() {
        turn.run.timers.remove(step, Due::Lease);
    }
    let Some(task) = turn.run.task_mut(step) else { return Ok(()) };
    let Some(row) = &mut task.row else { return Ok(()) };
    if own.is_some() {
        row.lease_ms = None;
    }
    let left_ms = row.deadline_ms.take().map(|deadline| deadline.saturating_sub(steady));
    let question =
        Question { asked: asked.clone(), asked_ms: now, left_ms, answer: None, by: None };
    row.question = Some(serde_json::to_string(&question).expect("plain data"));
    let row = row.clone();
    task.question = Some(question);
    turn.run.pending.writes.push(Write::PutTask(row));
    let decision = Decision::Escalate { step, attempt, question: asked };
    facts::append(turn, Fact::Decided(decision));
    Ok(())
}

/// Hands a senior's answer to the attempt that asked.
pub(crate) fn advise(
    turn: &mut Turn<'_>,
    step: u32,
    answer: Json,
    caller: &Caller,
    key: Option<IdempotencyKey>,
) -> Result<Answer, EngineError> {
    let silent = || EngineError::Conflict {
        code: Code::NoQuestion,
        message: "advise: the task asks nothing".into(),
    };
    if turn.run.is_ended() {
        return Err(closed(turn.run));
    }
    if answer.len() > WORDS {
        return Err(EngineError::TooLarge { what: "the answer", size: answer.len(), limit: WORDS });
    }
    if turn.run.task(step).is_none_or(|task| task.question.is_none()) {
        return Err(silent());
    }
    refuse_own(&turn.shared.sessions, turn.run, caller)?;
    let (now, by) = (turn.steady_ms, caller.subject.clone());
    let Some(task) = turn.run.task_mut(step) else { return Err(silent()) };
    let own = task.own_lease_ms();
    let (Some(mut question), Some(row)) = (task.question.take(), &mut task.row) else {
        return Err(silent());
    };
    question.answer = Some(answer.clone());
    question.by = Some(by.clone());
    row.deadline_ms = question.left_ms.map(|left| now + left);
    if let Some(own) = own {
        row.lease_ms = Some(now + own);
        task.stored_lease_ms = now + own;
    }
    row.question = Some(serde_json::to_string(&question).expect("plain data"));
    let (row, attempt) = (row.clone(), task.attempt);
    if let Some(own) = own {
        turn.run.timers.insert((now + own, step, Due::Lease));
    }
    if let Some(deadline) = row.deadline_ms {
        turn.run.timers.insert((deadline, step, Due::Attempt));
    }
    let task = TaskId::new(turn.run.num, step, row.scheduled_ms);
    let params = serde_json::json!({
        "task": task,
        "attempt": attempt,
        "question": question.asked.to_value().get("question"),
        "answer": answer,
        "by": by,
    });
    turn.run.pending.after.performs.push(Perform::TellSession(Note {
        method: Method::Answer,
        ticket: Ticket { run: turn.run.num, step, attempt },
        task,
        epoch: row.epoch,
        nonce: 0,
        timeout_ms: None,
        params: params.to_string().into(),
    }));
    turn.run.pending.writes.push(Write::PutTask(row));
    turn.run.pending.checks.push(Check::TokenLive(caller.jti.clone()));
    if let Some(key) = &key {
        answers::keep_answer(turn, &caller.subject, key, "null".into());
    }
    facts::append(turn, Fact::Decided(Decision::Advise { by, step, attempt, answer }));
    Ok(Answer::Done)
}
