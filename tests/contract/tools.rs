//! Coded operators as tools of models: the schema that they declare, and who may call them.

use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use moonswarm::{
    engine::{Program, StartRun},
    flow::Rule,
    middleware::{Dispatch, DispatchLayer, Dispatched, Next},
    operator::Composite,
    protocol::ToolMetadata,
};

use super::*;

/// Answers with its arguments, and counts how many of it are at work at the same time.
#[derive(Clone, Default)]
struct Grep {
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    asked: Arc<AtomicUsize>,
}

#[async_trait]
impl Operator for Grep {
    async fn execute(&self, input: OperatorInput) -> Result<OperatorOutput, OperatorError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        self.now.fetch_sub(1, Ordering::SeqCst);
        Ok(OperatorOutput::new(input.message, ExitReason::Complete))
    }
}

fn metadata(schema: Value, parallel_safe: bool) -> ToolMetadata {
    ToolMetadata::new("find.text", "Finds lines.", schema, parallel_safe)
}

fn words() -> Value {
    json!({
        "type": "object", "required": ["words"],
        "properties": { "words": { "type": "string", "minLength": 2 } },
    })
}

/// A host with a scripted model and the tool, and the layer if there is one.
async fn host(data: &Path, grep: &Grep, tool: ToolMetadata, stacks: Stacks) -> Host {
    let code = Coded::default().and_operator("grep", grep.clone()).with_tool("grep", tool);
    let operators = "[operators.model]\nkind = \"llm\"\napi = \"script\"".parse().unwrap();
    let middleware = Middleware { code: stacks, layers: Vec::new() };
    Host::open(HostConfig { operators, middleware, ..config(data, code) }).await.unwrap()
}

/// Asks for what `calls` says, then says what it saw.
fn searches(tools: &str, calls: &str) -> String {
    format!(
        r#"return require("swarm").blueprint {{ name = "searches",
  agents = {{ it = {{ operator = "model", tools = {{ {tools} }}, fn = function(request)
    local seen = {{}}
    for _, item in ipairs(request.items) do
      if item.type == "function_call_output" then table.insert(seen, item.output) end
    end
    if #seen > 0 then return {{ text = require("swarm").json.encode({{ seen = seen, tools = request.tools }}) }} end
    return {{ calls = {calls} }}
  end }} }},
  flow = function(ctx) return ctx:run("it", "go") end }}"#
    )
}

fn said(output: &Json) -> Value {
    serde_json::from_str(output.to_value().as_str().expect("a text")).expect("as JSON")
}

#[tokio::test]
async fn a_coded_operator_declares_its_tool_and_a_model_calls_it_by_its_schema() {
    let (data, grep) = (tempfile::tempdir().unwrap(), Grep::default());
    let host = host(data.path(), &grep, metadata(words(), true), Stacks::default()).await;
    let calls = r#"{ { name = "find_text", arguments = { words = "moon", more = 1 } },
        { name = "find_text", arguments = { words = "m" } }, { name = "find_text", arguments = {} } }"#;
    let source = searches(r#"{ operator = "grep" }"#, calls);
    let run = host.run(&source, &Value::Null).await.unwrap();
    let said = said(&run.output.unwrap());
    let tool = &said["tools"][0];
    assert_eq!(tool["name"], "find_text", "as models take names");
    assert_eq!((&tool["description"], &tool["parameters"]), (&json!("Finds lines."), &words()));
    let seen = said["seen"][0].as_str().unwrap();
    let seen: Value = serde_json::from_str(seen).unwrap();
    assert_eq!(seen, json!({ "more": 1, "words": "moon" }), "what the schema leaves open");
    for refused in [1, 2] {
        assert!(said["seen"][refused].as_str().unwrap().contains("invalid_input"), "{said}");
    }
    assert_eq!(grep.asked.load(Ordering::SeqCst), 1);

    // What the entry says itself goes first.
    let own = r#"{ operator = "grep", name = "own", description = "Mine." }"#;
    let source = searches(own, r#"{ { name = "own", arguments = { words = "moon" } } }"#);
    let run = host.run(&source, &Value::Null).await.unwrap();
    let tool = said_tool(&run.output.unwrap());
    assert_eq!((&tool["name"], &tool["description"]), (&json!("own"), &json!("Mine.")));
    assert_eq!(tool["parameters"], words());
    host.stop(Duration::from_secs(5)).await;
}

fn said_tool(output: &Json) -> Value {
    said(output)["tools"][0].clone()
}

#[tokio::test]
async fn a_declared_tool_runs_beside_itself_only_where_that_is_safe() {
    let call = r#"{ name = "find_text", arguments = { words = "moon" } }"#;
    for (safe, entry) in [
        (true, r#"{ operator = "grep" }"#),
        (false, r#"{ operator = "grep" }"#),
        (true, r#"{ operator = "grep", parallel_safe = false }"#),
    ] {
        let (data, grep) = (tempfile::tempdir().unwrap(), Grep::default());
        let host = host(data.path(), &grep, metadata(words(), safe), Stacks::default()).await;
        let source = searches(entry, &format!("{{ {} }}", [call; 4].join(", ")));
        host.run(&source, &Value::Null).await.unwrap();
        assert_eq!(grep.asked.load(Ordering::SeqCst), 4);
        if !safe || entry.contains("false") {
            assert_eq!(grep.most.load(Ordering::SeqCst), 1, "{safe} {entry}");
        }
        host.stop(Duration::from_secs(5)).await;
    }
}

#[tokio::test]
async fn a_schema_that_is_none_is_reported_where_the_tool_is_named() {
    let (data, grep) = (tempfile::tempdir().unwrap(), Grep::default());
    let tool = metadata(json!({ "type": 7 }), true);
    let host = host(data.path(), &grep, tool, Stacks::default()).await;
    let source = searches(r#"{ operator = "grep" }"#, "{}");
    let error = format!("{:?}", host.run(&source, &Value::Null).await.unwrap_err());
    assert!(error.contains("the operator `grep` declares"), "{error}");
    host.stop(Duration::from_secs(5)).await;
}

/// Leaves a model only what it is told, and lets its run be looked at after it answered.
struct Leaves {
    only: &'static [&'static str],
    pauses: bool,
}

#[async_trait]
impl DispatchLayer for Leaves {
    fn name(&self) -> &str {
        "leaves"
    }

    async fn dispatch(
        &self,
        mut dispatch: Dispatch,
        next: Next<'_>,
    ) -> Result<Dispatched, Failure> {
        if &*dispatch.about.operator != "model" {
            return next.run(dispatch).await;
        }
        dispatch.config.allowed_operators =
            Some(self.only.iter().map(|it| (*it).to_owned()).collect());
        let about = Arc::clone(&dispatch.about);
        let answer = next.run(dispatch).await;
        if self.pauses {
            about.voice.pause("look at it".to_owned());
        }
        answer
    }
}

fn leaving(only: &'static [&'static str], pauses: bool) -> Stacks {
    let mut stacks = Stacks::default();
    stacks.dispatch = DispatchStack::builder().guard(Leaves { only, pauses }).build();
    stacks
}

const THREE: &str = r#"{ operator = "grep" }, { operator = "echo", name = "say" },
    { name = "rm", approve = "ask", fn = function() return "gone" end }, { state = "read" }"#;
const CALLS: &str = r#"{ { name = "find_text", arguments = { words = "moon" } },
    { name = "say", arguments = { a = 1 } }, { name = "rm", arguments = {} },
    { name = "state_get", arguments = { key = "k" } } }"#;

#[tokio::test]
async fn a_model_calls_only_the_tools_that_the_layers_left_it() {
    // By the tool's name, by its operator, by the name of its entry.
    for only in [&["find_text", "state"][..], &["grep", "state_get"]] {
        let (data, grep) = (tempfile::tempdir().unwrap(), Grep::default());
        let host = host(data.path(), &grep, metadata(words(), true), leaving(only, false)).await;
        let run = host.run(&searches(THREE, CALLS), &Value::Null).await.unwrap();
        let said = said(&run.output.unwrap());
        let refused: Vec<bool> = (0..4)
            .map(|n| said["seen"][n].as_str().unwrap().contains("none of those that it may call"))
            .collect();
        assert_eq!(refused, [false, true, true, false], "{said}");
        assert_eq!(grep.asked.load(Ordering::SeqCst), 1);
        host.stop(Duration::from_secs(5)).await;
    }
}

#[tokio::test]
async fn what_the_layers_left_a_model_is_kept_across_a_restart() {
    let (data, grep) = (tempfile::tempdir().unwrap(), Grep::default());
    let first = host(data.path(), &grep, metadata(words(), true), leaving(&[], true)).await;
    let source = searches(THREE, CALLS);
    let bundle = moonswarm::blueprint::Bundle::from_source("searches.lua", source).unwrap();
    let start = StartRun {
        trigger: Json::from(json!({ "kind": "embedded" })),
        ..StartRun::new(Program::Bundle(bundle))
    };
    let owner = first.owner().unwrap();
    let run = first.engine().start(&owner, start, None).await.unwrap().run;
    let (until, most) = (WaitFor::EndedOrPeople, Duration::from_secs(60));
    let view = first.engine().wait(&owner, run, until, most).await.unwrap();
    assert_eq!(serde_json::to_value(&view).unwrap()["status"], "paused");
    first.stop(Duration::from_secs(5)).await;

    // The next host has no such layer; the answer was given under the one before.
    let next = host(data.path(), &grep, metadata(words(), true), Stacks::default()).await;
    let owner = next.owner().unwrap();
    next.engine().resume(&owner, run).await.unwrap();
    let view = next.engine().wait(&owner, run, WaitFor::Ended, most).await.unwrap();
    let said = said(&view.output.unwrap());
    for n in 0..4 {
        assert!(said["seen"][n].as_str().unwrap().contains("may call"), "{n}: {said}");
    }
    assert_eq!(grep.asked.load(Ordering::SeqCst), 0);
    next.stop(Duration::from_secs(5)).await;
}

/// The composites in whose members a model is asked.
const COMPOSITES: &str = r#"
[operators.model]
kind = "llm"
api = "script"

[operators.away]
kind = "llm"
api = "script"

[operators.first]
kind = "composite"
rule = "fallback"
members = ["away", "model"]

[operators.agreed]
kind = "composite"
rule = "quorum"
agree = 2
members = ["model", "model"]

[operators.within]
kind = "composite"
rule = "round_robin"
members = ["first"]
"#;

/// Leaves a model only what it is told; the model `away` is not there.
struct Away(&'static [&'static str]);

#[async_trait]
impl DispatchLayer for Away {
    fn name(&self) -> &str {
        "away"
    }

    async fn dispatch(
        &self,
        mut dispatch: Dispatch,
        next: Next<'_>,
    ) -> Result<Dispatched, Failure> {
        match &*dispatch.about.operator {
            "away" => return Err(Failure::new("model", "it is away")),
            "model" => {
                let only = self.0.iter().map(|it| (*it).to_owned()).collect();
                dispatch.config.allowed_operators = Some(only);
            }
            _ => {}
        }
        next.run(dispatch).await
    }
}

#[tokio::test]
async fn a_model_within_composites_calls_only_the_tools_that_the_layers_left_it() {
    for operator in ["first", "agreed", "within"] {
        let (data, grep) = (tempfile::tempdir().unwrap(), Grep::default());
        let tool = metadata(words(), true);
        let code = Coded::default().and_operator("grep", grep.clone()).with_tool("grep", tool);
        let mut stacks = Stacks::default();
        let layer = Away(&["grep", "state_get"]);
        stacks.dispatch = DispatchStack::builder().guard(layer).build();
        let middleware = Middleware { code: stacks, layers: Vec::new() };
        let operators = COMPOSITES.parse().unwrap();
        let config = HostConfig { operators, middleware, ..config(data.path(), code) };
        let host = Host::open(config).await.unwrap();
        let source = searches(THREE, CALLS).replace(r#""model""#, &format!("{operator:?}"));
        let run = host.run(&source, &Value::Null).await.unwrap();
        let said = said(&run.output.unwrap());
        let refused: Vec<bool> = (0..4)
            .map(|n| said["seen"][n].as_str().unwrap().contains("none of those that it may call"))
            .collect();
        assert_eq!(refused, [false, true, true, false], "{operator}: {said}");
        // The members of a quorum are loops of their own, and each calls its tools.
        let times = if operator == "agreed" { 2 } else { 1 };
        assert_eq!(grep.asked.load(Ordering::SeqCst), times, "{operator}");
        host.stop(Duration::from_secs(5)).await;
    }
}

#[tokio::test]
async fn a_coded_tool_within_a_composite_is_called_by_each_member_in_its_turn() {
    // The tool of a model is a composite of operators in code.
    let (data, grep) = (tempfile::tempdir().unwrap(), Grep::default());
    let finds = Composite::new(Rule::Fallback, ["broken", "grep"]).unwrap();
    let code = Coded::default()
        .and_operator("grep", grep.clone())
        .and_operator("broken", Broken)
        .and("finds", finds);
    let operators = "[operators.model]\nkind = \"llm\"\napi = \"script\"".parse().unwrap();
    let host = Host::open(HostConfig { operators, ..config(data.path(), code) }).await.unwrap();
    let tool = r#"{ operator = "finds", name = "find_text" }"#;
    let calls = r#"{ { name = "find_text", arguments = { words = "moon" } } }"#;
    let run = host.run(&searches(tool, calls), &Value::Null).await.unwrap();
    let said = said(&run.output.unwrap());
    assert!(said["seen"][0].as_str().unwrap().contains("moon"), "{said}");
    assert_eq!(grep.asked.load(Ordering::SeqCst), 1);
    host.stop(Duration::from_secs(5)).await;
}

/// Fails, and leaves nothing to others.
struct Broken;

#[async_trait]
impl Operator for Broken {
    async fn execute(&self, _: OperatorInput) -> Result<OperatorOutput, OperatorError> {
        Err(OperatorError::NonRetryable("it is broken".to_owned()))
    }
}
