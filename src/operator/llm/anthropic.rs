//! Builds requests of Anthropic's Messages API.
//!
//! | item | becomes |
//! |---|---|
//! | message of system or developer | the system prompt at the beginning, later a text of the user |
//! | message of user or assistant | blocks of that role |
//! | function_call | a `tool_use` of the assistant, its arguments as an object |
//! | function_call_output | a `tool_result` of the user |
//! | reasoning that came from this API | its `thinking` or `redacted_thinking`, with its signature |
//! | other reasoning | nothing |
//! | compaction | a text of the user, if it is not encrypted |
//! | `anthropic:…` | the original block |

use serde_json::{Map, Value, json};

use super::{
    content::{self, ContentPart, Where, compacted, kind, needed, parts},
    parts::{Manner, add_tools},
    wrong::untold,
};
use crate::protocol::{Failure, FunctionTool, ModelRequest};

/// The default limit on output tokens; the API requires one.
const MAX_TOKENS: u64 = 8_192;
/// The prefix of a signature that is stored as the encrypted content of a reasoning item.
const SIGNED: &str = "anthropic/signature:";
/// The prefix of redacted thinking.
const REDACTED: &str = "anthropic/redacted:";
/// The prefix of an item's type, for a block without an equivalent.
pub(super) const OWN: &str = "anthropic:";

/// Returns true if encrypted content came from this API.
pub(super) fn is_sealed(sealed: &str) -> bool {
    sealed.starts_with(SIGNED) || sealed.starts_with(REDACTED)
}

/// Returns a signature as the encrypted content of an item.
pub(super) fn signed(signature: &str) -> String {
    format!("{SIGNED}{signature}")
}

/// Returns redacted thinking as the encrypted content of an item.
pub(super) fn redacted(data: &str) -> String {
    format!("{REDACTED}{data}")
}

/// Returns the body of a request.
pub(super) fn body(
    request: &ModelRequest,
    options: &Map<String, Value>,
    manner: Manner<'_>,
) -> Result<Value, Failure> {
    let mut talk = MessageBuilder { system: Vec::new(), messages: Vec::new() };
    talk.system.extend(request.instructions.clone());
    for item in &request.items {
        talk.take(item)?;
    }
    let mut body = json!({
        "model": manner.model,
        "stream": true,
        "max_tokens": options.get("max_output_tokens").cloned().unwrap_or_else(|| MAX_TOKENS.into()),
        "messages": talk.messages,
    });
    let mut system = talk.system;
    if let Some(format) = options.get("text").and_then(|text| text.get("format")) {
        system.extend(wanted(format));
    }
    if !system.is_empty() {
        body["system"] = system.join("\n\n").into();
    }
    tools(request, &mut body);
    for (name, value) in options {
        option(name, value, &mut body);
    }
    Ok(body)
}

fn option(name: &str, value: &Value, body: &mut Value) {
    match name {
        "stop" => {
            let one = value.as_str().map(|text| json!([text]));
            body["stop_sequences"] = one.unwrap_or_else(|| value.clone());
        }
        "tools" => add_tools(value, body),
        "reasoning" => {
            if body.get("thinking").is_none() {
                think(value, body);
            }
        }
        // Handled elsewhere, or without an equivalent in this API.
        "max_output_tokens" | "text" | "presence_penalty" | "frequency_penalty"
        | "top_logprobs" | "include" | "truncation" | "store" | "background" | "max_tool_calls"
        | "prompt_cache_key" | "safety_identifier" => {}
        other => body[other] = value.clone(),
    }
}

/// Converts the `reasoning` option to a thinking budget, within the limit on output tokens.
fn think(reasoning: &Value, body: &mut Value) {
    let most = body["max_tokens"].as_u64().unwrap_or(MAX_TOKENS);
    let budget = reasoning["budget_tokens"].as_u64().or(match reasoning["effort"].as_str() {
        Some("minimal" | "low") => Some(1_024),
        Some("medium") => Some(4_096),
        Some("high") => Some(16_384),
        Some("xhigh") => Some(32_768),
        _ => None,
    });
    // The API requires at least 1,024 tokens, and the answer needs tokens of its own.
    if let Some(budget) = budget.map(|budget| budget.min(most.saturating_sub(512)))
        && budget >= 1_024
    {
        body["thinking"] = json!({ "type": "enabled", "budget_tokens": budget });
    }
}

/// Returns the instruction that stands in for a response format, which this API does not have.
fn wanted(format: &Value) -> Option<String> {
    match format["type"].as_str() {
        Some("json_schema") => Some(format!(
            "Answer with JSON alone, without a fence around it, that satisfies this JSON Schema:\n{}",
            format["schema"]
        )),
        Some("json_object") => {
            Some("Answer with one JSON object alone, without a fence.".to_owned())
        }
        _ => None,
    }
}

fn tools(request: &ModelRequest, body: &mut Value) {
    if request.tools.is_empty() {
        return;
    }
    let choice = request.tool_choice.as_ref();
    let allowed: Option<Vec<&str>> = choice
        .filter(|choice| choice["type"] == "allowed_tools")
        .and_then(|choice| choice["tools"].as_array())
        .map(|tools| tools.iter().filter_map(|tool| tool["name"].as_str()).collect());
    let offered = request.tools.iter().filter(|tool| {
        allowed.as_ref().is_none_or(|allowed| allowed.contains(&tool.name.as_str()))
    });
    body["tools"] = offered.map(tool).collect();
    let word = choice.and_then(|choice| choice.as_str().or_else(|| choice["mode"].as_str()));
    let mut chosen = match (word, choice.map(|choice| &choice["name"])) {
        (Some("none"), _) => json!({ "type": "none" }),
        (Some("required"), _) => json!({ "type": "any" }),
        (None, Some(Value::String(name))) => json!({ "type": "tool", "name": name }),
        _ => json!({ "type": "auto" }),
    };
    if request.parallel_tool_calls == Some(false) && chosen["type"] != "none" {
        chosen["disable_parallel_tool_use"] = true.into();
    }
    if choice.is_some() || request.parallel_tool_calls == Some(false) {
        body["tool_choice"] = chosen;
    }
}

fn tool(tool: &FunctionTool) -> Value {
    let mut it = json!({ "name": tool.name, "input_schema": tool.parameters });
    if let Some(description) = &tool.description {
        it["description"] = description.as_str().into();
    }
    if tool.strict == Some(true) {
        it["strict"] = true.into();
    }
    it
}

/// The conversation under construction: consecutive items of a role are joined into one message.
struct MessageBuilder {
    system: Vec<String>,
    messages: Vec<Value>,
}

impl MessageBuilder {
    fn take(&mut self, item: &Value) -> Result<(), Failure> {
        match kind(item) {
            "message" => match needed(item, "role")? {
                "system" | "developer" if self.messages.is_empty() => {
                    self.system.push(content::text(&item["content"])?);
                }
                "assistant" => {
                    for part in parts(&item["content"])? {
                        match part {
                            // The API refuses empty blocks.
                            ContentPart::Text("") | ContentPart::Refusal("") => {}
                            other => self.add("assistant", block(&other)?),
                        }
                    }
                }
                _ => {
                    for part in parts(&item["content"])? {
                        self.add("user", block(&part)?);
                    }
                }
            },
            "function_call" => {
                let call = json!({
                    "type": "tool_use",
                    "id": wire_id(needed(item, "call_id")?),
                    "name": needed(item, "name")?,
                    "input": arguments(item["arguments"].as_str().unwrap_or_default()),
                });
                self.add("assistant", call);
            }
            "function_call_output" => self.output(item)?,
            "reasoning" => {
                if let Some(block) = thought(item)? {
                    self.add("assistant", block);
                }
            }
            "compaction" => {
                let text = compacted(item)?;
                self.add("user", json!({ "type": "text", "text": text }));
            }
            other if other.starts_with(OWN) && item["block"].is_object() => {
                self.add("assistant", item["block"].clone());
            }
            _ => return Err(content::unknown(item, "anthropic")),
        }
        Ok(())
    }

    fn output(&mut self, item: &Value) -> Result<(), Failure> {
        let content = match &item["output"] {
            Value::String(text) => Value::from(text.as_str()),
            other => parts(other)?.iter().map(block).collect::<Result<Vec<_>, _>>()?.into(),
        };
        let mut result = json!({
            "type": "tool_result",
            "tool_use_id": wire_id(needed(item, "call_id")?),
            "content": content,
        });
        if item["is_error"] == true {
            result["is_error"] = true.into();
        }
        self.add("user", result);
        Ok(())
    }

    fn add(&mut self, role: &str, block: Value) {
        match self.messages.last_mut().filter(|last| last["role"] == role) {
            Some(Value::Object(last)) => {
                if let Some(Value::Array(content)) = last.get_mut("content") {
                    content.push(block);
                }
            }
            _ => self.messages.push(json!({ "role": role, "content": [block] })),
        }
    }
}

fn block(part: &ContentPart<'_>) -> Result<Value, Failure> {
    let source = |at: &Where<'_>| match at {
        Where::Data { media_type, base64, .. } => {
            json!({ "type": "base64", "media_type": media_type, "data": base64 })
        }
        Where::Url(url) => json!({ "type": "url", "url": url }),
        Where::Id(id) => json!({ "type": "file", "file_id": id }),
    };
    Ok(match part {
        ContentPart::Text(text) | ContentPart::Refusal(text) => {
            json!({ "type": "text", "text": text })
        }
        // This API has no `detail` option.
        ContentPart::Image { at, .. } => json!({ "type": "image", "source": source(at) }),
        ContentPart::File { at, name } => {
            let mut it = json!({ "type": "document", "source": source(at) });
            if let Some(name) = name {
                it["title"] = (*name).into();
            }
            it
        }
    })
}

/// Returns the original block of a reasoning item; nothing if it came from another API.
fn thought(item: &Value) -> Result<Option<Value>, Failure> {
    let Some(sealed) = item["encrypted_content"].as_str() else { return Ok(None) };
    if let Some(data) = sealed.strip_prefix(REDACTED) {
        return Ok(Some(json!({ "type": "redacted_thinking", "data": data })));
    }
    let Some(signature) = sealed.strip_prefix(SIGNED) else { return Ok(None) };
    // Clients of the Messages API send it back as a summary.
    let said = ["content", "summary"].map(|key| &item[key]);
    let is_said = |parts: &&Value| parts.as_array().map_or(!parts.is_null(), |it| !it.is_empty());
    let said = said.into_iter().find(is_said);
    let thinking = content::text(said.unwrap_or(&Value::Null))?;
    Ok(Some(json!({ "type": "thinking", "thinking": thinking, "signature": signature })))
}

/// Returns the arguments as an object, as this API requires. Anything else is sent as text under a
/// descriptive key, so that the model sees what it wrote.
fn arguments(text: &str) -> Value {
    match serde_json::from_str(text) {
        Ok(object @ Value::Object(_)) => object,
        Ok(_) | Err(_) => json!({ "malformed_arguments": text }),
    }
}

/// Returns an id that this API accepts: the same id if possible, otherwise one derived from it.
fn wire_id(id: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
    if id.len() <= 64 && id.bytes().all(plain) {
        return id.to_owned();
    }
    format!("call_{}", &blake3::hash(id.as_bytes()).to_hex()[..32])
}

/// Returns the item for a block without an equivalent.
pub(super) fn own(block: Value) -> Result<Value, Failure> {
    let kind = block["type"].as_str().ok_or_else(|| untold("a block has no type"))?;
    Ok(json!({ "type": format!("{OWN}{kind}"), "block": block }))
}
