//! Runs: start, follow, control, repair.

use std::collections::BTreeMap;

use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;
use serde_json::{Value, json};

use super::blueprints::{bundle, items};
use crate::{
    engine::WaitingOn,
    mcp::{
        answer::{Done, Trouble, cut},
        resources,
        tool::wait,
        transport::{Path, Transport},
    },
    protocol::text::counted,
};

/// The maximum size of an artifact that is returned as text, in bytes.
const TEXT: usize = 64 * 1_024;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Start {
    /// A stored blueprint: `name` or `name@hash-prefix`. Give this, or `source`, or `files`.
    blueprint: Option<String>,
    /// Lua source to run without storing it under a name; needs the verb run.source.
    source: Option<String>,
    /// A bundle to run: text by relative path; needs the verb run.source.
    files: Option<BTreeMap<String, String>>,
    /// The input: any JSON that fits the blueprint's input schema.
    #[serde(default)]
    input: Value,
    /// Tags of the run, by name: short texts that lists are filtered by. At most 16.
    tags: Option<BTreeMap<String, String>>,
    /// The session that is given every task of the run.
    delegate: Option<String>,
    /// The time to wait for the end, in seconds, at most 45. None by default.
    wait_seconds: Option<u32>,
    /// A text of your choice: the same key with the same arguments starts no second run.
    idempotency_key: Option<String>,
}

pub(super) async fn start(transport: &dyn Transport, args: Start) -> Result<Done, Trouble> {
    let Start { blueprint, source, files, input, tags, delegate, wait_seconds, .. } = args;
    let mut body = bundle(source, files, None);
    if let Some(tags) = tags {
        body["tags"] = json!(tags);
    }
    let given = [("blueprint", blueprint), ("delegate", delegate), ("wait", wait(wait_seconds))];
    for (key, value) in given {
        if let Some(value) = value {
            body[key] = value.into();
        }
    }
    if !input.is_null() {
        body["input"] = input;
    }
    let value = transport.post_once(Path::new("/v1/runs"), &body, args.idempotency_key).await?;
    let text = told(&value);
    Ok(Done::new(value, text))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct List {
    /// Only runs of this status: queued, running, waiting, paused, completed, failed, canceled.
    status: Option<String>,
    /// Only runs of this blueprint.
    blueprint: Option<String>,
    /// Only runs with this tag: `name=value`, or `name`.
    tag: Option<String>,
    /// Only runs whose error or status text has these words.
    q: Option<String>,
    /// Only runs with an error of this kind: timeout, worker, limit.
    #[serde(alias = "error")]
    kind: Option<String>,
    /// Only runs that had a task of this agent.
    agent: Option<String>,
    /// Only runs that wait for this: task, signal, timer, or a name.
    waiting_on: Option<String>,
    /// Only runs created at or after this time, RFC 3339.
    since: Option<String>,
    /// The number of runs: 1 to 100, 20 by default.
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
}

pub(super) async fn list(transport: &dyn Transport, args: List) -> Result<Done, Trouble> {
    let path = Path::new("/v1/runs")
        .with("status", args.status)
        .with("blueprint", args.blueprint)
        .with("tag", args.tag)
        .with("q", args.q)
        .with("kind", args.kind)
        .with("agent", args.agent)
        .with("waiting_on", args.waiting_on)
        .with("since", args.since)
        .with("limit", Some(args.limit.unwrap_or(20).clamp(1, 100)))
        .with("cursor", args.cursor);
    let value = transport.get(path).await?;
    let lines: Vec<String> = items(&value).map(told).collect();
    let text = format!("{}\n{}", counted(lines.len(), "run"), lines.join("\n"));
    Ok(Done::new(value, text))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Get {
    /// The run's id.
    run: String,
    /// The time to wait, in seconds, at most 45. None by default.
    wait_seconds: Option<u32>,
    /// Until when to wait: `ended` (the default), or `people`.
    until: Option<String>,
}

pub(super) async fn get(transport: &dyn Transport, args: Get) -> Result<Done, Trouble> {
    let path = Path::new("/v1/runs").at(&args.run);
    let path = path.with("wait", wait(args.wait_seconds)).with("until", args.until);
    let value = transport.get(path).await?;
    let (text, link) = (told(&value), resources::of_run(&value));
    Ok(Done::new(value, text).linked(link))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Steps {
    /// The run's id.
    run: String,
    /// The number of steps: 1 to 100, 50 by default.
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
}

pub(super) async fn steps(transport: &dyn Transport, args: Steps) -> Result<Done, Trouble> {
    let path = Path::new("/v1/runs")
        .at(&args.run)
        .at("steps")
        .with("limit", Some(args.limit.unwrap_or(50).clamp(1, 100)))
        .with("cursor", args.cursor);
    let value = transport.get(path).await?;
    let text = format!("{} of {}", counted(items(&value).count(), "step"), args.run);
    Ok(Done::new(value, text))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Step {
    /// The run's id.
    run: String,
    /// The step's number: `seq` in list_steps.
    step: u32,
}

pub(super) async fn step(transport: &dyn Transport, args: Step) -> Result<Done, Trouble> {
    let path = Path::new("/v1/runs").at(&args.run).at("steps").at(&args.step.to_string());
    let value = transport.get(path).await?;
    let text = format!("step {} of {}: {}", args.step, args.run, word(&value, "state"));
    let link = resources::of_step(&args.run, args.step);
    Ok(Done::new(value, text).linked(Some(link)))
}

/// The verbs on a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum Action {
    Pause,
    Resume,
    Cancel,
    Signal,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Control {
    /// The run's id.
    run: String,
    /// The verb.
    action: Action,
    /// The reason, for a pause or a cancellation.
    reason: Option<String>,
    /// The name of the signal.
    signal: Option<String>,
    /// The payload of the signal: any JSON, true by default.
    payload: Option<Value>,
}

pub(super) async fn control(transport: &dyn Transport, args: Control) -> Result<Done, Trouble> {
    let Control { run, action, reason, signal, payload } = args;
    let at = || Path::new("/v1/runs").at(&run);
    let reason = reason.map_or_else(|| json!({}), |reason| json!({ "reason": reason }));
    match (action, signal) {
        (Action::Pause, _) => transport.post(at().at("pause"), &reason).await?,
        (Action::Cancel, _) => transport.post(at().at("cancel"), &reason).await?,
        (Action::Resume, _) => transport.post(at().at("resume"), &json!({})).await?,
        (Action::Signal, Some(name)) => {
            let payload = payload.unwrap_or(Value::Bool(true));
            transport.post(at().at("signals").at(&name), &payload).await?
        }
        (Action::Signal, None) => {
            return Err(Trouble::Arguments("a signal needs `signal`, its name".to_owned()));
        }
    };
    let run = transport.get(at()).await?;
    let text = told(&run);
    Ok(Done::new(json!({ "run": run }), text))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Diff {
    /// The first run's id: the origin of a fork.
    a: String,
    /// The second run's id: the fork.
    b: String,
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
}

pub(super) async fn diff(transport: &dyn Transport, args: Diff) -> Result<Done, Trouble> {
    let path = Path::new("/v1/runs").at(&args.a).at("diff").at(&args.b);
    let value = transport.get(path.with("limit", Some(100)).with("cursor", args.cursor)).await?;
    let text = match value["first"]["name"].as_str() {
        None => "no step differs".to_owned(),
        Some(name) => {
            let what = word(&value["first"], "difference");
            let many = &value["differing"];
            let differ = if *many == 1 { "step differs" } else { "steps differ" };
            format!("{many} {differ}; the first is {name}: {what}")
        }
    };
    Ok(Done::new(value, text))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Rerun {
    /// The run's id.
    run: String,
    /// True for the newest version of the blueprint; by default the run's own.
    newest: Option<bool>,
    /// A text of your choice: the same key with the same arguments starts no second run.
    idempotency_key: Option<String>,
}

pub(super) async fn rerun(transport: &dyn Transport, args: Rerun) -> Result<Done, Trouble> {
    let version = if args.newest == Some(true) { "newest" } else { "same" };
    let path = Path::new("/v1/runs").at(&args.run).at("rerun");
    let body = json!({ "version": version });
    let value = transport.post_once(path, &body, args.idempotency_key).await?;
    let text = told(&value);
    Ok(Done::new(value, text))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Fork {
    /// The run's id.
    run: String,
    /// The first step that is done anew; those before it keep their results.
    from_step: u32,
    /// Another stored blueprint to go on with: `name` or `name@hash-prefix`.
    blueprint: Option<String>,
    /// Lua source to go on with; needs the verb run.source.
    source: Option<String>,
    /// Laid over the input, as a JSON merge patch.
    input_patch: Option<Value>,
}

pub(super) async fn fork(transport: &dyn Transport, args: Fork) -> Result<Done, Trouble> {
    let Fork { run, from_step, blueprint, source, input_patch } = args;
    let mut body = bundle(source, None, None);
    body["from_step"] = from_step.into();
    for (key, value) in [("blueprint", blueprint.map(Value::from)), ("input_patch", input_patch)] {
        if let Some(value) = value {
            body[key] = value;
        }
    }
    let value = transport.post(Path::new("/v1/runs").at(&run).at("fork"), &body).await?;
    let text = told(&value);
    Ok(Done::new(value, text))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Query {
    /// The run's id.
    run: String,
    /// The name of the query.
    name: String,
    /// Its argument: any JSON.
    argument: Option<Value>,
}

pub(super) async fn query(transport: &dyn Transport, args: Query) -> Result<Done, Trouble> {
    let path = Path::new("/v1/runs").at(&args.run).at("query").at(&args.name);
    let value = transport.get(path.with("argument", args.argument)).await?;
    let text = format!("the run's answer to {}", args.name);
    Ok(Done::new(json!({ "value": value }), text))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Artifact {
    /// A run's id: lists its artifacts. Give this, or `artifact`.
    run: Option<String>,
    /// An artifact's id: reads it.
    artifact: Option<String>,
}

pub(super) async fn artifact(transport: &dyn Transport, args: Artifact) -> Result<Done, Trouble> {
    match (args.run, args.artifact) {
        (Some(run), None) => {
            let value = transport.get(Path::new("/v1/runs").at(&run).at("artifacts")).await?;
            let text = format!("{} of {run}", counted(items(&value).count(), "artifact"));
            Ok(Done::new(json!({ "items": value["items"] }), text))
        }
        (None, Some(artifact)) => {
            let reply =
                transport.ask("GET", Path::new("/v1/artifacts").at(&artifact), None).await?;
            let mut value = json!({ "artifact": artifact, "bytes": reply.body.len() });
            let text = match std::str::from_utf8(&reply.body) {
                Ok(text) => {
                    value["text"] = cut(text, TEXT).into();
                    format!("{} of {} bytes of {artifact}", text.len().min(TEXT), text.len())
                }
                Err(_) => format!("{artifact} is not text; {} bytes", reply.body.len()),
            };
            Ok(Done::new(value, text))
        }
        _ => Err(Trouble::Arguments("give `run` or `artifact`".to_owned())),
    }
}

/// Returns a line about a run.
fn told(run: &Value) -> String {
    let (id, status) = (word(run, "id"), word(run, "status"));
    let blueprint = word(run, "blueprint");
    let mut line = format!("{id} ({blueprint}): {status}");
    let waits = run["waiting_on"].as_array().into_iter().flatten();
    for on in waits.filter_map(|it| serde_json::from_value::<WaitingOn>(it.clone()).ok()).take(3) {
        line.push_str(&format!("; waits for {}", cut(&on.to_string(), 200)));
    }
    if let Some(message) = run["error"]["message"].as_str() {
        line.push_str(&format!("; {}", cut(message, 500)));
    }
    if run["ended_at"].is_null() {
        line.push_str("; call get_run with wait_seconds to await its end");
    }
    line
}

fn word<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or("?")
}
