//! Work on tasks: sessions without a socket.

use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;
use serde_json::{Value, json};

use super::blueprints::items;
use crate::{
    mcp::{
        answer::{Done, Trouble, cut},
        tool::{LONGEST_WAIT_S, wait},
        transport::{Path, Transport},
    },
    protocol::text::counted,
};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Open {
    /// The operator to be: `main-ai` by default.
    operator: Option<String>,
    /// The lifetime of the session: `24h` by default, at most 7 days.
    ttl: Option<String>,
}

pub(super) async fn open(transport: &dyn Transport, args: Open) -> Result<Done, Trouble> {
    let operator = args.operator.as_deref().unwrap_or("main-ai");
    let mut body = json!({ "direct": true });
    if let Some(ttl) = args.ttl {
        body["ttl"] = ttl.into();
    }
    let path = Path::new("/v1/operators").at(operator).at("sessions");
    let opened = transport.post(path, &body).await?;
    // Its token stays here: the one that opened a session speaks for it.
    let value = json!({ "session": opened["session"], "expires_at": opened["expires_at"] });
    let text = format!("session {} as {operator}; call next_task with it", opened["session"]);
    Ok(Done::new(value, text))
}

/// No arguments.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct List {}

pub(super) async fn list(transport: &dyn Transport, _: List) -> Result<Done, Trouble> {
    let value = transport.get(Path::new("/v1/sessions")).await?;
    let text = counted(items(&value).count(), "session");
    Ok(Done::new(value, text))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Next {
    /// The session; not needed where the token is a session's own.
    session: Option<String>,
    /// The `after` of the last next_task: acknowledges what came until then.
    after: Option<u64>,
    /// The time to wait, in seconds: 45 by default and at most; 0 does not wait.
    wait_seconds: Option<u32>,
}

pub(super) async fn next(transport: &dyn Transport, args: Next) -> Result<Done, Trouble> {
    let at = session(transport, args.session).await?;
    let seconds = args.wait_seconds.unwrap_or(LONGEST_WAIT_S);
    let poll = async |seconds: u32| {
        let path = at.path("next").with("after", args.after).with("wait", wait(Some(seconds)));
        transport.post(path, &json!({})).await
    };
    let mut polled = match args.after {
        Some(_) => poll(seconds).await?,
        None => poll(0).await?,
    };
    if args.after.is_none() && items(&polled).next().is_none() {
        // The client does not know where it was: what it acknowledged and did not do comes again.
        let first = transport.get(at.path("tasks").with("limit", Some(1))).await?;
        if let Some(task) = items(&first).next() {
            let mut task = task.clone();
            task["task"] = task["id"].clone();
            return Ok(given("task", polled["after"].clone(), task));
        }
        polled = poll(seconds).await?;
    }
    let after = polled["after"].take();
    let Some(frame) = polled["items"].as_array_mut().and_then(|frames| frames.first_mut()) else {
        let value = json!({ "kind": "none", "after": after, "task": null });
        return Ok(Done::new(value, "no task yet; call next_task again with this `after`"));
    };
    let mut task = frame["params"].take();
    let kind = match frame["method"].as_str() {
        Some("task/cancel") => "cancel",
        Some("task/answer") => "answer",
        _ => "task",
    };
    if kind != "cancel" && task["prompt"].is_null() {
        // It is an answer, the prompt is too large for a frame, or the session is not a direct one.
        let only = transport.get(at.path("tasks").with("task", task["task"].as_str())).await?;
        if let Some(full) = items(&only).next() {
            for key in ["system", "prompt", "input", "output_schema"] {
                if !full[key].is_null() {
                    task[key] = full[key].clone();
                }
            }
        }
    }
    Ok(given(kind, after, task))
}

fn given(kind: &str, after: Value, task: Value) -> Done {
    let id = task["task"].as_str().unwrap_or_default();
    let text = match kind {
        "cancel" => format!("{id} is over: drop it, and call next_task"),
        "answer" => format!("a senior answered your question about {id}: go on with it"),
        _ => format!("{id}: do what `prompt` says, then report_task with its `attempt`"),
    };
    let mut value = json!({ "kind": kind });
    value["after"] = after;
    value["task"] = task;
    Done::new(value, text)
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Report {
    /// The session; not needed where the token is a session's own.
    session: Option<String>,
    /// The task's id.
    task: String,
    /// The attempt that next_task named; by default the newest one that it returned.
    attempt: Option<u32>,
    /// The output: any JSON. Give this, or `error`.
    #[serde(default, deserialize_with = "present")]
    #[schemars(with = "Option<Value>")]
    output: Option<Value>,
    /// The reason of the failure, for a person.
    error: Option<String>,
    /// The reason why the task does not apply: it is done without an output.
    skip: Option<String>,
    /// With `error`: true if another attempt may succeed.
    retryable: Option<bool>,
    /// The usage: `{input, output}` as numbers of tokens, `cost` in US dollars.
    usage: Option<Value>,
}

/// Keeps a null that is written out apart from a value that is absent.
fn present<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(from).map(Some)
}

pub(super) async fn report(transport: &dyn Transport, args: Report) -> Result<Done, Trouble> {
    let at = session(transport, args.session).await?;
    let mut body = about(&args.task, args.attempt);
    let retryable = args.retryable.unwrap_or(false);
    let error = args.error.map(|it| json!({ "message": it, "retryable": retryable }));
    if args.output.is_none() && error.is_none() && args.skip.is_none() {
        return Err(Trouble::Arguments("give `output`, `error` or `skip`".to_owned()));
    }
    for (key, value) in [
        ("output", args.output),
        ("error", error),
        ("skip", args.skip.map(Value::from)),
        ("usage", args.usage),
    ] {
        if let Some(value) = value {
            body[key] = value;
        }
    }
    let value = transport.post(at.path("report"), &body).await?;
    let text = match value["repeated"] == true {
        true => "the same report had been accepted before; call next_task",
        false => "accepted; call next_task",
    };
    Ok(Done::new(value, text))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Decline {
    /// The session; not needed where the token is a session's own.
    session: Option<String>,
    /// The task's id.
    task: String,
    /// The attempt that next_task named; by default the newest one that it returned.
    attempt: Option<u32>,
    /// The reason, for a person.
    reason: Option<String>,
}

pub(super) async fn decline(transport: &dyn Transport, args: Decline) -> Result<Done, Trouble> {
    let at = session(transport, args.session).await?;
    let mut body = about(&args.task, args.attempt);
    if let Some(reason) = args.reason {
        body["reason"] = reason.into();
    }
    transport.post(at.path("decline"), &body).await?;
    Ok(Done::new(json!({ "task": args.task }), "declined; call next_task"))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Progress {
    /// The session; not needed where the token is a session's own.
    session: Option<String>,
    /// The task's id.
    task: String,
    /// The attempt that next_task named; by default the newest one that it returned.
    attempt: Option<u32>,
    /// One line for a person.
    text: String,
    /// Between 0 and 100.
    percent: Option<f64>,
}

pub(super) async fn progress(transport: &dyn Transport, args: Progress) -> Result<Done, Trouble> {
    let at = session(transport, args.session).await?;
    let mut body = about(&args.task, args.attempt);
    body["text"] = args.text.into();
    if let Some(percent) = args.percent {
        body["percent"] = percent.into();
    }
    transport.post(at.path("progress"), &body).await?;
    Ok(Done::new(json!({ "task": args.task }), "shown"))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Ask {
    /// The session; not needed where the token is a session's own.
    session: Option<String>,
    /// The task's id.
    task: String,
    /// The attempt that next_task named; by default the newest one that it returned.
    attempt: Option<u32>,
    /// The question, for a person.
    question: String,
    /// Anything more: any JSON.
    data: Option<Value>,
}

pub(super) async fn ask(transport: &dyn Transport, args: Ask) -> Result<Done, Trouble> {
    let at = session(transport, args.session).await?;
    let mut body = about(&args.task, args.attempt);
    body["question"] = args.question.as_str().into();
    body["data"] = args.data.into();
    transport.post(at.path("escalate"), &body).await?;
    let text = format!("asked: {}; wait with next_task", cut(&args.question, 200));
    Ok(Done::new(json!({ "task": args.task }), text))
}

/// Returns the part of a body that names the task, and the attempt if the client does.
fn about(task: &str, attempt: Option<u32>) -> Value {
    let mut body = json!({ "task": task });
    if let Some(attempt) = attempt {
        body["attempt"] = attempt.into();
    }
    body
}

/// The session that a call is about.
struct At(String);

impl At {
    fn path(&self, call: &str) -> Path {
        Path::new("/v1/sessions").at(&self.0).at(call)
    }
}

/// Returns the named session, or the one whose own token the client has.
async fn session(transport: &dyn Transport, named: Option<String>) -> Result<At, Trouble> {
    if let Some(named) = named {
        return Ok(At(named));
    }
    let who = transport.get(Path::new("/v1/whoami")).await?;
    let own = who["session"].as_str().map(|own| At(own.to_owned()));
    own.ok_or_else(|| {
        Trouble::Arguments(
            "pass `session`; open_session opens one, list_sessions lists them".into(),
        )
    })
}
