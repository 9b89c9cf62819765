//! Tasks for people while they are open: who is asked, reminders, and an end before their time.
//!
//! The row of a task has its inquiry and the answers so far, beside the rendered prompt of its
//! attempt. Refuses an answer of the requester: a bearer that comes from a run's own attempt, or of
//! the principal behind one, decides nothing that the run asks people.

use crate::{
    engine::{
        Caller, EngineError, IdempotencyKey,
        inbox::answers,
        run::{answers::closed, reply::Answer, resident::Run, task::OpenTask},
        turn::{
            attempts,
            facts::{self, Turn},
            lineage::{refuse_behind, refuse_own},
        },
    },
    fault,
    journal::{Decision, Fact},
    operator::Inquiry,
    protocol::{Code, Failure, failure::kind},
    session::Hub,
    token::is_same_subject,
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
                code: Code::AlreadyAccepted,
                message: "answer the task: it has ended".into(),
            },
        });
    };
    let Some(inquiry) = &task.inquiry else {
        let message = "answer the task: it is not one for people; its worker reports".into();
        return Err(EngineError::Conflict { code: Code::NotHuman, message });
    };
    if !asks_caller_as_starter(run, inquiry, caller) {
        refuse_own(sessions, run, caller)?;
    }
    Ok((task, inquiry))
}

/// Checks that a caller may say something to a task; with `is_asked`, that it is one of those whom the
/// task asks.
pub(crate) fn may_answer(
    turn: &Turn<'_>,
    step: u32,
    caller: &Caller,
    is_asked: bool,
) -> Result<Answer, EngineError> {
    let (_, inquiry) = asked(&turn.shared.sessions, turn.run, step, caller)?;
    // Also where a task asks the starter, who may then answer it: nobody of the run speaks for others.
    refuse_behind(&turn.shared.sessions, turn.run, caller)?;
    if is_asked && !inquiry.asks(&caller.subject, caller.grant.role) {
        let message = format!("answer the task: it asks {}", inquiry.by.join(", "));
        return Err(EngineError::Conflict { code: Code::WrongRole, message });
    }
    Ok(Answer::Done)
}

/// Returns true if a task asks the client that started its run, and the caller is that client. Such
/// a task is a question and no approval: its author names the starter among those that are asked.
pub(crate) fn asks_caller_as_starter(run: &Run, inquiry: &Inquiry, caller: &Caller) -> bool {
    let starter = run.chain.started().map(|(started, _)| started.principal.as_str());
    let is_starter = starter.is_some_and(|starter| is_same_subject(starter, &caller.subject));
    inquiry.asks_starter() && is_starter
}

/// Ends the time of a task for people, as if it had run out.
pub(crate) fn expire(
    turn: &mut Turn<'_>,
    step: u32,
    caller: &Caller,
    key: Option<IdempotencyKey>,
) -> Result<Answer, EngineError> {
    let (task, _) = asked(&turn.shared.sessions, turn.run, step, caller)?;
    let attempt = task.attempt;
    fault::point("engine.expire");
    answers::once(turn, caller, key.as_ref());
    let by = caller.subject.clone();
    let failure = Failure::new(kind::TIMEOUT, format!("{by} ended the wait for an answer"));
    facts::append(turn, Fact::Decided(Decision::Expire { by, step, attempt }));
    attempts::attempt_failed(turn, step, failure.retryable(), None);
    Ok(Answer::Done)
}
