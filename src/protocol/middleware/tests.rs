use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures::FutureExt;
use serde_json::{Value, json};

use super::*;
use crate::protocol::{
    Content, EnvError, ExitReason, OperatorId, OperatorInput, OperatorOutput, OrchError, Scope,
    StateError, TriggerType,
    environment::{Environment, EnvironmentSpec},
    state::{ChangeKey, Lifetime, MemoryLink, SearchResult, StateStore, StoreOptions},
    test_utils::{EchoOperator, InMemoryStore, LocalEnvironment},
};

#[derive(Clone, Default)]
struct Visits(Arc<Mutex<Vec<String>>>);

impl Visits {
    fn note(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }

    fn all(&self) -> String {
        self.0.lock().unwrap().join(" ")
    }
}

/// Passes everything on, and records it.
struct Passes(&'static str, Visits);

#[async_trait]
impl DispatchHook for Passes {
    async fn on_dispatch(
        &self,
        operator: &OperatorId,
        input: OperatorInput,
        next: &dyn DispatchNext,
    ) -> Result<OperatorOutput, OrchError> {
        self.1.note(self.0);
        next.dispatch(operator, input).await
    }
}

#[async_trait]
impl StoreHook for Passes {
    async fn on_read(
        &self,
        scope: &Scope,
        key: &str,
        next: &dyn StoreReadNext,
    ) -> Result<Option<Value>, StateError> {
        self.1.note(format!("{}:read", self.0));
        next.read(scope, key).await
    }

    async fn on_write(
        &self,
        scope: &Scope,
        key: &str,
        value: Value,
        options: Option<&StoreOptions>,
        next: &dyn StoreWriteNext,
    ) -> Result<(), StateError> {
        self.1.note(format!("{}:write", self.0));
        next.write(scope, key, value, options).await
    }
}

#[async_trait]
impl ExecHook for Passes {
    async fn on_exec(
        &self,
        input: OperatorInput,
        spec: &EnvironmentSpec,
        next: &dyn ExecNext,
    ) -> Result<OperatorOutput, EnvError> {
        self.1.note(self.0);
        next.run(input, spec).await
    }
}

/// Refuses everything.
struct Refuses;

#[async_trait]
impl DispatchMiddleware for Refuses {
    async fn dispatch(
        &self,
        _: &OperatorId,
        _: OperatorInput,
        _: &dyn DispatchNext,
    ) -> Result<OperatorOutput, OrchError> {
        Err(OrchError::DispatchFailed("no".into()))
    }
}

#[async_trait]
impl ExecMiddleware for Refuses {
    async fn run(
        &self,
        _: OperatorInput,
        _: &EnvironmentSpec,
        _: &dyn ExecNext,
    ) -> Result<OperatorOutput, EnvError> {
        Err(EnvError::IsolationViolation("no".into()))
    }
}

#[async_trait]
impl StoreMiddleware for Refuses {
    async fn write(
        &self,
        _: &Scope,
        _: &str,
        _: Value,
        _: Option<&StoreOptions>,
        _: &dyn StoreWriteNext,
    ) -> Result<(), StateError> {
        Err(no())
    }

    async fn read(
        &self,
        _: &Scope,
        _: &str,
        _: &dyn StoreReadNext,
    ) -> Result<Option<Value>, StateError> {
        Err(no())
    }

    async fn other(
        &self,
        _: &Scope,
        _: StoreQuestion,
        _: &dyn StoreOtherNext,
    ) -> Result<StoreAnswer, StateError> {
        Err(no())
    }
}

fn no() -> StateError {
    StateError::WriteFailed("no".into())
}

struct Echo(Visits);

#[async_trait]
impl DispatchNext for Echo {
    async fn dispatch(
        &self,
        _: &OperatorId,
        input: OperatorInput,
    ) -> Result<OperatorOutput, OrchError> {
        self.0.note("terminal");
        Ok(OperatorOutput::new(input.message, ExitReason::Complete))
    }
}

fn input() -> OperatorInput {
    OperatorInput::new(Content::text("x"), TriggerType::User)
}

fn hook(name: &'static str, visits: &Visits) -> Arc<ByHook<Passes>> {
    Arc::new(ByHook(Passes(name, visits.clone())))
}

fn dispatch(stack: &DispatchStack, visits: &Visits) -> Result<OperatorOutput, OrchError> {
    let echo = Echo(visits.clone());
    stack.dispatch_with(&OperatorId::from("o"), input(), &echo).now_or_never().unwrap()
}

#[test]
fn observers_are_outside_transformers_outside_guards() {
    let visits = Visits::default();
    let stack = DispatchStack::builder()
        .guard(hook("g", &visits))
        .transform(hook("t", &visits))
        .observe(hook("o", &visits))
        .build();
    dispatch(&stack, &visits).unwrap();
    assert_eq!(visits.all(), "o t g terminal");
}

#[test]
fn an_empty_stack_is_its_terminal_and_a_guard_keeps_it_from_being_reached() {
    let visits = Visits::default();
    assert!(dispatch(&DispatchStack::builder().build(), &visits).is_ok());
    assert_eq!(visits.all(), "terminal");
    let visits = Visits::default();
    let stack =
        DispatchStack::builder().guard(Arc::new(Refuses)).observe(hook("o", &visits)).build();
    assert!(dispatch(&stack, &visits).is_err());
    assert_eq!(visits.all(), "o");
}

struct Run(LocalEnvironment);

#[async_trait]
impl ExecNext for Run {
    async fn run(
        &self,
        input: OperatorInput,
        spec: &EnvironmentSpec,
    ) -> Result<OperatorOutput, EnvError> {
        self.0.run(input, spec).await
    }
}

#[test]
fn an_environment_is_reached_through_its_stack() {
    let terminal = Run(LocalEnvironment::new(Arc::new(EchoOperator)));
    let visits = Visits::default();
    let run = |stack: ExecStack| {
        let spec = EnvironmentSpec::default();
        stack.run_with(input(), &spec, &terminal).now_or_never().unwrap()
    };
    let passes = ExecStack::builder().observe(hook("o", &visits)).build();
    assert_eq!(run(passes).unwrap().message, Content::text("x"));
    assert_eq!(visits.all(), "o");
    assert!(run(ExecStack::builder().guard(Arc::new(Refuses)).build()).is_err());
}

#[test]
fn every_operation_on_a_layered_store_passes_its_stack() {
    let guarded = StoreStack::builder().guard(Arc::new(Refuses)).build().over(InMemoryStore::new());
    let store: &dyn StateStore = &guarded;
    let (scope, link) = (Scope::Global, MemoryLink::new("a", "b", "r"));
    let (options, search) = (StoreOptions::default(), Default::default());
    fn refused<T>(outcome: Option<Result<T, StateError>>) -> bool {
        outcome.is_some_and(|outcome| outcome.is_err())
    }
    assert!(refused(store.read(&scope, "k").now_or_never()));
    assert!(refused(store.read_hinted(&scope, "k", &options).now_or_never()));
    assert!(refused(store.write(&scope, "k", json!(1)).now_or_never()));
    assert!(refused(store.write_hinted(&scope, "k", json!(1), &options).now_or_never()));
    assert!(refused(store.delete(&scope, "k").now_or_never()));
    assert!(refused(store.list(&scope, "").now_or_never()));
    assert!(refused(store.search(&scope, "q", 1).now_or_never()));
    assert!(refused(store.search_hinted(&scope, "q", 1, &search).now_or_never()));
    assert!(refused(store.link(&scope, &link).now_or_never()));
    assert!(refused(store.unlink(&scope, "a", "b", "r").now_or_never()));
    assert!(refused(store.traverse(&scope, "a", None, 1).now_or_never()));
}

#[test]
fn a_layered_store_is_a_store() {
    let visits = Visits::default();
    let layered =
        StoreStack::builder().observe(hook("o", &visits)).build().over(InMemoryStore::new());
    let store: &dyn StateStore = &layered;
    let scope = Scope::Global;
    store.write(&scope, "k", json!(1)).now_or_never().unwrap().unwrap();
    assert_eq!(store.read(&scope, "k").now_or_never().unwrap().unwrap(), Some(json!(1)));
    assert_eq!(store.list(&scope, "").now_or_never().unwrap().unwrap(), ["k"]);
    store.delete(&scope, "k").now_or_never().unwrap().unwrap();
    assert_eq!(store.read(&scope, "k").now_or_never().unwrap().unwrap(), None);
    assert!(store.search(&scope, "k", 5).now_or_never().unwrap().unwrap().is_empty());
    assert_eq!(visits.all(), "o:write o:read o:read");
}

/// Notes the hints of reads, and the keys of changes.
struct Notes(InMemoryStore, Visits);

#[async_trait]
impl StateStore for Notes {
    async fn read(&self, scope: &Scope, key: &str) -> Result<Option<Value>, StateError> {
        StateStore::read(&self.0, scope, key).await
    }

    async fn write(&self, scope: &Scope, key: &str, value: Value) -> Result<(), StateError> {
        self.0.write(scope, key, value).await
    }

    async fn delete(&self, scope: &Scope, key: &str) -> Result<(), StateError> {
        self.0.delete(scope, key).await
    }

    async fn list(&self, scope: &Scope, prefix: &str) -> Result<Vec<String>, StateError> {
        StateStore::list(&self.0, scope, prefix).await
    }

    async fn search(
        &self,
        scope: &Scope,
        query: &str,
        limit: usize,
    ) -> Result<Vec<SearchResult>, StateError> {
        StateStore::search(&self.0, scope, query, limit).await
    }

    async fn read_hinted(
        &self,
        scope: &Scope,
        key: &str,
        options: &StoreOptions,
    ) -> Result<Option<Value>, StateError> {
        self.1.note(format!("read:{:?}", options.lifetime));
        StateStore::read(&self.0, scope, key).await
    }

    async fn write_keyed(
        &self,
        scope: &Scope,
        key: &str,
        value: Value,
        options: &StoreOptions,
        change: &ChangeKey,
    ) -> Result<(), StateError> {
        self.1.note(format!("write:{change}"));
        self.0.write_hinted(scope, key, value, options).await
    }

    async fn delete_keyed(
        &self,
        scope: &Scope,
        key: &str,
        change: &ChangeKey,
    ) -> Result<(), StateError> {
        self.1.note(format!("delete:{change}"));
        self.0.delete(scope, key).await
    }
}

#[test]
fn a_layered_store_gets_the_keys_of_changes_and_the_hints_of_reads() {
    let visits = Visits::default();
    let store = Notes(InMemoryStore::new(), visits.clone());
    let layered = StoreStack::builder().observe(hook("o", &visits)).build().over(store);
    let (scope, change) = (Scope::Global, ChangeKey::new("r", 1, 2));
    let options = StoreOptions { lifetime: Some(Lifetime::Durable), ..StoreOptions::default() };
    let store: &dyn StateStore = &layered;
    let written = store.write_keyed(&scope, "k", json!(1), &options, &change);
    written.now_or_never().unwrap().unwrap();
    let read = store.read_hinted(&scope, "k", &options).now_or_never().unwrap();
    assert_eq!(read.unwrap(), Some(json!(1)));
    store.delete_keyed(&scope, "k", &change).now_or_never().unwrap().unwrap();
    assert_eq!(visits.all(), "o:write write:r/1/2 o:read read:Some(Durable) delete:r/1/2");
    assert!(store.list(&scope, "").now_or_never().unwrap().unwrap().is_empty());
}
