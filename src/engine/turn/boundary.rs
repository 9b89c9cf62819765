//! The boundary of state: every operation passes the layers, from any caller.

use std::sync::Arc;

use crate::{
    engine::{
        run::resident::Run,
        turn::{
            facts::Turn,
            passage::Passage,
            settle,
            state::{self, run_scope},
        },
    },
    flow::StateOp,
    middleware::{StoreCall, StoreOp},
    protocol::{Effect, Failure, Json, MemoryLink, StateStore, failure::kind},
    store::{StateAct, StateChange, StateRow},
};

/// The part of an operation that a layer may see and change.
pub(crate) type VisibleOp = (StoreOp, String, Option<Json>);

pub(crate) fn asked(op: &StateOp) -> VisibleOp {
    let (kind, value) = match op {
        StateOp::Get { .. } => (StoreOp::Read, None),
        StateOp::Set { value, .. } => (StoreOp::Write, Some(value.clone())),
        StateOp::Delete { .. } => (StoreOp::Delete, None),
        StateOp::List { .. } => (StoreOp::List, None),
        StateOp::Add { by, .. } => (StoreOp::Reduce, Some(serde_json::json!(by).into())),
        StateOp::Append { value, .. } | StateOp::Merge { value, .. } => {
            (StoreOp::Reduce, Some(value.clone()))
        }
        StateOp::Search { query, .. } => return (StoreOp::Search, query.clone(), None),
        StateOp::Link { to, relation, .. } => (StoreOp::Link, Some(link(to, relation))),
        StateOp::Unlink { to, relation, .. } => (StoreOp::Unlink, Some(link(to, relation))),
        StateOp::Traverse { .. } => (StoreOp::Traverse, None),
    };
    let key = match op {
        StateOp::Traverse { key, .. } => key.clone(),
        op => op.key().to_owned(),
    };
    (kind, key, value)
}

fn link(to: &str, relation: &str) -> Json {
    serde_json::json!({ "to": to, "relation": relation }).into()
}

/// The operation with the key and the value that the layers passed on.
fn passed(op: &StateOp, call: StoreCall) -> StateOp {
    let mut op = op.clone();
    match &mut op {
        StateOp::Get { key }
        | StateOp::List { prefix: key }
        | StateOp::Search { query: key, .. } => {
            *key = call.key;
        }
        StateOp::Set { key, value, .. }
        | StateOp::Append { key, value }
        | StateOp::Merge { key, value } => {
            *key = call.key;
            if let Some(given) = call.value {
                *value = given;
            }
        }
        StateOp::Add { key, by } => {
            *key = call.key;
            *by = call.value.and_then(|value| value.decode().ok()).unwrap_or(*by);
        }
        StateOp::Link { key, to, relation, .. } | StateOp::Unlink { key, to, relation } => {
            *key = call.key;
            relink(call.value, to, relation);
        }
        StateOp::Delete { key } | StateOp::Traverse { key, .. } => *key = call.key,
    }
    op
}

/// Takes over the end of a link and its relation as the layers passed them on.
fn relink(given: Option<Json>, to: &mut String, relation: &mut String) {
    let Some(given) = given.map(|given| given.to_value()) else { return };
    for (part, name) in [(to, "to"), (relation, "relation")] {
        if let Some(text) = given[name].as_str() {
            text.clone_into(part);
        }
    }
}

/// A change that a layer answers itself is never made, and nobody may take it for made.
fn answered() -> Failure {
    Failure::new(kind::REFUSED, "a layer answers in place of state, which it may for reads only")
}

/// Returns the principal that started a run.
fn principal_of(run: &Run) -> Arc<str> {
    run.chain.started().map_or("", |(started, _)| started.principal.as_str()).into()
}

pub(crate) fn call(run: &Run, scope: String, (op, key, value): VisibleOp) -> StoreCall {
    StoreCall { op, run: Some(run.id), principal: principal_of(run), scope, key, value }
}

/// Applies an operation to the run's own state, through the layers.
pub(crate) fn own_state(turn: &mut Turn<'_>, op: &StateOp) -> Result<Json, Failure> {
    let stacks = settle::stacks_of(turn);
    if stacks.store.is_empty() {
        return state::apply_state(turn, op);
    }
    let call = call(turn.run, run_scope(turn.run), asked(op));
    stacks.store.run(call, &mut |call| state::apply_state(turn, &passed(op, call)))
}

/// Takes a change that is made later through the layers; gives it as they passed it on.
pub(crate) fn pass_change(turn: &Turn<'_>, scope: &str, op: &StateOp) -> Result<StateOp, Failure> {
    passage(turn).pass(scope, op)
}

/// The way of a run's steps to state.
pub(crate) fn passage(turn: &Turn<'_>) -> Passage {
    Passage {
        shared: Arc::clone(turn.shared),
        stacks: settle::stacks_of(turn),
        run: Some(turn.run.id),
        principal: principal_of(turn.run),
    }
}

/// An effect as the layers pass it on; those on nothing but state are left alone.
pub(crate) fn pass_effect(turn: &Turn<'_>, effect: &Effect) -> Result<Effect, Failure> {
    let (scope, asked) = match effect {
        Effect::WriteMemory { scope, key, value, .. } => {
            (scope, (StoreOp::Write, key.clone(), Some(value.into())))
        }
        Effect::DeleteMemory { scope, key } => (scope, (StoreOp::Delete, key.clone(), None)),
        Effect::LinkMemory { scope, link: it } => {
            let value = link(&it.to_key, &it.relation);
            (scope, (StoreOp::Link, it.from_key.clone(), Some(value)))
        }
        Effect::UnlinkMemory { scope, from_key, to_key, relation } => {
            (scope, (StoreOp::Unlink, from_key.clone(), Some(link(to_key, relation))))
        }
        other => return Ok(other.clone()),
    };
    let stacks = settle::stacks_of(turn);
    let mut through = effect.clone();
    let mut arrived = false;
    let call = call(turn.run, scope.to_string(), asked);
    stacks.store.run(call, &mut |call| {
        arrived = true;
        match &mut through {
            Effect::WriteMemory { key, value, .. } => {
                *key = call.key;
                if let Some(given) = call.value {
                    *value = given.to_value();
                }
            }
            Effect::DeleteMemory { key, .. } => *key = call.key,
            Effect::LinkMemory { link: it, .. } => {
                it.from_key = call.key;
                relink(call.value, &mut it.to_key, &mut it.relation);
            }
            Effect::UnlinkMemory { from_key, to_key, relation, .. } => {
                *from_key = call.key;
                relink(call.value, to_key, relation);
            }
            _ => {}
        }
        Ok(Json::null())
    })?;
    if arrived { Ok(through) } else { Err(answered()) }
}

impl Passage {
    /// Takes a change that is made later through the layers; gives it as they passed it on.
    ///
    /// # Errors
    /// A layer's refusal.
    pub(crate) fn pass(&self, scope: &str, op: &StateOp) -> Result<StateOp, Failure> {
        if self.stacks.store.is_empty() {
            return Ok(op.clone());
        }
        let (kind, key, value) = asked(op);
        let mut through = None;
        self.stacks.store.run(self.call(kind, scope, &key, value), &mut |call| {
            through = Some(passed(op, call));
            Ok(Json::null())
        })?;
        through.ok_or_else(answered)
    }

    /// Shows a value that was read already, as the layers let it be seen.
    ///
    /// # Errors
    /// A layer's refusal.
    pub(crate) fn show(&self, row: StateRow) -> Result<StateRow, Failure> {
        if self.stacks.store.is_empty() {
            return Ok(row);
        }
        let call = self.call(StoreOp::Read, &row.scope, &row.key, None);
        let found = Json::from_trusted(row.value.as_str());
        let shown = self.stacks.store.run(call, &mut |_| Ok(found.clone()))?;
        Ok(StateRow { value: shown.as_str().to_owned(), ..row })
    }

    /// Shows links that were read already, if the layers let them be seen.
    ///
    /// # Errors
    /// A layer's refusal.
    pub(crate) fn show_links(
        &self,
        scope: &str,
        links: Vec<MemoryLink>,
    ) -> Result<Vec<MemoryLink>, Failure> {
        let call = self.call(StoreOp::Traverse, scope, "", None);
        self.stacks.store.run(call, &mut |_| Ok(Json::null()))?;
        Ok(links)
    }

    /// Takes a change through the layers; gives it as they passed it on.
    ///
    /// # Errors
    /// A layer's refusal.
    pub(crate) fn change(&self, mut change: StateChange) -> Result<StateChange, Failure> {
        use crate::store::Reducer;
        if self.stacks.store.is_empty() {
            return Ok(change);
        }
        let (op, value) = match &change.act {
            StateAct::Put { value, reducer: Reducer::Overwrite, .. } => {
                (StoreOp::Write, Some(Json::from_trusted(value.as_str())))
            }
            StateAct::Put { value, .. } => {
                (StoreOp::Reduce, Some(Json::from_trusted(value.as_str())))
            }
            StateAct::Delete => (StoreOp::Delete, None),
            StateAct::Link { to, relation, .. } => (StoreOp::Link, Some(link(to, relation))),
            StateAct::Unlink { to, relation } => (StoreOp::Unlink, Some(link(to, relation))),
        };
        let call = self.call(op, &change.scope, &change.key, value);
        let mut arrived = false;
        self.stacks.store.run(call, &mut |call| {
            arrived = true;
            change.key = call.key;
            match &mut change.act {
                StateAct::Put { value, .. } => {
                    if let Some(given) = call.value {
                        given.as_str().clone_into(value);
                    }
                }
                StateAct::Link { to, relation, .. } | StateAct::Unlink { to, relation } => {
                    relink(call.value, to, relation);
                }
                StateAct::Delete => {}
            }
            Ok(Json::null())
        })?;
        if arrived { Ok(change) } else { Err(answered()) }
    }

    /// Clears what is transient, if the layers let that pass.
    ///
    /// # Errors
    /// A layer's refusal.
    pub(crate) fn clear(&self) -> Result<(), Failure> {
        let call = self.call(StoreOp::Clear, "*", "", None);
        let cleared = self.stacks.store.run(call, &mut |_| {
            StateStore::clear_transient(&self.shared.state);
            Ok(Json::null())
        });
        cleared.map(drop)
    }
}
