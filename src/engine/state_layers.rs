//! Operations on state on their way through the layers.
//!
//! What a run does to its own state passes with the operation at the end of the way. What lies
//! elsewhere is asked for after a commit: there the layers see the request, and may refuse it or
//! change what is written.

use std::sync::Arc;

use super::{Caller, EngineError, run::Run, shard::Shard};
use crate::{
    flow::StateOp,
    middleware::{StoreCall, StoreOp, StoreStack, Stored},
    protocol::{Effect, Failure, Json, failure::kind},
    store::{StateAct, StateChange},
};

impl Shard {
    /// Applies an operation to the run's own state, through the layers.
    pub(super) fn layered_state(&mut self, run: &mut Run, op: &StateOp) -> Stored {
        let stacks = self.stacks_of(run);
        if stacks.store.is_empty() {
            return self.apply_state(run, op);
        }
        let call = called(run, &super::state::run_scope(run), op);
        stacks.store.run(call, &mut |call| self.apply_state(run, &rewritten(op, call)))
    }

    /// Takes an operation on state that others share through the layers, before it is asked for.
    pub(super) fn admit_state(
        &self,
        run: &Run,
        scope: &str,
        op: StateOp,
    ) -> Result<StateOp, Failure> {
        let stacks = self.stacks_of(run);
        if stacks.store.is_empty() {
            return Ok(op);
        }
        admitted(&stacks.store, called(run, scope, &op)).map(|call| rewritten(&op, call))
    }

    /// Takes a worker's read or write through the layers; gives the value as it is to be written.
    pub(super) fn admit_worker(
        &self,
        run: &Run,
        (op, scope, key): (StoreOp, &str, &str),
        value: Option<Json>,
    ) -> Result<Option<Json>, EngineError> {
        let stacks = self.stacks_of(run);
        if stacks.store.is_empty() {
            return Ok(value);
        }
        let call = StoreCall { value, ..plain(run, op, scope, key) };
        admitted(&stacks.store, call).map(|call| call.value).map_err(EngineError::Guarded)
    }

    /// Takes what a result wants to do to state through the layers.
    pub(super) fn admit_effects(
        &self,
        run: &Run,
        effects: &[Effect],
    ) -> Result<Vec<Effect>, Failure> {
        let stacks = self.stacks_of(run);
        let mut effects = effects.to_vec();
        if stacks.store.is_empty() {
            return Ok(effects);
        }
        for effect in &mut effects {
            match effect {
                Effect::WriteMemory { scope, key, value, .. } => {
                    let call = plain(run, StoreOp::Write, &scope.to_string(), key);
                    let call = StoreCall { value: Some(Json::from(&*value)), ..call };
                    if let Some(changed) = admitted(&stacks.store, call)?.value {
                        *value = changed.to_value();
                    }
                }
                Effect::DeleteMemory { scope, key } => {
                    let call = plain(run, StoreOp::Delete, &scope.to_string(), key);
                    admitted(&stacks.store, call)?;
                }
                Effect::LinkMemory { scope, link } => {
                    let call = plain(run, StoreOp::Link, &scope.to_string(), &link.from_key);
                    admitted(&stacks.store, call)?;
                }
                Effect::UnlinkMemory { scope, from_key, .. } => {
                    let call = plain(run, StoreOp::Unlink, &scope.to_string(), from_key);
                    admitted(&stacks.store, call)?;
                }
                _ => {}
            }
        }
        Ok(effects)
    }
}

/// Takes a read by a caller of the API through the host's layers.
pub(super) fn admit_read(
    stack: &StoreStack,
    caller: &Caller,
    (op, scope, key): (StoreOp, &str, &str),
) -> Result<(), EngineError> {
    if stack.is_empty() {
        return Ok(());
    }
    admitted(stack, by(caller, op, scope, key)).map(drop).map_err(EngineError::Guarded)
}

/// Takes a change by a caller of the API through the host's layers.
pub(super) fn admit_change(
    stack: &StoreStack,
    caller: &Caller,
    change: &mut StateChange,
) -> Result<(), EngineError> {
    if stack.is_empty() {
        return Ok(());
    }
    let op = match &change.act {
        StateAct::Put { .. } => StoreOp::Write,
        StateAct::Delete => StoreOp::Delete,
        StateAct::Link { .. } => StoreOp::Link,
        StateAct::Unlink { .. } => StoreOp::Unlink,
    };
    let mut call = by(caller, op, &change.scope, &change.key);
    if let StateAct::Put { value, .. } = &change.act {
        call.value = Some(Json::from_trusted(value.as_str()));
    }
    let call = admitted(stack, call).map_err(EngineError::Guarded)?;
    if let (StateAct::Put { value, .. }, Some(changed)) = (&mut change.act, call.value) {
        changed.as_str().clone_into(value);
    }
    Ok(())
}

/// The operation as it leaves the last layer.
fn admitted(stack: &StoreStack, call: StoreCall) -> Result<StoreCall, Failure> {
    let mut passed = None;
    stack.run(call, &mut |call| {
        passed = Some(call);
        Ok(Json::null())
    })?;
    passed.ok_or_else(|| {
        let message = "a layer answers in place of state, which it may for a run's own state only";
        Failure::new(kind::REFUSED, message)
    })
}

fn by(caller: &Caller, op: StoreOp, scope: &str, key: &str) -> StoreCall {
    let principal: Arc<str> = caller.subject.as_str().into();
    let (scope, key) = (scope.to_owned(), key.to_owned());
    StoreCall { op, run: None, principal, scope, key, value: None }
}

fn plain(run: &Run, op: StoreOp, scope: &str, key: &str) -> StoreCall {
    let principal = run.chain.started().map_or("", |(started, _)| started.principal.as_str());
    let (scope, key) = (scope.to_owned(), key.to_owned());
    StoreCall { op, run: Some(run.id), principal: principal.into(), scope, key, value: None }
}

fn called(run: &Run, scope: &str, op: &StateOp) -> StoreCall {
    let (kind, value) = match op {
        StateOp::Get { .. } => (StoreOp::Read, None),
        StateOp::Set { value, .. } => (StoreOp::Write, Some(value.clone())),
        StateOp::Delete { .. } => (StoreOp::Delete, None),
        StateOp::List { .. } => (StoreOp::List, None),
        StateOp::Add { by, .. } => (StoreOp::Reduce, Json::encode(by).ok()),
        StateOp::Append { value, .. } | StateOp::Merge { value, .. } => {
            (StoreOp::Reduce, Some(value.clone()))
        }
        StateOp::Search { .. } => (StoreOp::Search, None),
        StateOp::Link { metadata, .. } => (StoreOp::Link, metadata.clone()),
        StateOp::Unlink { .. } => (StoreOp::Unlink, None),
        StateOp::Traverse { .. } => (StoreOp::Traverse, None),
    };
    StoreCall { value, ..plain(run, kind, scope, op.key()) }
}

/// The operation with the key and the value that the layers made of it.
fn rewritten(op: &StateOp, call: StoreCall) -> StateOp {
    let mut op = op.clone();
    match (&mut op, call.value) {
        (
            StateOp::Set { key, value, .. }
            | StateOp::Append { key, value }
            | StateOp::Merge { key, value },
            written,
        ) => {
            *key = call.key;
            if let Some(written) = written {
                *value = written;
            }
        }
        (
            StateOp::Get { key }
            | StateOp::Delete { key }
            | StateOp::List { prefix: key }
            | StateOp::Add { key, .. }
            | StateOp::Link { key, .. }
            | StateOp::Unlink { key, .. }
            | StateOp::Traverse { key, .. },
            _,
        ) => {
            // A traversal is asked for under no key: a grant must reach all that it may come upon.
            if !call.key.is_empty() {
                *key = call.key;
            }
        }
        (StateOp::Search { .. }, _) => {}
    }
    op
}
