//! State from beside the shards: what callers, steps and operators read, through the layers.
//!
//! A layer of state answers at once, and a read of the store blocks: both happen on a thread that
//! may wait.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;

use crate::{
    engine::{
        EngineError, StateItem,
        shared::{deliveries, shards::Shared},
    },
    flow::StateOp,
    middleware::{About, Stacks, StoreCall, StoreOp, Stored},
    protocol::{
        Failure, Json, OperatorId, RunId, Scope, SearchOptions, SearchResult, StateError,
        StateReader, WorkflowId,
    },
    store::{DurableState, StateKey, StateRow, StoreError},
    token::{Grant, Need, Verb},
};

/// The requester of state, and the layers in front of the state.
#[derive(Clone)]
pub(crate) struct Passage {
    pub(crate) shared: Arc<Shared>,
    pub(crate) stacks: Arc<Stacks>,
    pub(crate) run: Option<RunId>,
    pub(crate) principal: Arc<str>,
}

/// A read of state: the operation, and the part that layers do not see.
#[derive(Debug, Clone)]
pub(crate) enum Read {
    /// A value.
    Value,
    /// All keys.
    Keys,
    /// A page of keys: after which, how many.
    Page { after: Option<String>, limit: usize },
    /// The keys whose values fit a query.
    Found { prefix: String, limit: usize, options: SearchOptions },
    /// The keys that links lead to.
    Reached { relation: Option<String>, depth: u32 },
}

/// The result of a read: the value after the layers, and what is stored if the layers had it read.
pub(crate) struct StateRead {
    pub(crate) value: Json,
    /// What is stored.
    pub(crate) rows: Rows,
    /// True if the layers had it read at all.
    pub(crate) was_read: bool,
}

/// What a read found in the store.
#[derive(Default)]
pub(crate) struct Rows {
    /// The row of a value.
    pub(crate) value: Option<StateRow>,
    /// The keys of a page.
    pub(crate) keys: Vec<StateKey>,
}

impl Read {
    fn op(&self) -> StoreOp {
        match self {
            Self::Value => StoreOp::Read,
            Self::Keys | Self::Page { .. } => StoreOp::List,
            Self::Found { .. } => StoreOp::Search,
            Self::Reached { .. } => StoreOp::Traverse,
        }
    }

    /// A read that a flow asks for, with its key, prefix or query.
    pub(crate) fn of(op: &StateOp) -> Option<(Self, &str)> {
        Some(match op {
            StateOp::Get { key } => (Self::Value, key),
            StateOp::List { prefix } => (Self::Keys, prefix),
            StateOp::Search { query, limit, prefix } => {
                let options = SearchOptions::default();
                (Self::Found { prefix: prefix.clone(), limit: *limit, options }, query)
            }
            StateOp::Traverse { key, relation, depth } => {
                (Self::Reached { relation: relation.clone(), depth: *depth }, key)
            }
            StateOp::Set { .. }
            | StateOp::Delete { .. }
            | StateOp::Add { .. }
            | StateOp::Append { .. }
            | StateOp::Merge { .. }
            | StateOp::Link { .. }
            | StateOp::Unlink { .. } => return None,
        })
    }

    /// Reads it, with the key that the layers passed on.
    fn read(
        &self,
        state: &DurableState,
        scope: &str,
        key: &str,
    ) -> Result<(Json, Rows), StoreError> {
        let plain = |keys: &[String]| Json::encode(keys).expect("strings are JSON");
        Ok(match self {
            Self::Value => {
                let row = state.value(scope, key)?;
                let value = row.as_ref().map(|row| Json::from_trusted(row.value.as_str()));
                (value.unwrap_or_else(Json::null), Rows { value: row, keys: Vec::new() })
            }
            Self::Keys => (plain(&state.blocking_keys(scope, key)?), Rows::default()),
            Self::Page { after, limit } => {
                let keys = state.blocking_page(scope, key, after.as_deref(), *limit)?;
                let names: Vec<String> = keys.iter().map(|it| it.key.clone()).collect();
                (plain(&names), Rows { value: None, keys })
            }
            Self::Found { prefix, limit, options } => {
                let hits = state.blocking_find(scope, key, prefix, *limit, options.clone())?;
                let items = hits.into_iter().map(|hit| StateItem {
                    key: hit.key,
                    score: Some(hit.score),
                    snippet: Some(hit.snippet),
                    ..StateItem::default()
                });
                let items: Vec<StateItem> = items.collect();
                (Json::encode(&items).expect("hits are plain data"), Rows::default())
            }
            Self::Reached { relation, depth } => {
                let keys = state.blocking_walk(scope, key, relation.as_deref(), *depth)?;
                (plain(&keys), Rows::default())
            }
        })
    }
}

impl StateRead {
    /// The keys of a list or a walk.
    pub(crate) fn keys(&self) -> Vec<String> {
        self.value.decode().unwrap_or_default()
    }

    /// The hits of a search.
    pub(crate) fn items(&self) -> Vec<StateItem> {
        self.value.decode().unwrap_or_default()
    }
}

impl Passage {
    /// An operation of whoever this is.
    pub(crate) fn call(
        &self,
        op: StoreOp,
        scope: &str,
        key: &str,
        value: Option<Json>,
    ) -> StoreCall {
        StoreCall {
            op,
            run: self.run,
            principal: Arc::clone(&self.principal),
            scope: scope.to_owned(),
            key: key.to_owned(),
            value,
        }
    }

    /// Reads through the layers.
    ///
    /// # Errors
    /// A layer's refusal, or what the store says.
    pub(crate) async fn read(
        &self,
        read: Read,
        scope: String,
        key: String,
    ) -> Result<StateRead, EngineError> {
        if let Some(run) = self.run.filter(|_| self.shared.state.is_foreign(&scope)) {
            deliveries::wait(&self.shared, run.num(), &scope).await?;
        }
        self.read_settled(read, scope, key).await
    }

    /// Reads through the layers, what has been written so far.
    async fn read_settled(
        &self,
        read: Read,
        scope: String,
        key: String,
    ) -> Result<StateRead, EngineError> {
        let waits = self.shared.state.is_foreign(&scope);
        if matches!(read, Read::Value) && self.stacks.store.is_empty() && !waits {
            // One row is read at once.
            return self.pass_read(&read, &scope, &key);
        }
        let passage = self.clone();
        let passed =
            self.shared.tasks.spawn_blocking(move || passage.pass_read(&read, &scope, &key));
        passed.await.map_err(|_| EngineError::Stopping)?
    }

    fn pass_read(&self, read: &Read, scope: &str, key: &str) -> Result<StateRead, EngineError> {
        let state = &self.shared.state;
        if self.stacks.store.is_empty() {
            let (value, rows) = read.read(state, scope, key)?;
            return Ok(StateRead { value, rows, was_read: true });
        }
        let (mut found, mut was_read) = (Rows::default(), false);
        let call = self.call(read.op(), scope, key, None);
        let value = read_through(&self.stacks, call, |key| {
            was_read = true;
            let (value, rows) = read.read(state, scope, key)?;
            found = rows;
            Ok(value)
        })?;
        Ok(StateRead { value, rows: found, was_read })
    }

    /// Reads for a step of a run.
    pub(crate) async fn read_for_step(&self, op: &StateOp, scope: &str) -> Stored {
        let Some((read, key)) = Read::of(op) else {
            return Err(crate::engine::turn::state::refused(format!("{} is no read", op.name())));
        };
        match self.read_settled(read, scope.to_owned(), key.to_owned()).await {
            Ok(given) => Ok(given.value),
            Err(EngineError::Guarded(failure)) => Err(failure),
            Err(EngineError::Store(error)) => {
                Err(crate::engine::turn::state::state_failure(op.name(), error))
            }
            Err(error) => Err(Failure::new("storage", error.to_string()).retryable()),
        }
    }

    /// As the protocol's traits have it: a value, if there is one.
    pub(crate) async fn value(
        &self,
        scope: &Scope,
        key: &str,
    ) -> Result<Option<Value>, StateError> {
        let given = self.read(Read::Value, scope.to_string(), key.to_owned()).await;
        let given = given.map_err(not_read)?;
        let is_there = match given.was_read {
            true => given.rows.value.is_some(),
            // A layer that answers in place of state says what it has.
            false => given.value != Json::null(),
        };
        Ok(is_there.then(|| given.value.to_value()))
    }

    /// As the protocol's traits have it: keys.
    pub(crate) async fn keys(
        &self,
        scope: &Scope,
        prefix: &str,
    ) -> Result<Vec<String>, StateError> {
        let given = self.read(Read::Keys, scope.to_string(), prefix.to_owned()).await;
        Ok(given.map_err(not_read)?.keys())
    }

    /// As the protocol's traits have it: hits.
    pub(crate) async fn found(
        &self,
        scope: &Scope,
        query: &str,
        limit: usize,
        options: &SearchOptions,
    ) -> Result<Vec<SearchResult>, StateError> {
        let read = Read::Found { prefix: String::new(), limit, options: options.clone() };
        let given = self.read(read, scope.to_string(), query.to_owned()).await;
        let shown = |item: StateItem| {
            let mut result = SearchResult::new(item.key, item.score.unwrap_or_default());
            result.snippet = item.snippet;
            result
        };
        Ok(given.map_err(not_read)?.items().into_iter().map(shown).collect())
    }

    /// As the protocol's traits have it: a walk.
    pub(crate) async fn reached(
        &self,
        scope: &Scope,
        from: &str,
        relation: Option<&str>,
        depth: u32,
    ) -> Result<Vec<String>, StateError> {
        let read = Read::Reached { relation: relation.map(str::to_owned), depth };
        let given = self.read(read, scope.to_string(), from.to_owned()).await;
        Ok(given.map_err(not_read)?.keys())
    }
}

fn not_read(error: EngineError) -> StateError {
    StateError::Other(Box::new(error))
}

/// State as the operator of one attempt reads it: what is durable of its run's own scope, its
/// operator's within the run, and of what the run's starter may read, for as long as the attempt
/// is open.
pub(crate) struct AttemptState {
    pub(crate) shared: Arc<Shared>,
    pub(crate) stacks: Arc<Stacks>,
    pub(crate) about: Arc<About>,
    pub(crate) grant: Arc<Grant>,
}

impl AttemptState {
    /// The way to a scope, if the attempt may read `key` there.
    fn passage(&self, scope: &Scope, key: &str) -> Result<Passage, StateError> {
        let about = &self.about;
        if about.is_over() {
            return Err(StateError::Other("read state: the attempt is over".into()));
        }
        let run = WorkflowId::new(about.run.to_string());
        let own = match scope {
            Scope::Workflow(of) => *of == run,
            Scope::Operator { workflow, operator } => {
                *workflow == run && *operator == OperatorId::new(&*about.operator)
            }
            _ => false,
        };
        if !own {
            let need = Need::State { scope: &scope.to_string(), key };
            let checked = self.grant.check(Verb::StateRead, &[need]);
            checked.map_err(|refusal| StateError::Other(Box::new(refusal)))?;
        }
        Ok(Passage {
            shared: Arc::clone(&self.shared),
            stacks: Arc::clone(&self.stacks),
            run: Some(about.run),
            principal: Arc::clone(&about.principal),
        })
    }
}

#[async_trait]
impl StateReader for AttemptState {
    async fn read(&self, scope: &Scope, key: &str) -> Result<Option<Value>, StateError> {
        self.passage(scope, key)?.value(scope, key).await
    }

    async fn list(&self, scope: &Scope, prefix: &str) -> Result<Vec<String>, StateError> {
        self.passage(scope, prefix)?.keys(scope, prefix).await
    }

    async fn search(
        &self,
        scope: &Scope,
        query: &str,
        limit: usize,
    ) -> Result<Vec<SearchResult>, StateError> {
        self.search_hinted(scope, query, limit, &SearchOptions::default()).await
    }

    async fn traverse(
        &self,
        scope: &Scope,
        from_key: &str,
        relation: Option<&str>,
        max_depth: u32,
    ) -> Result<Vec<String>, StateError> {
        // A link may lead to any key of the scope.
        self.passage(scope, "")?.reached(scope, from_key, relation, max_depth).await
    }

    async fn search_hinted(
        &self,
        scope: &Scope,
        query: &str,
        limit: usize,
        options: &SearchOptions,
    ) -> Result<Vec<SearchResult>, StateError> {
        self.passage(scope, "")?.found(scope, query, limit, options).await
    }
}

/// Takes a read through the layers of state, with the key that they pass on. Where they let it fail,
/// what went wrong with the read itself is told as it is.
pub(crate) fn read_through(
    stacks: &Stacks,
    call: StoreCall,
    mut read: impl FnMut(&str) -> Result<Json, EngineError>,
) -> Result<Json, EngineError> {
    let mut broken = None;
    let passed = stacks.store.run(call, &mut |call| {
        read(&call.key).map_err(|error| {
            let failure = Failure::new("storage", error.to_string()).retryable();
            broken = Some(error);
            failure
        })
    });
    passed.map_err(|failure| broken.unwrap_or(EngineError::Guarded(failure)))
}
