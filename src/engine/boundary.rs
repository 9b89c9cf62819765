//! The boundary of state: every operation passes the layers, whoever asks for it.

use std::sync::Arc;

use super::{Caller, Engine, EngineError, run::Run, shard::Shard, state::run_scope};
use crate::{
    flow::StateOp,
    middleware::{StoreCall, StoreOp},
    protocol::{Effect, Failure, Json},
    store::{StateAct, StateChange},
};

/// What a layer may see and change of an operation.
type Asked = (StoreOp, String, Option<Json>);

fn asked(op: &StateOp) -> Asked {
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
        StateOp::Delete { key }
        | StateOp::Link { key, .. }
        | StateOp::Unlink { key, .. }
        | StateOp::Traverse { key, .. } => *key = call.key,
    }
    op
}

impl Shard {
    fn call(&self, run: &Run, scope: String, (op, key, value): Asked) -> StoreCall {
        let principal =
            run.chain.started().map_or("", |(started, _)| started.principal.as_str()).into();
        StoreCall { op, run: Some(run.id), principal, scope, key, value }
    }

    /// Applies an operation to the run's own state, through the layers.
    pub(super) fn own_state(&mut self, run: &mut Run, op: &StateOp) -> Result<Json, Failure> {
        let stacks = self.stacks_of(run);
        if stacks.store.is_empty() {
            return self.apply_state(run, op);
        }
        let call = self.call(run, run_scope(run), asked(op));
        stacks.store.run(call, &mut |call| self.apply_state(run, &passed(op, call)))
    }

    /// Takes a change that is made later through the layers; gives it as they passed it on.
    pub(super) fn pass_change(
        &self,
        run: &Run,
        scope: &str,
        op: &StateOp,
    ) -> Result<StateOp, Failure> {
        let stacks = self.stacks_of(run);
        let mut through = op.clone();
        let call = self.call(run, scope.to_owned(), asked(op));
        stacks.store.run(call, &mut |call| {
            through = passed(op, call);
            Ok(Json::null())
        })?;
        Ok(through)
    }

    /// Takes what was read through the layers, before anybody sees it.
    pub(super) fn pass_read(
        &self,
        run: &Run,
        scope: &str,
        op: &StateOp,
        found: &Json,
    ) -> Result<Json, Failure> {
        let stacks = self.stacks_of(run);
        let call = self.call(run, scope.to_owned(), asked(op));
        stacks.store.run(call, &mut |_| Ok(found.clone()))
    }

    /// An effect as the layers pass it on; those on nothing but state are left alone.
    pub(super) fn pass_effect(&self, run: &Run, effect: &Effect) -> Result<Effect, Failure> {
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
        let stacks = self.stacks_of(run);
        let mut through = effect.clone();
        let call = self.call(run, scope.to_string(), asked);
        stacks.store.run(call, &mut |call| {
            match &mut through {
                Effect::WriteMemory { key, value, .. } => {
                    *key = call.key;
                    if let Some(given) = call.value {
                        *value = given.to_value();
                    }
                }
                Effect::DeleteMemory { key, .. } => *key = call.key,
                _ => {}
            }
            Ok(Json::null())
        })?;
        Ok(through)
    }
}

impl Engine {
    /// Takes what a caller asks of state through the host's layers.
    pub(super) fn pass_caller(
        &self,
        caller: &Caller,
        op: StoreOp,
        scope: &str,
        key: &str,
        found: Option<&Json>,
    ) -> Result<Json, EngineError> {
        let host = Arc::clone(self.shared().stacks.host());
        let call = StoreCall {
            op,
            run: None,
            principal: caller.subject.as_str().into(),
            scope: scope.to_owned(),
            key: key.to_owned(),
            value: None,
        };
        let found = found.cloned().unwrap_or_else(Json::null);
        Ok(host.store.run(call, &mut |_| Ok(found.clone()))?)
    }

    /// Takes a caller's change through the host's layers; gives it as they passed it on.
    pub(super) fn pass_caller_change(
        &self,
        caller: &Caller,
        mut change: StateChange,
    ) -> Result<StateChange, EngineError> {
        use crate::store::Reducer;
        let host = Arc::clone(self.shared().stacks.host());
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
        let call = StoreCall {
            op,
            run: None,
            principal: caller.subject.as_str().into(),
            scope: change.scope.clone(),
            key: change.key.clone(),
            value,
        };
        host.store.run(call, &mut |call| {
            change.key = call.key;
            if let (StateAct::Put { value, .. }, Some(given)) = (&mut change.act, call.value) {
                given.as_str().clone_into(value);
            }
            Ok(Json::null())
        })?;
        Ok(change)
    }
}
