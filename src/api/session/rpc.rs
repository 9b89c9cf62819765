//! JSON-RPC 2.0: calls, responses and notifications as text.

use serde::Deserialize;
use serde_json::Value;

use crate::{
    api::{body::read_json, tasks::present},
    door::{Code, Problem},
    engine::PageMemory,
    protocol::Json,
    session::LinkEnd,
};

/// The maximum length of a call's id, in bytes.
const ID_BYTES: usize = 256;

/// A call as received.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope {
    jsonrpc: String,
    #[serde(default, deserialize_with = "present")]
    id: Option<Json>,
    method: String,
    params: Option<Json>,
}

/// A call. Without an id it is a notification, which gets no response.
#[derive(Debug)]
pub(super) struct Call {
    /// The id of the response.
    pub(super) id: Option<Json>,
    /// The method.
    pub(super) method: String,
    /// The parameters.
    pub(super) params: Json,
}

impl Call {
    /// Parses a call.
    ///
    /// # Errors
    /// Returns the response that refuses it.
    pub(super) fn read(text: &[u8]) -> Result<Self, Answer> {
        let refuse = |problem| Err(Answer::refusal(Some(Json::null()), problem));
        let Envelope { jsonrpc, id, method, params } = match read_json(text) {
            Ok(envelope) => envelope,
            Err(problem) => return refuse(problem),
        };
        let invalid = |detail: &str, at| Problem::new(Code::InvalidBody, detail).at(at);
        if jsonrpc != "2.0" {
            return refuse(invalid("jsonrpc is \"2.0\"", "$.jsonrpc"));
        }
        let fits = id.as_ref().is_none_or(|id| {
            id.len() <= ID_BYTES
                && matches!(id.to_value(), Value::String(_) | Value::Number(_) | Value::Null)
        });
        if !fits {
            return refuse(invalid("an id is a short text or a number", "$.id"));
        }
        let params = params.filter(|params| !params.is_null());
        let params = params.unwrap_or_else(|| Json::from_trusted("{}"));
        if !params.as_str().trim_start().starts_with('{') {
            let problem = invalid("params are an object", "$.params");
            return Err(Answer::refusal(id, problem));
        }
        Ok(Self { id, method, params })
    }
}

/// The response to a call.
#[derive(Debug)]
pub(super) struct Answer {
    id: Option<Json>,
    result: Result<Json, Problem>,
    /// The new token of the connection.
    pub(super) renewed: Option<String>,
    /// The memory of a long answer, until it is sent.
    pub(super) held: Option<PageMemory>,
}

impl Answer {
    /// Creates the response to the call with that id.
    pub(super) fn new(id: Option<Json>, result: Result<Json, Problem>) -> Self {
        Self { id, result, renewed: None, held: None }
    }

    /// Sets the new token of the connection.
    pub(super) fn with_token(mut self, token: String) -> Self {
        self.renewed = Some(token);
        self
    }

    /// Sets the memory that is held until the response is sent.
    pub(super) fn holding(mut self, held: PageMemory) -> Self {
        self.held = Some(held);
        self
    }

    /// Returns a refusal; `id` is `None` for a message that could not be parsed.
    pub(super) fn refusal(id: Option<Json>, problem: Problem) -> Self {
        Self::new(Some(id.unwrap_or_else(Json::null)), Err(problem))
    }

    /// Returns the message, unless the call was a notification. `seq` is the number of the last
    /// frame before it.
    pub(super) fn text(self, seq: u64) -> Option<String> {
        let id = self.id?;
        let head = format!(r#"{{"jsonrpc":"2.0","id":{id},"seq":{seq},"#);
        Some(match self.result {
            Ok(result) => format!("{head}\"result\":{result}}}"),
            Err(problem) => {
                let body = serde_json::to_value(problem.body()).expect("a problem is plain data");
                let error = serde_json::json!({
                    "code": number(&problem),
                    "message": body["detail"],
                    "data": body,
                });
                format!("{head}\"error\":{error}}}")
            }
        })
    }
}

/// Returns the JSON-RPC number of an error.
fn number(problem: &Problem) -> i32 {
    match problem.code() {
        Code::MalformedJson => -32_700,
        Code::UnknownMethod => -32_601,
        Code::InvalidBody | Code::UnknownField | Code::BadId => -32_602,
        Code::Internal | Code::Storage => -32_603,
        _ => -32_000,
    }
}

/// Returns a notification. `seq` is the number of the last frame before it.
pub(super) fn notify(method: &str, seq: u64, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"{method}","seq":{seq},"params":{params}}}"#)
}

/// Returns the reason to close a connection after an error; `None` if the peer is gone.
pub(super) fn broken(error: axum::Error) -> Option<LinkEnd> {
    let inner = error.into_inner().downcast::<tungstenite::Error>().ok()?;
    match *inner {
        tungstenite::Error::Capacity(_) => {
            Some(LinkEnd::Broken(1009, "the message is far too large; come back and resume".into()))
        }
        tungstenite::Error::Utf8(_) => {
            Some(LinkEnd::Broken(1007, "the text is not UTF-8; come back and resume".into()))
        }
        tungstenite::Error::Protocol(_) => {
            Some(LinkEnd::Broken(1002, "this is no WebSocket frame; come back and resume".into()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> Value {
        let answer = Call::read(text.as_bytes()).unwrap_err().text(3).unwrap();
        serde_json::from_str(&answer).unwrap()
    }

    #[test]
    fn a_call_without_an_id_wants_no_answer() {
        let call = Call::read(br#"{"jsonrpc":"2.0","method":"ack","params":{"seq":1}}"#).unwrap();
        assert_eq!((call.method.as_str(), call.params.as_str()), ("ack", r#"{"seq":1}"#));
        assert!(Answer::new(call.id, Ok(Json::null())).text(1).is_none());
    }

    #[test]
    fn an_answer_carries_the_id_as_it_came_and_the_number_of_the_last_frame() {
        let call = Call::read(br#"{"jsonrpc":"2.0","id":"a7","method":"tasks/list"}"#).unwrap();
        assert_eq!(call.params.as_str(), "{}");
        let text = Answer::new(call.id, Ok(Json::from_trusted("[1]"))).text(9).unwrap();
        assert_eq!(text, r#"{"jsonrpc":"2.0","id":"a7","seq":9,"result":[1]}"#);
    }

    #[test]
    fn what_is_no_call_is_refused_with_its_code() {
        for (text, number, code) in [
            ("{", -32_700, "malformed_json"),
            ("[]", -32_602, "invalid_body"),
            (r#"{"jsonrpc":"1.0","method":"ack"}"#, -32_602, "invalid_body"),
            (r#"{"jsonrpc":"2.0","method":"ack","id":{}}"#, -32_602, "invalid_body"),
            (r#"{"jsonrpc":"2.0","method":"ack","extra":1}"#, -32_602, "unknown_field"),
        ] {
            let said = refusal(text);
            assert_eq!((&said["error"]["code"], &said["id"]), (&number.into(), &Value::Null));
            assert_eq!(said["error"]["data"]["code"], code, "{text}");
        }
    }
}
