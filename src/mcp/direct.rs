//! Calls of this server's own tools that are one message and one result.
//!
//! Most calls are, above all those of an agent that works on one task after the other. They need no
//! session, no stream and no task of their own, so the message is read once and the tool is called
//! where it was read. Whatever is unusual about a message is left to the library of the protocol; so
//! is everything that is wrong with one, so that errors have one place.

use std::borrow::Cow;

use axum::{
    http::{
        HeaderName, HeaderValue,
        header::{ACCEPT, CONTENT_TYPE},
        request::Parts,
    },
    response::{IntoResponse, Response},
};
use rmcp::model::{
    JsonObject, ProtocolVersion, RequestId, RequestMetaObject, ServerJsonRpcMessage, ServerResult,
};
use serde::Deserialize;

use super::{
    desk::Desk,
    operation::{About, Operation},
    tool::Tool,
    tools,
    transport::Traced,
};
use crate::engine::Engine;

const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// The method of such a message.
pub(super) const CALL: &str = "tools/call";

/// A message as it is read. One with any other member is unusual.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Message<'a> {
    #[serde(borrow)]
    jsonrpc: Cow<'a, str>,
    id: RequestId,
    #[serde(borrow)]
    method: Cow<'a, str>,
    #[serde(borrow)]
    params: Params<'a>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    arguments: Option<JsonObject>,
    #[serde(rename = "_meta")]
    meta: Option<RequestMetaObject>,
}

/// A call that can be answered at once.
pub(super) struct Direct {
    tool: &'static Tool,
    id: RequestId,
    arguments: JsonObject,
    meta: Option<RequestMetaObject>,
    /// The revision of the protocol, if the client names one.
    version: Option<ProtocolVersion>,
}

impl Direct {
    /// Reads a call of a client without a session; `None` if it is unusual.
    pub(super) fn read(parts: &Parts, body: &[u8]) -> Option<Self> {
        if !takes_json(parts) {
            return None;
        }
        let Message { jsonrpc, id, method, params } = serde_json::from_slice(body).ok()?;
        let Params { name, arguments, meta } = params;
        let tool = tools::own(&name).filter(|_| jsonrpc == "2.0" && method == CALL)?;
        let version = version_of(parts, meta.as_ref(), tool.name)?;
        Some(Self { tool, id, arguments: arguments.unwrap_or_default(), meta, version })
    }

    /// Calls the tool.
    pub(super) async fn answer(self, desk: &Desk, engine: &Engine, parts: &Parts) -> Response {
        let Self { tool, id, arguments, meta, version } = self;
        let is_older = is_older(version.as_ref());
        let about = About {
            method: CALL,
            id: &id,
            meta: meta.as_ref(),
            version,
            http: Some((&parts.headers, parts.version)),
        };
        let operation = Operation::begin(engine, &about);
        operation.target().set(tool.name);
        let span = operation.span().map(|span| span.to_string());
        let named = span.as_deref().or_else(|| meta.as_ref()?.get_traceparent());
        let transport = Traced::of(desk.transport_for(parts), named);
        let mut result = tools::call(tool, &*transport, arguments).await;
        operation.end_tool(result.is_error == Some(true));
        if is_older {
            result.result_type = None;
        }
        let message = ServerJsonRpcMessage::response(ServerResult::CallToolResult(result), id);
        let text = serde_json::to_vec(&message).expect("a result is plain data");
        ([(CONTENT_TYPE, JSON)], text).into_response()
    }
}

/// Returns true if the message is JSON, and its client takes both forms of an answer.
fn takes_json(parts: &Parts) -> bool {
    let is_json = |value: &str| value.eq_ignore_ascii_case("application/json");
    let kind = sole(parts, &CONTENT_TYPE).and_then(|kind| kind.split(';').next());
    let taken = || sole(parts, &ACCEPT).into_iter().flat_map(|it| it.split(',')).map(str::trim);
    kind.is_some_and(|kind| is_json(kind.trim()))
        && taken().any(is_json)
        && taken().any(|it| it.eq_ignore_ascii_case("text/event-stream"))
}

/// Returns the revision of a message whose headers and metadata agree on it, if it names one.
fn version_of(
    parts: &Parts,
    meta: Option<&RequestMetaObject>,
    tool: &str,
) -> Option<Option<ProtocolVersion>> {
    let named = meta.and_then(RequestMetaObject::protocol_version);
    if !parts.headers.contains_key(&VERSION) {
        return named.is_none().then_some(None);
    }
    let header = sole(parts, &VERSION)?;
    let known = ProtocolVersion::KNOWN_VERSIONS.iter().find(|it| it.as_str() == header)?;
    let fits = match (is_older(Some(known)), meta) {
        (true, _) => named.is_none(),
        (false, None) => false,
        (false, Some(meta)) => {
            named.as_ref() == Some(known)
                && meta.missing_required_keys(known).is_empty()
                && sole(parts, &METHOD) == Some(CALL)
                && sole(parts, &NAME) == Some(tool)
        }
    };
    fits.then(|| Some(known.clone()))
}

/// Returns true for a revision whose results do not say that they are complete.
fn is_older(version: Option<&ProtocolVersion>) -> bool {
    version.is_none_or(|version| *version < ProtocolVersion::V_2026_07_28)
}

/// Returns the value of a header that is there once.
fn sole<'a>(parts: &'a Parts, name: &HeaderName) -> Option<&'a str> {
    let mut values = parts.headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Request;
    use serde_json::{Value, json};

    use super::*;

    const BOTH: &str = "application/json, text/event-stream";

    /// Returns true if a message with these headers is answered at once, and the revision that it names.
    fn read(headers: &[(&str, &str)], message: &Value) -> Option<Option<String>> {
        let mut request = Request::builder().header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let direct = Direct::read(&parts, message.to_string().as_bytes())?;
        assert_eq!(direct.tool.name, "list_runs");
        Some(direct.version.map(|version| version.as_str().to_owned()))
    }

    fn call() -> Value {
        json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": { "name": "list_runs", "arguments": {} } })
    }

    fn newest() -> Value {
        let mut call = call();
        call["params"]["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        call
    }

    #[test]
    fn a_plain_call_of_each_revision_is_answered_at_once() {
        assert_eq!(read(&[("accept", BOTH)], &call()), Some(None));
        let older = [("accept", BOTH), ("mcp-protocol-version", "2025-11-25")];
        assert_eq!(read(&older, &call()), Some(Some("2025-11-25".to_owned())));
        let newer = [
            ("accept", "text/event-stream,Application/JSON"),
            ("mcp-protocol-version", "2026-07-28"),
            ("mcp-method", "tools/call"),
            ("mcp-name", "list_runs"),
        ];
        assert_eq!(read(&newer, &newest()), Some(Some("2026-07-28".to_owned())));
    }

    #[test]
    fn what_is_unusual_is_left_to_the_library() {
        for (key, value) in [
            ("jsonrpc", json!("1.0")),
            ("id", json!(null)),
            ("method", json!("tools/list")),
            ("params", json!({ "name": "none" })),
            ("params", json!({ "name": "list_runs", "requestState": "x" })),
            ("params", json!({ "name": "list_runs", "arguments": [] })),
            ("extra", json!(1)),
        ] {
            let mut call = call();
            call[key] = value;
            assert_eq!(read(&[("accept", BOTH)], &call), None, "{call}");
        }
        for headers in [
            vec![],
            vec![("accept", "application/json")],
            vec![("accept", "*/*")],
            vec![("accept", BOTH), ("accept", BOTH)],
            vec![("accept", BOTH), ("content-type", "application/json")],
            vec![("accept", BOTH), ("mcp-protocol-version", "1999-01-01")],
            vec![("accept", BOTH), ("mcp-protocol-version", "2026-07-28")],
        ] {
            assert_eq!(read(&headers, &call()), None, "{headers:?}");
        }
        let newer = [("accept", BOTH), ("mcp-protocol-version", "2026-07-28")];
        assert_eq!(read(&newer, &newest()), None, "its headers do not say what it calls");
        assert_eq!(read(&newer[..1], &newest()), None, "no header names the revision");
        let named = |name| [newer[0], newer[1], ("mcp-method", "tools/call"), ("mcp-name", name)];
        assert!(read(&named("list_runs"), &newest()).is_some());
        assert_eq!(read(&named("get_run"), &newest()), None);
    }
}
