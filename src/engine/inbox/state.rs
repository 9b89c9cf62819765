//! Changes of a run's own state from outside.

use crate::{
    engine::{
        EngineError,
        turn::{facts::Turn, state},
    },
    store::{Changed, Check, StateChange, StoreError},
};

/// Changes the run's own state for somebody outside.
pub(crate) fn change_from_outside(
    turn: &mut Turn<'_>,
    changes: Vec<StateChange>,
    jti: Option<String>,
    reply: crate::engine::run::reply::ReplyTo<Vec<Changed>>,
) {
    use crate::engine::turn::state::OwnError;
    match state::change_own(turn, changes) {
        Err(OwnError::Limit(failure)) => {
            drop(reply.send(Err(EngineError::BadRequest(failure.message))));
        }
        Err(OwnError::Full(why)) => {
            drop(reply.send(Err(crate::engine::turn::weight::run_full(why))));
        }
        Err(OwnError::Store(error)) => drop(reply.send(Err(StoreError::into(error)))),
        Ok(changed) => {
            turn.run.pending.checks.extend(jti.map(Check::TokenLive));
            turn.run.pending.after.replies.push(Box::new(move |result| {
                drop(reply.send(result.map(|_| changed)));
            }));
        }
    }
}
