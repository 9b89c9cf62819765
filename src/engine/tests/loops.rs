mod compaction;
mod dispatched;
mod script;
mod sessions;
mod tools;
mod twins;

use parking_lot::Mutex;
use serde_json::{Value, json};

use script::{Either, Mute, Scripted, Server};

use super::*;
use crate::{
    journal::{Decision, Outcome},
    protocol::{Content, ModelRequest, OperatorInput, Orchestrator as _, StepKind, TriggerType},
};

/// A bench whose operators are those of the others, a model and a server.
struct Loops {
    bench: Bench,
    asked: Arc<Mutex<Vec<ModelRequest>>>,
    gate: Arc<tokio::sync::Semaphore>,
}

impl std::ops::Deref for Loops {
    type Target = Bench;

    fn deref(&self) -> &Bench {
        &self.bench
    }
}

impl Loops {
    fn new() -> Self {
        Self::open(Arc::new(tempfile::tempdir().unwrap()), Clock::manual(1_700_000_000_000))
    }

    fn open(dir: Arc<tempfile::TempDir>, clock: Clock) -> Self {
        let (asked, gate) = (Arc::default(), Arc::new(tokio::sync::Semaphore::new(0)));
        let model = Scripted { asked: Arc::clone(&asked), gate: Arc::clone(&gate) };
        let code = crate::operator::Coded::default().and("model", model).and("files", Server);
        let either =
            crate::operator::Composite::new(crate::flow::Rule::Fallback, ["mute", "model"]);
        let code = code.and("mute", Mute).and("either_model", Either(either.unwrap()));
        let bench = Bench::open_coded(dir, clock, &code);
        Self { bench, asked, gate }
    }

    async fn restart(self) -> Self {
        let (dir, clock) = (Arc::clone(&self.bench.dir), self.bench.clock.clone());
        self.bench.close().await;
        Self::open(dir, clock)
    }

    /// A run of the agent `it`, which is a model that says `script`, with more keys and agents.
    async fn begin(&self, script: &Value, keys: &str, agents: &str) -> RunId {
        self.start(&body(script, keys, agents), "null").await
    }

    /// The outcome of such a run.
    async fn value(&self, script: Value, keys: &str, agents: &str) -> Value {
        let run = self.begin(&script, keys, agents).await;
        let value = self.value_of(run).await;
        self.replays(run).await;
        value
    }

    async fn value_of(&self, run: RunId) -> Value {
        let view = self.ended(run).await;
        assert_eq!(view.status, RunStatus::Completed, "{:?}", view.error);
        view.output.unwrap().to_value()
    }

    /// The failure of such a run: its kind and message.
    async fn fails(&self, script: Value, keys: &str, agents: &str) -> (String, String) {
        let run = self.begin(&script, keys, agents).await;
        let error = self.ended(run).await.error.expect("it fails");
        self.one_end(run);
        (error.kind, error.message)
    }

    async fn replays(&self, run: RunId) {
        let view = self.engine.histories().replay(&self.admin(), run, None).await.unwrap();
        assert!(view.divergence.is_none(), "{view:?}");
        self.one_end(run);
    }

    /// Every loop that ended told so once.
    fn one_end(&self, run: RunId) {
        let mut told = std::collections::BTreeMap::new();
        for entry in self.entries(run) {
            if let Fact::Decided(Decision::Told { step: Some(step), data, .. }) = entry.fact
                && data.as_str().contains("loop.ended")
            {
                *told.entry(step).or_insert(0) += 1;
            }
        }
        assert!(told.values().all(|times| *times == 1), "{told:?}");
    }

    async fn steps(&self, run: RunId) -> Vec<(String, String, String)> {
        let steps = self.engine.steps(&self.admin(), run, 0, 1_000).await.unwrap().items;
        steps.into_iter().map(|it| (it.kind, it.name, it.state)).collect()
    }

    /// The exit that a run's only loop told.
    fn exit(&self, run: RunId) -> Value {
        let told = self.entries(run).into_iter().find_map(|entry| match entry.fact {
            Fact::Decided(Decision::Told { data, .. }) => {
                let data = data.to_value();
                (data["event_type"] == "loop.ended").then(|| data["data"]["exit"].clone())
            }
            _ => None,
        });
        told.expect("it told how it ended")
    }

    fn asked(&self) -> Vec<ModelRequest> {
        self.asked.lock().clone()
    }
}

fn body(script: &Value, keys: &str, agents: &str) -> String {
    format!(
        r#"agents = {{
            it = {{ operator = "model", system = [==[{script}]==], {keys} }},
            {agents}
        }},
        flow = function(ctx, input) return ctx:run("it", input) end"#
    )
}

/// Steps as they are expected: kind, name, state.
fn are(steps: &[(String, String, String)], expected: &[(&str, &str, &str)]) {
    let steps: Vec<_> = steps.iter().map(|(a, b, c)| (&**a, &**b, &**c)).collect();
    assert_eq!(steps, expected);
}

/// The events of a run's life of one sort, by their words.
fn lifecycle(loops: &Loops, run: RunId, sort: &str) -> Vec<Value> {
    let told = |entry: Entry| match entry.fact {
        Fact::Decided(Decision::Told { kind, data, .. }) if kind == sort => Some(data.to_value()),
        _ => None,
    };
    loops.entries(run).into_iter().filter_map(told).collect()
}

fn words(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

const ADD: &str = r#"tools = {
    { name = "add", description = "Adds.", input = s.object { a = s.integer, b = s.integer },
      fn = function(input) return input.a + input.b end },
}"#;

#[tokio::test]
async fn a_model_without_tools_is_one_call_and_its_text_the_value() {
    let loops = Loops::new();
    let run = loops.begin(&json!(["done"]), "", "").await;
    assert_eq!(loops.value_of(run).await, "done");
    are(
        &loops.steps(run).await,
        &[("task", "it", "completed"), ("model_call", "model", "completed")],
    );
    assert_eq!(loops.exit(run), "complete");
    loops.replays(run).await;
}

#[tokio::test]
async fn an_answer_records_the_turns_of_its_model() {
    let loops = Loops::new();
    let orchestrator = loops.engine.orchestrator(loops.admin());
    let input = OperatorInput::new(Content::text("x"), TriggerType::Task);
    let metadata = orchestrator.dispatch(&"model".into(), input).await.unwrap().metadata;
    assert_eq!((metadata.turns_used, metadata.sub_dispatches.len()), (1, 0));
}

#[tokio::test]
async fn a_model_is_asked_with_the_effort_of_its_agent() {
    let loops = Loops::new();
    loops.value(json!(["done"]), r#"effort = "high""#, "").await;
    loops.value(json!(["done"]), "", "").await;
    let asked = loops.asked();
    assert_eq!(asked[0].options["reasoning"], json!({ "effort": "high" }));
    assert_eq!(asked[1].options.get("reasoning"), None);
}

#[tokio::test]
async fn loops_lie_within_each_other_only_so_deep() {
    let loops = Loops::new();
    let agents: String = (0..9)
        .map(|n| {
            let next = if n == 8 { "it".to_owned() } else { format!("n{}", n + 1) };
            format!(
                r#"n{n} = {{ operator = "model", tools = {{ "{next}" }},
                system = [==[[[["{next}", {{"input":"x"}}]], "$seen"]]==] }},"#
            )
        })
        .collect();
    let value = loops
        .value(json!([[["n0", { "input": "x" }]], "$seen"]), r#"tools = { "n0" }"#, &agents)
        .await;
    assert!(value.as_str().unwrap().contains("more than 8 loops"), "{value}");
}

#[tokio::test]
async fn a_restart_in_the_middle_of_a_batch_goes_on_with_the_siblings_that_were_done() {
    let loops = Loops::new();
    let tools =
        r#"tools = { { operator = "a", name = "one" }, { operator = "b", name = "two" }, "sub" }"#;
    let sub = r#"sub = { operator = "model", tools = { { operator = "c", name = "deep" } }, system = [==[[[["deep"]], "sub $seen"]]==] }"#;
    let script = json!([[["one"], ["two"], ["sub", { "input": "x" }]], [["one", { "again": true }]], "$seen"]);
    let run = loops.begin(&script, tools, sub).await;
    let (one, two, deep) = (loops.lease("a").await, loops.lease("b").await, loops.lease("c").await);
    loops.report(&one.handle, "1").await.unwrap();
    let loops = loops.restart().await;
    let before = loops.steps(run).await;
    assert_eq!(before.len(), 7, "nothing begins anew: {before:?}");
    loops.report(&deep.handle, "3").await.unwrap();
    loops.report(&two.handle, "2").await.unwrap();
    let again = loops.lease("a").await;
    let loops = loops.restart().await;
    loops.report(&again.handle, "4").await.unwrap();
    assert_eq!(loops.value_of(run).await, r#"["1","2","sub [\"3\"]","4"]"#);
    assert_eq!(loops.asked().len(), 1, "only what had not ended is asked again");
    loops.replays(run).await;
}

#[tokio::test]
async fn a_model_that_was_being_asked_when_the_host_died_is_asked_the_same_again() {
    let loops = Loops::new();
    let run =
        loops.begin(&json!([[["add", { "a": 1, "b": 2 }]], { "wait": "late" }]), ADD, "").await;
    loops.until(run, "two calls", |view| view.steps == 4).await;
    while loops.asked().len() < 2 {
        tokio::task::yield_now().await;
    }
    let first = loops.asked()[1].clone();
    let loops = loops.restart().await;
    loops.gate.add_permits(1);
    assert_eq!(loops.value_of(run).await, "late");
    assert_eq!(loops.asked(), [first], "from the chain alone");
    loops.replays(run).await;
}

#[tokio::test]
async fn limits_of_a_loop_end_it_with_their_own_words() {
    let loops = Loops::new();
    let forever: Vec<Value> = (0..30).map(|n| json!([["add", { "a": n, "b": 0 }]])).collect();
    let (kind, message) = loops.fails(json!(forever), ADD, "").await;
    assert_eq!((kind.as_str(), message.contains("asked 10 time(s)")), ("limit", true), "{message}");
    let (kind, message) = loops.fails(json!(forever), &format!("max_turns = 2, {ADD}"), "").await;
    assert_eq!((kind.as_str(), message.contains("asked 2 time(s)")), ("limit", true), "{message}");
    let (kind, message) =
        loops.fails(json!(forever), &format!(r#"max_cost = "0.03", {ADD}"#), "").await;
    assert_eq!((kind.as_str(), message.contains("$0.03 of $0.03")), ("budget", true), "{message}");
    let same: Vec<Value> = (0..9).map(|_| json!([["add", { "a": 1, "b": 0 }]])).collect();
    let (kind, message) = loops.fails(json!(same), &format!("max_repeats = 3, {ADD}"), "").await;
    assert_eq!((kind.as_str(), message.contains("3 times in a row")), ("limit", true), "{message}");
    let unknown: Vec<Value> = (0..9).map(|n| json!([[format!("x{n}")]])).collect();
    let (_, message) = loops.fails(json!(unknown), &format!("max_failures = 2, {ADD}"), "").await;
    assert!(message.contains("2 calls of tools failed in a row"), "{message}");
    let (kind, _) = loops.fails(json!([{ "fail": "model" }]), "", "").await;
    assert_eq!(kind, "model");
}

#[tokio::test]
async fn a_loop_that_takes_too_long_ends_and_so_does_what_it_began() {
    let loops = Loops::new();
    let tools = r#"max_duration = "1m", tools = { { operator = "a", name = "slow" } }"#;
    let run = loops.begin(&json!([[["slow"]], "never"]), tools, "").await;
    let leased = loops.lease("a").await;
    let loops = loops.restart().await;
    loops.clock.advance(Duration::from_secs(61));
    let error = loops.ended(run).await.error.unwrap();
    assert_eq!(error.kind, "timeout");
    assert_eq!(loops.exit(run), "timeout");
    assert_eq!(loops.steps(run).await[2].2, "canceled");
    assert_eq!(loops.report(&leased.handle, "1").await.unwrap_err().code(), "run_closed");
}

#[tokio::test]
async fn a_cancel_reaches_the_model_and_every_tool() {
    let loops = Loops::new();
    let tools = r#"tools = { { operator = "a", name = "slow" }, "sub" }"#;
    let sub = r#"sub = { operator = "model", system = [==[[{"wait":"x"}]]==] }"#;
    let run =
        loops.begin(&json!([[["slow"], ["sub", { "input": "x" }]], "never"]), tools, sub).await;
    let leased = loops.lease("a").await;
    loops.engine.cancel(&loops.admin(), run, "enough".into(), None).await.unwrap();
    assert_eq!(loops.ended(run).await.status, RunStatus::Canceled);
    let steps = loops.steps(run).await;
    assert!(
        steps.iter().all(|(kind, _, state)| state == "canceled" || kind == "model_call"),
        "{steps:?}"
    );
    assert_eq!(loops.report(&leased.handle, "1").await.unwrap_err().code(), "run_closed");
}

#[tokio::test]
async fn an_output_schema_is_asked_for_held_and_repaired_once() {
    let loops = Loops::new();
    let schema = "output = s.object { n = s.integer }";
    let value = loops.value(json!(["seven", "```json\n{\"n\": 7}\n```"]), schema, "").await;
    assert_eq!(value, json!({ "n": 7 }));
    assert_eq!(loops.asked()[0].options["text"]["format"]["type"], "json_schema");
    let (kind, message) = loops.fails(json!(["seven", "eight"]), schema, "").await;
    assert_eq!(kind, "invalid_result", "{message}");
}

#[tokio::test]
async fn rules_are_asked_on_the_way() {
    let loops = Loops::new();
    let rules = format!(
        r#"{ADD}, rules = {{
            {{ before = "add", when = "input.a > 10", deny = "{{{{ input.a }}}} is too much" }},
            {{ before = "add", when = "input.b == 5", set = {{ b = 6 }} }},
            {{ after = "add", when = "output == 7", set = "hidden", say = "go on" }},
            {{ when = "turn >= 3", halt = "enough after {{{{ turn }}}}" }},
        }}"#
    );
    let script = json!([[["add", { "a": 11, "b": 0 }], ["add", { "a": 0, "b": 5 }], ["add", { "a": 7, "b": 0 }]], "$seen"]);
    let value = loops.value(script, &rules, "").await;
    let seen: Vec<String> = serde_json::from_str(value.as_str().unwrap()).unwrap();
    assert!(seen[0].contains("11 is too much"), "{}", seen[0]);
    assert_eq!((seen[1].as_str(), seen[2].as_str()), ("6", "hidden"));
    assert!(loops.asked()[1].items.last().unwrap().to_string().contains("go on"));
    let forever: Vec<Value> = (0..9).map(|n| json!([["add", { "a": n, "b": 0 }]])).collect();
    let run = loops.begin(&json!(forever), &rules, "").await;
    assert_eq!(loops.ended(run).await.error.unwrap().message, "enough after 3");
    assert_eq!(loops.exit(run), json!({ "interceptor_halt": { "reason": "enough after 3" } }));
}

#[tokio::test]
async fn a_warning_comes_before_the_money_and_the_time_of_a_loop_are_used_up() {
    let loops = Loops::new();
    let turns = |n: usize| (0..n).map(|n| json!([["add", { "a": n, "b": 0 }]]));
    let forever: Vec<Value> = turns(9).collect();
    let keys = format!(r#"max_cost = "0.04", warn_at = 0.5, {ADD}"#);
    let run = loops.begin(&json!(forever), &keys, "").await;
    assert_eq!(loops.ended(run).await.error.unwrap().kind, "budget");
    let told = lifecycle(&loops, run, "budget");
    let cost = "cost_incurred";
    assert_eq!(words(&told), [cost, cost, "budget_warning", cost, cost, "budget_action"]);
    assert_eq!((&told[1]["cost"], &told[1]["cumulative"]), (&json!("0.01"), &json!("0.02")));
    let warned = (&told[2]["spent"], &told[2]["limit"], &told[2]["workflow"]);
    assert_eq!(warned, (&json!("0.02"), &json!("0.04"), &json!(run.to_string())));
    assert_eq!(told[5]["action"], "halt_workflow");

    let four: Vec<Value> = turns(3).chain([json!("done")]).collect();
    let keys = format!(r#"max_cost = "0.02", on_exceeded = {{ downgrade = "small" }}, {ADD}"#);
    assert_eq!(loops.value(json!(four), &keys, "").await, "done");
    let asked = loops.asked();
    let models: Vec<Option<&str>> =
        asked[asked.len() - 4..].iter().map(|it| it.model.as_deref()).collect();
    assert_eq!(models, [None, None, Some("small"), Some("small")]);

    let keys = format!(r#"max_duration = "10m", {ADD}"#);
    let run = loops.begin(&json!([{ "wait": "late" }]), &keys, "").await;
    loops.until(run, "the model", |view| view.waiting_on.iter().any(|it| it.kind == "task")).await;
    let loops = loops.restart().await;
    loops.until(run, "it is asked again", |_| !loops.asked().is_empty()).await;
    loops.clock.advance(Duration::from_secs(8 * 60));
    let near =
        |view: &RunView| view.status.is_ended() || !lifecycle(&loops, run, "budget").is_empty();
    loops.until(run, "a warning", near).await;
    let told = lifecycle(&loops, run, "budget");
    assert_eq!(words(&told), ["timeout_approaching"]);
    assert_eq!((&told[0]["elapsed"], &told[0]["max_duration"]), (&json!(480_000), &json!(600_000)));
    loops.gate.add_permits(1);
    assert_eq!(loops.value_of(run).await, "late");
}

#[tokio::test]
async fn a_caller_that_asks_gets_every_item_and_its_own_calls_back() {
    let loops = Loops::new();
    let script = json!([[["add", { "a": 1, "b": 2 }]], [["ask_me", { "q": 1 }], ["add", { "a": 0, "b": 0 }]]]);
    let body = format!(
        r#"agents = {{ it = {{ operator = "model", {ADD} }} }},
        flow = function(ctx, input) return ctx:run("it", nil, {{ ask = input }}) end"#
    );
    let ask = json!({
        "items": [{ "type": "message", "role": "user", "content": "hi" }],
        "instructions": script.to_string(),
        "tools": [{ "name": "ask_me", "parameters": { "type": "object" } }],
        "tool_choice": "required",
        "options": { "temperature": 0.5 },
    });
    let run = loops.start(&body, &ask.to_string()).await;
    let answer = loops.value_of(run).await;
    assert_eq!((&answer["end"], &answer["model"]), (&json!("handed_back"), &json!("scripted-1")));
    let kinds: Vec<&str> =
        answer["items"].as_array().unwrap().iter().map(|it| it["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["function_call", "function_call_output", "function_call", "function_call"]);
    let asked = loops.asked();
    assert_eq!(
        (asked[0].tool_choice.clone(), asked[1].tool_choice.clone()),
        (Some(json!("required")), None)
    );
    assert_eq!(asked[0].items[0]["content"], "hi");
    assert_eq!(asked[1].options["temperature"], 0.5);
    loops.replays(run).await;
}

#[tokio::test]
async fn a_fallback_of_models_is_a_model_and_each_of_its_calls_falls_back() {
    let loops = Loops::new();
    let keys = format!(r#"operator = "either_model", {ADD}"#);
    let script = json!([[["add", { "a": 1, "b": 2 }]], "$seen"]);
    let body = format!(
        r#"agents = {{ it = {{ system = [==[{script}]==], {keys} }} }},
        flow = function(ctx) return ctx:run("it") end"#
    );
    let run = loops.start(&body, "null").await;
    assert_eq!(loops.value_of(run).await, r#"["3"]"#);
    let expected = [
        ("task", "it", "completed"),
        ("model_call", "either_model", "completed"),
        ("model_call", "mute", "failed"),
        ("model_call", "model", "completed"),
    ];
    are(&loops.steps(run).await[..4], &expected);
    loops.replays(run).await;
    let ended = loops
        .count(run, |fact| matches!(fact, Fact::StepEnded { outcome: Outcome::Failed(_), .. }));
    assert_eq!(ended, 2);
}

#[tokio::test]
async fn a_question_that_fails_is_counted_with_the_model_that_was_asked() {
    let loops = Loops::new();
    loops.fails(json!([{ "fail": "overloaded" }]), r#"model = "big-1""#, "").await;
    let mut scrape = crate::metrics::Scrape::default();
    loops.engine.counts().collect(&mut scrape);
    let text = crate::metrics::write(&scrape, crate::metrics::Format::Prometheus);
    for (metric, word) in [
        ("moonswarm_model_calls_total", r#"status="failed""#),
        ("moonswarm_model_call_failures_total", r#"kind="overloaded""#),
    ] {
        let line = format!(r#"{metric}{{model="big-1",operator="model",{word}}} 1"#);
        assert!(text.lines().any(|it| it == line), "{line}\n{text}");
    }
}
