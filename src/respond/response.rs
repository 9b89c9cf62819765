//! The response object and its id.

use serde_json::{Map, Value, json};

use super::multi_step::code_of;
use crate::{journal::Usage, protocol::RunId};

/// The keys of a response, in the order of the output.
pub const RESPONSE_KEYS: [&str; 31] = [
    "id",
    "object",
    "created_at",
    "completed_at",
    "status",
    "incomplete_details",
    "model",
    "previous_response_id",
    "instructions",
    "output",
    "error",
    "tools",
    "tool_choice",
    "truncation",
    "parallel_tool_calls",
    "text",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "top_logprobs",
    "temperature",
    "reasoning",
    "usage",
    "max_output_tokens",
    "max_tool_calls",
    "store",
    "background",
    "service_tier",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
];

const PREFIX: &str = "resp_";
const RUN_PREFIX: &str = "run_";

/// Converts a run's id to the id of a response (`resp_…`) or of another object with that prefix.
pub fn shown_id(prefix: &str, run: &str) -> String {
    format!("{prefix}{}", run.strip_prefix(RUN_PREFIX).unwrap_or(run))
}

/// Returns the run of a response's id.
pub fn run_of(response: &str) -> Option<RunId> {
    format!("{RUN_PREFIX}{}", response.strip_prefix(PREFIX)?).parse().ok()
}

/// The status of a response.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Status {
    #[default]
    Queued,
    InProgress,
    Completed,
    /// Cut off, with the reason.
    Incomplete(&'static str),
    /// Failed, with the code and the message.
    Failed(&'static str, String),
    Cancelled,
}

impl Status {
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Incomplete(_) => "incomplete",
            Self::Failed(..) => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Returns the event for a terminal status.
    pub(super) fn terminal(&self) -> Option<&'static str> {
        match self {
            Self::Queued | Self::InProgress => None,
            Self::Completed => Some("response.completed"),
            // The protocol has no event for a canceled response.
            Self::Incomplete(_) | Self::Cancelled => Some("response.incomplete"),
            Self::Failed(..) => Some("response.failed"),
        }
    }

    /// Converts the failure of a run for a client.
    pub(super) fn of_failure(failure: &Value) -> Self {
        let kind = failure["kind"].as_str().unwrap_or("failed");
        let message = failure["message"].as_str().unwrap_or_default();
        Self::Failed(code_of(kind), format!("{kind}: {message}"))
    }
}

/// The usage of a response, as far as it was reported.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::respond) struct Used {
    input: u64,
    cached: u64,
    output: u64,
    reasoning: u64,
    reported: bool,
}

impl Used {
    /// Adds the usage of an event of a run, if it has some.
    pub(super) fn hear(&mut self, data: &Value) {
        if let Ok(usage) = serde_json::from_value::<Usage>(data["usage"].clone()) {
            self.add(&usage);
        }
    }

    pub(in crate::respond) fn add(&mut self, usage: &Usage) {
        let Usage { input_tokens, output_tokens, cached_tokens, reasoning_tokens, cost: _ } = usage;
        let add = |sum: &mut u64, more: Option<u64>| *sum = sum.saturating_add(more.unwrap_or(0));
        add(&mut self.input, *input_tokens);
        add(&mut self.output, *output_tokens);
        add(&mut self.cached, *cached_tokens);
        add(&mut self.reasoning, *reasoning_tokens);
        self.reported |= input_tokens.is_some() || output_tokens.is_some();
    }

    /// Returns the usage as JSON; null if none was reported.
    pub(in crate::respond) fn shown(&self) -> Value {
        if !self.reported {
            return Value::Null;
        }
        let Self { input, cached, output, reasoning, .. } = self;
        Self::of(*input, *cached, *output, *reasoning)
    }

    /// Returns usage in the protocol's format. The field for tokens written to a cache is required,
    /// but no provider reports it here.
    fn of(input: u64, cached: u64, output: u64, reasoning: u64) -> Value {
        json!({
            "input_tokens": input,
            "input_tokens_details": { "cached_tokens": cached, "cache_write_tokens": 0 },
            "output_tokens": output,
            "output_tokens_details": { "reasoning_tokens": reasoning },
            "total_tokens": input.saturating_add(output),
        })
    }
}

/// The fields of a response that do not repeat its request.
pub(super) struct ResponseFields<'a> {
    pub(super) id: &'a str,
    pub(super) model: &'a str,
    pub(super) created_s: i64,
    pub(super) completed_s: Option<i64>,
    pub(super) status: &'a Status,
    pub(super) output: &'a [Value],
    pub(super) usage: Value,
    pub(super) settings: &'a Map<String, Value>,
}

/// Returns the response object with all keys, in order.
pub(super) fn object(said: &ResponseFields<'_>) -> Value {
    let mut object = Map::with_capacity(RESPONSE_KEYS.len());
    for key in RESPONSE_KEYS {
        let value = match key {
            "id" => said.id.into(),
            "object" => "response".into(),
            "created_at" => said.created_s.into(),
            "completed_at" => match said.status {
                Status::Completed => said.completed_s.into(),
                _ => Value::Null,
            },
            "status" => said.status.word().into(),
            "incomplete_details" => match said.status {
                Status::Incomplete(reason) => json!({ "reason": reason }),
                _ => Value::Null,
            },
            "model" => said.model.into(),
            "output" => said.output.into(),
            "error" => match said.status {
                Status::Failed(code, message) => json!({ "code": code, "message": message }),
                _ => Value::Null,
            },
            "usage" => said.usage.clone(),
            repeated => said.settings.get(repeated).cloned().unwrap_or(Value::Null),
        };
        object.insert(key.to_owned(), value);
    }
    // Only what continues one says so.
    if let Some(conversation) = said.settings.get("conversation") {
        object.insert("conversation".to_owned(), conversation.clone());
    }
    Value::Object(object)
}

/// Checks that an ended response has an answer.
///
/// # Errors
/// Returns the error of a failed response: `{code, message}`.
pub(super) fn ended(response: &Value) -> Result<(), Value> {
    match response["status"].as_str() {
        Some("failed") => Err(response["error"].clone()),
        Some("cancelled") => {
            Err(json!({ "code": "server_error", "message": "the response was cancelled" }))
        }
        _ => Ok(()),
    }
}

/// Returns the calls that the client is to answer.
pub(super) fn open_calls(response: &Value) -> impl Iterator<Item = &Value> {
    let items = response["output"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_whole = response["status"] == "completed";
    let waits = move |at: usize, item: &Value| {
        is_open(items, at) && (is_whole || is_clients(item, &response["tools"]))
    };
    items.iter().enumerate().filter(move |(at, item)| waits(*at, item)).map(|(_, item)| item)
}

/// Returns the output without the calls that nobody answers.
pub(super) fn without_lost<'a>(
    output: &'a [Value],
    status: &Status,
    tools: &'a Value,
) -> impl Iterator<Item = &'a Value> {
    let is_whole = *status == Status::Completed;
    let stays =
        move |at: usize, item: &Value| is_whole || !is_open(output, at) || is_clients(item, tools);
    output.iter().enumerate().filter(move |(at, item)| stays(*at, item)).map(|(_, item)| item)
}

/// Returns true for a call whose output does not follow.
fn is_open(items: &[Value], at: usize) -> bool {
    let call = &items[at];
    let answers =
        |item: &Value| item["type"] == "function_call_output" && item["call_id"] == call["call_id"];
    call["type"] == "function_call" && !items[at + 1..].iter().any(answers)
}

/// Returns true if the client answers a call of a response that did not complete: one of its own
/// tools that was not cut off.
fn is_clients(call: &Value, tools: &Value) -> bool {
    let mut tools = tools.as_array().into_iter().flatten();
    call["status"] != "incomplete" && tools.any(|tool| tool["name"] == call["name"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_a_run_under_another_name() {
        let run = RunId::new(7, 1_700_000_000_000);
        let id = shown_id("resp_", &run.to_string());
        assert!(id.starts_with("resp_"));
        assert_eq!(run_of(&id), Some(run));
        assert_eq!(run_of(&run.to_string()), None);
        assert_eq!(run_of("resp_x"), None);
    }

    #[test]
    fn usage_is_the_sum_of_what_was_reported_and_null_if_nothing_was() {
        let mut used = Used::default();
        used.add(&Usage::default());
        assert_eq!(used.shown(), Value::Null);
        for _ in 0..2 {
            used.add(&Usage { input_tokens: Some(3), output_tokens: Some(2), ..Usage::default() });
        }
        assert_eq!(used.shown()["total_tokens"], 10);
        assert_eq!(used.shown()["input_tokens_details"]["cached_tokens"], 0);
    }

    #[test]
    fn a_failure_has_a_code_that_clients_know() {
        let status = |kind: &str| Status::of_failure(&json!({ "kind": kind, "message": "m" }));
        assert_eq!(status("budget"), Status::Failed("server_error", "budget: m".into()));
        assert_eq!(
            status("rate_limited"),
            Status::Failed("rate_limit_exceeded", "rate_limited: m".into())
        );
    }
}
