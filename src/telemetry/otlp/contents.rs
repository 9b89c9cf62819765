//! Inputs and outputs as attributes: only by opt-in, without what the layers redact, and bounded.

use serde_json::{Value, json};

use super::{
    keys,
    message::{self, KeyValue},
};
use crate::{
    engine::VersionFacts,
    protocol::{Json, ModelReply, ModelStop, text::floor_char_boundary},
};

/// The maximum length of a text, in bytes; what is longer is cut off.
const TEXT: usize = 8 << 10;
/// The maximum number of parts of a message.
const PARTS: usize = 32;
/// The largest value that is redacted and exported, in bytes.
const VALUE: usize = 1 << 20;

/// Returns a value without what the layers redact, as text: a string as it is, anything else as JSON.
/// `None` if the layers are not known.
pub(super) fn text_of(version: &VersionFacts, name: &str, value: &Json) -> Option<String> {
    if value.len() > VALUE {
        return Some(format!("[{} bytes]", value.len()));
    }
    shown(version, name, value.to_value())
}

fn shown(version: &VersionFacts, name: &str, value: Value) -> Option<String> {
    Some(match clean(version, name, value)? {
        Value::String(text) => cut(text),
        other => cut(other.to_string()),
    })
}

/// Returns the arguments of a call as text, as [`text_of`] does. Those of a call that was refused are
/// the text of the model, which is left out if it is not JSON: its keys are not known then.
pub(super) fn arguments_of(version: &VersionFacts, arguments: &Json) -> Option<String> {
    if arguments.len() > VALUE {
        return text_of(version, "input", arguments);
    }
    let value = match arguments.to_value() {
        Value::String(text) => parsed(&text),
        value => value,
    };
    shown(version, "input", value)
}

/// Returns a value without what the layers redact, for the prompts that are rendered from it. `None` if
/// the layers are not known, or if the value is too large.
pub(super) fn redacted(version: &VersionFacts, name: &str, value: &Json) -> Option<Json> {
    if value.len() > VALUE {
        return None;
    }
    Some(Json::from(&clean(version, name, value.to_value())?))
}

/// Returns a value without what the layers redact, also in JSON within its texts. Keys come first: a
/// pattern may replace the marks of JSON.
fn clean(version: &VersionFacts, name: &str, mut value: Value) -> Option<Value> {
    keys::within(&mut value, &|key| version.instead_of(key).map(str::to_owned));
    version.redacted(name, value)
}

/// Returns the arguments of a call from the text of a model; of a text that is not JSON, its length.
fn parsed(text: &str) -> Value {
    match serde_json::from_str(text) {
        Ok(arguments) => arguments,
        Err(_) if text.is_empty() => Value::String(String::new()),
        Err(_) => Value::String(format!("[{} bytes]", text.len())),
    }
}

/// Returns the attribute of a text that came in.
pub(super) fn input(text: &str) -> KeyValue {
    let messages = json!([{ "role": "user", "parts": [part(text)] }]);
    message::text("gen_ai.input.messages", messages.to_string())
}

/// Returns the attribute of a text that came out.
pub(super) fn output(text: &str) -> KeyValue {
    let parts = [part(text)];
    let messages = json!([{ "role": "assistant", "parts": parts, "finish_reason": "stop" }]);
    message::text("gen_ai.output.messages", messages.to_string())
}

/// Returns the attribute of a model's reply; `None` if the layers are not known.
pub(super) fn reply(version: &VersionFacts, reply: &ModelReply) -> Option<KeyValue> {
    let parts = parts_of(version, &reply.items)?;
    let finish = match reply.stop {
        ModelStop::ToolCalls => "tool_call",
        other => finish_reason(other),
    };
    let messages = json!([{ "role": "assistant", "parts": parts, "finish_reason": finish }]);
    Some(message::text("gen_ai.output.messages", messages.to_string()))
}

/// Returns a message of a conversation.
pub(super) fn spoken(role: &str, parts: &[Value]) -> Value {
    json!({ "role": role, "parts": parts })
}

/// Returns the parts of a message for items of Open Responses; `None` if the layers are not known.
pub(super) fn parts_of(version: &VersionFacts, items: &[Value]) -> Option<Vec<Value>> {
    let redacted = |name: &str, value: &str| {
        let clean = clean(version, name, Value::String(value.to_owned()))?;
        Some(cut(clean.as_str().unwrap_or_default().to_owned()))
    };
    let mut parts = Vec::new();
    for item in items.iter().take(PARTS) {
        let text = |key: &str| item[key].as_str().unwrap_or_default();
        match item["type"].as_str() {
            Some("message") | None => match &item["content"] {
                Value::String(content) => parts.push(part(&redacted("text", content)?)),
                Value::Array(contents) => {
                    for content in contents.iter().take(PARTS) {
                        let Some(text) = content["text"].as_str() else { continue };
                        parts.push(part(&redacted("text", text)?));
                    }
                }
                _ => {}
            },
            Some("function_call") => {
                let arguments = clean(version, "arguments", parsed(text("arguments")))?;
                let arguments = match arguments.to_string() {
                    long if long.len() > TEXT => Value::String(cut(long)),
                    _ => arguments,
                };
                parts.push(json!({
                    "type": "tool_call", "id": text("call_id"), "name": text("name"),
                    "arguments": arguments,
                }));
            }
            Some("function_call_output") => parts.push(json!({
                "type": "tool_call_response", "id": text("call_id"),
                "response": redacted("output", text("output"))?,
            })),
            // The thoughts of a model are not a part of its answer.
            _ => {}
        }
    }
    parts.truncate(PARTS);
    Some(parts)
}

/// Returns the reason why a model stopped, as most providers name it.
pub(super) fn finish_reason(stop: ModelStop) -> &'static str {
    match stop {
        ModelStop::End => "stop",
        ModelStop::ToolCalls => "tool_calls",
        ModelStop::Length => "length",
        ModelStop::ContentFilter | ModelStop::Refusal => "content_filter",
    }
}

/// Returns a text as a part of a message.
pub(super) fn part(text: &str) -> Value {
    json!({ "type": "text", "content": text })
}

fn cut(mut text: String) -> String {
    if text.len() > TEXT {
        let length = text.len();
        text.truncate(floor_char_boundary(&text, TEXT));
        text.push_str(&format!("… [{length} bytes]"));
    }
    text
}
