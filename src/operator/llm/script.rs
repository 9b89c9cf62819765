//! A model without a provider, with scripted answers.
//!
//! The answers are the turns of a file, or the result of the agent's Lua function for a
//! conversation. The turn follows from the conversation alone (the number of turns that the model
//! has had in it), so that the same run always has the same answers, also after a crash. A turn
//! becomes the events of a Responses API, which are parsed like those of any provider.

mod play;

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use reqwest::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{content, draft::Draft, wire::Wire, wrong::by_status};
use crate::{
    blueprint::{parse_duration, read_text},
    protocol::{Failure, Json, ModelRequest, ModelStop, failure::kind, sse::Cutter},
};

/// The kind of failure for a conversation without a turn.
pub const NO_TURN: &str = "no_turn";
/// The maximum size of a file of turns, in bytes.
const LARGEST: u64 = 16 * 1024 * 1024;
/// The range of paces, in deltas per second.
const PACES: std::ops::RangeInclusive<f64> = 0.1..=100_000.0;

/// The source of the answers.
#[derive(Debug, Clone)]
pub(super) struct Script {
    turns: Option<PathBuf>,
    /// The pause between two deltas.
    pause: Option<Duration>,
}

/// A file of turns: one list for all agents, or one per agent, with `*` for all others.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Turns {
    All(Vec<Value>),
    Each(BTreeMap<String, Vec<Value>>),
}

/// One answer.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ScriptedTurn {
    /// Applies only if the last item contains this text; such turns are not counted.
    when: Option<String>,
    /// Failures of the attempts before the one that is answered.
    fail: Vec<Fail>,
    /// The reasoning.
    reasoning: Option<String>,
    /// The text.
    text: Option<String>,
    /// A refusal.
    refusal: Option<String>,
    /// The calls.
    calls: Vec<Call>,
    /// The stop reason, if it does not follow from the rest: `length`, `content_filter`.
    stop: Option<ModelStop>,
    /// The name of the model.
    model: Option<String>,
    /// The usage.
    usage: Option<Used>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    name: String,
    /// An object, or a text that is sent verbatim.
    #[serde(default = "nothing")]
    arguments: Value,
    call_id: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fail {
    status: u16,
    #[serde(default)]
    message: String,
    retry_after: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Used {
    input: u64,
    output: u64,
    cached: u64,
    reasoning: u64,
}

fn nothing() -> Value {
    json!({})
}

impl Script {
    pub(super) fn new(turns: Option<PathBuf>, pace: Option<f64>) -> Result<Self, String> {
        let pause = match pace {
            None => None,
            Some(pace) if PACES.contains(&pace) => Some(Duration::from_secs_f64(1.0 / pace)),
            Some(_) => {
                return Err(format!(
                    "`pace` is from {} to {} pieces a second",
                    PACES.start(),
                    PACES.end()
                ));
            }
        };
        Ok(Self { turns, pause })
    }

    /// Resolves a relative path against a directory.
    pub(super) fn beside(&self, dir: &Path) -> Self {
        Self { turns: self.turns.as_ref().map(|turns| dir.join(turns)), ..self.clone() }
    }

    /// Describes the script for `doctor`.
    pub(super) fn inspect(&self) -> Result<String, String> {
        let Some(path) = &self.turns else {
            return Ok("answers with what the agent's `fn` says".to_owned());
        };
        let count = match read(path)? {
            Turns::All(turns) => turns.len(),
            Turns::Each(agents) => agents.values().map(Vec::len).sum(),
        };
        Ok(format!("answers with the {count} turns of {}", path.display()))
    }
}

/// Parses a turn: a text, or a table.
fn parse(turn: Value) -> Result<ScriptedTurn, Failure> {
    let broken = |why: String| Failure::new(kind::MODEL, format!("the script's turn: {why}"));
    match turn {
        Value::String(text) => Ok(ScriptedTurn { text: Some(text), ..ScriptedTurn::default() }),
        other => ScriptedTurn::deserialize(other).map_err(|error| broken(error.to_string())),
    }
}

/// Returns the turn for a conversation, or its number if there is none.
fn chosen(turns: Vec<ScriptedTurn>, request: &ModelRequest) -> Result<ScriptedTurn, usize> {
    let last = last_said(request);
    let fits = |turn: &ScriptedTurn| turn.when.as_ref().is_some_and(|when| last.contains(when));
    let spoken = spoken(&request.items);
    let (special, plain): (Vec<ScriptedTurn>, Vec<ScriptedTurn>) =
        turns.into_iter().partition(|turn| turn.when.is_some());
    let turn = special.into_iter().find(fits).or_else(|| plain.into_iter().nth(spoken));
    turn.ok_or(spoken + 1)
}

/// Scripted turns of a model.
#[derive(Debug)]
pub struct ScriptedTurns(Vec<ScriptedTurn>);

impl ScriptedTurns {
    /// Parses turns: each is a text, or a table as in a file of turns.
    ///
    /// # Errors
    /// Returns the mistake in the first invalid turn.
    pub fn read(turns: Vec<Value>) -> Result<Self, Failure> {
        turns.into_iter().map(parse).collect::<Result<_, _>>().map(Self)
    }

    /// Returns the reply to a request, for an attempt numbered from 1. Missing ids are derived from
    /// `seed`.
    ///
    /// # Errors
    /// Fails when there is no turn for the conversation, or the turn is a failure.
    pub fn reply(self, request: &Json, seed: &str, attempt: usize) -> Result<Json, Failure> {
        let request: ModelRequest = request.decode().map_err(|error| {
            Failure::new(kind::INVALID_INPUT, format!("a model is asked with items: {error}"))
        })?;
        let count = self.0.len();
        let turn = chosen(self.0, &request).map_err(|number| {
            let message = format!("the model is asked for its turn {number}, and has {count}");
            Failure::new(NO_TURN, message)
        })?;
        if let Some(fail) = turn.fail.get(attempt.saturating_sub(1)) {
            return Err(fail.failure());
        }
        let (mut answer, mut cutter) = (Wire::Responses.answer(), Cutter::default());
        let mut draft = Draft::new(seed);
        for event in turn.events() {
            let bytes = written(&event);
            let fed = cutter.feed(bytes.as_bytes(), |event| answer.event(&event, &mut draft));
            fed.map_err(|wrong| wrong.failure())?;
        }
        let reply = draft.reply("script").map_err(|wrong| wrong.failure())?;
        Ok(Json::encode(&reply).expect("a reply is plain data"))
    }
}

/// Returns an event in the format of a server.
fn written(event: &Value) -> String {
    let kind = event["type"].as_str().unwrap_or_default();
    format!("event: {kind}\ndata: {event}\n\n")
}

/// Returns the number of turns of the model; adjacent items of the model are one turn.
fn spoken(items: &[Value]) -> usize {
    let own = |item: &Value| match content::kind(item) {
        "message" => item["role"] == "assistant",
        "function_call" | "reasoning" => true,
        _ => false,
    };
    let begins = |pair: &[Value]| !own(&pair[0]) && own(&pair[1]);
    usize::from(items.first().is_some_and(own)) + items.windows(2).filter(|it| begins(it)).count()
}

/// Returns the text of the last item.
fn last_said(request: &ModelRequest) -> String {
    let last = request.items.last().unwrap_or(&Value::Null);
    let said = last.get("output").or_else(|| last.get("content")).unwrap_or(&Value::Null);
    content::text(said).unwrap_or_default()
}

fn read(path: &Path) -> Result<Turns, String> {
    let failed = |why: String| format!("failed to read the turns in {}: {why}", path.display());
    let text = read_text(path, LARGEST).map_err(|error| match error.kind() {
        io::ErrorKind::FileTooLarge => failed(format!("the file has more than {LARGEST} bytes")),
        _ => failed(error.to_string()),
    })?;
    let turns = serde_json::from_str::<Turns>(&text);
    turns.map_err(|error| failed(format!("it is neither a list nor lists by agent ({error})")))
}

impl Fail {
    fn failure(&self) -> Failure {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::BAD_GATEWAY);
        let after = self.retry_after.as_deref().and_then(|text| parse_duration(text).ok());
        let body = json!({ "error": { "message": self.message } }).to_string();
        by_status(status, after, None, body.as_bytes())
    }
}

fn is_piece(event: &Value) -> bool {
    event["type"].as_str().is_some_and(|kind| kind.ends_with(".delta"))
}

impl ScriptedTurn {
    /// Returns the events that a provider would send.
    fn events(&self) -> Vec<Value> {
        let mut events = Vec::new();
        let mut index = 0;
        let mut item = |begins: Value, pieces: Vec<Value>| {
            events.push(json!({
                "type": "response.output_item.added", "output_index": index, "item": begins,
            }));
            for mut piece in pieces {
                piece["output_index"] = index.into();
                events.push(piece);
            }
            index += 1;
        };
        if let Some(text) = &self.reasoning {
            let begins = json!({ "type": "reasoning", "summary": [] });
            item(begins, pieces("response.reasoning_text.delta", text));
        }
        let said =
            [(&self.text, "response.output_text.delta"), (&self.refusal, "response.refusal.delta")];
        for (text, kind) in said {
            if let Some(text) = text {
                let begins = json!({
                    "type": "message", "status": "completed", "role": "assistant", "content": [],
                });
                item(begins, pieces(kind, text));
            }
        }
        for call in &self.calls {
            let arguments = match &call.arguments {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let begins = json!({
                "type": "function_call", "status": "completed", "call_id": call.call_id,
                "name": call.name, "arguments": "",
            });
            item(begins, pieces("response.function_call_arguments.delta", &arguments));
        }
        events.push(self.end());
        events
    }

    fn end(&self) -> Value {
        let reason = match self.stop {
            Some(ModelStop::Length) => Some("max_output_tokens"),
            Some(ModelStop::ContentFilter) => Some("content_filter"),
            Some(ModelStop::End | ModelStop::ToolCalls | ModelStop::Refusal) | None => None,
        };
        let status = if reason.is_some() { "incomplete" } else { "completed" };
        let mut response = json!({
            "status": status, "incomplete_details": { "reason": reason }, "output": [],
        });
        if let Some(model) = &self.model {
            response["model"] = model.as_str().into();
        }
        if let Some(used) = &self.usage {
            response["usage"] = json!({
                "input_tokens": used.input,
                "input_tokens_details": { "cached_tokens": used.cached },
                "output_tokens": used.output,
                "output_tokens_details": { "reasoning_tokens": used.reasoning },
            });
        }
        json!({ "type": format!("response.{status}"), "response": response })
    }
}

/// Splits a text into deltas: one per word, each with the space after it.
fn pieces(kind: &str, text: &str) -> Vec<Value> {
    text.split_inclusive(char::is_whitespace)
        .map(|word| json!({ "type": kind, "delta": word }))
        .collect()
}
