//! Handles tasks that are taken from outside: leases of pull workers and answers of people.

use crate::{
    engine::{
        Answer, Caller, Checked, EngineError,
        inbox::{
            answers,
            inquiry::{asked, asks_caller_as_starter},
        },
        run::{reply, resident::Run},
        shared::message::PersonAnswer,
        turn::{
            answered,
            facts::{self, Turn},
            follow, leases,
            lineage::is_same,
            reminders, settle, steps,
        },
        view,
    },
    fault,
    journal::{Decision, Fact, Outcome},
    operator::{Delivery, GivenAnswer, Inquiry, says_no},
    protocol::{Code, Failure, Json, failure::kind},
};

/// Ends a task with what a person said, or goes on with what its step has left to others.
fn conclude(turn: &mut Turn<'_>, step: u32, outcome: Outcome) {
    match settle::settle_answer(turn, step, outcome) {
        Outcome::Completed(output) if follow::is_followed(turn.run, step, &[]) => {
            if let Err(failure) = follow::follow_result(turn, step, output, &[], None) {
                let outcome = Outcome::Failed(settle::located(turn.run, step, failure));
                steps::finish_step(turn, step, outcome, None, None);
            }
        }
        outcome => {
            if matches!(outcome, Outcome::Completed(_)) {
                settle::accepted(turn.run, step);
            }
            steps::finish_step(turn, step, outcome, None, None);
        }
    }
}

/// Takes what a person says to a task.
///
/// | they say | the task |
/// |---|---|
/// | no: `reject` | ends; the flow receives `human_rejected` |
/// | no: an answer that is `false`, or whose `approved` is | ends with that answer |
/// | yes, and more must | stays open, and shows who said what |
/// | yes, and it is enough | ends with this last answer |
pub(crate) fn answer(
    turn: &mut Turn<'_>,
    step: u32,
    said: PersonAnswer,
) -> Result<reply::Answer, EngineError> {
    fault::point("engine.answer");
    let outcome = heard(turn, step, &said)?;
    let PersonAnswer { caller, key, .. } = said;
    let approval = turn
        .run
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
    answers::once(turn, &caller, key.as_ref());
    answered::record(turn, step, &caller.subject, matches!(outcome, Outcome::Failed(_)));
    match outcome {
        Outcome::Completed(output) if !says_no(&output) && wants_more(turn.run, step) => {
            count_answer(turn, step, &caller, output, true);
        }
        outcome => {
            if let Outcome::Completed(output) = &outcome {
                count_answer(turn, step, &caller, output.clone(), false);
            }
            let attempt = turn.run.task(step).map_or(1, |task| task.attempt);
            leases::delivered(turn, step, attempt, Delivery { worker: caller.subject });
            conclude(turn, step, outcome);
        }
    }
    Ok(reply::Answer::Done)
}

/// Returns the effect of an answer, if the caller may give it to the current revision of the task.
fn heard(turn: &Turn<'_>, step: u32, said: &PersonAnswer) -> Result<Outcome, EngineError> {
    let PersonAnswer { answer, revision, caller, as_starter, .. } = said;
    let sessions = &turn.shared.sessions;
    let (task, inquiry) = asked(sessions, turn.run, step, caller)?;
    let denied = |code, message: String| Err(EngineError::Conflict { code, message });
    let is_starter = asks_caller_as_starter(turn.run, inquiry, caller);
    if !is_starter && (*as_starter || !inquiry.asks(&caller.subject, caller.grant.role)) {
        let message = format!("answer the task: it asks {}", inquiry.by.join(", "));
        return denied(Code::WrongRole, message);
    }
    if revision.as_ref().is_some_and(|seen| *seen != inquiry.revision) {
        let message = format!(
            "answer the task: it is not what you were shown any more; its revision is {}",
            inquiry.revision
        );
        return denied(Code::StaleTask, message);
    }
    let of_party = |by: &str| is_same(sessions, by, &caller.subject);
    let heard = inquiry.has_heard(&caller.subject);
    if heard || inquiry.answers.iter().any(|given| of_party(&given.by)) {
        let message = format!("answer the task: {} has answered already", caller.subject);
        return denied(Code::AlreadyAnswered, message);
    }
    match answer {
        Answer::Reject { reason } => {
            let failure = Failure::new(kind::HUMAN_REJECTED, reason.as_str());
            Ok(Outcome::Failed(settle::located(turn.run, step, failure)))
        }
        Answer::Output(output) => match task.agent.output().accept_json(output) {
            Ok(output) => Ok(Outcome::Completed(output)),
            Err(violations) => {
                let violations = violations.into_iter().map(view::breach).collect();
                Err(EngineError::Invalid { what: Checked::Result, violations })
            }
        },
    }
}

fn wants_more(run: &Run, step: u32) -> bool {
    let inquiry = run.task(step).and_then(|task| task.inquiry.as_ref());
    inquiry.is_some_and(Inquiry::wants_more)
}

/// Keeps one of several answers in the history, and, while the task stays open, with the task.
fn count_answer(turn: &mut Turn<'_>, step: u32, caller: &Caller, output: Json, stays: bool) {
    let now = facts::time_of(turn);
    let Some(task) = turn.run.task_mut(step) else { return };
    let attempt = task.attempt;
    let Some(inquiry) = task.inquiry.as_mut().filter(|it| it.required > 1) else { return };
    let by = caller.subject.clone();
    inquiry.answers.push(GivenAnswer { by: by.clone(), at_ms: now, output: output.clone() });
    let heard = u32::try_from(inquiry.answers.len()).unwrap_or(u32::MAX);
    let missing = inquiry.required.saturating_sub(heard);
    if stays {
        reminders::keep_inquiry(turn.run, step);
    }
    let missing = if stays { missing } else { 0 };
    let answered = Decision::Answered { by, step, attempt, output, missing };
    facts::append(turn, Fact::Decided(answered));
}
