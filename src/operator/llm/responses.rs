//! Builds requests of a Responses API; items are passed through.
//!
//! Only reasoning is filtered: what another API encrypted is useless here, and unencrypted
//! reasoning is unknown to a provider that stores nothing.

use serde_json::{Map, Value, json};

use super::{
    anthropic,
    content::kind,
    parts::{Manner, add_tools},
};
use crate::protocol::{FunctionTool, ModelRequest};

/// The field that a provider must include for its reasoning to be returned to it, as nothing is
/// stored.
const SEALED: &str = "reasoning.encrypted_content";

/// Returns the body of a request.
pub(super) fn body(
    request: &ModelRequest,
    options: &Map<String, Value>,
    manner: Manner<'_>,
) -> Value {
    let mut body = json!({ "model": manner.model, "stream": true, "store": false });
    if let Some(instructions) = &request.instructions {
        body["instructions"] = instructions.as_str().into();
    }
    if !request.tools.is_empty() {
        body["tools"] = request.tools.iter().map(tool).collect();
        if let Some(choice) = &request.tool_choice {
            body["tool_choice"] = choice.clone();
        }
        if let Some(parallel) = request.parallel_tool_calls {
            body["parallel_tool_calls"] = parallel.into();
        }
    }
    for (name, value) in options {
        match name.as_str() {
            "tools" => add_tools(value, &mut body),
            // This API has no parameter for it; the caller cuts the answer.
            "stop" => {}
            name => body[name] = value.clone(),
        }
    }
    let stored = body["store"] == true;
    if !stored {
        let mut include = match body.get_mut("include").map(Value::take) {
            Some(Value::Array(include)) => include,
            _ => Vec::new(),
        };
        if !include.iter().any(|it| it == SEALED) {
            include.push(SEALED.into());
        }
        body["include"] = include.into();
    }
    let goes = |item: &&Value| kind(item) != "reasoning" || comes_back(item, stored);
    body["input"] = request.items.iter().filter(goes).cloned().collect();
    body
}

fn comes_back(item: &Value, stored: bool) -> bool {
    match item["encrypted_content"].as_str() {
        Some(sealed) => !anthropic::is_sealed(sealed),
        None => stored,
    }
}

fn tool(tool: &FunctionTool) -> Value {
    let mut it = json!({ "type": "function", "name": tool.name, "parameters": tool.parameters });
    if let Some(description) = &tool.description {
        it["description"] = description.as_str().into();
    }
    // The default of the API is true, and schemas are not written for that.
    it["strict"] = tool.strict.unwrap_or(false).into();
    it
}
