//! The conversion of a chat completion request to a request for a response.

use serde_json::{Map, Value, json};

use crate::respond::{Refused, open_responses::Fields};

/// The parameters that have the same name and meaning in both APIs.
const SAME: [&str; 15] = [
    "model",
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "parallel_tool_calls",
    "metadata",
    "store",
    "stream",
    "service_tier",
    "prompt_cache_key",
    "safety_identifier",
    "previous_response_id",
    "max_tool_calls",
    "truncation",
];

/// Returns the body of the equivalent request for a response.
///
/// # Errors
/// Returns the first invalid parameter, under its name in the chat completion request.
pub fn as_response(body: &Value) -> Result<Value, Refused> {
    let fields = Fields::of_body(body)?;
    if fields.whole("n", 1, 1).is_err() {
        return Err(Refused::unsupported("n", "n: there is one answer to a request"));
    }
    fields.without(&["functions", "function_call", "audio"])?;
    // Nobody here reports them, and an answer without them would look complete.
    let asks = |name| fields.get(name).is_some_and(|it| *it != Value::Bool(false) && *it != 0);
    if let Some(name) = ["logprobs", "top_logprobs"].into_iter().find(|name| asks(name)) {
        return Err(Refused::unsupported(
            name,
            format!("{name}: no probabilities of tokens are reported here"),
        ));
    }
    let mut out = fields.only(&SAME);
    let most = fields.get("max_completion_tokens").or_else(|| fields.get("max_tokens"));
    if let Some(most) = most {
        out.insert("max_output_tokens".into(), most.clone());
    }
    if let Some(effort) = fields.text("reasoning_effort")? {
        out.insert("reasoning".into(), json!({ "effort": effort }));
    }
    let mut text = Map::new();
    if let Some(format) = fields.get("response_format") {
        let format = match format["type"].as_str() {
            Some("json_schema") => {
                let mut flat = format["json_schema"].as_object().cloned().unwrap_or_default();
                flat.insert("type".into(), "json_schema".into());
                Value::Object(flat)
            }
            _ => format.clone(),
        };
        text.insert("format".into(), format);
    }
    if let Some(verbosity) = fields.get("verbosity") {
        text.insert("verbosity".into(), verbosity.clone());
    }
    if !text.is_empty() {
        out.insert("text".into(), Value::Object(text));
    }
    if let Some(tools) = fields.get("tools") {
        let Value::Array(tools) = tools else {
            return Err(fields.wrong("tools", "must be a list"));
        };
        out.insert("tools".into(), tools.iter().map(flat).collect());
    }
    if let Some(choice) = fields.get("tool_choice") {
        out.insert("tool_choice".into(), tool_choice(choice));
    }
    out.insert("input".into(), Value::Array(messages(&fields)?));
    Ok(Value::Object(out))
}

/// Returns a tool with the fields of its nested `function` object lifted up.
fn flat(tool: &Value) -> Value {
    let Some(function) = tool["function"].as_object() else { return tool.clone() };
    let mut flat = function.clone();
    flat.insert("type".into(), tool["type"].clone());
    Value::Object(flat)
}

fn tool_choice(choice: &Value) -> Value {
    match choice["type"].as_str() {
        Some("function") => flat(choice),
        Some("allowed_tools") => {
            let allowed = &choice["allowed_tools"];
            let tools = allowed["tools"].as_array().into_iter().flatten().map(flat);
            let tools: Vec<Value> = tools.collect();
            json!({ "type": "allowed_tools", "mode": allowed["mode"], "tools": tools })
        }
        _ => choice.clone(),
    }
}

fn messages(fields: &Fields<'_>) -> Result<Vec<Value>, Refused> {
    let Some(Value::Array(list)) = fields.get("messages") else {
        return Err(fields.wrong("messages", "must be a list of messages"));
    };
    let mut items = Vec::with_capacity(list.len());
    for (place, message) in list.iter().enumerate() {
        let at = format!("messages[{place}]");
        let message = Fields::of(message, &at, "a message")?;
        match message.needed("role")? {
            role @ ("system" | "developer" | "user") => {
                let content = content(&message, "input_text")?
                    .ok_or_else(|| message.wrong("content", "is missing"))?;
                items.push(json!({ "type": "message", "role": role, "content": content }));
            }
            "assistant" => {
                if let Some(content) = content(&message, "output_text")?
                    && content != ""
                {
                    items.push(
                        json!({ "type": "message", "role": "assistant", "content": content }),
                    );
                }
                for call in
                    message.get("tool_calls").and_then(Value::as_array).into_iter().flatten()
                {
                    items.push(json!({
                        "type": "function_call",
                        "call_id": call["id"],
                        "name": call["function"]["name"],
                        "arguments": call["function"]["arguments"],
                    }));
                }
            }
            "tool" => {
                let output = content(&message, "input_text")?.unwrap_or_else(|| "".into());
                items.push(json!({
                    "type": "function_call_output",
                    "call_id": message.needed("tool_call_id")?,
                    "output": output,
                }));
            }
            _ => {
                let roles = "is none of system, developer, user, assistant and tool";
                return Err(message.wrong("role", roles));
            }
        }
    }
    Ok(items)
}

/// Converts the content of a message: a text, or parts with their new names.
fn content(message: &Fields<'_>, text: &str) -> Result<Option<Value>, Refused> {
    let parts = match message.get("content") {
        None => return Ok(None),
        Some(Value::String(text)) => return Ok(Some(text.as_str().into())),
        Some(Value::Array(parts)) => parts,
        Some(_) => return Err(message.wrong("content", "must be a text or a list of parts")),
    };
    let part = |part: &Value| match part["type"].as_str() {
        Some("text") => {
            let mut shown = json!({ "type": text, "text": part["text"] });
            if text == "output_text" {
                shown["annotations"] = json!([]);
            }
            Ok(shown)
        }
        Some("refusal") => Ok(part.clone()),
        Some("image_url") => Ok(json!({
            "type": "input_image",
            "image_url": part["image_url"]["url"],
            "detail": part["image_url"]["detail"].as_str().unwrap_or("auto"),
        })),
        Some("file") => {
            let mut shown = part["file"].as_object().cloned().unwrap_or_default();
            shown.insert("type".into(), "input_file".into());
            Ok(Value::Object(shown))
        }
        _ => Err(message
            .wrong("content", "has a part that is none of text, image_url, file and refusal")),
    };
    parts.iter().map(part).collect::<Result<Vec<_>, _>>().map(|parts| Some(parts.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::respond::open_responses::Create;

    fn read(body: &Value) -> Result<Create, Refused> {
        Create::read(&as_response(body)?, &mut |prefix| format!("{prefix}_1"))
    }

    #[test]
    fn probabilities_of_tokens_are_refused_and_not_left_out() {
        let ask = |name: &str, value: Value| {
            as_response(&json!({ "model": "m", "messages": [], name: value })).map(drop)
        };
        for (name, value) in [("logprobs", json!(true)), ("top_logprobs", json!(2))] {
            let refused = ask(name, value).unwrap_err();
            assert_eq!(refused.param.as_deref(), Some(name));
        }
        for (name, value) in [("logprobs", json!(false)), ("top_logprobs", json!(0))] {
            assert!(ask(name, value).is_ok(), "{name}");
        }
    }

    #[test]
    fn a_conversation_with_tools_and_images_is_the_same_conversation() {
        let create = read(&json!({
            "model": "m", "max_completion_tokens": 50, "reasoning_effort": "low",
            "response_format": { "type": "json_schema",
                "json_schema": { "name": "n", "schema": { "type": "object" } } },
            "tools": [{ "type": "function", "function": { "name": "f", "description": "d" } }],
            "tool_choice": { "type": "function", "function": { "name": "f" } },
            "messages": [
                { "role": "system", "content": "be brief" },
                { "role": "user", "content": [{ "type": "text", "text": "see" },
                    { "type": "image_url", "image_url": { "url": "data:x" } }] },
                { "role": "assistant", "content": null, "tool_calls": [{ "id": "c1",
                    "type": "function", "function": { "name": "f", "arguments": "{}" } }] },
                { "role": "tool", "tool_call_id": "c1", "content": "7" },
            ],
        }))
        .unwrap();
        let kinds: Vec<_> =
            create.items.iter().map(|item| item["type"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["message", "message", "function_call", "function_call_output"]);
        assert_eq!(create.items[1]["content"][1]["type"], "input_image");
        assert_eq!(create.ask.options["max_output_tokens"], 50);
        assert_eq!(create.ask.options["text"]["format"]["name"], "n");
        assert_eq!(create.ask.options["reasoning"]["effort"], "low");
        assert_eq!(create.ask.tools[0].description.as_deref(), Some("d"));
        assert_eq!(create.ask.tool_choice, Some(json!({ "type": "function", "name": "f" })));
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_by_its_name() {
        for (more, param) in [
            (json!({ "n": 2 }), "n"),
            (json!({ "messages": "hi" }), "messages"),
            (json!({ "messages": [{ "role": "robot" }] }), "messages[0].role"),
            (json!({ "messages": [{ "role": "user" }] }), "messages[0].content"),
            (
                json!({ "messages": [{ "role": "tool", "content": "" }] }),
                "messages[0].tool_call_id",
            ),
        ] {
            let mut body =
                json!({ "model": "m", "messages": [{ "role": "user", "content": "x" }] });
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            assert_eq!(read(&body).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
    }
}
