//! A run's own state: in memory with its run, written with the transition that changed it.

use std::collections::BTreeMap;

use crate::{
    engine::{
        run::{
            account::{OwnState, ROW, row_bytes},
            resident::Run,
        },
        turn::{
            facts::{self, Turn},
            weight,
        },
    },
    fault,
    flow::StateOp,
    protocol::{Failure, Json, Lifetime, Scope, StoreOptions, failure::kind},
    store::{
        Answers, Changed, Planned, Reducer, StateAct, StateBatch, StateChange, StateRow,
        StoreError, Write, number_text, plan,
    },
};

/// The longest key, in bytes.
pub(crate) const KEY_BYTES: usize = 1_024;

/// The most keys that one run may have.
const KEYS: usize = 100_000;

/// The scope that a run's own state is stored under.
pub(crate) fn run_scope(run: &Run) -> String {
    format!("run:{}", run.id)
}

/// Applies an operation to the run's state, within the transition that is under way.
pub(crate) fn apply_state(turn: &mut Turn<'_>, op: &StateOp) -> Result<Json, Failure> {
    let put = |value: String, reducer: Reducer, hints: StoreOptions| {
        (StateAct::Put { value, reducer, hints }, None)
    };
    let none = StoreOptions::default;
    let (act, if_revision) = match op {
        StateOp::Get { key } => {
            return Ok(own_value(turn, key)?.unwrap_or_else(Json::null));
        }
        StateOp::List { prefix } => return own_keys(turn, prefix),
        StateOp::Set { key: _, value, opts: None } => {
            put(value.as_str().to_owned(), Reducer::Overwrite, none())
        }
        StateOp::Set { key: _, value, opts: Some(opts) } => {
            let (act, _) = put(value.as_str().to_owned(), Reducer::Overwrite, opts.hints());
            (act, opts.if_revision)
        }
        StateOp::Delete { .. } => (StateAct::Delete, None),
        StateOp::Add { key, by } => {
            let by = number_text(*by).ok_or_else(|| {
                refused(format!("state.add {key:?}: what is added is not a number"))
            })?;
            put(by, Reducer::Sum, none())
        }
        StateOp::Append { value, .. } => put(value.as_str().to_owned(), Reducer::Append, none()),
        StateOp::Merge { value, .. } => put(value.as_str().to_owned(), Reducer::Merge, none()),
        StateOp::Search { .. }
        | StateOp::Link { .. }
        | StateOp::Unlink { .. }
        | StateOp::Traverse { .. } => {
            return Err(refused(format!("{} needs what is stored", op.name())));
        }
    };
    let key = op.key();
    let change = StateChange { scope: run_scope(turn.run), key: key.to_owned(), if_revision, act };
    let changed = change_own(turn, vec![change]);
    let mut answers = changed.map_err(|error| match error {
        OwnError::Limit(failure) => failure,
        OwnError::Full(why) => {
            // The flow may catch the failure of the step, and not the end of its run.
            turn.run.account.over = Some(why.clone());
            Failure::new(kind::LIMIT, why)
        }
        OwnError::Store(error) => state_failure(op.name(), error),
    })?;
    let value = answers.pop().and_then(|answer| answer.value);
    Ok(value.map_or_else(Json::null, Json::from_trusted))
}

fn own_keys(turn: &mut Turn<'_>, prefix: &str) -> Result<Json, Failure> {
    let now = facts::time_of(turn);
    let passing = turn.shared.state.transient_keys(&run_scope(turn.run), prefix);
    let state = state_of(turn.run)?.rows();
    let live = state.values().filter(|row| row.is_live(now));
    let mut keys: Vec<&str> = live
        .map(|row| row.key.as_str())
        .chain(passing.iter().map(String::as_str))
        .filter(|key| key.starts_with(prefix))
        .collect();
    keys.sort_unstable();
    keys.dedup();
    Ok(Json::encode(&keys).expect("strings are JSON"))
}

/// A value of the run's own state.
pub(crate) fn own_value(turn: &mut Turn<'_>, key: &str) -> Result<Option<Json>, Failure> {
    let now = facts::time_of(turn);
    if let Some(row) = turn.shared.state.transient_value(&run_scope(turn.run), key) {
        return Ok(Some(Json::from_trusted(row.value)));
    }
    let row = state_of(turn.run)?.rows().get(key).filter(|row| row.is_live(now));
    Ok(row.map(|row| Json::from_trusted(row.value.as_str())))
}

/// Changes the run's own state, all of it or nothing; answers with what came of each change.
pub(crate) fn change_own(
    turn: &mut Turn<'_>,
    changes: Vec<StateChange>,
) -> Result<Vec<Changed>, OwnError> {
    let limit = turn.shared.settings.limits.value;
    for change in &changes {
        own_limits(change, limit)?;
    }
    let at_ms = facts::time_of(turn);
    let batch =
        StateBatch { changes, at_ms, most: limit, receipt: None, answers: Answers::default() };
    let state = state_of(turn.run).map_err(OwnError::Limit)?.rows();
    let planned = plan::<StoreError>(&batch, |_, key| Ok(state.get(key).cloned()))
        .map_err(OwnError::Store)?;
    // The size of each key that is changed, after the last of its changes.
    let mut after: BTreeMap<&str, usize> = BTreeMap::new();
    for write in &planned.writes {
        match write {
            Planned::Put { key, value, .. } => {
                after.insert(key, key.len() + value.len() + ROW);
            }
            Planned::Delete { key, .. } => {
                after.insert(key, 0);
            }
            Planned::Link { .. } | Planned::Unlink { .. } => {}
        }
    }
    let fresh = after.iter().filter(|(key, bytes)| **bytes > 0 && !state.contains_key(**key));
    if state.len() + fresh.count() > KEYS {
        let message = format!("a run has at most {KEYS} keys of state");
        return Err(OwnError::Limit(Failure::new(kind::LIMIT, message)));
    }
    let before = |key: &str| state.get(key).map_or(0, |row| row_bytes(row) + ROW);
    let grows: usize = after.iter().map(|(&key, bytes)| bytes.saturating_sub(before(key))).sum();
    if let Some(why) = weight::too_much_state(turn.run, grows) {
        return Err(OwnError::Full(why));
    }
    fault::point("engine.state");
    for write in planned.writes {
        write_own(turn, write, at_ms)?;
    }
    Ok(planned.answers)
}

fn write_own(turn: &mut Turn<'_>, write: Planned, at_ms: u64) -> Result<(), OwnError> {
    if let Planned::Put { scope, key, value, hints, .. } = &write
        && hints.lifetime == Some(Lifetime::Transient)
    {
        let (scope, key) = (scope.clone(), key.clone());
        let value = value.clone();
        return turn
            .shared
            .state
            .put_transient(&scope, &key, value, hints)
            .map_err(OwnError::Store);
    }
    let state = state_of(turn.run).map_err(OwnError::Limit)?;
    let write = match write {
        Planned::Put { scope, key, value, hints, expires_ms } => {
            let before = state.rows().get(&key);
            let revision = before.map_or(1, |row| row.revision + 1);
            let (fresh, gone) = (key.len() + value.len(), before.map_or(0, row_bytes));
            let row = StateRow {
                scope: scope.clone(),
                key: key.clone(),
                value: value.clone(),
                revision,
                updated_ms: at_ms,
                expires_ms,
                hints: hints.clone(),
            };
            state.insert(row);
            turn.run.header.bytes =
                (turn.run.header.bytes + fresh as u64).saturating_sub(gone as u64);
            turn.shared.state.drop_transient(&scope, &key);
            Write::PutState { scope, key, value, hints, expires_ms, at_ms }
        }
        Planned::Delete { scope, key } => {
            turn.shared.state.drop_transient(&scope, &key);
            let state = state_of(turn.run).map_err(OwnError::Limit)?;
            let Some(gone) = state.remove(&key) else { return Ok(()) };
            turn.run.header.bytes = turn.run.header.bytes.saturating_sub(row_bytes(&gone) as u64);
            Write::DeleteState { scope, key }
        }
        // Links are not kept in memory: they go to the store as they are.
        Planned::Link { scope, from: key, to, relation, metadata } => {
            let act = StateAct::Link { to, relation, metadata };
            plain_write(StateChange { scope, key, if_revision: None, act }, at_ms)
        }
        Planned::Unlink { scope, from: key, to, relation } => {
            let act = StateAct::Unlink { to, relation };
            plain_write(StateChange { scope, key, if_revision: None, act }, at_ms)
        }
    };
    turn.run.pending.writes.push(write);
    Ok(())
}

fn state_of(run: &mut Run) -> Result<&mut OwnState, Failure> {
    match run.state.as_ref().err().cloned() {
        None => Ok(run.state.as_mut().unwrap_or_else(|_| unreachable!("it was just there"))),
        Some(StoreError::TooLarge { bytes, most, .. }) => Err(Failure::new(
            kind::LIMIT,
            format!("the run's state has {bytes} bytes, and the host may hold {most} of one run"),
        )),
        Some(error) => Err(unread(run, error)),
    }
}

fn unread(run: &mut Run, error: StoreError) -> Failure {
    let failure = Failure::new("storage", format!("read the run's state: {error}"));
    // The flow is not told: the run pauses until the store was repaired.
    run.damaged = matches!(error, StoreError::Damaged { .. }).then_some(error);
    failure.retryable()
}

/// The reason why the run's own state was not changed.
pub(crate) enum OwnError {
    /// A limit of the run.
    Limit(Failure),
    /// The run would hold more than it may.
    Full(String),
    /// The refusal by the rules of the store.
    Store(StoreError),
}

/// A change that goes to the store as it is.
pub(crate) fn plain_write(change: StateChange, at_ms: u64) -> Write {
    Write::ChangeState(Box::new(StateBatch {
        changes: vec![change],
        at_ms,
        most: usize::MAX,
        receipt: None,
        answers: Answers::default(),
    }))
}

fn own_limits(change: &StateChange, limit: usize) -> Result<(), OwnError> {
    let key = &change.key;
    let breach = |message: String| Err(OwnError::Limit(Failure::new(kind::LIMIT, message)));
    if key.is_empty() || key.len() > KEY_BYTES {
        return breach(format!("a key of state has 1 to {KEY_BYTES} bytes, not {}", key.len()));
    }
    match &change.act {
        StateAct::Put { value, .. } if value.len() > limit => {
            breach(format!("state {key:?} has {} bytes; {limit} are allowed", value.len()))
        }
        StateAct::Link { to, relation, .. } | StateAct::Unlink { to, relation }
            if to.len() > KEY_BYTES || relation.len() > KEY_BYTES =>
        {
            breach(format!("a linked key and a relation have at most {KEY_BYTES} bytes"))
        }
        StateAct::Put { .. }
        | StateAct::Delete
        | StateAct::Link { .. }
        | StateAct::Unlink { .. } => Ok(()),
    }
}

/// Returns the failure of a refused change, for a flow or a worker.
pub(crate) fn state_failure(what: &str, error: StoreError) -> Failure {
    match error {
        StoreError::Revision { key, expected, found } => {
            let data = serde_json::json!({
                "code": "revision_mismatch", "expected": expected, "revision": found,
            });
            refused(format!("{what} {key:?}: it has revision {found}, not {expected}"))
                .with_data(data.into())
        }
        StoreError::StateRefused { key, reason } => refused(format!("{what} {key:?}: {reason}")),
        error => Failure::new("storage", format!("{what}: {error}")).retryable(),
    }
}

pub(crate) fn refused(message: String) -> Failure {
    Failure::new(kind::REFUSED, message)
}

/// The scope of an effect or a request that is the run's own.
pub(crate) fn is_own(run: &Run, scope: &Scope) -> bool {
    matches!(scope, Scope::Workflow(id) if id.as_str() == run.id.to_string())
}
