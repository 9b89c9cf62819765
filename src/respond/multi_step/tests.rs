mod steps;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::*;
use crate::{
    clock::Clock,
    flow::response::LoopLimits,
    protocol::{
        ChainStep, FunctionTool, Json, ModelDelta, ModelRequest, NextAction, RecordedStep,
        StepDescriptor, StepKind, StepState,
    },
    store::{Options, Sqlite, Store},
    tasks::Tasks,
};

/// Tools: `echo` returns its arguments, `fail` fails, `slow` waits for the gate, `sub` is an agent.
struct Tools {
    executed: Mutex<Vec<(String, String, Value)>>,
    gate: Semaphore,
    under_way: AtomicU32,
}

impl Tools {
    fn new() -> Self {
        Self { executed: Mutex::default(), gate: Semaphore::new(0), under_way: AtomicU32::new(0) }
    }

    fn names(&self) -> Vec<String> {
        self.executed.lock().unwrap().iter().map(|(name, ..)| name.clone()).collect()
    }
}

#[async_trait]
impl ToolExecutor for Tools {
    async fn tools(&self, _: &RequestContext) -> Vec<ToolSchema> {
        ["echo", "fail", "slow", "sub", "hidden"].map(|name| ToolSchema {
            name: name.to_owned(),
            description: String::new(),
            parameters: json!({ "type": "object", "properties": { "n": { "type": "integer" } } }),
            strict: false,
            kind: if name == "sub" { ToolKind::Agent } else { ToolKind::Http },
        })
        .to_vec()
    }

    async fn execute(
        &self,
        tool_name: &str,
        tool_call_id: &str,
        arguments: &Value,
        _: &RequestContext,
    ) -> Result<Value, ToolError> {
        let call = (tool_name.to_owned(), tool_call_id.to_owned(), arguments.clone());
        self.executed.lock().unwrap().push(call);
        match tool_name {
            "fail" => Err(ToolError::ExecutionError(format!("no {}", arguments["n"]))),
            "slow" => {
                self.under_way.fetch_add(1, Ordering::SeqCst);
                self.gate.acquire().await.unwrap().forget();
                Ok(json!("late"))
            }
            "echo" => Ok(arguments.clone()),
            other => Err(ToolError::NotFound(other.to_owned())),
        }
    }
}

/// A model that follows the script in its instructions, turn by turn, and records its requests.
#[derive(Default)]
struct Script(Mutex<Vec<ModelRequest>>);

#[async_trait]
impl Model for Script {
    async fn call(
        &self,
        request: &Value,
        heard: &(dyn Fn(ModelDelta) + Send + Sync),
    ) -> Result<Value, ExecutorError> {
        let request: ModelRequest = serde_json::from_value(request.clone()).unwrap();
        self.0.lock().unwrap().push(request.clone());
        let script: Vec<Value> =
            serde_json::from_str(request.instructions.as_deref().unwrap()).unwrap();
        let turn = request
            .items
            .iter()
            .filter(|item| item["turn"].is_u64())
            .map(|item| item["turn"].as_u64().unwrap() + 1)
            .max();
        let turn = turn.unwrap_or(0);
        heard(ModelDelta::Text { item: 0, part: 0, delta: "…".into() });
        let items: Vec<Value> = match &script[usize::try_from(turn).unwrap()] {
            Value::String(text) if text == "!" => return Err(ExecutorError::ExecutionError("mute".into())),
            Value::String(text) => vec![json!({ "type": "message", "role": "assistant", "id": "m", "turn": turn,
                "content": [{ "type": "output_text", "text": text }] })],
            calls => calls.as_array().unwrap().iter().enumerate().map(|(n, call)| {
                let arguments = match &call[1] {
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                json!({ "type": "function_call", "id": format!("f{n}"), "turn": turn, "name": call[0],
                    "call_id": format!("call_{turn}_{n}"), "arguments": arguments })
            }).collect(),
        };
        Ok(
            json!({ "model": "scripted", "items": items, "stop": "end", "usage": { "input_tokens": 3 } }),
        )
    }
}

#[derive(Default)]
struct Heard(Mutex<Vec<LoopEvent>>, AtomicBool);

#[async_trait]
impl EventSink for Heard {
    async fn emit(&self, event: LoopEvent) -> Result<(), SinkError> {
        self.0.lock().unwrap().push(event);
        if self.1.load(Ordering::Relaxed) { Err(SinkError("gone".into())) } else { Ok(()) }
    }
}

impl Heard {
    fn kinds(&self) -> Vec<LoopEventKind> {
        let deltas = |kind: &LoopEventKind| *kind != LoopEventKind::Delta;
        self.0.lock().unwrap().iter().map(|event| event.kind).filter(deltas).collect()
    }

    fn ends(&self) -> usize {
        self.kinds().into_iter().filter(|kind| kind.is_terminal()).count()
    }
}

/// Chains in a real database, with all participants of a loop.
struct Bench {
    dir: Arc<tempfile::TempDir>,
    store: Arc<Sqlite>,
    chains: Chains,
    tools: Tools,
    model: Script,
    heard: Heard,
    config: LoopConfig,
}

fn tool(name: &str) -> FunctionTool {
    let parameters = json!({ "type": "object", "properties": { "n": { "type": "integer" } } });
    FunctionTool { name: name.into(), description: None, parameters, strict: None }
}

fn asked(script: &Value) -> ModelRequest {
    ModelRequest {
        instructions: Some(script.to_string()),
        items: vec![crate::flow::response::user_message("go")],
        tools: ["echo", "fail", "slow", "sub"].map(tool).to_vec(),
        ..ModelRequest::default()
    }
}

impl Bench {
    /// Creates a bench with an agent `sub` whose script is `sub`.
    fn new(sub: &Value) -> Self {
        Self::open(Arc::new(tempfile::tempdir().unwrap()), sub)
    }

    fn open(dir: Arc<tempfile::TempDir>, sub: &Value) -> Self {
        let store = Sqlite::open(dir.path(), &Options::default()).unwrap();
        let tasks = Tasks::new(tokio::runtime::Handle::current());
        let agent = ModelRequest { items: Vec::new(), ..asked(sub) };
        let transition = ToolLoop {
            agents: BTreeMap::from([("sub".to_owned(), agent)]),
            callers: vec!["mine".to_owned()],
            limits: LoopLimits { turns: 100, repeats: 100, ..LoopLimits::default() },
        };
        let kept = Arc::clone(&store) as Arc<dyn Store>;
        let chains = Chains::new(kept, Clock::manual(1_700_000_000_000), tasks, transition);
        let (tools, model, heard) = (Tools::new(), Script::default(), Heard::default());
        Self { dir, store, chains, tools, model, heard, config: LoopConfig::default() }
    }

    async fn begin(&self, script: Value) -> String {
        self.begin_with(asked(&script)).await
    }

    async fn begin_with(&self, request: ModelRequest) -> String {
        let request = Json::encode(&request).unwrap();
        self.chains.begin(NewResponse { request, principal: "test".into() }).await.unwrap()
    }

    async fn run(&self, id: &str) -> Result<Value, LoopError> {
        self.run_over(&self.chains, id).await
    }

    async fn run_over(&self, store: &dyn MultiStepStore, id: &str) -> Result<Value, LoopError> {
        let context = RequestContext::default();
        let parts = ResponseLoop {
            store,
            tools: &self.tools,
            model: &self.model,
            context: &context,
            sink: Some(&self.heard),
            config: self.config,
        };
        run_response_loop(parts, id).await
    }

    async fn chain(&self, id: &str, parent: Option<&str>) -> Vec<ChainStep> {
        self.chains.list_chain(id, parent).await.unwrap()
    }

    /// Returns the last request to the model.
    fn seen(&self) -> Vec<String> {
        let asked = self.model.0.lock().unwrap();
        let items = &asked.last().unwrap().items;
        let outputs = items.iter().filter(|item| item["type"] == "function_call_output");
        outputs.map(|item| item["output"].as_str().unwrap().to_owned()).collect()
    }
}

fn text_of(answer: &Value) -> String {
    let items = answer["items"].as_array().unwrap().clone();
    items.last().unwrap()["content"][0]["text"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_response_goes_from_its_question_over_its_tools_to_its_end() {
    let bench = Bench::new(&json!(["x"]));
    let id = bench.begin(json!([[["echo", { "n": 1 }], ["echo", { "n": 2 }]], "done"])).await;
    let answer = bench.run(&id).await.unwrap();
    assert_eq!(text_of(&answer), "done");
    let chain = bench.chain(&id, None).await;
    let kinds: Vec<_> = chain.iter().map(|step| (step.kind, step.state)).collect();
    use StepKind::{ModelCall, ToolCall};
    assert_eq!(
        kinds,
        [ModelCall, ToolCall, ToolCall, ModelCall].map(|it| (it, StepState::Completed))
    );
    for pair in chain.windows(2) {
        assert_eq!(pair[1].prev_step_id.as_ref(), Some(&pair[0].id));
        assert!(pair[1].sequence > pair[0].sequence);
    }
    let executed = bench.tools.executed.lock().unwrap().clone();
    // Both run concurrently.
    let second = ("echo".into(), "call_0_1".into(), json!({ "n": 2 }));
    assert!(executed.len() == 2 && executed.contains(&second), "ids and arguments are exact");
    use LoopEventKind::{Completed, Created, OutputItemDone};
    assert_eq!(bench.heard.kinds(), [Created, OutputItemDone, OutputItemDone, Completed]);
    bench.chains.close(&id, &Ok(answer)).await.unwrap();
    let response = bench.chains.assemble_response(&id).await.unwrap();
    assert_eq!(
        (&response["status"], &response["usage"]["input_tokens"]),
        (&json!("completed"), &json!(6))
    );
    assert_eq!(response["output"].as_array().unwrap().len(), 5);
    assert_eq!(response.as_object().unwrap().len(), 31);
}

#[tokio::test]
async fn a_response_says_what_it_continues_and_that_it_was_cut_off() {
    let bench = Bench::new(&json!(["x"]));
    let id = bench.begin(json!(["done"])).await;
    let mut answer = bench.run(&id).await.unwrap();
    answer["end"] = json!("length");
    bench.chains.close(&id, &Ok(answer)).await.unwrap();
    let response = bench.chains.assemble_response(&id).await.unwrap();
    assert_eq!(response["status"], "incomplete");
    assert_eq!(response["incomplete_details"], json!({ "reason": "max_output_tokens" }));
    assert_eq!(response["completed_at"], json!(null), "only what is complete");
    assert_eq!(
        (&response["background"], &response["previous_response_id"]),
        (&json!(false), &json!(null))
    );
}

#[tokio::test]
async fn a_failed_sibling_is_stored_and_every_one_is_seen() {
    let bench = Bench::new(&json!(["x"]));
    let calls = json!([["fail", { "n": 1 }], ["echo", { "n": 2 }], ["fail", { "n": 3 }], ["gone", {}], ["echo", "{"], ["echo", { "n": "x" }], ["echo", "7"]]);
    let id = bench.begin(json!([calls, "done"])).await;
    assert_eq!(text_of(&bench.run(&id).await.unwrap()), "done");
    let seen = bench.seen();
    for (place, words) in [
        (0, "no 1"),
        (2, "no 3"),
        (3, "not_found"),
        (4, "Invalid arguments"),
        (5, "$.n"),
        (6, "not an object"),
    ] {
        assert!(seen[place].contains(words), "{place}: {}", seen[place]);
    }
    assert_eq!(seen[1], r#"{"n":2}"#);
    let chain = bench.chain(&id, None).await;
    let failed = chain.iter().filter(|step| step.state == StepState::Failed);
    assert!(failed.clone().all(|step| step.error.is_some() && step.response_payload.is_none()));
    assert_eq!(failed.count(), 6);
    let asked = bench.chains.descriptor_of(&chain[5].id).await.unwrap().unwrap();
    assert_eq!(asked.request_payload["arguments"], "{", "what was written is kept");
    let mut names = bench.tools.names();
    names.sort_unstable();
    assert_eq!(names, ["echo", "fail", "fail"], "what cannot be called never is");
}

#[tokio::test]
async fn an_agent_is_a_loop_below_its_step_and_never_executed() {
    let bench = Bench::new(&json!([[["echo", { "n": 7 }]], "from below"]));
    let id = bench.begin(json!([[["sub", { "n": 1 }]], "done"])).await;
    assert_eq!(text_of(&bench.run(&id).await.unwrap()), "done");
    let chain = bench.chain(&id, None).await;
    let below = bench.chain(&id, Some(&chain[1].id)).await;
    assert_eq!((chain.len(), below.len()), (3, 3));
    assert_eq!(below[0].parent_step_id.as_ref(), Some(&chain[1].id));
    assert_eq!(below[0].prev_step_id, None, "each scope has a chain of its own");
    assert!(below[0].sequence > chain[1].sequence && chain[2].sequence > below[2].sequence);
    assert_eq!(chain[1].response_payload, Some(json!("from below")));
    assert_eq!(bench.tools.names(), ["echo"]);
    use LoopEventKind::{Completed, Created, OutputItemDone};
    assert_eq!(
        bench.heard.kinds(),
        [Created, OutputItemDone, Completed],
        "only the outermost is heard"
    );
}

#[tokio::test]
async fn a_loop_too_deep_fails_only_its_step() {
    let mut bench = Bench::new(&json!([[["sub", {}]], "turned back"]));
    bench.config.max_response_step_depth = 2;
    let id = bench.begin(json!([[["sub", {}], ["echo", { "n": 1 }]], "done"])).await;
    assert_eq!(text_of(&bench.run(&id).await.unwrap()), "done");
    let one = bench.chain(&id, None).await[1].id.clone();
    let two = bench.chain(&id, Some(&one)).await[1].id.clone();
    let three = bench.chain(&id, Some(&two)).await;
    assert_eq!(three[1].state, StepState::Failed);
    assert_eq!(three[1].error.as_ref().unwrap()["type"], "max_depth_exceeded");
    assert_eq!(bench.heard.ends(), 1);
}

#[tokio::test]
async fn transitions_are_counted_also_across_a_restart() {
    let mut bench = Bench::new(&json!(["x"]));
    bench.config.max_response_iterations = 3;
    let script: Vec<Value> = (0..9).map(|n| json!([["echo", { "n": n }]])).collect();
    let id = bench.begin(json!(script)).await;
    assert_eq!(bench.run(&id).await, Err(LoopError::MaxIterationsExceeded));
    assert_eq!(bench.chain(&id, None).await.len(), 3);
    let again = bench.run(&id).await;
    assert_eq!(again, Err(LoopError::MaxIterationsExceeded));
    assert_eq!(bench.chain(&id, None).await.len(), 3, "no transition is made beyond it");
    assert_eq!(bench.heard.ends(), 2, "one for each end");
    assert_eq!(
        LoopConfig::default(),
        LoopConfig { max_response_step_depth: 8, max_response_iterations: 10 }
    );
}

/// A store with another transition, or one that fails from some point on.
struct Other<'a> {
    chains: &'a Chains,
    next: Option<NextAction>,
    breaks: &'static str,
}

#[async_trait]
impl MultiStepStore for Other<'_> {
    async fn next_action_for(
        &self,
        id: &str,
        scope: Option<&str>,
    ) -> Result<NextAction, StoreError> {
        match &self.next {
            _ if self.breaks == "next" => Err(StoreError::StorageError("broken".into())),
            Some(next) => Ok(next.clone()),
            None => self.chains.next_action_for(id, scope).await,
        }
    }

    async fn record_step(
        &self,
        id: &str,
        scope: Option<&str>,
        prev: Option<&str>,
        it: &StepDescriptor,
    ) -> Result<RecordedStep, StoreError> {
        if self.breaks == "record" {
            return Err(StoreError::StorageError("broken".into()));
        }
        self.chains.record_step(id, scope, prev, it).await
    }

    async fn mark_step_processing(&self, id: &str) -> Result<(), StoreError> {
        self.chains.mark_step_processing(id).await
    }

    async fn retry_step(&self, id: &str) -> Result<(), StoreError> {
        self.chains.retry_step(id).await
    }

    async fn complete_step(&self, id: &str, payload: &Value) -> Result<(), StoreError> {
        if self.breaks == "complete" {
            return Err(StoreError::StorageError("broken".into()));
        }
        self.chains.complete_step(id, payload).await
    }

    async fn fail_step(&self, id: &str, error: &Value) -> Result<(), StoreError> {
        self.chains.fail_step(id, error).await
    }

    async fn cancel_step(&self, id: &str, reason: &str) -> Result<(), StoreError> {
        self.chains.cancel_step(id, reason).await
    }

    async fn list_chain(
        &self,
        id: &str,
        scope: Option<&str>,
    ) -> Result<Vec<ChainStep>, StoreError> {
        if self.breaks == "list" {
            return Err(StoreError::StorageError("broken".into()));
        }
        self.chains.list_chain(id, scope).await
    }

    async fn assemble_response(&self, id: &str) -> Result<Value, StoreError> {
        self.chains.assemble_response(id).await
    }
}

#[tokio::test]
async fn every_end_is_one_terminal_event_and_a_broken_store_ends_it_too() {
    let fail = NextAction::Fail(json!({ "type": "x" }));
    for (breaks, next, expected) in [
        ("next", None, "storage error"),
        ("record", None, "storage error"),
        ("complete", None, "storage error"),
        ("list", None, "storage error"),
        ("", Some(NextAction::AppendSteps(Vec::new())), "no descriptors"),
        ("", Some(fail), "response loop failed"),
        ("", Some(NextAction::Complete(Value::Null)), ""),
    ] {
        let bench = Bench::new(&json!(["x"]));
        let id = bench.begin(json!(["done"])).await;
        let other = Other { chains: &bench.chains, next, breaks };
        let outcome = bench.run_over(&other, &id).await;
        let said = outcome.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(said.contains(expected), "{breaks}: {said}");
        assert_eq!(bench.heard.ends(), 1, "{breaks}");
    }
}

#[tokio::test]
async fn a_sink_that_fails_stops_nothing() {
    let bench = Bench::new(&json!(["x"]));
    bench.heard.1.store(true, Ordering::Relaxed);
    let id = bench.begin(json!([[["echo", { "n": 1 }]], "done"])).await;
    assert_eq!(text_of(&bench.run(&id).await.unwrap()), "done");
}

#[tokio::test]
async fn what_a_crash_left_open_is_executed_again_and_what_ended_is_not() {
    let sub = json!(["x"]);
    let bench = Bench::new(&sub);
    let id = bench.begin(json!([[["echo", { "n": 1 }], ["slow", {}]], "done"])).await;
    {
        let mut run = Box::pin(bench.run(&id));
        // Poll until `slow` is running and `echo` has ended. Then everything is dropped.
        loop {
            let polled = futures::poll!(run.as_mut());
            assert!(polled.is_pending());
            let chain = bench.chain(&id, None).await;
            // The second step is the first call.
            let done = chain.get(1).is_some_and(|step| step.state == StepState::Completed);
            if done && bench.tools.under_way.load(Ordering::SeqCst) == 1 {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(bench.heard.kinds()[0], LoopEventKind::Created);
    let dir = Arc::clone(&bench.dir);
    bench.store.close().unwrap();
    drop(bench);
    let bench = Bench::open(dir, &sub);
    bench.tools.gate.add_permits(1);
    assert_eq!(text_of(&bench.run(&id).await.unwrap()), "done");
    assert_eq!(bench.tools.names(), ["slow"], "what had ended is not executed again");
    assert_eq!(bench.seen(), [r#"{"n":1}"#, "late"]);
    assert!(!bench.heard.kinds().contains(&LoopEventKind::Created), "created comes once");
}

#[tokio::test]
async fn siblings_are_all_recorded_before_one_runs_and_all_end_before_the_next_transition() {
    let bench = Bench::new(&json!(["x"]));
    let id = bench.begin(json!([[["slow", { "n": 1 }], ["slow", { "n": 2 }]], "done"])).await;
    let mut run = Box::pin(bench.run(&id));
    while bench.tools.under_way.load(Ordering::SeqCst) < 2 {
        assert!(futures::poll!(run.as_mut()).is_pending());
        if bench.tools.under_way.load(Ordering::SeqCst) > 0 {
            assert_eq!(bench.chain(&id, None).await.len(), 3);
        }
        tokio::task::yield_now().await;
    }
    bench.tools.gate.add_permits(2);
    assert_eq!(text_of(&run.await.unwrap()), "done");
}

#[tokio::test]
async fn a_batch_with_a_tool_of_the_callers_is_handed_back_and_nothing_of_it_runs() {
    let bench = Bench::new(&json!(["x"]));
    let mut request = asked(&json!([[["echo", { "n": 1 }], ["mine", {}]]]));
    request.tools.push(tool("mine"));
    let id = bench.begin_with(request).await;
    let answer = bench.run(&id).await.unwrap();
    assert_eq!(
        (&answer["end"], answer["items"].as_array().unwrap().len()),
        (&json!("handed_back"), 2)
    );
    assert_eq!(bench.tools.names(), [""; 0]);
}
