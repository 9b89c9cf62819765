//! Code as others wrote it against `layer0` 0.4.1, with nothing changed but the path that it is
//! imported by.

#![cfg(any(feature = "test-utils", feature = "faults"))]

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use async_trait::async_trait;
use moonswarm::protocol::{
    self as layer0,
    content::{Content, ContentBlock, ImageSource},
    context::{Context, ContextWatcher, Message, MessageMeta, Position, Role, WatcherVerdict},
    duration::DurationMs,
    effect::{Effect, LogLevel, Scope, SignalPayload},
    environment::{
        CredentialInjection, CredentialRef, Environment, EnvironmentSpec, IsolationBoundary,
        NetworkAction, NetworkPolicy, NetworkRule, ResourceLimits,
    },
    error::{EnvError, OperatorError, OrchError, StateError},
    id::{OperatorId, ScopeId, SessionId, WorkflowId},
    lifecycle::{
        BudgetDecision, BudgetEvent, CompactionEvent, CompactionPolicy, EventSource,
        ObservableEvent,
    },
    middleware::{
        DispatchMiddleware, DispatchNext, DispatchStack, ExecMiddleware, ExecNext, ExecStack,
        StoreMiddleware, StoreReadNext, StoreStack, StoreWriteNext,
    },
    operator::{
        ExitReason, Operator, OperatorConfig, OperatorInput, OperatorMetadata, OperatorOutput,
        SubDispatchRecord, ToolMetadata, TriggerType,
    },
    orchestrator::{Orchestrator, QueryPayload},
    secret::{SecretAccessEvent, SecretAccessOutcome, SecretSource},
    state::{MemoryLink, SearchResult, StateReader, StateStore, StoreOptions},
    test_utils::{EchoOperator, InMemoryStore, LocalEnvironment, LocalOrchestrator},
};
use rust_decimal::Decimal;
use serde_json::{Value, json};

fn input(text: &str) -> OperatorInput {
    OperatorInput::new(Content::text(text), TriggerType::User)
}

/// Answers in capitals, declares an effect, and says what it used.
struct Shouting;

#[async_trait]
impl Operator for Shouting {
    async fn execute(&self, input: OperatorInput) -> Result<OperatorOutput, OperatorError> {
        let Some(text) = input.message.as_text() else {
            return Err(OperatorError::NonRetryable("no text".into()));
        };
        let mut output =
            OperatorOutput::new(Content::text(text.to_uppercase()), ExitReason::Complete);
        output.metadata.tokens_in = 3;
        output.metadata.cost = Decimal::new(15, 4);
        let span = DurationMs::from_millis(2);
        output.metadata.sub_dispatches.push(SubDispatchRecord::new("upper", span, true));
        output.effects.push(Effect::Log {
            level: LogLevel::Info,
            message: "shouted".into(),
            data: None,
        });
        Ok(output)
    }
}

/// Reads through the read-only side of any store.
async fn remembered(reader: &dyn StateReader, key: &str) -> Option<Value> {
    reader.read(&Scope::Global, key).await.unwrap()
}

/// An orchestrator of somebody's own.
struct OnlyOne(Arc<dyn Operator>, DispatchStack);

struct End<'a>(&'a dyn Operator);

#[async_trait]
impl DispatchNext for End<'_> {
    async fn dispatch(
        &self,
        _operator: &OperatorId,
        input: OperatorInput,
    ) -> Result<OperatorOutput, OrchError> {
        Ok(self.0.execute(input).await?)
    }
}

#[async_trait]
impl Orchestrator for OnlyOne {
    async fn dispatch(
        &self,
        operator: &OperatorId,
        input: OperatorInput,
    ) -> Result<OperatorOutput, OrchError> {
        self.1.dispatch_with(operator, input, &End(&*self.0)).await
    }

    async fn dispatch_many(
        &self,
        tasks: Vec<(OperatorId, OperatorInput)>,
    ) -> Vec<Result<OperatorOutput, OrchError>> {
        let mut answers = Vec::new();
        for (operator, input) in tasks {
            answers.push(self.dispatch(&operator, input).await);
        }
        answers
    }

    async fn signal(&self, target: &WorkflowId, _signal: SignalPayload) -> Result<(), OrchError> {
        Err(OrchError::WorkflowNotFound(target.to_string()))
    }

    async fn query(&self, _target: &WorkflowId, query: QueryPayload) -> Result<Value, OrchError> {
        Ok(query.params)
    }
}

struct Counts(Arc<AtomicU32>);

#[async_trait]
impl DispatchMiddleware for Counts {
    async fn dispatch(
        &self,
        operator: &OperatorId,
        input: OperatorInput,
        next: &dyn DispatchNext,
    ) -> Result<OperatorOutput, OrchError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        next.dispatch(operator, input).await
    }
}

struct Halts;

#[async_trait]
impl DispatchMiddleware for Halts {
    async fn dispatch(
        &self,
        _operator: &OperatorId,
        _input: OperatorInput,
        _next: &dyn DispatchNext,
    ) -> Result<OperatorOutput, OrchError> {
        Err(OrchError::DispatchFailed("budget exceeded".into()))
    }
}

#[tokio::test]
async fn an_operator_and_an_orchestrator_of_somebodys_own() {
    let counter = Arc::new(AtomicU32::new(0));
    let stack = DispatchStack::builder().observe(Arc::new(Counts(Arc::clone(&counter)))).build();
    let orchestrator: Box<dyn Orchestrator> = Box::new(OnlyOne(Arc::new(Shouting), stack));
    let output = orchestrator.dispatch(&OperatorId::new("o"), input("hi")).await.unwrap();
    assert_eq!(output.message, Content::text("HI"));
    assert_eq!(output.metadata.sub_dispatches[0].name, "upper");
    assert_eq!(output.effects.len(), 1);
    assert_eq!(counter.load(Ordering::SeqCst), 1);
    let workflow = WorkflowId::from("w");
    let error = orchestrator.signal(&workflow, SignalPayload::new("go", json!(1))).await;
    assert_eq!(error.unwrap_err().to_string(), "workflow not found: w");
    let answer = orchestrator.query(&workflow, QueryPayload::new("status", json!({"a": 1}))).await;
    assert_eq!(answer.unwrap(), json!({"a": 1}));
}

#[tokio::test]
async fn observers_run_even_when_a_guard_halts() {
    let counter = Arc::new(AtomicU32::new(0));
    let stack = DispatchStack::builder()
        .guard(Arc::new(Halts))
        .observe(Arc::new(Counts(Arc::clone(&counter))))
        .build();
    let halted = stack.dispatch_with(&OperatorId::from("a"), input("x"), &End(&EchoOperator)).await;
    assert_eq!(halted.unwrap_err().to_string(), "dispatch failed: budget exceeded");
    assert_eq!(counter.load(Ordering::SeqCst), 1);
}

/// Keeps others from a key, and passes everything else on by the default methods.
struct Private;

#[async_trait]
impl StoreMiddleware for Private {
    async fn write(
        &self,
        scope: &Scope,
        key: &str,
        value: Value,
        options: Option<&StoreOptions>,
        next: &dyn StoreWriteNext,
    ) -> Result<(), StateError> {
        if key == "private" {
            return Err(StateError::WriteFailed("private".into()));
        }
        next.write(scope, key, value, options).await
    }
}

struct Terminal(InMemoryStore);

#[async_trait]
impl StoreWriteNext for Terminal {
    async fn write(
        &self,
        scope: &Scope,
        key: &str,
        value: Value,
        _options: Option<&StoreOptions>,
    ) -> Result<(), StateError> {
        StateStore::write(&self.0, scope, key, value).await
    }
}

#[async_trait]
impl StoreReadNext for Terminal {
    async fn read(&self, scope: &Scope, key: &str) -> Result<Option<Value>, StateError> {
        StateStore::read(&self.0, scope, key).await
    }
}

#[tokio::test]
async fn state_through_a_stack() {
    let stack = StoreStack::builder().guard(Arc::new(Private)).build();
    let terminal = Terminal(InMemoryStore::new());
    let scope = Scope::Session(SessionId::new("s"));
    stack.write_with(&scope, "open", json!(1), None, &terminal).await.unwrap();
    let refused = stack.write_with(&scope, "private", json!(1), None, &terminal).await;
    assert_eq!(refused.unwrap_err().to_string(), "write failed: private");
    assert_eq!(stack.read_with(&scope, "open", &terminal).await.unwrap(), Some(json!(1)));
}

struct Widens;

#[async_trait]
impl ExecMiddleware for Widens {
    async fn run(
        &self,
        input: OperatorInput,
        spec: &EnvironmentSpec,
        next: &dyn ExecNext,
    ) -> Result<OperatorOutput, EnvError> {
        assert_eq!(spec.isolation.len(), 1);
        next.run(input, &EnvironmentSpec::default()).await
    }
}

struct Local(LocalEnvironment);

#[async_trait]
impl ExecNext for Local {
    async fn run(
        &self,
        input: OperatorInput,
        spec: &EnvironmentSpec,
    ) -> Result<OperatorOutput, EnvError> {
        assert!(spec.isolation.is_empty());
        self.0.run(input, spec).await
    }
}

#[tokio::test]
async fn an_environment_through_a_stack() {
    let mut spec = EnvironmentSpec::default();
    spec.isolation.push(IsolationBoundary::Process);
    let terminal = Local(LocalEnvironment::new(Arc::new(EchoOperator)));
    let stack = ExecStack::builder().transform(Arc::new(Widens)).build();
    let output = stack.run_with(input("through"), &spec, &terminal).await.unwrap();
    assert_eq!(output.message, Content::text("through"));
}

#[tokio::test]
async fn the_doubles_keep_the_promises_of_their_traits() {
    let store = InMemoryStore::new();
    let writer: &dyn StateStore = &store;
    let (one, other) = (Scope::Custom("1".into()), Scope::Custom("2".into()));
    writer.write(&one, "b", json!(1)).await.unwrap();
    writer.write(&one, "a", json!(2)).await.unwrap();
    writer.write(&other, "a", json!(3)).await.unwrap();
    assert_eq!(writer.list(&one, "").await.unwrap(), ["a", "b"]);
    assert_eq!(writer.read(&one, "a").await.unwrap(), Some(json!(2)));
    assert_eq!(writer.read(&one, "missing").await.unwrap(), None);
    writer.delete(&one, "missing").await.unwrap();
    writer.delete(&one, "a").await.unwrap();
    assert_eq!(writer.list(&one, "").await.unwrap(), ["b"]);
    let found: Vec<SearchResult> = writer.search(&one, "anything", 10).await.unwrap();
    assert!(found.is_empty());
    assert!(writer.link(&one, &MemoryLink::new("a", "b", "r")).await.is_err());
    writer.write(&Scope::Global, "k", json!("v")).await.unwrap();
    assert_eq!(remembered(&store, "k").await, Some(json!("v")));

    let mut orchestrator = LocalOrchestrator::new();
    orchestrator.register(OperatorId::new("echo"), Arc::new(EchoOperator));
    let tasks = vec![
        (OperatorId::new("echo"), input("1")),
        (OperatorId::new("nobody"), input("2")),
        (OperatorId::new("echo"), input("3")),
    ];
    let answers = orchestrator.dispatch_many(tasks).await;
    assert_eq!(answers[0].as_ref().unwrap().message, Content::text("1"));
    let missing = answers[1].as_ref().unwrap_err().to_string();
    assert_eq!(missing, "operator not found: nobody");
    assert_eq!(answers[2].as_ref().unwrap().message, Content::text("3"));
    let workflow = WorkflowId::new("w");
    orchestrator.signal(&workflow, SignalPayload::new("cancel", json!({}))).await.unwrap();
    let asked = QueryPayload::new("status", json!({}));
    assert_eq!(orchestrator.query(&workflow, asked).await.unwrap(), Value::Null);
}

/// Refuses what is too long.
struct Brief;

impl ContextWatcher for Brief {
    fn on_inject(&self, msg: &dyn std::fmt::Debug, _pos: Position) -> WatcherVerdict {
        if format!("{msg:?}").len() > 200 {
            return WatcherVerdict::Reject { reason: "too long".into() };
        }
        WatcherVerdict::Allow
    }
}

#[test]
fn a_context_with_a_watcher() {
    let mut context = Context::new(OperatorId::from("o"));
    context.add_watcher(Arc::new(Brief));
    context.push(Message::pinned(Role::System, Content::text("be brief"))).unwrap();
    context.push(Message::new(Role::User, Content::text("hi"))).unwrap();
    let long = Message::new(Role::User, Content::text("x".repeat(300)));
    assert_eq!(context.push(long).unwrap_err().to_string(), "rejected by watcher: too long");
    assert_eq!(context.compact_by_policy().len(), 1);
    let meta = MessageMeta::with_policy(CompactionPolicy::CompressFirst).set_salience(0.5);
    assert_eq!(meta.policy, CompactionPolicy::CompressFirst);
}

/// The wire forms that stored data and other programs have.
#[test]
fn the_wire_is_the_same() {
    let blocks = Content::Blocks(vec![
        ContentBlock::Text { text: "a".into() },
        ContentBlock::Image {
            source: ImageSource::Url { url: "u".into() },
            media_type: "image/png".into(),
        },
    ]);
    assert_eq!(
        serde_json::to_value(&blocks).unwrap(),
        json!([{"type": "text", "text": "a"},
            {"type": "image", "source": {"type": "url", "url": "u"}, "media_type": "image/png"}])
    );
    let config = OperatorConfig::default();
    assert_eq!(serde_json::to_value(&config).unwrap()["max_cost"], Value::Null);
    let metadata = serde_json::to_value(OperatorMetadata::default()).unwrap();
    assert_eq!(metadata["cost"], json!("0"));
    let event = BudgetEvent::BudgetAction {
        workflow: WorkflowId::new("w"),
        action: BudgetDecision::RequestIncrease { amount: Decimal::new(5, 0) },
    };
    assert_eq!(
        serde_json::to_value(&event).unwrap(),
        json!({"type": "budget_action", "workflow": "w", "action": {"request_increase": {"amount": "5"}}})
    );
    let event = CompactionEvent::CompactionSkipped {
        operator: OperatorId::new("o"),
        reason: "small".into(),
    };
    assert_eq!(serde_json::to_value(&event).unwrap()["type"], "compaction_skipped");
    let event =
        ObservableEvent::new(EventSource::Turn, "x.y", DurationMs::from_secs(1), json!(null));
    assert_eq!(serde_json::to_value(&event).unwrap()["timestamp"], 1_000);
    let tool = ToolMetadata::new("ls", "lists", json!({"type": "object"}), true);
    assert_eq!(serde_json::to_value(&tool).unwrap()["parallel_safe"], true);
    assert_eq!(serde_json::to_value(ScopeId::from("s")).unwrap(), json!("s"));
}

#[test]
fn a_spec_and_its_secrets() {
    let source = SecretSource::Vault { mount: "secret".into(), path: "key".into() };
    let injection = CredentialInjection::EnvVar { var_name: "KEY".into() };
    let mut spec = EnvironmentSpec::default();
    spec.credentials.push(CredentialRef::new("key", source.clone(), injection));
    spec.resources = Some(ResourceLimits::default());
    let rule = NetworkRule::new("api.example.com", NetworkAction::Allow);
    spec.network = Some(NetworkPolicy::new(NetworkAction::Deny, vec![rule]));
    let wire = serde_json::to_value(&spec).unwrap();
    assert_eq!(wire["credentials"][0]["source"]["type"], "vault");
    assert_eq!(serde_json::from_value::<EnvironmentSpec>(wire).unwrap().credentials.len(), 1);
    let event = SecretAccessEvent::new("key", source, SecretAccessOutcome::Resolved, 7);
    assert_eq!(serde_json::to_value(&event).unwrap()["outcome"], "resolved");
    assert_eq!(layer0::DurationMs::ZERO.to_string(), "0ms");
}
