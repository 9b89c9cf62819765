//! Reads and changes state: every scope, within the scopes of the caller's token.
//!
//! A run's own scope is changed by its shard, which has it in memory; every other scope in the
//! store. Both are durable when a call returns.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::{
    engine::{
        Caller, Engine, EngineError, rfc3339,
        shared::message::ControlAsk,
        turn::passage::{Passage, Read, StateRead},
        verbs::engine::StateVerbs,
        view::shown::StateItem,
    },
    protocol::{
        ContentKind, Json, Lifetime, MemoryLink, MemoryTier, RunId, Scope, SearchOptions,
        SearchResult, StateError, StateStore, StoreOptions,
    },
    store::{Changed, Check, StateAct, StateChange, StateKey, StateRow},
    token::{Need, Verb},
};

/// The maximum number of changes in one batch.
pub const MOST_CHANGES: usize = 1_000;

/// A value of state.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct StateView {
    /// The scope: `global`, `run:<id>`, `session:<id>`, `operator:<run>:<operator>`,
    /// `custom:<name>`.
    pub scope: String,
    /// The key.
    pub key: String,
    /// The value.
    #[schema(value_type = serde_json::Value)]
    pub value: Json,
    /// Counts up at every write, from 1.
    pub revision: u64,
    /// RFC 3339, UTC.
    pub updated_at: String,
    /// RFC 3339, UTC: when it expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// The lifetime: transient, session, durable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub lifetime: Option<Lifetime>,
    /// The expected speed of access: hot, warm, cold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub tier: Option<MemoryTier>,
    /// The kind of knowledge: episodic, semantic, procedural, structural, {"custom": …}.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub content_kind: Option<ContentKind>,
    /// The importance, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub salience: Option<f64>,
}

/// The result of a change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChangedView {
    /// The value's revision; 0 once it is deleted, and for links.
    pub revision: u64,
    /// The value that a reducer left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub value: Option<Json>,
}

impl StateView {
    fn of(row: StateRow) -> Self {
        let StateRow { scope, key, value, revision, updated_ms, expires_ms, hints } = row;
        let StoreOptions { tier, lifetime, content_kind, salience, ttl: _ } = hints;
        Self {
            scope,
            key,
            value: Json::from_trusted(value),
            revision,
            updated_at: rfc3339(updated_ms),
            expires_at: expires_ms.map(rfc3339),
            lifetime,
            tier,
            content_kind,
            salience,
        }
    }
}

impl Engine {
    /// Returns state as the protocol's traits, for programs that embed the host. No token is
    /// needed; the host's layers apply nevertheless, with the principal `host`.
    pub fn state(&self) -> HostState {
        HostState(self.clone())
    }
}

impl StateVerbs<'_> {
    /// Returns a value of state.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or there is none.
    pub async fn state_value(
        self,
        caller: &Caller,
        scope: &Scope,
        key: &str,
    ) -> Result<StateView, EngineError> {
        let scope = may_read(caller, scope, key)?;
        let passage = self.passage(&caller.subject);
        let StateRead { value, rows, .. } =
            passage.read(Read::Value, scope.clone(), key.to_owned()).await?;
        let row = rows.value;
        row.map(|row| StateView::of(StateRow { value: value.as_str().to_owned(), ..row }))
            .ok_or_else(|| EngineError::NotFound { what: "state", id: format!("{scope}/{key}") })
    }

    /// Returns a page of a scope, sorted by key.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or the scope is that of a run that does not exist.
    pub async fn state_page(
        self,
        caller: &Caller,
        scope: &Scope,
        prefix: &str,
        after: Option<String>,
        limit: usize,
    ) -> Result<crate::engine::Page<StateItem>, EngineError> {
        let asked = scope.clone();
        let scope = may_read(caller, scope, prefix)?;
        let read = Read::Page { after, limit };
        let given = self.passage(&caller.subject).read(read, scope, prefix.to_owned()).await?;
        let stored = &given.rows.keys;
        let last = stored.last().filter(|_| stored.len() == limit);
        let next_cursor = last.map(|row| row.key.clone());
        let keys = given.keys();
        let mut rows: BTreeMap<String, StateKey> =
            given.rows.keys.into_iter().map(|row| (row.key.clone(), row)).collect();
        let items = keys.into_iter().map(|key| match rows.remove(&key) {
            Some(row) => StateItem {
                key,
                revision: Some(row.revision),
                updated_at: Some(rfc3339(row.updated_ms)),
                expires_at: row.expires_ms.map(rfc3339),
                ..StateItem::default()
            },
            // A layer answered, and the store has no such key.
            None => StateItem { key, ..StateItem::default() },
        });
        let items: Vec<StateItem> = items.collect();
        if items.is_empty() {
            self.has_owner(&asked).await?;
        }
        Ok(crate::engine::Page { items, next_cursor })
    }

    /// Fails when a scope is that of a run that does not exist.
    async fn has_owner(self, scope: &Scope) -> Result<(), EngineError> {
        let (Scope::Workflow(run) | Scope::Operator { workflow: run, .. }) = scope else {
            return Ok(());
        };
        match run.as_str().parse::<RunId>() {
            Ok(run) => self.engine.header(run).await.map(drop),
            Err(_) => Err(EngineError::NotFound { what: "run", id: run.to_string() }),
        }
    }

    /// Returns the values of a scope that contain every word of a query, best first.
    ///
    /// # Errors
    /// Fails when the caller lacks permission.
    pub async fn search_state(
        self,
        caller: &Caller,
        scope: &Scope,
        query: &str,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<StateItem>, EngineError> {
        let asked = scope.clone();
        let scope = may_read(caller, scope, prefix)?;
        let options = SearchOptions::default();
        let read = Read::Found { prefix: prefix.to_owned(), limit, options };
        let given = self.passage(&caller.subject).read(read, scope, query.to_owned()).await?;
        let items = given.items();
        if items.is_empty() {
            self.has_owner(&asked).await?;
        }
        Ok(items)
    }

    /// Returns the keys that are reachable over links from a key, nearest first.
    ///
    /// # Errors
    /// Fails when the caller lacks permission.
    pub async fn walk_state(
        self,
        caller: &Caller,
        scope: &Scope,
        from: &str,
        relation: Option<&str>,
        depth: u32,
    ) -> Result<Vec<StateItem>, EngineError> {
        // A link may lead to any key of the scope.
        let scope = may_read(caller, scope, "")?;
        let read = Read::Reached { relation: relation.map(str::to_owned), depth };
        let given = self.passage(&caller.subject).read(read, scope, from.to_owned()).await?;
        let item = |key| StateItem { key, ..StateItem::default() };
        Ok(given.keys().into_iter().map(item).collect())
    }

    /// Changes state atomically; the changes are durable when this returns.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, a condition does not hold, a reducer does not fit
    /// the current value, or the changes belong to several runs.
    pub async fn change_state(
        self,
        caller: &Caller,
        changes: Vec<(Scope, StateChange)>,
    ) -> Result<Vec<ChangedView>, EngineError> {
        if changes.len() > MOST_CHANGES {
            let message = format!("change state: at most {MOST_CHANGES} changes go together");
            return Err(EngineError::BadRequest(message));
        }
        for (_, change) in &changes {
            let need = Need::State { scope: &change.scope, key: &change.key };
            caller.grant.check(Verb::StateWrite, &[need])?;
            // A link changes both of its keys.
            if let StateAct::Link { to, .. } | StateAct::Unlink { to, .. } = &change.act {
                let need = Need::State { scope: &change.scope, key: to };
                caller.grant.check(Verb::StateWrite, &[need])?;
            }
        }
        let passage = self.passage(&caller.subject);
        let pass = |(scope, change)| {
            let passed = passage.change(change).map_err(EngineError::Guarded)?;
            Ok((scope, passed))
        };
        let changes = changes.into_iter().map(pass).collect::<Result<Vec<_>, EngineError>>()?;
        let changed = self.change_any(changes, Some(caller.jti.clone())).await?;
        let view = |changed: Changed| ChangedView {
            revision: changed.revision,
            value: changed.value.map(Json::from_trusted),
        };
        Ok(changed.into_iter().map(view).collect())
    }

    /// Changes state; if a run owns the scope, through its shard.
    pub(super) async fn change_any(
        self,
        changes: Vec<(Scope, StateChange)>,
        jti: Option<String>,
    ) -> Result<Vec<Changed>, EngineError> {
        let runs: std::collections::BTreeSet<Option<RunId>> =
            changes.iter().map(|(scope, _)| run_of(scope)).collect();
        if runs.len() > 1 {
            let message = "change state: the scope of a run changes by itself; send one batch for \
                           each run and one for everything else";
            return Err(EngineError::BadRequest(message.to_owned()));
        }
        let changes: Vec<StateChange> = changes.into_iter().map(|(_, change)| change).collect();
        if let Some(run) = runs.into_iter().next().flatten()
            && self
                .engine
                .read(move |store| store.header(run.num()))
                .await?
                .is_some_and(|header| header.created_ms == run.created_ms())
        {
            return self.engine.ask(run.num(), ControlAsk::ChangeState { changes, jti }).await;
        }
        let checks = jti.map(Check::TokenLive).into_iter().collect();
        Ok(self.engine.shared().state.change(checks, changes, None).await?)
    }
}

fn run_of(scope: &Scope) -> Option<RunId> {
    match scope {
        Scope::Workflow(id) => id.as_str().parse().ok(),
        _ => None,
    }
}

fn may_read(caller: &Caller, scope: &Scope, key: &str) -> Result<String, EngineError> {
    let scope = scope.to_string();
    caller.grant.check(Verb::StateRead, &[Need::State { scope: &scope, key }])?;
    Ok(scope)
}

/// State of a whole host.
#[derive(Clone)]
pub struct HostState(Engine);

impl HostState {
    fn passage(&self) -> Passage {
        self.0.stored_state().passage("host")
    }

    async fn change_one(&self, scope: &Scope, key: &str, act: StateAct) -> Result<(), StateError> {
        let change =
            StateChange { scope: scope.to_string(), key: key.to_owned(), if_revision: None, act };
        let not_written = |why: String| StateError::WriteFailed(why);
        let change = self.passage().change(change).map_err(|no| not_written(no.to_string()))?;
        let changed = self.0.stored_state().change_any(vec![(scope.clone(), change)], None).await;
        changed.map(drop).map_err(|error| not_written(error.to_string()))
    }
}

#[async_trait]
impl StateStore for HostState {
    async fn read(&self, scope: &Scope, key: &str) -> Result<Option<Value>, StateError> {
        self.passage().value(scope, key).await
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
        self.passage().keys(scope, prefix).await
    }

    async fn search(
        &self,
        scope: &Scope,
        query: &str,
        limit: usize,
    ) -> Result<Vec<SearchResult>, StateError> {
        self.passage().found(scope, query, limit, &SearchOptions::default()).await
    }

    async fn search_hinted(
        &self,
        scope: &Scope,
        query: &str,
        limit: usize,
        options: &SearchOptions,
    ) -> Result<Vec<SearchResult>, StateError> {
        self.passage().found(scope, query, limit, options).await
    }

    fn clear_transient(&self) {
        if let Err(refused) = self.passage().clear() {
            tracing::warn!(%refused, "a layer keeps the transient values");
        }
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
        self.passage().reached(scope, from_key, relation, max_depth).await
    }
}

impl StateVerbs<'_> {
    /// Returns the access to state of a principal that is not a run.
    pub(crate) fn passage(self, principal: &str) -> Passage {
        Passage {
            shared: Arc::clone(&self.engine.inner.shared),
            stacks: Arc::clone(self.engine.shared().stacks.host()),
            run: None,
            principal: principal.into(),
        }
    }
}
