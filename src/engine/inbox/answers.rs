//! Answers to requests: kept with the effect of the request, sent after the commit.

use crate::{
    engine::{
        EngineError, IdempotencyKey,
        run::{reply::ReplyTo, resident::Run},
        turn::facts::Turn,
    },
    protocol::Failure,
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

/// Sends an answer once everything that it rests on is durable.
pub(crate) fn after<T: Send + 'static>(
    run: &mut Run,
    reply: ReplyTo<T>,
    answer: Result<T, EngineError>,
) {
    match answer {
        Err(error) => drop(reply.send(Err(error))),
        Ok(answer) => run.pending.after.replies.push(Box::new(move |result| {
            drop(reply.send(result.map(|_| answer)));
        })),
    }
}

/// The refusal of a request for what it says.
pub(crate) fn bad_request(failure: Failure) -> EngineError {
    EngineError::BadRequest(failure.message)
}
