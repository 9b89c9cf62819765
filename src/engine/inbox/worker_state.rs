//! The state that a worker reads and writes while it works.

use crate::{
    engine::{
        EngineError, Holder,
        inbox::answers::bad_request,
        run::resident::Run,
        turn::{
            boundary::{self, asked},
            facts::{self, Turn},
            passage::read_through,
            settle,
            state::{self, KEY_BYTES, OwnError, plain_write, run_scope},
            weight::run_full,
        },
    },
    flow::StateOp,
    protocol::{Json, OperatorId, Scope, StoreOptions},
    store::{Reducer, StateAct, StateChange, excepted},
    token::{Grant, Need, Refusal, Verb},
};

/// The scope that a worker means, if it may: its run's own by default, its operator's within
/// the run, and what its token's scopes of state reach. A token that has any reaches nothing
/// else.
pub(crate) fn place_of(
    run: &Run,
    holder: &Holder,
    scope: Option<&str>,
    key: &str,
) -> Result<String, EngineError> {
    let own = run_scope(run);
    let operator = run.task(holder.step).map(|task| {
        let operator = OperatorId::new(&*task.operator);
        Scope::Operator { workflow: run.id.to_string().into(), operator }.to_string()
    });
    let place = match scope {
        None => own.clone(),
        Some(text) => {
            let scope: Scope = text
                .parse()
                .map_err(|error| EngineError::BadRequest(format!("failed to {error}")))?;
            scope.to_string()
        }
    };
    let narrows = |grant: &Grant| {
        grant.scopes.0.iter().any(|scope| matches!(scope, crate::token::Scope::State(_)))
    };
    let need = Need::State { scope: &place, key };
    match &holder.grant {
        Some(grant) if narrows(grant) => grant.check(Verb::WorkerState, &[need])?,
        _ if place == own || operator.as_ref() == Some(&place) => {}
        _ => {
            return Err(EngineError::Refused(Refusal::Scope {
                verb: Verb::WorkerState,
                need: need.to_string(),
            }));
        }
    }
    Ok(place)
}

/// A shard does not wait for a store of somebody else's.
fn not_elsewhere(turn: &Turn<'_>, scope: &str) -> Result<(), EngineError> {
    if !turn.shared.state.is_foreign(scope) {
        return Ok(());
    }
    let message = format!("{scope} is kept elsewhere: its flow reads and writes it");
    Err(EngineError::BadRequest(message))
}

pub(crate) fn read_for_worker(
    turn: &mut Turn<'_>,
    scope: &str,
    key: String,
) -> Result<Option<Json>, EngineError> {
    not_elsewhere(turn, scope)?;
    let stacks = settle::stacks_of(turn);
    let call = boundary::call(turn.run, scope.to_owned(), asked(&StateOp::Get { key }));
    let mut is_there = false;
    let value = read_through(&stacks, call, |key| {
        let found = if scope == run_scope(turn.run) {
            state::own_value(turn, key).map_err(EngineError::Flow)?
        } else {
            let row = excepted("a value of state", || turn.shared.state.value(scope, key))?;
            row.map(|row| Json::from_trusted(row.value))
        };
        is_there = found.is_some();
        Ok(found.unwrap_or_else(Json::null))
    })?;
    Ok(is_there.then_some(value))
}

pub(crate) fn put_for_worker(
    turn: &mut Turn<'_>,
    scope: String,
    key: String,
    value: &Json,
) -> Result<(), EngineError> {
    not_elsewhere(turn, &scope)?;
    let set = StateOp::Set { key, value: value.clone(), opts: None };
    let passed = boundary::pass_change(turn, &scope, &set).map_err(EngineError::Guarded)?;
    let StateOp::Set { key, value, .. } = passed else { return Ok(()) };
    let act = StateAct::Put {
        value: value.as_str().to_owned(),
        reducer: Reducer::Overwrite,
        hints: StoreOptions::default(),
    };
    let is_own = scope == run_scope(turn.run);
    let change = StateChange { scope, key, if_revision: None, act };
    if is_own {
        return match state::change_own(turn, vec![change]) {
            Ok(_) => Ok(()),
            Err(OwnError::Limit(failure)) => Err(bad_request(failure)),
            Err(OwnError::Full(why)) => Err(run_full(why)),
            Err(OwnError::Store(error)) => Err(error.into()),
        };
    }
    if change.key.len() > KEY_BYTES {
        let message = format!("a key of state has at most {KEY_BYTES} bytes");
        return Err(EngineError::BadRequest(message));
    }
    turn.shared.state.drop_transient(&change.scope, &change.key);
    let at_ms = facts::time_of(turn);
    turn.run.pending.writes.push(plain_write(change, at_ms));
    Ok(())
}
