//! Changes of a run's own state from outside.

use crate::{
    engine::EngineError,
    store::{Changed, Check, StateChange, StoreError},
};

impl crate::engine::shard::owner::Shard {
    /// Changes the run's own state for somebody outside.
    pub(crate) fn change_from_outside(
        &mut self,
        run: &mut crate::engine::run::resident::Run,
        changes: Vec<StateChange>,
        jti: Option<String>,
        reply: crate::engine::run::reply::ReplyTo<Vec<Changed>>,
    ) {
        use crate::engine::turn::state::OwnError;
        match self.change_own(run, changes) {
            Err(OwnError::Limit(failure)) => {
                drop(reply.send(Err(EngineError::BadRequest(failure.message))));
            }
            Err(OwnError::Full(why)) => {
                drop(reply.send(Err(crate::engine::turn::weight::run_full(why))));
            }
            Err(OwnError::Store(error)) => drop(reply.send(Err(StoreError::into(error)))),
            Ok(changed) => {
                run.pending.checks.extend(jti.map(Check::TokenLive));
                run.pending.after.replies.push(Box::new(move |result| {
                    drop(reply.send(result.map(|_| changed)));
                }));
            }
        }
    }
}
