//! Answers to requests: kept with the effect of the request, sent after the commit.

use crate::{
    engine::{
        Caller, EngineError, IdempotencyKey,
        run::{
            answers::view_of,
            reply::{Answer, Answered, ReplyTo},
            resident::Run,
        },
        turn::facts::Turn,
    },
    protocol::Failure,
    store::Check,
};

/// Keeps the answer to a request in the same batch as its effect.
pub(crate) fn keep_answer(
    turn: &mut Turn<'_>,
    principal: &str,
    key: &IdempotencyKey,
    answer: String,
) {
    let (check, write) = key.keep(principal, answer, turn.now_ms);
    turn.run.pending.checks.push(check);
    turn.run.pending.writes.push(write);
}

/// Lets a request take effect only while its caller's token is good, and once for its key.
pub(crate) fn once(turn: &mut Turn<'_>, caller: &Caller, key: Option<&IdempotencyKey>) {
    turn.run.pending.checks.push(Check::TokenLive(caller.jti.clone()));
    if let Some(key) = key {
        keep_answer(turn, &caller.subject, key, "null".into());
    }
}

/// Answers a request: at once, or once everything that the answer rests on is durable.
pub(crate) fn give(run: &mut Run, reply: ReplyTo<Answer>, answered: Answered) {
    match answered {
        // Who asked may be gone.
        Answered::Now(answer) => drop(reply.send(answer)),
        Answered::Durable(answer) => run.pending.after.replies.push(Box::new(move |result| {
            drop(reply.send(result.and_then(|run| answer.map(|answer| leaving(answer, run)))));
        })),
    }
}

/// An answer as it leaves: a run is shown as it is then.
fn leaving(answer: Answer, run: &Run) -> Answer {
    match answer {
        Answer::Run => Answer::View(Box::new(view_of(run))),
        other => other,
    }
}

/// The refusal of a request for what it says.
pub(crate) fn bad_request(failure: Failure) -> EngineError {
    EngineError::BadRequest(failure.message)
}
