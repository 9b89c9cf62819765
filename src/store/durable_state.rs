//! State on top of a store: the protocol's traits and more.
//!
//! Owns the transient values, which live as long as the process and hide the stored ones, and the
//! traversal of links. Refuses keys and values that are too large. The engine reads and writes
//! every scope through it, except a live run's own scope, which its shard has in memory.

mod reads;
mod transient;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::OwnedMutexGuard;

use super::{
    Changed, Check, Reducer, StateAct, StateBatch, StateChange, StateHit, StateRow, Store,
    StoreError, Write,
    change::Answers,
    commit,
    foreign::{Foreign, ForeignStores},
};
use crate::{
    clock::Clock,
    protocol::{
        ChangeKey, Lifetime, MemoryLink, RunId, Scope, SearchOptions, SearchResult, StateError,
        StateStore, StoreOptions,
    },
    tasks::Tasks,
};
use transient::{Transient, bytes_of};

/// The longest time that a store of somebody else's takes for a change.
const FOREIGN_WRITE: Duration = Duration::from_secs(60);

/// The limits of state.
#[derive(Debug, Clone, Copy)]
pub struct StateLimits {
    /// The maximum length of a key, relation or scope, in bytes.
    pub key: usize,
    /// The maximum size of a value, in bytes.
    pub value: usize,
    /// The maximum number of transient values.
    pub transients: usize,
    /// The maximum total size of transient values, with their keys and scopes, in bytes.
    pub transient_bytes: usize,
}

impl Default for StateLimits {
    fn default() -> Self {
        Self { key: 64 << 10, value: 4 << 20, transients: 10_000, transient_bytes: 64 << 20 }
    }
}

/// The state in a store.
#[derive(Clone)]
pub struct DurableState {
    store: Arc<dyn Store>,
    clock: Clock,
    tasks: Tasks,
    limits: StateLimits,
    transient: Arc<Mutex<Transient>>,
    foreign: Arc<ForeignStores>,
    /// One writer at a time in each scope that others keep.
    gates: Arc<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

impl DurableState {
    /// Sets the scopes that others keep.
    #[must_use]
    pub fn with_foreign(self, foreign: Arc<ForeignStores>) -> Self {
        let gates = foreign.keys().map(|scope| (scope.clone(), Arc::default())).collect();
        Self { foreign, gates: Arc::new(gates), ..self }
    }

    /// Waits until nobody else writes to a scope that others keep; nobody else does while the
    /// returned value lives.
    pub async fn alone_in(&self, scope: &str) -> Option<OwnedMutexGuard<()>> {
        let gate = self.gates.get(scope)?;
        Some(Arc::clone(gate).lock_owned().await)
    }

    /// Makes a change in the store of somebody else's that keeps its scope.
    ///
    /// # Errors
    /// Fails when the store refuses the change, or could not write it.
    pub async fn change_foreign(
        &self,
        change: &StateChange,
        named: Option<&ChangeKey>,
    ) -> Result<Changed, StoreError> {
        self.admit(change)?;
        let Some((foreign, scope)) = self.foreign_to(&change.scope) else {
            return Ok(Changed { revision: 0, value: None });
        };
        let changing = foreign.change(&scope, change, named);
        tokio::time::timeout(FOREIGN_WRITE, changing).await.unwrap_or_else(|_| {
            Err(StoreError::Database {
                context: format!("write to the store of {}", change.scope),
                reason: format!("it did not answer within {} s", FOREIGN_WRITE.as_secs()),
            })
        })
    }

    /// Returns true if somebody else keeps a scope: its reads may wait.
    pub fn is_foreign(&self, scope: &str) -> bool {
        self.foreign.contains_key(scope)
    }

    pub(super) fn foreign_to(&self, scope: &str) -> Option<(Foreign<'_>, Scope)> {
        Some((Foreign(&**self.foreign.get(scope)?), scope.parse().ok()?))
    }

    /// Creates the state on top of `store`.
    pub fn new(store: Arc<dyn Store>, clock: Clock, tasks: Tasks, limits: StateLimits) -> Self {
        let (transient, foreign, gates) = (Arc::default(), Arc::default(), Arc::default());
        Self { store, clock, tasks, limits, transient, foreign, gates }
    }

    /// Applies a set of changes durably, as a whole or not at all, and returns their answers. With
    /// a receipt for a (run, step), the changes are applied once, however often this is called.
    ///
    /// # Errors
    /// Fails when a condition does not hold, a reducer does not fit the stored value, something is
    /// too large, or the store cannot write.
    pub async fn change(
        &self,
        checks: Vec<Check>,
        changes: Vec<StateChange>,
        receipt: Option<(u64, u32)>,
    ) -> Result<Vec<Changed>, StoreError> {
        for change in &changes {
            self.admit(change)?;
        }
        if changes.iter().any(|it| self.is_foreign(&it.scope)) {
            let [change] = changes.as_slice() else {
                let key = changes[0].key.chars().take(64).collect();
                let reason = "a change of a scope that is kept elsewhere goes alone".to_owned();
                return Err(StoreError::StateRefused { key, reason });
            };
            if !checks.is_empty() {
                self.submit(checks, Vec::new()).await?;
            }
            let _alone = self.alone_in(&change.scope).await;
            return Ok(vec![self.change_foreign(change, None).await?]);
        }
        let (passing, durable): (Vec<_>, Vec<_>) = changes.iter().partition(|it| is_transient(it));
        self.make_room(&passing)?;
        let answers = Answers::default();
        if !durable.is_empty() || !checks.is_empty() {
            let batch = StateBatch {
                changes: durable.into_iter().cloned().collect(),
                at_ms: self.clock.now_ms(),
                most: self.limits.value,
                receipt,
                answers: answers.clone(),
            };
            self.submit(checks, vec![Write::ChangeState(Box::new(batch))]).await?;
        }
        let mut stored = answers.get().iter();
        let mut answers = Vec::with_capacity(changes.len());
        for change in &changes {
            answers.push(match self.lay_over(change) {
                Some(answer) => answer,
                None => stored.next().cloned().unwrap_or(Changed { revision: 0, value: None }),
            });
        }
        Ok(answers)
    }

    /// Writes a transient value.
    ///
    /// # Errors
    /// Fails when a limit is exceeded.
    pub fn put_transient(
        &self,
        scope: &str,
        key: &str,
        value: String,
        hints: &StoreOptions,
    ) -> Result<(), StoreError> {
        let change = StateChange {
            scope: scope.to_owned(),
            key: key.to_owned(),
            if_revision: None,
            act: StateAct::Put { value, reducer: Reducer::Overwrite, hints: hints.clone() },
        };
        self.make_room(&[&change])?;
        self.lay_over(&change);
        Ok(())
    }

    /// Removes a transient value, if there is one, before a durable value takes its place.
    pub fn drop_transient(&self, scope: &str, key: &str) {
        let mut transient = self.transient.lock();
        if !transient.is_empty() {
            transient.remove(scope, key);
        }
    }

    /// Removes the transient values of a run and of its operators: it has ended, or was deleted.
    pub fn drop_run(&self, run: RunId) {
        let mut transient = self.transient.lock();
        if !transient.is_empty() {
            transient.remove_run(run);
        }
    }

    fn admit(&self, change: &StateChange) -> Result<(), StoreError> {
        let StateLimits { key, value, .. } = self.limits;
        let refuse = |reason: String| {
            let key = change.key.chars().take(64).collect();
            Err(StoreError::StateRefused { key, reason })
        };
        let long =
            |what: &str, text: &str| format!("{what} has {} bytes; {key} are allowed", text.len());
        for (what, text) in [("the scope", &change.scope), ("the key", &change.key)] {
            if text.len() > key {
                return refuse(long(what, text));
            }
        }
        match &change.act {
            StateAct::Put { value: given, .. } if given.len() > value => {
                refuse(format!("the value has {} bytes; {value} are allowed", given.len()))
            }
            StateAct::Put { reducer, .. }
                if is_transient(change)
                    && (*reducer != Reducer::Overwrite || change.if_revision.is_some()) =>
            {
                refuse("a transient value is written whole and without a condition".to_owned())
            }
            StateAct::Link { to, relation, .. } | StateAct::Unlink { to, relation } => {
                for (what, text) in [("the linked key", to), ("the relation", relation)] {
                    if text.len() > key {
                        return refuse(long(what, text));
                    }
                }
                Ok(())
            }
            StateAct::Put { .. } | StateAct::Delete => Ok(()),
        }
    }

    /// Checks that there is room for transient values, without those that have expired.
    ///
    /// # Errors
    /// Fails when a limit would be exceeded.
    pub fn make_room(&self, passing: &[&StateChange]) -> Result<(), StoreError> {
        let Some(first) = passing.first() else { return Ok(()) };
        let bytes = passing.iter().map(|it| bytes_of(&it.scope, &it.key, value_of(it)));
        let more: usize = bytes.sum();
        let mut transient = self.transient.lock();
        transient.expire(self.clock.now_ms());
        let StateLimits { transients, transient_bytes, .. } = self.limits;
        let fresh = passing.iter().filter(|it| transient.get(&it.scope, &it.key).is_none()).count();
        if transient.len() + fresh > transients || transient.bytes() + more > transient_bytes {
            let reason = format!(
                "there is room for {transients} transient values of {transient_bytes} bytes in \
                 all; delete some or write it durably"
            );
            return Err(StoreError::StateRefused { key: first.key.clone(), reason });
        }
        Ok(())
    }

    /// Applies a change to the transient values. Returns `None` for a durable change; a durable
    /// write or delete removes the transient value.
    fn lay_over(&self, change: &StateChange) -> Option<Changed> {
        let mut transient = self.transient.lock();
        let (scope, key) = (change.scope.as_str(), change.key.as_str());
        match &change.act {
            StateAct::Put { value, hints, .. } if is_transient(change) => {
                let now_ms = self.clock.now_ms();
                let before = transient.get(scope, key).filter(|row| row.is_live(now_ms));
                let revision = before.map_or(1, |row| row.revision + 1);
                transient.put(StateRow {
                    scope: scope.to_owned(),
                    key: key.to_owned(),
                    value: value.clone(),
                    revision,
                    updated_ms: now_ms,
                    expires_ms: hints.ttl.map(|ttl| now_ms.saturating_add(ttl.as_millis())),
                    hints: hints.clone(),
                });
                Some(Changed { revision, value: None })
            }
            StateAct::Put { .. } | StateAct::Delete => {
                transient.remove(scope, key);
                None
            }
            StateAct::Link { .. } | StateAct::Unlink { .. } => None,
        }
    }

    async fn submit(&self, checks: Vec<Check>, writes: Vec<Write>) -> Result<(), StoreError> {
        commit(&*self.store, checks, None, writes).await
    }

    async fn change_one(&self, scope: &Scope, key: &str, act: StateAct) -> Result<(), StateError> {
        let change =
            StateChange { scope: scope.to_string(), key: key.to_owned(), if_revision: None, act };
        self.change(Vec::new(), vec![change], None).await.map(drop).map_err(not_written)
    }
}

fn is_transient(change: &StateChange) -> bool {
    matches!(
        &change.act,
        StateAct::Put { hints: StoreOptions { lifetime: Some(Lifetime::Transient), .. }, .. }
    )
}

fn value_of(change: &StateChange) -> &str {
    match &change.act {
        StateAct::Put { value, .. } => value,
        StateAct::Delete | StateAct::Link { .. } | StateAct::Unlink { .. } => "",
    }
}

fn not_written(error: StoreError) -> StateError {
    StateError::WriteFailed(error.to_string())
}

fn not_read(error: StoreError) -> StateError {
    StateError::Other(Box::new(error))
}

#[async_trait]
impl StateStore for DurableState {
    async fn read(&self, scope: &Scope, key: &str) -> Result<Option<Value>, StateError> {
        let row = self.value(&scope.to_string(), key).map_err(not_read)?;
        row.map(|row| serde_json::from_str(&row.value))
            .transpose()
            .map_err(|error| StateError::Serialization(error.to_string()))
    }

    async fn write(&self, scope: &Scope, key: &str, value: Value) -> Result<(), StateError> {
        self.write_hinted(scope, key, value, &StoreOptions::default()).await
    }

    async fn write_hinted(
        &self,
        scope: &Scope,
        key: &str,
        value: Value,
        options: &StoreOptions,
    ) -> Result<(), StateError> {
        self.change_one(scope, key, StateAct::set(&value, options.clone())).await
    }

    async fn delete(&self, scope: &Scope, key: &str) -> Result<(), StateError> {
        self.change_one(scope, key, StateAct::Delete).await
    }

    async fn list(&self, scope: &Scope, prefix: &str) -> Result<Vec<String>, StateError> {
        self.keys(&scope.to_string(), prefix).await.map_err(not_read)
    }

    async fn search(
        &self,
        scope: &Scope,
        query: &str,
        limit: usize,
    ) -> Result<Vec<SearchResult>, StateError> {
        self.search_hinted(scope, query, limit, &SearchOptions::default()).await
    }

    async fn search_hinted(
        &self,
        scope: &Scope,
        query: &str,
        limit: usize,
        options: &SearchOptions,
    ) -> Result<Vec<SearchResult>, StateError> {
        let found = self.find(&scope.to_string(), query, "", limit, options.clone()).await;
        let shown = |hit: StateHit| {
            let mut result = SearchResult::new(hit.key, hit.score);
            result.snippet = Some(hit.snippet);
            result
        };
        Ok(found.map_err(not_read)?.into_iter().map(shown).collect())
    }

    fn clear_transient(&self) {
        *self.transient.lock() = Transient::default();
    }

    async fn link(&self, scope: &Scope, link: &MemoryLink) -> Result<(), StateError> {
        self.change_one(scope, &link.from_key, StateAct::link(link)).await
    }

    async fn unlink(
        &self,
        scope: &Scope,
        from_key: &str,
        to_key: &str,
        relation: &str,
    ) -> Result<(), StateError> {
        let act = StateAct::Unlink { to: to_key.to_owned(), relation: relation.to_owned() };
        self.change_one(scope, from_key, act).await
    }

    async fn traverse(
        &self,
        scope: &Scope,
        from_key: &str,
        relation: Option<&str>,
        max_depth: u32,
    ) -> Result<Vec<String>, StateError> {
        self.walk(&scope.to_string(), from_key, relation, max_depth).await.map_err(not_read)
    }
}

#[cfg(test)]
mod tests;
