//! Changes of a run's own state from outside.

use crate::{
    engine::{
        EngineError,
        run::reply::Answer,
        turn::{
            facts::Turn,
            state::{self, OwnError},
            weight::run_full,
        },
    },
    store::{Check, StateChange},
};

/// Changes the run's own state for somebody outside.
pub(crate) fn change_from_outside(
    turn: &mut Turn<'_>,
    changes: Vec<StateChange>,
    jti: Option<String>,
) -> Result<Answer, EngineError> {
    match state::change_own(turn, changes) {
        Err(OwnError::Limit(failure)) => Err(EngineError::BadRequest(failure.message)),
        Err(OwnError::Full(why)) => Err(run_full(why)),
        Err(OwnError::Store(error)) => Err(error.into()),
        Ok(changed) => {
            turn.run.pending.checks.extend(jti.map(Check::TokenLive));
            Ok(Answer::Changed(changed))
        }
    }
}
