//! The conversion of a request for a message to a request for a response.

use serde_json::{Map, Value, json};

use crate::respond::{Refused, chat::Stops, open_responses::Fields};

/// The parameters that have the same name and meaning in both APIs.
const SAME: [&str; 5] = ["model", "temperature", "top_p", "stream", "store"];
/// Budgets of thinking, in tokens, below which the effort is low, and medium.
const EFFORTS: [u64; 2] = [4_096, 16_384];
/// The most texts that end an answer.
const MOST_STOPS: usize = 64;

/// Reads `stop_sequences`.
///
/// # Errors
/// Fails when they are not a list of texts.
pub fn stops(body: &Value) -> Result<Stops, Refused> {
    Stops::of(body, "stop_sequences", MOST_STOPS)
}

/// Returns the body of the equivalent request for a response.
///
/// # Errors
/// Returns the first invalid parameter, under its name in this API.
pub fn as_response(body: &Value) -> Result<Value, Refused> {
    let fields = Fields::of_body(body)?;
    fields.without(&["mcp_servers", "container"])?;
    let mut out = fields.only(&SAME);
    let most = fields.whole("max_tokens", 1, u64::from(u32::MAX))?;
    let most = most.ok_or_else(|| fields.wrong("max_tokens", "is missing"))?;
    out.insert("max_output_tokens".into(), most.into());
    if let Some(user) = fields.get("metadata").and_then(|it| it["user_id"].as_str()) {
        // Metadata of a response has values of at most 512 characters.
        let user: String = user.chars().take(512).collect();
        out.insert("metadata".into(), json!({ "user_id": user }));
    }
    thinking(&fields, &mut out)?;
    if let Some(tools) = fields.get("tools") {
        let Value::Array(tools) = tools else {
            return Err(fields.wrong("tools", "must be a list"));
        };
        let tools = tools.iter().enumerate().map(|(place, it)| tool(place, it));
        out.insert("tools".into(), tools.collect::<Result<Vec<_>, _>>()?.into());
    }
    if let Some(choice) = fields.get("tool_choice") {
        out.insert("tool_choice".into(), tool_choice(&fields, choice)?);
        if choice["disable_parallel_tool_use"] == true {
            out.insert("parallel_tool_calls".into(), false.into());
        }
    }
    let mut items = Vec::new();
    if let Some(system) = fields.get("system") {
        let content = contents(system, "system", "input_text")?;
        if !content.is_empty() {
            items.push(json!({ "type": "message", "role": "system", "content": content }));
        }
    }
    messages(&fields, &mut items)?;
    out.insert("input".into(), items.into());
    Ok(Value::Object(out))
}

/// The effort of thinking, and the form of the answer.
fn thinking(fields: &Fields<'_>, out: &mut Map<String, Value>) -> Result<(), Refused> {
    let asked = fields.get("thinking").unwrap_or(&Value::Null);
    let config = fields.get("output_config").unwrap_or(&Value::Null);
    let mut reasoning = Map::new();
    match asked["type"].as_str() {
        Some("enabled") => {
            let budget = asked["budget_tokens"].as_u64();
            let budget = budget
                .ok_or_else(|| fields.wrong("thinking", "needs a whole number `budget_tokens`"))?;
            let effort = match EFFORTS.iter().filter(|most| budget >= **most).count() {
                0 => "low",
                1 => "medium",
                _ => "high",
            };
            reasoning.insert("effort".into(), effort.into());
            reasoning.insert("summary".into(), "auto".into());
        }
        Some("adaptive") => drop(reasoning.insert("summary".into(), "auto".into())),
        Some("disabled") => {}
        None if asked.is_null() => {}
        _ => return Err(fields.wrong("thinking", "is none of enabled, adaptive and disabled")),
    }
    if let Some(effort) = config["effort"].as_str() {
        reasoning.insert("effort".into(), effort.into());
    }
    if !reasoning.is_empty() {
        out.insert("reasoning".into(), reasoning.into());
    }
    let format = [&config["format"], fields.get("output_format").unwrap_or(&Value::Null)];
    if let Some(format) = format.into_iter().find(|it| it["type"] == "json_schema") {
        let format = json!({ "type": "json_schema", "name": "output", "schema": format["schema"] });
        out.insert("text".into(), json!({ "format": format }));
    }
    Ok(())
}

fn tool(place: usize, tool: &Value) -> Result<Value, Refused> {
    let at = format!("tools[{place}]");
    let fields = Fields::of(tool, &at, "a tool")?;
    match fields.text("type")? {
        None | Some("custom") => {}
        Some(kind) => {
            let message = format!("{kind} is a tool of another server; declare a custom tool");
            return Err(Refused::unsupported(fields.param("type"), message));
        }
    }
    let mut flat = json!({ "type": "function", "name": fields.needed("name")? });
    for (name, as_name) in
        [("description", "description"), ("input_schema", "parameters"), ("strict", "strict")]
    {
        if let Some(value) = fields.get(name) {
            flat[as_name] = value.clone();
        }
    }
    Ok(flat)
}

fn tool_choice(fields: &Fields<'_>, choice: &Value) -> Result<Value, Refused> {
    Ok(match choice["type"].as_str() {
        Some("auto") => "auto".into(),
        Some("any") => "required".into(),
        Some("none") => "none".into(),
        Some("tool") => json!({ "type": "function", "name": choice["name"] }),
        _ => return Err(fields.wrong("tool_choice", "is none of auto, any, tool and none")),
    })
}

fn messages(fields: &Fields<'_>, items: &mut Vec<Value>) -> Result<(), Refused> {
    let Some(Value::Array(list)) = fields.get("messages") else {
        return Err(fields.wrong("messages", "must be a list of messages"));
    };
    if list.is_empty() {
        return Err(fields.wrong("messages", "has no message"));
    }
    for (place, message) in list.iter().enumerate() {
        let at = format!("messages[{place}]");
        let message = Fields::of(message, &at, "a message")?;
        let content = message.get("content");
        let content = content.ok_or_else(|| message.wrong("content", "is missing"))?;
        let at = message.param("content");
        match message.needed("role")? {
            "user" => turn("user", content, &at, items)?,
            "assistant" => turn("assistant", content, &at, items)?,
            "system" => {
                let content = contents(content, &at, "input_text")?;
                items.push(json!({ "type": "message", "role": "system", "content": content }));
            }
            _ => return Err(message.wrong("role", "is none of user, assistant and system")),
        }
    }
    Ok(())
}

/// Converts a message: its texts and images are one message up to each block that is an item of its
/// own.
fn turn(role: &str, content: &Value, at: &str, items: &mut Vec<Value>) -> Result<(), Refused> {
    let text = if role == "user" { "input_text" } else { "output_text" };
    let blocks = match content {
        Value::String(said) => vec![json!({ "type": "text", "text": said })],
        Value::Array(blocks) => blocks.clone(),
        _ => return Err(Refused::invalid(at, format!("{at} must be a text or a list of blocks"))),
    };
    let mut parts: Vec<Value> = Vec::new();
    let flush = |parts: &mut Vec<Value>, items: &mut Vec<Value>| {
        if !parts.is_empty() {
            let content = std::mem::take(parts);
            items.push(json!({ "type": "message", "role": role, "content": content }));
        }
    };
    for (place, block) in blocks.iter().enumerate() {
        let at = format!("{at}[{place}]");
        match own_item(role, block, &at)? {
            Some(item) => {
                flush(&mut parts, items);
                items.push(item);
            }
            None => parts.push(part(block, &at, text)?),
        }
    }
    flush(&mut parts, items);
    Ok(())
}

/// Converts a block that is an item of its own; none, if it is a part of a message.
fn own_item(role: &str, block: &Value, at: &str) -> Result<Option<Value>, Refused> {
    let fields = Fields::of(block, at, "a block")?;
    Ok(match (role, fields.needed("type")?) {
        ("user", "tool_result") => {
            let output = match fields.get("content") {
                None => Value::from(""),
                Some(Value::String(text)) => text.as_str().into(),
                Some(list) => contents(list, &fields.param("content"), "input_text")?.into(),
            };
            let id = fields.needed("tool_use_id")?;
            Some(json!({ "type": "function_call_output", "call_id": id, "output": output }))
        }
        ("assistant", "tool_use") => {
            let arguments = fields.get("input").map_or_else(|| "{}".to_owned(), Value::to_string);
            Some(json!({
                "type": "function_call",
                "call_id": fields.needed("id")?,
                "name": fields.needed("name")?,
                "arguments": arguments,
            }))
        }
        ("assistant", "thinking") => {
            let text = fields.text("thinking")?.unwrap_or_default();
            let summary = json!([{ "type": "summary_text", "text": text }]);
            let mut item = json!({ "type": "reasoning", "summary": summary });
            if let Some(signature) = fields.text("signature")?.filter(|it| !it.is_empty()) {
                item["encrypted_content"] = signature.into();
            }
            Some(item)
        }
        ("assistant", "redacted_thinking") => {
            let data = fields.needed("data")?;
            Some(json!({ "type": "reasoning", "summary": [], "encrypted_content": data }))
        }
        _ => None,
    })
}

/// Converts a text, or a list of blocks, to the parts of a message.
fn contents(content: &Value, at: &str, text: &str) -> Result<Vec<Value>, Refused> {
    match content {
        Value::String(said) if said.is_empty() => Ok(Vec::new()),
        Value::String(said) => Ok(vec![json!({ "type": text, "text": said })]),
        Value::Array(blocks) => {
            let parts = blocks.iter().enumerate();
            parts.map(|(place, block)| part(block, &format!("{at}[{place}]"), text)).collect()
        }
        _ => Err(Refused::invalid(at, format!("{at} must be a text or a list of blocks"))),
    }
}

fn part(block: &Value, at: &str, text: &str) -> Result<Value, Refused> {
    let source = &block["source"];
    let data = || {
        let kind = source["media_type"].as_str().unwrap_or("application/octet-stream");
        format!("data:{kind};base64,{}", source["data"].as_str().unwrap_or_default())
    };
    let is_user = text == "input_text";
    match (block["type"].as_str(), source["type"].as_str()) {
        (Some("text"), _) => {
            let Some(said) = block["text"].as_str() else {
                return Err(Refused::invalid(
                    format!("{at}.text"),
                    format!("{at}.text is missing"),
                ));
            };
            let mut part = json!({ "type": text, "text": said });
            if !is_user {
                part["annotations"] = json!([]);
            }
            Ok(part)
        }
        (Some("image"), Some("base64")) if is_user => {
            Ok(json!({ "type": "input_image", "image_url": data(), "detail": "auto" }))
        }
        (Some("image"), Some("url")) if is_user => {
            Ok(json!({ "type": "input_image", "image_url": source["url"], "detail": "auto" }))
        }
        (Some("document"), Some("text")) if is_user => {
            Ok(json!({ "type": "input_text", "text": source["data"] }))
        }
        (Some("document"), Some("base64")) if is_user => {
            let name = block["title"].as_str().unwrap_or("document");
            Ok(json!({ "type": "input_file", "filename": name, "file_data": data() }))
        }
        (Some("document"), Some("url")) if is_user => {
            Ok(json!({ "type": "input_file", "file_url": source["url"] }))
        }
        (kind, _) => {
            let message = format!(
                "{at}: a block of the type {:?} cannot stand here",
                kind.unwrap_or_default()
            );
            Err(Refused::invalid(format!("{at}.type"), message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::respond::open_responses::Create;

    fn read(body: &Value) -> Result<Create, Refused> {
        Create::read(&as_response(body)?, &mut |prefix| format!("{prefix}_1"))
    }

    #[test]
    fn a_conversation_with_thinking_tools_and_files_is_the_same_conversation() {
        let create = read(&json!({
            "model": "m", "max_tokens": 50, "top_k": 40,
            "system": [{ "type": "text", "text": "be brief", "cache_control": { "type": "ephemeral" } }],
            "thinking": { "type": "enabled", "budget_tokens": 5000 },
            "metadata": { "user_id": "u" },
            "tools": [{ "name": "f", "description": "d", "input_schema": { "type": "object" } }],
            "tool_choice": { "type": "tool", "name": "f", "disable_parallel_tool_use": true },
            "messages": [
                { "role": "user", "content": [{ "type": "text", "text": "see" },
                    { "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": "eA==" } }] },
                { "role": "assistant", "content": [
                    { "type": "thinking", "thinking": "hm", "signature": "sig" },
                    { "type": "text", "text": "calling" },
                    { "type": "tool_use", "id": "c1", "name": "f", "input": { "a": 1 } }] },
                { "role": "user", "content": [
                    { "type": "tool_result", "tool_use_id": "c1", "content": [{ "type": "text", "text": "7" }] },
                    { "type": "text", "text": "go on" }] },
            ],
        }))
        .unwrap();
        let kinds: Vec<_> =
            create.items.iter().map(|item| item["type"].as_str().unwrap()).collect();
        assert_eq!(
            kinds,
            [
                "message",
                "message",
                "reasoning",
                "message",
                "function_call",
                "function_call_output",
                "message"
            ]
        );
        assert_eq!(create.items[1]["content"][1]["image_url"], "data:image/png;base64,eA==");
        assert_eq!(create.items[2]["encrypted_content"], "sig");
        assert_eq!(create.items[4]["arguments"], r#"{"a":1}"#);
        assert_eq!(create.ask.options["max_output_tokens"], 50);
        assert_eq!(create.ask.options["reasoning"]["effort"], "medium");
        assert_eq!(create.ask.tools[0].description.as_deref(), Some("d"));
        assert_eq!(create.ask.tool_choice, Some(json!({ "type": "function", "name": "f" })));
        assert_eq!(create.ask.parallel_tool_calls, Some(false));
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_by_its_name() {
        let block = |block: Value| json!({ "messages": [{ "role": "user", "content": [block] }] });
        for (more, param) in [
            (json!({ "max_tokens": null }), "max_tokens"),
            (json!({ "max_tokens": 0 }), "max_tokens"),
            (json!({ "messages": "hi" }), "messages"),
            (json!({ "messages": [] }), "messages"),
            (json!({ "messages": [{ "role": "robot", "content": "" }] }), "messages[0].role"),
            (json!({ "messages": [{ "role": "user" }] }), "messages[0].content"),
            (block(json!({ "type": "tool_result" })), "messages[0].content[0].tool_use_id"),
            (block(json!({ "type": "video" })), "messages[0].content[0].type"),
            (block(json!({ "type": "tool_use", "id": "x" })), "messages[0].content[0].type"),
            (block(json!({ "type": "text" })), "messages[0].content[0].text"),
            (json!({ "tools": [{ "type": "web_search_20250305", "name": "w" }] }), "tools[0].type"),
            (json!({ "tool_choice": { "type": "some" } }), "tool_choice"),
            (json!({ "thinking": { "type": "enabled" } }), "thinking"),
            (json!({ "mcp_servers": [{}] }), "mcp_servers"),
        ] {
            let mut body = json!({ "model": "m", "max_tokens": 9,
                "messages": [{ "role": "user", "content": "x" }] });
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            assert_eq!(read(&body).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
        let stop = stops(&json!({ "stop_sequences": "x" })).unwrap();
        assert_eq!(stop.option(), Some(json!(["x"])));
        let wrong = stops(&json!({ "stop_sequences": [1] })).unwrap_err();
        assert_eq!(wrong.param.as_deref(), Some("stop_sequences"));
    }
}
