//! The errors of a model's response, and their failures.
//!
//! Every failure here is of kind `model`, `timeout`, `limit`, `operator_unavailable` or
//! `invalid_input`, and its data have a `code`:
//!
//! | code | means | retryable |
//! |---|---|---|
//! | `rate_limited` | 429, or an error of that type in the stream | yes |
//! | `overloaded` | 503, 529, or an error of that type in the stream | yes |
//! | `server` | 408, 409, 425, any other 5xx, an error without a known type | yes |
//! | `quota` | the account has no credit | no |
//! | `auth` | 401, 403 | no |
//! | `not_found` | 404: no such model, no such address | no |
//! | `context_length` | the conversation is too long for the model | no |
//! | `content_filter` | the provider refused the request | no |
//! | `bad_request` | any other 4xx, a redirect | no |
//! | `malformed` | the response violates the API | yes |
//! | `cut` | the response ended early | yes |
//! | `stalled` | no data for too long | yes |
//! | `too_long` | the response exceeds `max_answer` | no |

use std::fmt;

use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::protocol::{Failure, failure::kind, sse::SseError};

/// The number of bytes of a response that a failure keeps.
const KEPT: usize = 2 * 1024;

/// An error of a response.
#[derive(Debug)]
pub(super) enum Wrong {
    /// The answer violates the API.
    Malformed {
        /// The reason.
        why: String,
        /// The content.
        what: String,
    },
    /// The provider reported an error in the middle of its response.
    Reported(Reported),
    /// The answer ended early.
    Cut,
    /// The answer exceeds a limit.
    TooLong {
        /// The part that does.
        what: &'static str,
        /// The limit, in bytes.
        most: usize,
    },
}

/// An error as the provider reports it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Reported {
    /// The provider's type of the error.
    pub(super) kind: Option<String>,
    /// The provider's code.
    pub(super) code: Option<String>,
    /// The message.
    pub(super) message: String,
}

impl From<SseError> for Wrong {
    fn from(error: SseError) -> Self {
        match error {
            SseError::TooLong { what, most } => Self::TooLong { what, most },
            SseError::NotText(bytes) => {
                Self::malformed("a line of the stream is not UTF-8", &bytes)
            }
        }
    }
}

impl Wrong {
    pub(super) fn malformed(why: impl Into<String>, what: &[u8]) -> Self {
        Self::Malformed { why: why.into(), what: kept(what) }
    }

    /// Returns the failure that ends the attempt.
    pub(super) fn failure(&self) -> Failure {
        let message = format!("the model's answer {self}");
        match self {
            Self::Malformed { what, .. } => {
                let data = json!({ "code": "malformed", "answer": what });
                Failure::new(kind::MODEL, message).with_data(data.into()).retryable()
            }
            Self::Cut => {
                let data = json!({ "code": "cut" });
                Failure::new(kind::MODEL, message).with_data(data.into()).retryable()
            }
            Self::TooLong { .. } => {
                let data = json!({ "code": "too_long" });
                Failure::new(kind::LIMIT, message).with_data(data.into())
            }
            Self::Reported(reported) => reported.failure(None, None, None),
        }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed { why, .. } => write!(f, "is malformed: {why}"),
            Self::Cut => write!(f, "was cut off before its end"),
            Self::TooLong { what, most } => {
                write!(f, "is too long: {what} of it has more than {most} bytes")
            }
            Self::Reported(reported) => write!(f, "is an error: {}", reported.message),
        }
    }
}

/// The meaning of an error: its code, and whether it is retryable.
struct Meaning(&'static str, bool);

impl Reported {
    /// Parses the `error` of any of the APIs: a text, or an object with some of `type`, `code`,
    /// `message`.
    pub(super) fn read(error: &Value) -> Self {
        let word = |key: &str| match error.get(key) {
            Some(Value::String(text)) => Some(text.clone()),
            Some(Value::Number(number)) => Some(number.to_string()),
            _ => None,
        };
        let message = match error {
            Value::String(text) => text.clone(),
            _ => word("message").unwrap_or_else(|| kept(error.to_string().as_bytes())),
        };
        Self { kind: word("type"), code: word("code"), message: kept(message.as_bytes()) }
    }

    /// Returns the failure that ends the attempt.
    pub(super) fn failure(
        &self,
        status: Option<StatusCode>,
        retry_after_ms: Option<u64>,
        request_id: Option<&str>,
    ) -> Failure {
        let Meaning(code, helps) = self.meaning(status);
        let mut data = json!({ "code": code });
        let more = [
            ("type", self.kind.as_deref().map(Value::from)),
            ("provider_code", self.code.as_deref().map(Value::from)),
            ("status", status.map(|status| status.as_u16().into())),
            ("request_id", request_id.map(Value::from)),
            ("retry_after_ms", retry_after_ms.map(Value::from)),
        ];
        for (key, value) in more {
            if let Some(value) = value {
                data[key] = value;
            }
        }
        let by = status.map_or_else(String::new, |status| format!(" {}", status.as_u16()));
        let said = match self.message.as_str() {
            "" => String::new(),
            message => format!(": {message}"),
        };
        let failure = Failure {
            retryable: helps,
            ..Failure::new(kind::MODEL, format!("the provider answered{by} ({code}){said}"))
        };
        failure.with_data(data.into())
    }

    fn meaning(&self, status: Option<StatusCode>) -> Meaning {
        let words = [self.kind.as_deref(), self.code.as_deref()];
        let says = |word: &str| words.iter().flatten().any(|it| it.contains(word));
        let number = self.code.as_deref().and_then(|code| code.parse().ok());
        let status = status.map(|status| status.as_u16()).or(number);
        if says("insufficient_quota") || says("billing") || status == Some(402) {
            return Meaning("quota", false);
        }
        if says("context_length") || says("context_window") || says("request_too_large") {
            return Meaning("context_length", false);
        }
        if says("content_filter") || says("content_policy") {
            return Meaning("content_filter", false);
        }
        match status {
            Some(429) => Meaning("rate_limited", true),
            Some(503 | 529) => Meaning("overloaded", true),
            Some(408 | 409 | 425 | 500..=599) => Meaning("server", true),
            Some(401 | 403) => Meaning("auth", false),
            Some(404) => Meaning("not_found", false),
            Some(413) => Meaning("context_length", false),
            Some(300..=499) => Meaning("bad_request", false),
            _ if says("rate_limit") => Meaning("rate_limited", true),
            _ if says("overloaded") => Meaning("overloaded", true),
            _ if says("authentication") || says("permission") => Meaning("auth", false),
            _ if says("not_found") => Meaning("not_found", false),
            _ if says("invalid") || says("unsupported") => Meaning("bad_request", false),
            _ => Meaning("server", true),
        }
    }
}

/// Returns the failure of an error response; the body may come from the provider or from a proxy.
pub(super) fn by_status(
    status: StatusCode,
    retry_after_ms: Option<u64>,
    request_id: Option<&str>,
    body: &[u8],
) -> Failure {
    let reported = match serde_json::from_slice::<Value>(body) {
        Ok(Value::Object(body)) => {
            let error = body.get("error").cloned().unwrap_or(Value::Object(body));
            Reported::read(&error)
        }
        // Some providers wrap the error in a list.
        Ok(Value::Array(list)) => match list.first().and_then(|first| first.get("error")) {
            Some(error) => Reported::read(error),
            None => Reported { message: kept(body), ..Reported::default() },
        },
        Ok(_) | Err(_) => Reported { message: kept(body), ..Reported::default() },
    };
    reported.failure(Some(status), retry_after_ms, request_id)
}

/// Returns the failure of a request that this API cannot represent, or that is invalid.
pub(super) fn untold(message: impl Into<String>) -> Failure {
    Failure::new(kind::INVALID_INPUT, message)
}

/// Returns the beginning of a text that a failure keeps, on one line.
fn kept(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(KEPT)]);
    text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(status: u16, body: &str) -> (String, bool) {
        let status = StatusCode::from_u16(status).unwrap();
        let failure = by_status(status, None, None, body.as_bytes());
        let code = failure.data.as_ref().unwrap().to_value()["code"].as_str().unwrap().to_owned();
        (code, failure.retryable)
    }

    #[test]
    fn a_status_says_what_is_wrong_and_whether_to_try_again() {
        let quota = r#"{"error":{"type":"insufficient_quota","code":"insufficient_quota"}}"#;
        let long = r#"{"error":{"code":"context_length_exceeded","message":"too long"}}"#;
        for (given, body, code, again) in [
            (429, "{}", "rate_limited", true),
            (429, quota, "quota", false),
            (503, "", "overloaded", true),
            (529, r#"{"type":"error","error":{"type":"overloaded_error"}}"#, "overloaded", true),
            (500, "<html>", "server", true),
            (408, "", "server", true),
            (400, long, "context_length", false),
            (400, r#"{"error":"bad"}"#, "bad_request", false),
            (400, r#"[{"error":{"code":400,"status":"INVALID"}}]"#, "bad_request", false),
            (401, "", "auth", false),
            (402, "", "quota", false),
            (404, "", "not_found", false),
            (307, "", "bad_request", false),
        ] {
            assert_eq!(status(given, body), (code.to_owned(), again), "{given} {body}");
        }
    }

    #[test]
    fn an_error_without_a_status_is_told_by_its_words() {
        let of = |error: Value| {
            let failure = Wrong::Reported(Reported::read(&error)).failure();
            let code = failure.data.as_ref().unwrap().to_value()["code"].clone();
            (code, failure.retryable)
        };
        for (error, code, again) in [
            (json!({"type": "overloaded_error", "message": "busy"}), "overloaded", true),
            (json!({"type": "rate_limit_error"}), "rate_limited", true),
            (json!({"code": "rate_limit_exceeded"}), "rate_limited", true),
            (json!({"code": 429}), "rate_limited", true),
            (json!({"code": "502"}), "server", true),
            (json!({"type": "invalid_request_error"}), "bad_request", false),
            (json!({"type": "authentication_error"}), "auth", false),
            (json!({"type": "api_error"}), "server", true),
            (json!("it broke"), "server", true),
        ] {
            assert_eq!(of(error.clone()), (json!(code), again), "{error}");
        }
    }

    #[test]
    fn what_was_sent_is_kept_in_part_and_steers_no_terminal() {
        let wrong = Wrong::malformed("it is no JSON", &[b'\x1b'; 10_000]);
        let answer = wrong.failure().data.unwrap().to_value()["answer"].as_str().unwrap().len();
        assert!(answer <= KEPT);
        let failure = by_status(StatusCode::BAD_GATEWAY, None, None, b"a\x1b[2Jb");
        assert_eq!(failure.message, "the provider answered 502 (server): a [2Jb");
    }
}
