//! Builds requests of the Chat Completions API.
//!
//! | item | becomes |
//! |---|---|
//! | message | a message of its role; images and files are parts of it |
//! | function_call | a tool call of the preceding assistant message, or of a new one |
//! | function_call_output | a message of the role `tool`; its images follow in a message of the user |
//! | reasoning | nothing, or `reasoning_content` if `send_reasoning` is set |
//! | compaction | a message of the developer, if it is not encrypted |

use serde_json::{Map, Value, json};

use super::{
    content::{self, ContentPart, Where, compacted, kind, needed, parts},
    parts::{Manner, add_tools},
    wrong::untold,
};
use crate::protocol::{Failure, FunctionTool, ModelRequest};

/// Returns the body of a request.
pub(super) fn body(
    request: &ModelRequest,
    options: &Map<String, Value>,
    manner: Manner<'_>,
) -> Result<Value, Failure> {
    let mut body = json!({
        "model": manner.model,
        "messages": messages(request, manner)?,
        "stream": true,
        "stream_options": { "include_usage": true },
    });
    if !request.tools.is_empty() {
        body["tools"] = request.tools.iter().map(tool).collect();
        if let Some(choice) = &request.tool_choice {
            body["tool_choice"] = tool_choice(choice);
        }
        if let Some(parallel) = request.parallel_tool_calls {
            body["parallel_tool_calls"] = parallel.into();
        }
    }
    for (name, value) in options {
        option(name, value, manner, &mut body);
    }
    Ok(body)
}

fn option(name: &str, value: &Value, manner: Manner<'_>, body: &mut Value) {
    match name {
        "max_output_tokens" => body[manner.max_tokens_as] = value.clone(),
        "tools" => add_tools(value, body),
        "reasoning" => {
            if let Some(effort) = value.get("effort").filter(|effort| !effort.is_null()) {
                body["reasoning_effort"] = effort.clone();
            }
        }
        "text" => {
            if let Some(format) = value.get("format") {
                body["response_format"] = response_format(format);
            }
            if let Some(verbosity) = value.get("verbosity").filter(|it| !it.is_null()) {
                body["verbosity"] = verbosity.clone();
            }
        }
        "top_logprobs" => {
            body["logprobs"] = true.into();
            body["top_logprobs"] = value.clone();
        }
        // Options that only the Responses API has.
        "include" | "truncation" | "background" | "max_tool_calls" | "store" => {}
        other => body[other] = value.clone(),
    }
}

fn response_format(format: &Value) -> Value {
    if format["type"] != "json_schema" {
        return format.clone();
    }
    let mut schema = Map::new();
    for key in ["name", "description", "schema", "strict"] {
        if let Some(value) = format.get(key).filter(|value| !value.is_null()) {
            schema.insert(key.to_owned(), value.clone());
        }
    }
    json!({ "type": "json_schema", "json_schema": schema })
}

fn tool(tool: &FunctionTool) -> Value {
    let mut function = json!({ "name": tool.name, "parameters": tool.parameters });
    if let Some(description) = &tool.description {
        function["description"] = description.as_str().into();
    }
    if let Some(strict) = tool.strict {
        function["strict"] = strict.into();
    }
    json!({ "type": "function", "function": function })
}

fn tool_choice(choice: &Value) -> Value {
    let function = |it: &Value| json!({ "type": "function", "function": { "name": it["name"] } });
    match choice["type"].as_str() {
        Some("function") => function(choice),
        Some("allowed_tools") => {
            let tools: Vec<Value> =
                choice["tools"].as_array().into_iter().flatten().map(function).collect();
            let mode = choice.get("mode").cloned().unwrap_or_else(|| "auto".into());
            json!({ "type": "allowed_tools", "allowed_tools": { "mode": mode, "tools": tools } })
        }
        _ => choice.clone(),
    }
}

/// The conversation under construction.
struct MessageBuilder<'a> {
    messages: Vec<Value>,
    manner: Manner<'a>,
    /// Images in the outputs of calls, which follow after all outputs.
    pictures: Vec<Value>,
    /// The reasoning before the next message of the model.
    thought: String,
}

fn messages(request: &ModelRequest, manner: Manner<'_>) -> Result<Vec<Value>, Failure> {
    let mut talk = MessageBuilder {
        messages: Vec::new(),
        manner,
        pictures: Vec::new(),
        thought: String::new(),
    };
    if let Some(instructions) = &request.instructions {
        talk.messages.push(json!({ "role": "system", "content": instructions }));
    }
    for item in &request.items {
        if kind(item) != "function_call_output" {
            talk.show_pictures();
        }
        talk.take(item)?;
    }
    talk.show_pictures();
    Ok(talk.messages)
}

impl MessageBuilder<'_> {
    fn take(&mut self, item: &Value) -> Result<(), Failure> {
        match kind(item) {
            "message" => self.message(item),
            "function_call" => self.call(item),
            "function_call_output" => self.output(item),
            "reasoning" => {
                if self.manner.send_reasoning
                    && let Some(content) = item.get("content")
                {
                    self.thought.push_str(&content::text(content)?);
                }
                Ok(())
            }
            "compaction" => {
                let message = json!({ "role": "developer", "content": compacted(item)? });
                self.messages.push(message);
                Ok(())
            }
            _ => Err(content::unknown(item, "chat")),
        }
    }

    fn message(&mut self, item: &Value) -> Result<(), Failure> {
        let role = needed(item, "role")?;
        if role != "assistant" {
            let content = said(&parts(&item["content"])?)?;
            self.messages.push(json!({ "role": role, "content": content }));
            return Ok(());
        }
        let (mut text, mut refusal) = (String::new(), String::new());
        for part in parts(&item["content"])? {
            match part {
                ContentPart::Text(more) => text.push_str(more),
                ContentPart::Refusal(more) => refusal.push_str(more),
                ContentPart::Image { .. } | ContentPart::File { .. } => {
                    return Err(untold("a message of the assistant has text only in this API"));
                }
            }
        }
        let mut message = json!({ "role": "assistant", "content": text });
        if !refusal.is_empty() {
            message["refusal"] = refusal.into();
        }
        self.think(&mut message);
        self.messages.push(message);
        Ok(())
    }

    fn call(&mut self, item: &Value) -> Result<(), Failure> {
        let call = json!({
            "id": needed(item, "call_id")?,
            "type": "function",
            "function": {
                "name": needed(item, "name")?,
                "arguments": item["arguments"].as_str().unwrap_or_default(),
            },
        });
        let open = self.messages.last_mut().filter(|last| last["role"] == "assistant");
        match open {
            Some(message) => match message["tool_calls"].as_array_mut() {
                Some(calls) => calls.push(call),
                None => message["tool_calls"] = json!([call]),
            },
            None => {
                let mut message =
                    json!({ "role": "assistant", "content": null, "tool_calls": [call] });
                self.think(&mut message);
                self.messages.push(message);
            }
        }
        Ok(())
    }

    fn output(&mut self, item: &Value) -> Result<(), Failure> {
        let id = needed(item, "call_id")?;
        let parts = parts(&item["output"])?;
        let (seen, read): (Vec<ContentPart<'_>>, Vec<ContentPart<'_>>) = parts
            .into_iter()
            .partition(|part| matches!(part, ContentPart::Image { .. } | ContentPart::File { .. }));
        let mut text = String::new();
        for part in read {
            if let ContentPart::Text(more) | ContentPart::Refusal(more) = part {
                text.push_str(more);
            }
        }
        if !seen.is_empty() {
            let label = format!("What the call {id} shows:");
            self.pictures.push(json!({ "type": "text", "text": label }));
            for part in &seen {
                self.pictures.push(shown(part)?);
            }
            if text.is_empty() {
                text.push_str("It is shown in the next message.");
            }
        }
        self.messages.push(json!({ "role": "tool", "tool_call_id": id, "content": text }));
        Ok(())
    }

    fn show_pictures(&mut self) {
        if !self.pictures.is_empty() {
            let content = std::mem::take(&mut self.pictures);
            self.messages.push(json!({ "role": "user", "content": content }));
        }
    }

    fn think(&mut self, message: &mut Value) {
        if !self.thought.is_empty() {
            message["reasoning_content"] = std::mem::take(&mut self.thought).into();
        }
    }
}

/// Returns a content: a plain string if there is only one text, which every server accepts.
fn said(parts: &[ContentPart<'_>]) -> Result<Value, Failure> {
    if let [ContentPart::Text(text)] = parts {
        return Ok((*text).into());
    }
    parts.iter().map(shown).collect::<Result<Vec<_>, _>>().map(Value::from)
}

fn shown(part: &ContentPart<'_>) -> Result<Value, Failure> {
    Ok(match part {
        ContentPart::Text(text) | ContentPart::Refusal(text) => {
            json!({ "type": "text", "text": text })
        }
        ContentPart::Image { at: Where::Data { url, .. } | Where::Url(url), detail } => {
            let mut image = json!({ "url": url });
            if let Some(detail) = detail {
                image["detail"] = (*detail).into();
            }
            json!({ "type": "image_url", "image_url": image })
        }
        ContentPart::Image { at: Where::Id(_), .. } => {
            return Err(untold(
                "the chat API takes a picture by its data or its address, not by an id",
            ));
        }
        ContentPart::File { at, name } => {
            let mut file = match at {
                Where::Data { url, .. } => json!({ "file_data": url }),
                Where::Id(id) => json!({ "file_id": id }),
                Where::Url(_) => {
                    return Err(untold(
                        "the chat API takes a file by its data or an id, not by an address",
                    ));
                }
            };
            if let Some(name) = name {
                file["filename"] = (*name).into();
            }
            json!({ "type": "file", "file": file })
        }
    })
}
