//! Scopes that are kept in a store of somebody else's.
//!
//! A change is made after the commit that asks for it, and again until it is known to be made: at
//! least once, with the same key each time. So it may not depend on what is there: no reducers, no
//! conditions.

use std::{collections::BTreeMap, sync::Arc};

use futures::executor::block_on;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    Changed, Errand, Reducer, StateAct, StateChange, StateHit, StateKey, StateRow, StoreError,
};
use crate::protocol::{
    ChangeKey, MemoryLink, Scope, SearchOptions, StateError, StateStore, StoreOptions,
};

/// Stores by the text of their scope.
pub type ForeignStores = BTreeMap<String, Arc<dyn StateStore>>;

/// A change of such a scope that is committed, as the outbox keeps it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ForeignChange {
    /// The name of the change.
    pub key: ChangeKey,
    /// The change.
    pub change: StateChange,
}

impl ForeignChange {
    /// Reads the payload of a row.
    ///
    /// # Errors
    /// Fails when the payload has another form.
    pub fn read(payload: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(payload)
    }

    /// Returns the message of the change, for the outbox.
    pub fn errand(&self) -> Errand {
        let payload = serde_json::to_string(self).expect("a change is plain data");
        Errand::Change { scope: self.change.scope.clone(), payload }
    }
}

/// A store of somebody else's, for a thread that may wait.
pub(super) struct Foreign<'a>(pub(super) &'a dyn StateStore);

impl Foreign<'_> {
    /// Makes a change in a store of somebody else's.
    pub(super) async fn change(
        &self,
        scope: &Scope,
        change: &StateChange,
        named: Option<&ChangeKey>,
    ) -> Result<Changed, StoreError> {
        let refused = |reason: &str| {
            let key = change.key.chars().take(64).collect();
            StoreError::StateRefused { key, reason: reason.to_owned() }
        };
        let store = self.0;
        if change.if_revision.is_some() {
            return Err(refused("its scope is kept elsewhere, where values have no revisions"));
        }
        let key = change.key.as_str();
        let done = match &change.act {
            StateAct::Put { value, reducer: Reducer::Overwrite, hints } => {
                match serde_json::from_str::<Value>(value) {
                    Ok(value) => match named {
                        Some(named) => store.write_keyed(scope, key, value, hints, named).await,
                        None => store.write_hinted(scope, key, value, hints).await,
                    },
                    Err(error) => Err(StateError::Serialization(error.to_string())),
                }
            }
            StateAct::Put { .. } => {
                return Err(refused(
                    "its scope is kept elsewhere, where a value is written whole: read it, and \
                     set what comes of it",
                ));
            }
            StateAct::Delete => match named {
                Some(named) => store.delete_keyed(scope, key, named).await,
                None => store.delete(scope, key).await,
            },
            StateAct::Link { to, relation, metadata } => {
                let mut link = MemoryLink::new(key, to.as_str(), relation.as_str());
                link.metadata = metadata.as_deref().and_then(|it| serde_json::from_str(it).ok());
                store.link(scope, &link).await
            }
            StateAct::Unlink { to, relation } => store.unlink(scope, key, to, relation).await,
        };
        match done {
            Ok(()) => Ok(Changed { revision: 0, value: None }),
            // It may be written a moment later.
            Err(StateError::WriteFailed(reason)) => {
                let context = format!("write to the store of {}", change.scope);
                Err(StoreError::Database { context, reason })
            }
            Err(error) => Err(refused(&error.to_string())),
        }
    }

    pub(super) fn value(&self, scope: &Scope, key: &str) -> Result<Option<StateRow>, StoreError> {
        let value = block_on(self.0.read(scope, key)).map_err(not_read)?;
        Ok(value.map(|value| row(scope, key.to_owned(), value.to_string())))
    }

    pub(super) fn page(
        &self,
        scope: &Scope,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<StateKey>, StoreError> {
        let mut keys = block_on(self.0.list(scope, prefix)).map_err(not_read)?;
        keys.retain(|key| key.starts_with(prefix) && after.is_none_or(|it| key.as_str() > it));
        keys.sort_unstable();
        keys.dedup();
        let keys = keys.into_iter().take(limit);
        // A store of somebody else's has no revisions and no times.
        let listed = |key| StateKey { key, revision: 0, updated_ms: 0, expires_ms: None };
        Ok(keys.map(listed).collect())
    }

    pub(super) fn find(
        &self,
        scope: &Scope,
        query: &str,
        prefix: &str,
        limit: usize,
        options: &SearchOptions,
    ) -> Result<Vec<StateHit>, StoreError> {
        let found = block_on(self.0.search_hinted(scope, query, limit, options));
        let hits = found.map_err(not_read)?.into_iter();
        let hits = hits.filter(|hit| hit.key.starts_with(prefix)).take(limit);
        Ok(hits
            .map(|hit| StateHit {
                key: hit.key,
                score: hit.score,
                snippet: hit.snippet.unwrap_or_default(),
            })
            .collect())
    }

    pub(super) fn walk(
        &self,
        scope: &Scope,
        from: &str,
        relation: Option<&str>,
        depth: u32,
    ) -> Result<Vec<String>, StoreError> {
        block_on(self.0.traverse(scope, from, relation, depth)).map_err(not_read)
    }
}

/// A value without a revision and without a time, which only the host's own have.
fn row(scope: &Scope, key: String, value: String) -> StateRow {
    StateRow {
        scope: scope.to_string(),
        key,
        value,
        revision: 0,
        updated_ms: 0,
        expires_ms: None,
        hints: StoreOptions::default(),
    }
}

fn not_read(error: StateError) -> StoreError {
    StoreError::Database {
        context: "read a store of somebody else\'s".to_owned(),
        reason: error.to_string(),
    }
}
