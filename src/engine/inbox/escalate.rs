//! Escalation: an attempt asks a senior, its step waits, the answer goes to the same attempt.
//!
//! The question stands in the open task's row, with the time that the attempt had left: nothing
//! is counted against it while it waits.

use crate::{
    engine::{
        Advice, Caller, EngineError, Holder, IdempotencyKey,
        inbox::answers,
        run::{
            answers::refuse_ended, due::Due, perform::Perform, question::Question, reply::Answer,
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
    store::{TaskRow, Write},
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
    // Whoever waits for an answer need not be heard: the lease begins again with it.
    turn.run.timers.remove(step, Due::Lease);
    let Some(task) = turn.run.task_mut(step) else { return Ok(()) };
    let Some(row) = &mut task.row else { return Ok(()) };
    row.lease_ms = None;
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

/// Refuses an answer to a question other than the open one; each has an attempt and a revision.
fn check_shown(
    (shown, seen): (Option<u32>, Option<String>),
    (attempt, revision): (u32, String),
) -> Result<(), EngineError> {
    if shown.is_none_or(|it| it == attempt) && seen.is_none_or(|it| it == revision) {
        return Ok(());
    }
    Err(EngineError::Conflict {
        code: Code::StaleTask,
        message: format!(
            "advise: it is not the question that you were shown; attempt {attempt} asks another one, \
             and its revision is {revision}"
        ),
    })
}

/// Hands a senior's answer to the attempt that asked.
pub(crate) fn advise(
    turn: &mut Turn<'_>,
    step: u32,
    Advice { answer, attempt, revision }: Advice,
    caller: &Caller,
    key: Option<IdempotencyKey>,
) -> Result<Answer, EngineError> {
    let silent = || EngineError::Conflict {
        code: Code::NoQuestion,
        message: "advise: the task asks nothing".into(),
    };
    refuse_ended(turn.run)?;
    if answer.len() > WORDS {
        return Err(EngineError::TooLarge { what: "the answer", size: answer.len(), limit: WORDS });
    }
    let open = turn.run.task(step).and_then(|task| {
        let question = task.question.as_ref()?;
        Some((task.attempt, question.revision(task.attempt)))
    });
    let Some(open) = open else { return Err(silent()) };
    refuse_own(&turn.shared.sessions, turn.run, caller)?;
    check_shown((attempt, revision), open)?;
    let (now, by) = (turn.steady_ms, caller.subject.clone());
    let of_host = turn.shared.settings.lease_ms;
    let Some(task) = turn.run.task_mut(step) else { return Err(silent()) };
    let own = task.own_lease_ms();
    let (Some(mut question), Some(row)) = (task.question.take(), &mut task.row) else {
        return Err(silent());
    };
    question.answer = Some(answer.clone());
    question.by = Some(by.clone());
    row.deadline_ms = question.left_ms.map(|left| now + left);
    let lease_ms = own.or(row.queue.as_ref().map(|_| of_host)).map(|given| now + given);
    row.lease_ms = lease_ms;
    task.stored_lease_ms = lease_ms.unwrap_or_default();
    row.question = Some(serde_json::to_string(&question).expect("plain data"));
    let (row, attempt) = (row.clone(), task.attempt);
    let note = answer_note(&row);
    if let Some(lease_ms) = lease_ms {
        turn.run.timers.insert((lease_ms, step, Due::Lease));
    }
    if let Some(deadline) = row.deadline_ms {
        turn.run.timers.insert((deadline, step, Due::Attempt));
    }
    turn.run.pending.after.performs.extend(note.map(Perform::TellSession));
    turn.run.pending.writes.push(Write::PutTask(row));
    answers::once(turn, caller, key.as_ref());
    facts::append(turn, Fact::Decided(Decision::Advise { by, step, attempt, answer }));
    Ok(Answer::Done)
}

/// Returns what the session of an attempt is told of the answer to its question; `None` without an
/// answer.
pub(crate) fn answer_note(row: &TaskRow) -> Option<Note> {
    let question: Question = serde_json::from_str(row.question.as_deref()?).ok()?;
    let answer = question.answer?;
    let task = TaskId::new(row.run, row.step, row.scheduled_ms);
    let params = serde_json::json!({
        "task": task,
        "attempt": row.attempt,
        "question": question.asked.to_value().get("question"),
        "answer": answer,
        "by": question.by,
    });
    Some(Note {
        method: Method::Answer,
        ticket: Ticket { run: row.run, step: row.step, attempt: row.attempt },
        task,
        epoch: row.epoch,
        nonce: 0,
        timeout_ms: None,
        params: params.to_string().into(),
    })
}
