//! The meaning of a webhook's response.
//!
//! | status | means |
//! |---|---|
//! | 200, 201, 203 | the result |
//! | 202 | accepted: the result comes later |
//! | 408, 425, 429, 5xx | a retryable failure |
//! | 3xx | a failure: redirects are not followed |
//! | any other | a failure |

use reqwest::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::settings::AnswerIs;
use crate::{
    middleware::{Short, TaskDone},
    operator::read_usage,
    protocol::{Effect, Failure, Json, failure::kind},
};

/// The number of bytes of a body that a failure keeps.
const KEPT: usize = 4 * 1024;

/// The response of a webhook.
#[derive(Debug)]
pub(super) enum Answered {
    /// The result.
    Done(TaskDone),
    /// A failure that was reported with what was used.
    Short(Box<Short>),
    /// The webhook will report through the worker API.
    Later,
}

/// A result with its usage and effects, as in the worker API. Unknown fields are ignored.
#[derive(Deserialize)]
struct Report {
    #[serde(default, deserialize_with = "present")]
    output: Option<Value>,
    ok: Option<bool>,
    error: Option<Value>,
    usage: Option<Value>,
    effects: Option<Vec<Effect>>,
}

/// Interprets a response other than 202.
pub(super) fn read(
    status: StatusCode,
    retry_after_ms: Option<u64>,
    body: &[u8],
    is: AnswerIs,
) -> Result<Answered, Failure> {
    match status.as_u16() {
        200 | 201 | 203 => {}
        408 | 425 | 429 | 500..=599 => {
            return Err(by_status(status, retry_after_ms, body).retryable());
        }
        300..=399 => {
            let failure = by_status(status, None, body);
            let message = format!("{}; redirects are not followed", failure.message);
            return Err(Failure { message, ..failure });
        }
        _ => return Err(by_status(status, None, body)),
    }
    let malformed = |why: String| {
        let data = json!({ "status": status.as_u16(), "body": shown(body) });
        Failure::new(kind::INVALID_RESULT, format!("the webhook's answer is {why}"))
            .with_data(data.into())
    };
    // Parsed as a tree, which rejects documents that later readers could not process.
    let value: Value =
        serde_json::from_slice(body).map_err(|error| malformed(format!("no JSON: {error}")))?;
    match is {
        AnswerIs::Output => Ok(Answered::Done(TaskDone::new(value.into()))),
        AnswerIs::Report => {
            let report = Report::deserialize(value)
                .map_err(|error| malformed(format!("no report: {error}")))?;
            report.verdict(malformed)
        }
    }
}

impl Report {
    fn verdict(self, malformed: impl Fn(String) -> Failure) -> Result<Answered, Failure> {
        let failed = self.ok == Some(false) || (self.ok.is_none() && self.error.is_some());
        let usage = self.usage.as_ref().and_then(read_usage);
        if failed {
            let failure = failure(self.error.as_ref(), self.output);
            return match usage {
                None => Err(failure),
                usage => {
                    Ok(Answered::Short(Box::new(Short { failure, usage, effects: Vec::new() })))
                }
            };
        }
        let Some(output) = self.output else {
            let why = "no report: it has neither `output` nor `ok: false` with an `error`";
            return Err(malformed(why.to_owned()));
        };
        let effects = self.effects.unwrap_or_default();
        Ok(Answered::Done(TaskDone { output: output.into(), usage, effects }))
    }
}

/// Returns the failure that a webhook reports.
fn failure(error: Option<&Value>, output: Option<Value>) -> Failure {
    let message = match error {
        None => "the webhook says that it failed".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(error) => match error.get("message").and_then(Value::as_str) {
            Some(text) => text.to_owned(),
            None => error.to_string(),
        },
    };
    let field = |name: &str| error.and_then(|error| error.get(name));
    let failure = Failure {
        retryable: field("retryable").and_then(Value::as_bool).unwrap_or(false),
        ..Failure::new(kind::WORKER, message)
    };
    match field("data").cloned().or(output) {
        Some(data) => failure.with_data(data.into()),
        None => failure,
    }
}

fn by_status(status: StatusCode, retry_after_ms: Option<u64>, body: &[u8]) -> Failure {
    let mut data = json!({ "status": status.as_u16(), "body": shown(body) });
    if let Some(ms) = retry_after_ms {
        data["retry_after_ms"] = ms.into();
    }
    Failure::new(kind::WORKER, format!("the webhook answered {status}")).with_data(Json::from(data))
}

fn shown(body: &[u8]) -> String {
    String::from_utf8_lossy(&body[..body.len().min(KEPT)]).into_owned()
}

/// Distinguishes an explicit null from an absent value.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}
