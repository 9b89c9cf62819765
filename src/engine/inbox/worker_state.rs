//! The state that a worker reads and writes while it works.

use std::sync::Arc;

use crate::{
    engine::{
        EngineError, Holder,
        inbox::answers::bad_request,
        run::{
            reply::{Answer, ReplyTo},
            resident::Run,
        },
        shared::{deliveries, shards::Shared},
        turn::{
            boundary::{self, asked},
            elsewhere,
            facts::{self, Turn},
            passage::read_through,
            settle,
            state::{self, KEY_BYTES, OwnError, plain_write, run_scope},
            weight::run_full,
        },
    },
    flow::StateOp,
    middleware::{Stacks, StoreCall},
    protocol::{Code, Json, OperatorId, Scope, StoreOptions},
    store::{Reducer, StateAct, StateChange},
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

/// The part of a change's number that tells the changes of workers from those of results.
const WORKERS: u64 = 1 << 63;

/// Returns the number of a worker's change of a scope that somebody else keeps: the time, and what
/// tells the changes of one moment apart.
fn number_of(turn: &Turn<'_>) -> u64 {
    const WITHIN: u64 = 20;
    let place = u64::from(turn.shared.lanes.number()) & ((1 << WITHIN) - 1);
    WORKERS | (facts::time_of(turn) << WITHIN) | place
}

/// Refuses a further change of a scope whose store has not taken very many.
fn has_room(turn: &Turn<'_>, scope: &str) -> Result<(), EngineError> {
    if !turn.shared.lanes.is_full(scope) {
        return Ok(());
    }
    Err(EngineError::Busy {
        code: Code::Busy,
        message: format!("write state: too many changes wait for the store of {scope}"),
        retry_after_s: 10,
    })
}

/// Answers a worker with a value: one of the run at once, one of another scope once it is read.
pub(crate) fn get_state(
    turn: &mut Turn<'_>,
    holder: &Holder,
    (scope, key): (Option<String>, String),
    reply: ReplyTo<Answer>,
) {
    // Who asked may be gone.
    let answer = |reply: ReplyTo<Answer>, read: Result<_, _>| drop(reply.send(read));
    let scope = match place_of(turn.run, holder, scope.as_deref(), &key) {
        Ok(scope) => scope,
        Err(refused) => return answer(reply, Err(refused)),
    };
    let stacks = settle::stacks_of(turn);
    let call = boundary::call(turn.run, scope.clone(), asked(&StateOp::Get { key }));
    if scope == run_scope(turn.run) {
        let own = |key: &str| state::own_value(turn, key).map_err(EngineError::Flow);
        return answer(reply, value_of(&stacks, call, own));
    }
    let (shared, run) = (Arc::clone(turn.shared), turn.run.num);
    let read = move |shared: &Shared, reply, scope: &str| {
        let stored = |key: &str| {
            let row = shared.state.value(scope, key)?;
            Ok(row.map(|row| Json::from_trusted(row.value)))
        };
        answer(reply, value_of(&stacks, call, stored));
    };
    if !turn.shared.state.is_foreign(&scope) {
        turn.shared.tasks.spawn_blocking(move || read(&shared, reply, &scope));
        return;
    }
    turn.shared.tasks.spawn(async move {
        match deliveries::wait(&shared, run, &scope).await {
            Ok(()) => {
                let host = Arc::clone(&shared);
                shared.tasks.spawn_blocking(move || read(&host, reply, &scope));
            }
            Err(error) => answer(reply, Err(error)),
        }
    });
}

/// Reads one value through the layers.
fn value_of(
    stacks: &Stacks,
    call: StoreCall,
    mut read: impl FnMut(&str) -> Result<Option<Json>, EngineError>,
) -> Result<Answer, EngineError> {
    let mut is_there = false;
    let value = read_through(stacks, call, |key| {
        let found = read(key)?;
        is_there = found.is_some();
        Ok(found.unwrap_or_else(Json::null))
    })?;
    Ok(Answer::Value(is_there.then_some(value)))
}

pub(crate) fn put_for_worker(
    turn: &mut Turn<'_>,
    step: u32,
    (scope, key): (String, String),
    value: &Json,
) -> Result<(), EngineError> {
    has_room(turn, &scope)?;
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
    if turn.shared.state.is_foreign(&change.scope) {
        let n = number_of(turn);
        elsewhere::send(turn, step, n, change);
        return Ok(());
    }
    turn.shared.state.drop_transient(&change.scope, &change.key);
    let at_ms = facts::time_of(turn);
    turn.run.pending.writes.push(plain_write(change, at_ms));
    Ok(())
}
