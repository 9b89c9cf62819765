//! Tasks that wait for people.

use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;
use serde_json::{Value, json};

use super::blueprints::items;
use crate::{
    mcp::{
        answer::{Done, Trouble, cut},
        transport::{Path, Transport},
    },
    protocol::text::counted,
};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Inbox {
    /// Only tasks of this run.
    run: Option<String>,
    /// The number of tasks: 1 to 100, 20 by default.
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
}

pub(super) async fn inbox(transport: &dyn Transport, args: Inbox) -> Result<Done, Trouble> {
    let path = Path::new("/v1/tasks")
        .with("state", Some("open"))
        .with("kind", Some("human"))
        .with("run", args.run)
        .with("limit", Some(args.limit.unwrap_or(20).clamp(1, 100)))
        .with("cursor", args.cursor);
    let value = transport.get(path).await?;
    let lines: Vec<String> = items(&value)
        .map(|task| {
            let text = |key: &str| task[key].as_str().unwrap_or_default();
            format!("{}: {}", text("id"), cut(text("summary"), 200))
        })
        .collect();
    let text = match lines.as_slice() {
        [] => "no task waits for a person".to_owned(),
        some => format!("{} for people\n{}", counted(some.len(), "task"), some.join("\n")),
    };
    Ok(Done::new(value, text))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Answer {
    /// The task's id.
    task: String,
    /// The answer: any JSON that fits the task's output schema. Give this, or `reject`.
    #[serde(default, deserialize_with = "present")]
    #[schemars(with = "Option<Value>")]
    output: Option<Value>,
    /// The reason of a refusal.
    reject: Option<String>,
    /// The `revision` that list_inbox showed: an answer to a changed task is refused.
    revision: Option<String>,
}

/// Keeps a null that is written out apart from a value that is absent.
fn present<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(from).map(Some)
}

pub(super) async fn answer(transport: &dyn Transport, args: Answer) -> Result<Done, Trouble> {
    let mut body = json!({});
    for (key, value) in [
        ("output", args.output),
        ("reject", args.reject.map(Value::from)),
        ("revision", args.revision.map(Value::from)),
    ] {
        if let Some(value) = value {
            body[key] = value;
        }
    }
    let path = |verb| Path::new("/v1/tasks").at(&args.task).at(verb);
    let value = match transport.post(path("answer"), &body).await {
        // A token without that right still answers what its own run asks it.
        Err(Trouble::Refused { code, .. }) if code == "forbidden_verb" => {
            transport.post(path("reply"), &body).await?
        }
        answered => answered?,
    };
    let text = format!("answered {}", args.task);
    Ok(Done::new(value, text))
}
