//! The contract of an operator, through the host: what goes in reaches it whole, what it answers
//! comes back whole. Code written against the protocol alone is put into a host by `HostConfig`.

mod around;
mod outbox;
mod passed;
mod stores;
mod tools;

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Command, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use moonswarm::{
    Coded, Host, HostConfig, Middleware,
    engine::{CustomEffects, WaitFor},
    middleware::{DispatchStack, ProtocolLayer, Stacks, TaskDone},
    operator::{Reply, Task},
    protocol::{
        Content, ContentBlock, DurationMs, Effect, ExitReason, Failure, Json, Operator,
        OperatorConfig, OperatorError, OperatorId, OperatorInput, OperatorMetadata, OperatorOutput,
        OrchError, Orchestrator, RunId, Scope, SubDispatchRecord, TriggerType, WorkerId,
        middleware::{DispatchMiddleware, DispatchNext},
    },
    spawner::{SpawnerAdapter, Spawners, Worker},
};
use rust_decimal::Decimal;
use serde_json::{Value, json};

/// Keeps what it is asked, and answers with everything that an answer can say.
#[derive(Clone)]
struct Witness {
    seen: Arc<Mutex<Vec<OperatorInput>>>,
    exit: ExitReason,
}

impl Witness {
    fn new(exit: ExitReason) -> Self {
        Self { seen: Arc::default(), exit }
    }

    fn seen(&self) -> OperatorInput {
        self.seen.lock().unwrap().last().expect("it was asked").clone()
    }
}

fn written(run: &str) -> Effect {
    Effect::WriteMemory {
        scope: Scope::Workflow(run.into()),
        key: "k".to_owned(),
        value: json!(1),
        tier: None,
        lifetime: None,
        content_kind: None,
        salience: None,
        ttl: None,
    }
}

fn note() -> Effect {
    Effect::Custom { effect_type: "note".to_owned(), data: json!({ "a": [] }) }
}

/// The whole answer, as the operator gives it.
fn answer(exit: ExitReason, effects: Vec<Effect>) -> OperatorOutput {
    let blocks =
        vec![ContentBlock::Custom { content_type: "x/y".into(), data: json!({ "e": [] }) }];
    let mut output = OperatorOutput::new(Content::Blocks(blocks), exit);
    let metadata: &mut OperatorMetadata = &mut output.metadata;
    (metadata.tokens_in, metadata.tokens_out, metadata.turns_used) = (3, 5, 7);
    metadata.cost = Decimal::new(15, 4);
    metadata.duration = DurationMs::from_millis(11);
    metadata.sub_dispatches =
        vec![SubDispatchRecord::new("grep", DurationMs::from_millis(2), false)];
    output.effects = effects;
    output
}

#[async_trait]
impl Operator for Witness {
    async fn execute(&self, input: OperatorInput) -> Result<OperatorOutput, OperatorError> {
        self.seen.lock().unwrap().push(input.clone());
        let run = input.metadata["moonswarm"]["run"].as_str().unwrap_or_default().to_owned();
        Ok(answer(self.exit.clone(), vec![written(&run), note()]))
    }
}

/// An input with every field set.
fn input() -> OperatorInput {
    let blocks = vec![
        ContentBlock::Text { text: "look".into() },
        ContentBlock::Custom { content_type: "x/y".into(), data: json!({ "empty": [], "n": 1.0 }) },
    ];
    let config = OperatorConfig::default()
        .with_max_turns(4)
        .with_max_cost(Decimal::new(250, 2))
        .with_max_duration(DurationMs::from_secs(60))
        .with_model("m-1")
        .with_allowed_operators(vec!["grep".into()])
        .with_system_addendum("be brief");
    OperatorInput::new(Content::Blocks(blocks), TriggerType::custom("deploy"))
        .with_session("conv-1".into())
        .with_config(config)
        .with_metadata(json!({ "trace_id": "t", "none": null, "empty": [], "n": 1.0 }))
}

fn config(data: &Path, code: Coded) -> HostConfig {
    HostConfig { code, effects: CustomEffects::Warn, ..HostConfig::new(data) }
}

/// What came in is what was sent, with the host's own under one key.
fn is_whole(seen: &OperatorInput) {
    let mut plain = seen.clone();
    let host = plain.metadata.as_object_mut().unwrap().remove("moonswarm").unwrap();
    assert_eq!(plain, input());
    assert!(host["run"].is_string() && host["attempt"].is_u64(), "{host}");
}

/// What came back is what was answered; what the host has done stands apart.
fn came_back(output: &OperatorOutput, exit: ExitReason, seen: &OperatorInput) {
    let run = seen.metadata["moonswarm"]["run"].as_str().unwrap();
    let mut expected = answer(exit, vec![note()]);
    expected.metadata.applied_effects = vec![written(run)];
    assert_eq!(*output, expected);
}

#[tokio::test]
async fn a_dispatch_carries_the_contract_whole_in_process_and_over_http() {
    for exit in [
        ExitReason::Complete,
        ExitReason::MaxTurns,
        ExitReason::safety_stop("filtered"),
        ExitReason::custom("stuck_detected"),
    ] {
        let data = tempfile::tempdir().unwrap();
        let witness = Witness::new(exit.clone());
        let code = Coded::default().and_operator("witness", witness.clone());
        let host = Host::open(config(data.path(), code)).await.unwrap();

        let orchestrator: &dyn Orchestrator = host.engine();
        let output = orchestrator.dispatch(&"witness".into(), input()).await.unwrap();
        is_whole(&witness.seen());
        came_back(&output, exit.clone(), &witness.seen());

        let body = json!({ "operator": "witness", "operator_input": input() });
        let sent = moonswarm::environment::http_client()
            .no_proxy()
            .build()
            .unwrap()
            .post(format!("{}/v1/dispatch", host.url()))
            .bearer_auth(host.admin_token())
            .json(&body)
            .send();
        let view: Value = sent.await.unwrap().json().await.unwrap();
        is_whole(&witness.seen());
        let output = serde_json::from_value(view["operator_output"].clone()).unwrap();
        came_back(&output, exit, &witness.seen());
        host.stop(Duration::from_secs(5)).await;
    }
}

/// Says that it was asked, and never answers.
struct Stalls;

#[async_trait]
impl Operator for Stalls {
    async fn execute(&self, input: OperatorInput) -> Result<OperatorOutput, OperatorError> {
        println!("asked {}", input.metadata["moonswarm"]["run"].as_str().unwrap_or_default());
        std::future::pending().await
    }
}

const KILLED: &str = "CONTRACT_DATA";

/// The process that is killed; without its variable it has nothing to do.
#[tokio::test]
async fn the_process_that_is_killed() {
    let Some(data) = std::env::var_os(KILLED) else { return };
    let code = Coded::default().and_operator("witness", Stalls);
    let host = Host::open(config(Path::new(&data), code)).await.unwrap();
    let _ = host
        .engine()
        .orchestrator(host.owner().unwrap())
        .dispatch(&"witness".into(), input())
        .await;
}

#[tokio::test]
async fn a_dispatch_carries_the_contract_whole_across_a_kill() {
    let data = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_process_that_is_killed", "--nocapture"])
        .env(KILLED, data.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let run = lines
        .map_while(Result::ok)
        .find_map(|line| Some(line.split_once("asked ")?.1.trim().to_owned()))
        .expect("the operator is asked");
    child.kill().unwrap();
    child.wait().unwrap();

    let witness = Witness::new(ExitReason::BudgetExhausted);
    let code = Coded::default().and_operator("witness", witness.clone());
    let host = Host::open(config(data.path(), code)).await.unwrap();
    let (run, owner) = (run.parse::<RunId>().unwrap(), host.owner().unwrap());
    host.engine().wait(&owner, run, WaitFor::Ended, Duration::from_secs(60)).await.unwrap();
    is_whole(&witness.seen());
    let output = host.engine().dispatches().operator_output(&owner, run).await.unwrap().unwrap();
    came_back(&output, ExitReason::BudgetExhausted, &witness.seen());
    host.stop(Duration::from_secs(5)).await;
}

/// Delegates what it is asked to another operator, with an input of its own.
struct Delegates(&'static str);

#[async_trait]
impl Operator for Delegates {
    async fn execute(&self, _: OperatorInput) -> Result<OperatorOutput, OperatorError> {
        let mut output = OperatorOutput::new(Content::text("passed on"), ExitReason::Complete);
        let (operator, input) = (self.0.into(), Box::new(input()));
        output.effects.push(Effect::Delegate { operator, input });
        Ok(output)
    }
}

const DELEGATES: &str = r#"return require("swarm").blueprint { name = "delegates",
  agents = { w = { operator = "delegates", tools = { "echo" } } },
  flow = function(ctx)
    local ok, err = pcall(ctx.run, ctx, "w", "x")
    return { ok = ok, err = tostring(err) }
  end }"#;

#[tokio::test]
async fn a_delegate_gets_the_contract_whole_too() {
    let data = tempfile::tempdir().unwrap();
    let witness = Witness::new(ExitReason::Complete);
    let code = Coded::default()
        .and_operator("witness", witness.clone())
        .and_operator("delegates", Delegates("witness"));
    let host = Host::open(config(data.path(), code)).await.unwrap();
    let asked = OperatorInput::new(Content::text("x"), TriggerType::User);
    let mut output =
        Orchestrator::dispatch(host.engine(), &"delegates".into(), asked).await.unwrap();
    is_whole(&witness.seen());
    // The host records whom it called for the operator.
    let called = output.metadata.sub_dispatches.pop().unwrap();
    assert_eq!((called.name.as_str(), called.success), ("witness", true));
    came_back(&output, ExitReason::Complete, &witness.seen());
    host.stop(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn an_operator_of_the_host_is_an_operator_of_the_protocol() {
    let data = tempfile::tempdir().unwrap();
    let witness = Witness::new(ExitReason::MaxTurns);
    let code = Coded::default().and_operator("witness", witness.clone());
    let host = Host::open(config(data.path(), code)).await.unwrap();
    let operator = |name: &str| -> Arc<dyn Operator> {
        Arc::new(host.engine().operator(host.owner().unwrap(), name))
    };
    let asked = OperatorInput::new(Content::text("hello"), TriggerType::User);
    let output = operator("echo").execute(asked.clone()).await.unwrap();
    assert_eq!(output.message.as_text(), Some("hello"), "a built-in one");
    let output = operator("witness").execute(input()).await.unwrap();
    is_whole(&witness.seen());
    came_back(&output, ExitReason::MaxTurns, &witness.seen());
    let error = operator("nobody").execute(asked.clone()).await.unwrap_err();
    assert!(matches!(error, OperatorError::SubDispatch { .. }), "{error}");
    let error = operator("process").execute(asked).await.unwrap_err();
    assert!(!error.to_string().is_empty(), "a process needs a command");
    host.stop(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn what_an_operator_may_not_call_is_refused() {
    let data = tempfile::tempdir().unwrap();
    let code = Coded::default()
        .and_operator("witness", Witness::new(ExitReason::Complete))
        .and_operator("delegates", Delegates("witness"));
    let host = Host::open(config(data.path(), code)).await.unwrap();
    let run = host.run(DELEGATES, &Value::Null).await.unwrap();
    let output = run.output.unwrap().to_value();
    assert_eq!(output["ok"], false, "{output}");
    assert!(output["err"].as_str().unwrap().contains("may call (echo)"), "{output}");
    host.stop(Duration::from_secs(5)).await;
}

/// A middleware of the protocol, by what it does with a dispatch.
enum Layer {
    Answers,
    Routes,
    Narrows,
    Adds,
    Refuses,
}

#[async_trait]
impl DispatchMiddleware for Layer {
    async fn dispatch(
        &self,
        operator: &OperatorId,
        mut input: OperatorInput,
        next: &dyn DispatchNext,
    ) -> Result<OperatorOutput, OrchError> {
        let mut config = input.config.take().unwrap_or_default();
        match self {
            Self::Answers => {
                return Ok(OperatorOutput::new(Content::text("mine"), ExitReason::Complete));
            }
            Self::Refuses => return Err(OrchError::DispatchFailed("not today".into())),
            Self::Routes => return next.dispatch(&"echo".into(), input).await,
            Self::Narrows => config.allowed_operators = Some(vec!["nobody".into()]),
            Self::Adds => config.system_addendum = Some("BE BRIEF".into()),
        }
        let mut output = next.dispatch(operator, input.with_config(config)).await?;
        if matches!(self, Self::Adds) {
            output.message = Content::text("changed");
        }
        Ok(output)
    }
}

async fn through(layer: Layer, code: Coded, source: &str) -> Value {
    let data = tempfile::tempdir().unwrap();
    let mut stacks = Stacks::default();
    stacks.dispatch =
        DispatchStack::builder().guard(ProtocolLayer::new("own", Arc::new(layer))).build();
    let middleware = Middleware { code: stacks, layers: Vec::new() };
    let config = HostConfig { middleware, ..config(data.path(), code) };
    let host = Host::open(config).await.unwrap();
    let run = host.run(source, &Value::Null).await.unwrap();
    host.stop(Duration::from_secs(5)).await;
    run.output.unwrap().to_value()
}

const ASKS: &str = r#"return require("swarm").blueprint { name = "asks",
  agents = { w = { operator = "witness", system = "PERSONA" } },
  flow = function(ctx)
    local ok, value = pcall(ctx.run, ctx, "w", "hello")
    return { ok = ok, value = if ok then value else tostring(value) }
  end }"#;

#[tokio::test]
async fn a_middleware_of_the_protocol_answers_routes_narrows_changes_and_refuses() {
    let witness = Witness::new(ExitReason::Complete);
    let code = || Coded::default().and_operator("witness", witness.clone());
    assert_eq!(through(Layer::Answers, code(), ASKS).await["value"], "mine");
    assert_eq!(through(Layer::Routes, code(), ASKS).await["value"], "hello");
    assert!(witness.seen.lock().unwrap().is_empty(), "nobody was asked");
    let refused = through(Layer::Refuses, code(), ASKS).await;
    assert!(refused["value"].as_str().unwrap().contains("not today"), "{refused}");

    assert_eq!(through(Layer::Adds, code(), ASKS).await["value"], "changed");
    let addendum = witness.seen().config.unwrap().system_addendum;
    assert_eq!(addendum.as_deref(), Some("PERSONA\n\nBE BRIEF"), "it replaces nothing");

    let code = code().and_operator("delegates", Delegates("echo"));
    let output = through(Layer::Narrows, code, DELEGATES).await;
    assert!(output["err"].as_str().unwrap().contains("may call (nobody)"), "{output}");
}

/// Starts workers of its own.
struct Own;

struct OwnWorker(WorkerId, String);

#[async_trait]
impl SpawnerAdapter for Own {
    async fn spawn(&self, task: Arc<Task>, _: Json) -> Result<Box<dyn Worker>, Failure> {
        let said = format!("{} by its own adapter", task.operator);
        Ok(Box::new(OwnWorker(task.worker(), said)))
    }
}

#[async_trait]
impl Worker for OwnWorker {
    fn id(&self) -> WorkerId {
        self.0
    }

    async fn join(self: Box<Self>) -> Result<Reply, Failure> {
        Ok(Reply::Done(TaskDone::new(Value::from(self.1).into())))
    }
}

#[tokio::test]
async fn adapters_start_the_workers_of_an_operator_and_of_a_kind() {
    let operator: Arc<dyn Operator> = Arc::new(Witness::new(ExitReason::Complete));
    let boxed: Box<dyn Operator> = Box::new(Witness::new(ExitReason::Complete));
    let by_name = Spawners::default().for_operator("witness", Arc::new(Own));
    let by_kind = Spawners::default().for_kind("custom", Arc::new(Own));
    for spawners in [by_name, by_kind, Spawners::default()] {
        let own = format!("{spawners:?}") != "{}";
        let data = tempfile::tempdir().unwrap();
        let code = Coded::default().and_operator("witness", Arc::clone(&operator));
        let host = Host::open(HostConfig { spawners, ..config(data.path(), code) }).await.unwrap();
        let run = host.run(ASKS, &Value::Null).await.unwrap();
        let value = run.output.unwrap().to_value()["value"].clone();
        assert_eq!(value == "witness by its own adapter", own, "{value}");
        host.stop(Duration::from_secs(5)).await;
    }
    let asked = OperatorInput::new(Content::text("x"), TriggerType::Task);
    assert_eq!(boxed.execute(asked).await.unwrap().exit_reason, ExitReason::Complete);
}

/// Whoever holds an engine of a host that has stopped keeps no other from opening its directory.
#[tokio::test]
async fn a_host_that_has_stopped_leaves_no_process_behind() {
    let data = tempfile::tempdir().unwrap();
    let host = Host::open(config(data.path(), Coded::default())).await.unwrap();
    let child = r#"local swarm = require("swarm")
return swarm.blueprint {
  name = "child",
  agents = { sh = { operator = "process", command = { "true" } } },
  flow = function(ctx) return ctx:run("sh") end,
}"#;
    assert!(host.run(child, &Value::Null).await.unwrap().output.is_some());
    let work = std::fs::File::open(data.path().join("work")).unwrap();
    let lock = || rustix::fs::flock(&work, rustix::fs::FlockOperation::NonBlockingLockExclusive);
    assert_eq!(lock(), Err(rustix::io::Errno::WOULDBLOCK), "somebody watches over the children");
    let held = host.engine().clone();
    host.stop(Duration::from_secs(30)).await;
    assert_eq!(lock(), Ok(()));
    drop(held);
}
