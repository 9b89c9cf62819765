//! Runs that the node that drives lends to those that stand by: where they are driven, what brings them
//! home, and what is seen of them.

mod broken;
mod kept;

use std::collections::BTreeSet;

use parking_lot::Mutex;
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    Cluster, PULL,
    feed::Feed,
    lease,
    load::Load,
    signal,
    support::{
        Daemon, eventually, numbered_events,
        provider::{Answer, Bit, Gate, Provider, Turn},
        refusal, send, when,
    },
};

/// The setting by which every node gets as many runs as the others.
const EVEN: (&str, &str) = ("MOONSWARM_CLUSTER_LEND", "even");
/// The lines of the log of a node that drives when another one begins to help, and when that ends.
const BEGINS: &str = "a node helps with the runs";
const ENDS: &str = "a node no longer helps";
/// The line of the log of a node when a run ends that it drives.
const DRIVEN: &str = "run ended";

/// A run of a few steps that takes a moment.
const STEPS: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "steps",
  agents = { echo = { operator = "echo" } },
  flow = function(ctx, input)
    for step = 1, 5 do
      ctx:run("echo", { n = step })
      ctx:sleep("20ms")
    end
    return "over"
  end,
}
"#;

/// A run that could be lent and waits where it is, so that the next ones are lent.
const ANCHOR: &str = r#"
local swarm = require("swarm")
return swarm.blueprint { name = "anchor", flow = function(ctx) return ctx:wait("over") end }
"#;

/// A run that asks a model.
const TALK: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "talk",
  agents = { w = { operator = "model", prompt = "{{ input.what }}" } },
  flow = function(ctx, input)
    ctx:on_query("mark", function() return input.mark end)
    ctx:run("w", { what = input.mark })
    if input.waits then return ctx:wait("go") end
    return input.mark
  end,
}
"#;

/// What is called by a run.
const CHILD: &str = r#"
local swarm = require("swarm")
return swarm.blueprint { name = "child", flow = function(_, input) return { got = input } end }
"#;

impl Cluster {
    /// Starts a node that lends evenly.
    fn lender(&self, name: &str, more: &[(&str, &str)]) -> Daemon {
        let more: Vec<_> = more.iter().copied().chain([EVEN]).collect();
        self.node_with(name, &more)
    }

    fn node_with(&self, name: &str, more: &[(&str, &str)]) -> Daemon {
        let url = format!("{}?writers=3", self.database.url());
        let node = self.start_with(&url, name, "key", more);
        node.unwrap_or_else(|| panic!("{}", self.log(name)))
    }

    /// Waits until the log of a node has a line so many times.
    async fn has_logged(&self, name: &str, line: &str, times: usize) {
        eventually(&format!("{line:?} {times} times in the log of {name}"), async || {
            let log = self.log(name);
            when(log.matches(line).count() >= times, log)
        })
        .await;
    }

    /// Returns the number of runs that ended while a node drove them.
    fn driven(&self, name: &str) -> usize {
        self.log(name).matches(DRIVEN).count()
    }
}

/// Three nodes that lend evenly. `a` drives, and the others help it.
struct Nodes {
    a: Daemon,
    b: Daemon,
    c: Daemon,
    cluster: Cluster,
}

impl Nodes {
    async fn start() -> Option<Self> {
        Self::configured("").await
    }

    /// Starts them with a configuration.
    async fn configured(config: &str) -> Option<Self> {
        let cluster = Cluster::fresh()?;
        let file = cluster.path("moonswarm.toml");
        std::fs::write(&file, config).unwrap();
        let more = [("MOONSWARM_CONFIG", file.to_str().unwrap())];
        let a = cluster.lender("a", &more);
        let (b, c) = (cluster.lender("b", &more), cluster.lender("c", &more));
        cluster.becomes(&["a up", "b standby", "c standby"]).await;
        cluster.has_logged("a", BEGINS, 2).await;
        Some(Self { a, b, c, cluster })
    }

    /// Returns one node after another.
    fn any(&self, turn: usize) -> &Daemon {
        [&self.a, &self.b, &self.c][turn % 3]
    }

    /// Starts clients at all nodes.
    fn load(&self) -> Load {
        let load = Load::start(4);
        for (name, node) in [("a", &self.a), ("b", &self.b), ("c", &self.c)] {
            load.enter(name, node);
        }
        load
    }

    /// Lends a run that asks the model, and waits until that is asked.
    async fn busy(&self, model: &Provider, mark: &str, waits: bool) -> String {
        let run = self.c.run_source(TALK, json!({ "mark": mark, "waits": waits })).await;
        eventually("the model is asked", async || when(asked(model, mark) == 1, self.a.log()))
            .await;
        assert_eq!(lent(&self.a).await, 1, "{mark} is lent");
        run
    }
}

/// A model that answers a question at once when it is asked again, and else when the gate is open.
fn model(gate: &Gate) -> Provider {
    let (gate, heard) = (gate.clone(), Mutex::new(BTreeSet::new()));
    Provider::start(move |_, asked| {
        let is_new = heard.lock().insert(asked.body["messages"].to_string());
        let events = Turn::text("said").events(&asked.path).into_iter();
        let mut bits: Vec<Bit> = events.map(|event| Bit::Send(event.into_bytes())).collect();
        if is_new {
            bits.insert(0, Bit::Wait(gate.clone()));
        }
        Answer::stream(bits)
    })
}

/// Returns the configuration of an operator `model` at a provider.
fn config(model: &Provider) -> String {
    format!(
        "[operators.model]\nkind = \"llm\"\napi = \"chat\"\nmodel = \"mock\"\n\
         base_url = \"{}\"\nallow_hosts = [\"127.0.0.1\"]\n",
        model.base_url
    )
}

/// Returns how often a model was asked for a run.
fn asked(model: &Provider, mark: &str) -> usize {
    model.asked().iter().filter(|it| it.body.to_string().contains(mark)).count()
}

/// Returns the number of runs that are lent at the moment.
async fn lent(node: &Daemon) -> u64 {
    let (status, nodes) = send(node.get("/v1/nodes")).await;
    assert_eq!(status, 200, "{nodes}");
    let nodes = nodes["items"].as_array().unwrap().iter();
    nodes.filter(|it| it["state"] == "standby").filter_map(|it| it["runs"].as_u64()).sum()
}

/// Waits until no run is lent.
async fn all_home(node: &Daemon) {
    eventually("every run is home", async || {
        let lent = lent(node).await;
        when(lent == 0, lent)
    })
    .await;
}

/// Returns what the node that drives has counted; nothing is 0.
async fn metric(node: &Daemon, series: &str) -> u64 {
    let (status, text) = send(node.get("/metrics")).await;
    assert_eq!(status, 200, "{text}");
    let text = text.as_str().unwrap();
    let value = |line: &str| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok();
    text.lines().find_map(value).unwrap_or(0)
}

/// Returns the events of a run that has ended.
async fn events(node: &Daemon, run: &str) -> Vec<Value> {
    let (status, stream) = send(node.get(&format!("/v1/runs/{run}/events"))).await;
    assert_eq!(status, 200, "{stream}");
    numbered_events(stream.as_str().unwrap())
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|it| it["type"].as_str().unwrap()).collect()
}

/// Reads events of the whole host until all of these runs have ended: the run, the number and the type
/// of each.
async fn until_ended(feed: &mut Feed, runs: &[String]) -> Vec<(String, u64, String)> {
    let (mut heard, mut ended) = (Vec::new(), 0);
    while ended < runs.len() {
        let event = feed.next().await.expect("the stream goes on");
        let Some(run) = event["run"].as_str().filter(|run| runs.iter().any(|it| it == run)) else {
            continue;
        };
        let kind = event["type"].as_str().unwrap();
        ended += usize::from(kind == "run.ended");
        heard.push((run.to_owned(), event["seq"].as_u64().unwrap(), kind.to_owned()));
    }
    heard
}

/// Cancels, pauses or resumes a run.
async fn act(node: &Daemon, run: &str, what: &str) -> Value {
    let (status, view) = send(node.post(&format!("/v1/runs/{run}/{what}"), &json!({}))).await;
    assert_eq!(status, 200, "{what}: {view}");
    view
}

async fn approve(node: &Daemon, run: &str) {
    node.waits(run, "task").await;
    let (status, tasks) = send(node.get(&format!("/v1/tasks?run={run}"))).await;
    assert_eq!(status, 200, "{tasks}");
    let task = tasks["items"][0]["id"].as_str().unwrap();
    let yes = json!({ "output": { "approved": true } });
    let (status, told) = send(node.post(&format!("/v1/tasks/{task}/answer"), &yes)).await;
    assert!(status < 300, "{told}");
}

async fn work(node: &Daemon) {
    let handle = lease(node).await;
    let report = node.with(&handle, Method::POST, "/v1/worker/result");
    let (status, told) = send(report.json(&json!({ "output": 7 }))).await;
    assert_eq!(status, 200, "{told}");
}

#[tokio::test]
async fn runs_are_spread_over_all_nodes_and_each_step_counts_once() {
    let Some(nodes) = Nodes::start().await else { return };
    let load = nodes.load();
    load.goes_on(60).await;
    assert!(metric(&nodes.a, "moonswarm_lent_total").await > 0, "runs are lent");
    load.judge(&nodes.b, |query| nodes.cluster.database.sql(query)).await;
    for name in ["a", "b", "c"] {
        nodes.cluster.has_logged(name, DRIVEN, 1).await;
    }
    all_home(&nodes.c).await;
}

/// What somebody else does for a run.
enum Act {
    Nothing,
    Approve,
    Work,
    Signal,
}

/// A run that needs something after a step that every node can do.
struct Need {
    what: &'static str,
    source: String,
    act: Act,
    /// The reason why it comes home; none for one that is not lent.
    home: Option<&'static str>,
    output: Value,
}

impl Need {
    /// Returns one whose flow goes on with these lines, and that comes home because it needs the driver.
    fn of(what: &'static str, lines: &str, output: Value) -> Self {
        let source = format!(
            r#"
local swarm = require("swarm")
return swarm.blueprint {{
  name = "need",
  agents = {{
    echo = {{ operator = "echo" }},
    one = {{ operator = "echo", max_concurrency = 1 }},
    w = {{ operator = "model", prompt = "{{{{ input.what }}}}" }},
  }},
  flow = function(ctx, input)
    ctx:run("echo", {{ n = 1 }})
    {lines}
  end,
}}
"#
        );
        Self { what, source, act: Act::Nothing, home: Some("needs"), output }
    }

    /// Returns one that waits for something else, for long, or for nothing.
    fn over(self) -> Self {
        Self { home: Some("over"), ..self }
    }

    fn with(self, act: Act) -> Self {
        Self { act, ..self }
    }
}

fn needs() -> [Need; 9] {
    let transient = "local all = ctx:scope(\"global\")
    all:set(\"shade\", 1, { lifetime = \"transient\" })
    return all:get(\"shade\")";
    let talk = "ctx:run(\"w\", { what = \"talk\" }, { session = \"talk\" })
    return \"said\"";
    let fresh = "local n = input.n or 1
    if n == 3 then return n end
    ctx:continue_as({ n = n + 1 })";
    let worker = Need {
        what: "a worker",
        // Its blueprint has an agent that not every node can serve.
        source: PULL.to_owned(),
        act: Act::Work,
        home: None,
        output: json!(7),
    };
    [
        Need::of("a person", "return ctx:approve({ title = \"Go?\" }).approved", json!(true))
            .with(Act::Approve),
        Need::of("a call", "return ctx:call(\"child\", { n = 3 }).got.n", json!(3)),
        Need::of("an agent with a limit", "return ctx:run(\"one\", { n = 4 }).n", json!(4)),
        Need::of("a transient value", transient, json!(1)),
        Need::of("a conversation", talk, json!("said")),
        Need::of("a signal", "return ctx:wait(\"go\")", json!("on")).over().with(Act::Signal),
        Need::of("a long sleep", "ctx:sleep(\"6s\")\n    return 5", json!(5)).over(),
        Need::of("fresh histories", fresh, json!(3)).over(),
        worker,
    ]
}

#[tokio::test]
async fn a_run_that_needs_the_driver_comes_home_and_goes_on() {
    let gate = Gate::default();
    gate.open();
    let model = model(&gate);
    let Some(nodes) = Nodes::configured(&config(&model)).await else { return };
    let (status, stored) =
        send(nodes.b.put("/v1/blueprints/child", &json!({ "source": CHILD }))).await;
    assert_eq!(status, 200, "{stored}");
    nodes.a.run_source(ANCHOR, json!({})).await;
    for (turn, Need { what, source, act, home, output }) in needs().into_iter().enumerate() {
        // Through the one standby, and answered through the other.
        let (starts, answers) = match turn % 2 {
            0 => (&nodes.b, &nodes.c),
            _ => (&nodes.c, &nodes.b),
        };
        let series = format!("moonswarm_home_total{{why=\"{}\"}}", home.unwrap_or("needs"));
        let lent_before = metric(&nodes.a, "moonswarm_lent_total").await;
        let home_before = metric(&nodes.a, &series).await;
        let run = starts.run_source(&source, json!({})).await;
        match act {
            Act::Nothing => {}
            Act::Approve => approve(answers, &run).await,
            Act::Work => work(answers).await,
            Act::Signal => {
                answers.waits(&run, "signal").await;
                signal(answers, &run).await;
            }
        }
        let view = answers.ended(&run).await;
        assert_eq!(view["output"], output, "{what}: {view}");
        all_home(&nodes.a).await;
        let times = u64::from(home.is_some());
        let lent = metric(&nodes.a, "moonswarm_lent_total").await - lent_before;
        let came = metric(&nodes.a, &series).await - home_before;
        assert_eq!((lent, came), (times, times), "{what}: lent, and home for {home:?}");
    }
    assert_eq!(asked(&model, "talk"), 1, "only the node that drives asked");
}

#[tokio::test]
async fn whatever_is_asked_of_a_lent_run_at_work_reaches_it_through_any_node() {
    let gate = Gate::default();
    let model = model(&gate);
    let Some(nodes) = Nodes::configured(&config(&model)).await else { return };
    let b = &nodes.b;
    nodes.a.run_source(ANCHOR, json!({})).await;

    let canceled = nodes.busy(&model, "is-canceled", false).await;
    act(b, &canceled, "cancel").await;
    let view = b.ended(&canceled).await;
    assert_eq!(view["status"], "canceled", "{view}");
    let history = events(b, &canceled).await;

    // One that has not ended is not deleted, and not disturbed by the attempt.
    let deleted = nodes.busy(&model, "is-deleted", false).await;
    let path = format!("/v1/runs/{deleted}");
    assert_eq!(refusal(b.delete(&path)).await, (409, "not_ended".to_owned()));
    assert_eq!(lent(b).await, 1);
    act(b, &deleted, "cancel").await;
    b.ended(&deleted).await;
    let (status, told) = send(b.delete(&path)).await;
    assert_eq!(status, 204, "{told}");
    assert_eq!(refusal(nodes.c.get(&path)).await.0, 404);

    let paused = nodes.busy(&model, "is-paused", false).await;
    assert_eq!(act(b, &paused, "pause").await["status"], "paused");
    act(b, &paused, "resume").await;
    assert_eq!(b.ended(&paused).await["output"], "is-paused");

    let queried = nodes.busy(&model, "is-queried", false).await;
    let (status, mark) = send(b.get(&format!("/v1/runs/{queried}/query/mark"))).await;
    assert_eq!((status, mark), (200, json!("is-queried")));
    assert_eq!(b.ended(&queried).await["output"], "is-queried");

    let signaled = nodes.busy(&model, "is-signaled", true).await;
    signal(b, &signaled).await;
    assert_eq!(b.ended(&signaled).await["output"], "on");

    let written = nodes.busy(&model, "is-written", false).await;
    let place = format!("/v1/state/run:{written}/note");
    let (status, told) = send(b.put(&place, &json!({ "value": 5 }))).await;
    assert_eq!(status, 200, "{told}");
    assert_eq!(b.ended(&written).await["output"], "is-written");
    assert_eq!(send(nodes.c.get(&place)).await.1["value"], 5);

    // What the helpers had asked for is answered now, and nobody takes it.
    gate.open();
    let last = nodes.c.run_source(TALK, json!({ "mark": "is-last" })).await;
    assert_eq!(b.ended(&last).await["output"], "is-last");
    assert_eq!(events(b, &canceled).await, history);
    all_home(b).await;
}

#[tokio::test]
async fn events_and_ends_of_lent_runs_are_told_once_and_in_order() {
    let Some(nodes) = Nodes::start().await else { return };
    let answer = nodes.b.get("/v1/events").send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let mut live = Feed::of(answer);
    let (mut runs, mut followed) = (Vec::new(), Vec::new());
    for turn in 0..12 {
        let run = nodes.any(turn).run_source(STEPS, json!({})).await;
        // Half of them stay where they are; the others come home, because somebody follows them.
        if turn % 2 == 0 {
            let stream = nodes.any(turn + 1).get(&format!("/v1/runs/{run}/events"));
            followed.push((run.clone(), tokio::spawn(send(stream))));
        }
        runs.push(run);
    }
    // A start that waits for the end is answered wherever the run is driven.
    let start = |node: &Daemon| node.post("/v1/runs", &json!({ "source": STEPS, "wait": "60s" }));
    let (one, two, three) =
        tokio::join!(send(start(&nodes.a)), send(start(&nodes.b)), send(start(&nodes.c)),);
    for (status, view) in [one, two, three] {
        assert_eq!((status, &view["output"]), (201, &json!("over")), "{view}");
        runs.push(view["id"].as_str().unwrap().to_owned());
    }
    for (run, stream) in followed {
        let (status, stream) = stream.await.unwrap();
        assert_eq!(status, 200, "{stream}");
        let heard = numbered_events(stream.as_str().unwrap());
        assert_eq!(heard.last().unwrap()["type"], "run.ended", "{run}");
        assert_eq!(kinds(&heard), kinds(&events(&nodes.c, &run).await), "{run}");
    }
    let heard = until_ended(&mut live, &runs).await;
    let distinct: BTreeSet<_> = heard.iter().map(|(run, seq, _)| (run, *seq)).collect();
    assert_eq!(distinct.len(), heard.len(), "none is told twice: {heard:?}");
    for run in &runs {
        let of_run: Vec<_> = heard.iter().filter(|it| it.0 == *run).map(|it| it.1).collect();
        assert!(of_run.is_sorted(), "{run}: {of_run:?}");
    }
    // What was told as it happened is what is stored, in the same order.
    let again = nodes.c.get("/v1/events?since=first").send().await.unwrap();
    assert_eq!(until_ended(&mut Feed::of(again), &runs).await, heard);
    assert!(metric(&nodes.a, "moonswarm_lent_total").await > 0, "runs were lent");
}
