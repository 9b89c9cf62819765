//! Test doubles for code that uses the protocol: the minimum that fulfills each trait's contract.

use std::{
    collections::{BTreeMap, HashMap},
    panic::AssertUnwindSafe,
    sync::{Arc, PoisonError, RwLock},
};

use async_trait::async_trait;
use futures::{FutureExt, future::join_all};
use serde_json::Value;

use super::{
    EnvError, ExitReason, Operator, OperatorError, OperatorId, OperatorInput, OperatorOutput,
    OrchError, Scope, SignalPayload, StateError, WorkflowId,
    environment::{Environment, EnvironmentSpec},
    orchestrator::{Orchestrator, QueryPayload},
    state::{Lifetime, SearchResult, StateStore, StoreOptions},
};

/// Returns its input.
#[derive(Debug, Clone, Copy, Default)]
pub struct EchoOperator;

#[async_trait]
impl Operator for EchoOperator {
    async fn execute(&self, input: OperatorInput) -> Result<OperatorOutput, OperatorError> {
        Ok(OperatorOutput::new(input.message, ExitReason::Complete))
    }
}

/// Runs an operator in this process, whatever the spec describes.
pub struct LocalEnvironment {
    operator: Arc<dyn Operator>,
}

impl LocalEnvironment {
    /// Creates an environment that runs `operator`.
    pub fn new(operator: Arc<dyn Operator>) -> Self {
        Self { operator }
    }
}

#[async_trait]
impl Environment for LocalEnvironment {
    async fn run(
        &self,
        input: OperatorInput,
        _spec: &EnvironmentSpec,
    ) -> Result<OperatorOutput, EnvError> {
        Ok(self.operator.execute(input).await?)
    }
}

/// Stores values in memory; a search finds nothing.
#[derive(Debug, Default)]
pub struct InMemoryStore {
    values: RwLock<HashMap<Scope, BTreeMap<String, StoredValue>>>,
}

#[derive(Debug, Clone)]
struct StoredValue {
    value: Value,
    transient: bool,
}

impl InMemoryStore {
    /// Creates an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    fn put(&self, scope: &Scope, key: &str, kept: StoredValue) {
        let mut values = self.values.write().unwrap_or_else(PoisonError::into_inner);
        values.entry(scope.clone()).or_default().insert(key.to_owned(), kept);
    }

    fn of<T>(
        &self,
        scope: &Scope,
        read: impl FnOnce(&BTreeMap<String, StoredValue>) -> T,
    ) -> Option<T> {
        self.values.read().unwrap_or_else(PoisonError::into_inner).get(scope).map(read)
    }
}

#[async_trait]
impl StateStore for InMemoryStore {
    async fn read(&self, scope: &Scope, key: &str) -> Result<Option<Value>, StateError> {
        Ok(self.of(scope, |values| values.get(key).map(|kept| kept.value.clone())).flatten())
    }

    async fn write(&self, scope: &Scope, key: &str, value: Value) -> Result<(), StateError> {
        self.put(scope, key, StoredValue { value, transient: false });
        Ok(())
    }

    async fn write_hinted(
        &self,
        scope: &Scope,
        key: &str,
        value: Value,
        options: &StoreOptions,
    ) -> Result<(), StateError> {
        let transient = options.lifetime == Some(Lifetime::Transient);
        self.put(scope, key, StoredValue { value, transient });
        Ok(())
    }

    async fn delete(&self, scope: &Scope, key: &str) -> Result<(), StateError> {
        let mut values = self.values.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(values) = values.get_mut(scope) {
            values.remove(key);
        }
        Ok(())
    }

    async fn list(&self, scope: &Scope, prefix: &str) -> Result<Vec<String>, StateError> {
        let keys = self.of(scope, |values| {
            values.keys().filter(|key| key.starts_with(prefix)).cloned().collect()
        });
        Ok(keys.unwrap_or_default())
    }

    async fn search(
        &self,
        _scope: &Scope,
        _query: &str,
        _limit: usize,
    ) -> Result<Vec<SearchResult>, StateError> {
        Ok(Vec::new())
    }

    fn clear_transient(&self) {
        let mut values = self.values.write().unwrap_or_else(PoisonError::into_inner);
        for values in values.values_mut() {
            values.retain(|_, kept| !kept.transient);
        }
    }
}

/// Dispatches to operators by name, in this process; accepts every signal and answers every query
/// with null.
#[derive(Default)]
pub struct LocalOrchestrator {
    operators: HashMap<OperatorId, Arc<dyn Operator>>,
}

impl LocalOrchestrator {
    /// Creates an orchestrator without operators.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers an operator under a name.
    pub fn register(&mut self, id: OperatorId, operator: Arc<dyn Operator>) {
        self.operators.insert(id, operator);
    }
}

#[async_trait]
impl Orchestrator for LocalOrchestrator {
    async fn dispatch(
        &self,
        operator: &OperatorId,
        input: OperatorInput,
    ) -> Result<OperatorOutput, OrchError> {
        let found = self.operators.get(operator);
        let found = found.ok_or_else(|| OrchError::OperatorNotFound(operator.to_string()))?;
        Ok(found.execute(input).await?)
    }

    async fn dispatch_many(
        &self,
        tasks: Vec<(OperatorId, OperatorInput)>,
    ) -> Vec<Result<OperatorOutput, OrchError>> {
        let each = tasks.into_iter().map(|(operator, input)| async move {
            let dispatch = AssertUnwindSafe(self.dispatch(&operator, input)).catch_unwind();
            let panicked = || OrchError::DispatchFailed(format!("operator {operator} panicked"));
            dispatch.await.unwrap_or_else(|_| Err(panicked()))
        });
        join_all(each).await
    }

    async fn signal(&self, _target: &WorkflowId, _signal: SignalPayload) -> Result<(), OrchError> {
        Ok(())
    }

    async fn query(&self, _target: &WorkflowId, _query: QueryPayload) -> Result<Value, OrchError> {
        Ok(Value::Null)
    }
}
