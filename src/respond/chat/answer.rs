//! A response as a chat completion, as a whole or in chunks.

use serde_json::{Value, json};

use super::Stops;
use crate::respond::{
    Event,
    response::{ended, open_calls},
    shown_id,
};

/// The separator between two messages of one answer.
const BETWEEN: &str = "\n\n";

/// Converts an ended response to a completion, cut at the stops.
///
/// # Errors
/// Returns the error of a failed response: `{code, message}`.
pub fn completion(response: &Value, mut stops: Stops) -> Result<Value, Value> {
    ended(response)?;
    let mut content = text(response, "output_text", "text");
    if let Some(whole) = content.as_str() {
        let cut = stops.feed(whole) + &stops.rest();
        content = cut.into();
    }
    // What would have come after the stop was never asked for.
    let calls = if stops.is_over() { Vec::new() } else { calls(response) };
    let mut message = json!({
        "role": "assistant",
        "content": content,
        "refusal": text(response, "refusal", "refusal"),
        "annotations": [],
    });
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    let mut completion = head(response, "chat.completion");
    completion["choices"] = json!([{
        "index": 0, "message": message, "logprobs": null, "finish_reason": finish(response, &stops),
    }]);
    if !response["usage"].is_null() {
        completion["usage"] = usage(response);
    }
    Ok(completion)
}

fn head(response: &Value, object: &str) -> Value {
    let id = response["id"].as_str().unwrap_or_default();
    json!({
        "id": shown_id("chatcmpl-", &id.replacen("resp_", "run_", 1)),
        "object": object,
        "created": response["created_at"],
        "model": response["model"],
        "service_tier": response["service_tier"],
        "system_fingerprint": null,
    })
}

/// Returns the texts of all messages; null if there are none.
fn text(response: &Value, kind: &str, field: &str) -> Value {
    let items = response["output"].as_array().into_iter().flatten();
    let messages = items.filter(|item| item["type"] == "message").map(|item| {
        let parts = item["content"].as_array().into_iter().flatten();
        parts.filter(|part| part["type"] == kind).filter_map(|part| part[field].as_str()).collect()
    });
    let messages: Vec<String> = messages.filter(|text: &String| !text.is_empty()).collect();
    if messages.is_empty() { Value::Null } else { messages.join(BETWEEN).into() }
}

/// Returns the calls without an output.
fn calls(response: &Value) -> Vec<Value> {
    open_calls(response)
        .map(|call| {
            json!({ "id": call["call_id"], "type": "function",
            "function": { "name": call["name"], "arguments": call["arguments"] } })
        })
        .collect()
}

fn finish(response: &Value, stops: &Stops) -> &'static str {
    if stops.is_over() {
        return "stop";
    }
    match response["incomplete_details"]["reason"].as_str() {
        Some("content_filter") => "content_filter",
        Some(_) => "length",
        None if !calls(response).is_empty() => "tool_calls",
        None => "stop",
    }
}

fn usage(response: &Value) -> Value {
    let used = &response["usage"];
    json!({
        "prompt_tokens": used["input_tokens"],
        "completion_tokens": used["output_tokens"],
        "total_tokens": used["total_tokens"],
        "prompt_tokens_details": { "cached_tokens": used["input_tokens_details"]["cached_tokens"] },
        "completion_tokens_details":
            { "reasoning_tokens": used["output_tokens_details"]["reasoning_tokens"] },
    })
}

/// Converts the events of a response to chunks.
#[derive(Debug)]
pub struct Chunks {
    head: Value,
    usage: bool,
    messages: usize,
    stops: Stops,
}

impl Chunks {
    /// Creates a converter. With `usage`, a final chunk has the usage.
    pub fn new(response: &Value, usage: bool, stops: Stops) -> Self {
        Self { head: head(response, "chat.completion.chunk"), usage, messages: 0, stops }
    }

    /// Returns the chunk of a piece of text, as far as the stops pass it.
    fn said(&mut self, piece: &str) -> Vec<Value> {
        let piece = self.stops.feed(piece);
        if piece.is_empty() {
            return Vec::new();
        }
        vec![self.chunk(json!({ "content": piece }), None)]
    }

    fn chunk(&self, delta: Value, finish: Option<&str>) -> Value {
        let mut chunk = self.head.clone();
        let choice =
            json!({ "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish });
        chunk["choices"] = json!([choice]);
        if self.usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    /// Returns the chunks for an event.
    pub fn of(&mut self, event: &Event) -> Vec<Value> {
        let delta = || event.data["delta"].as_str().unwrap_or_default();
        match event.kind {
            "response.created" => {
                vec![self.chunk(json!({ "role": "assistant", "content": "" }), None)]
            }
            "response.output_item.added" if event.data["item"]["type"] == "message" => {
                self.messages += 1;
                if self.messages > 1 {
                    return self.said(BETWEEN);
                }
                Vec::new()
            }
            "response.output_text.delta" => self.said(delta()),
            "response.refusal.delta" => vec![self.chunk(json!({ "refusal": delta() }), None)],
            _ if event.is_last() => self.end(&event.data["response"]),
            _ => Vec::new(),
        }
    }

    fn end(&mut self, response: &Value) -> Vec<Value> {
        if let Err(error) = ended(response) {
            let error = json!({ "message": error["message"], "type": "server_error",
                "param": null, "code": error["code"] });
            return vec![json!({ "error": error })];
        }
        let mut calls = if self.stops.is_over() { Vec::new() } else { calls(response) };
        for (place, call) in calls.iter_mut().enumerate() {
            call["index"] = place.into();
        }
        let mut chunks = Vec::new();
        let rest = self.stops.rest();
        if !rest.is_empty() {
            chunks.push(self.chunk(json!({ "content": rest }), None));
        }
        if !calls.is_empty() {
            chunks.push(self.chunk(json!({ "tool_calls": calls }), None));
        }
        chunks.push(self.chunk(json!({}), Some(finish(response, &self.stops))));
        if self.usage {
            let mut last = self.head.clone();
            last["choices"] = json!([]);
            last["usage"] = if response["usage"].is_null() { Value::Null } else { usage(response) };
            chunks.push(last);
        }
        chunks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(output: Value) -> Value {
        json!({ "id": "resp_x", "created_at": 1, "model": "m", "status": "completed",
            "service_tier": "default", "output": output, "error": null,
            "incomplete_details": null, "usage": { "input_tokens": 1, "output_tokens": 2,
            "total_tokens": 3, "input_tokens_details": { "cached_tokens": 0 },
            "output_tokens_details": { "reasoning_tokens": 0 } } })
    }

    fn call(id: &str) -> Value {
        json!({ "type": "function_call", "call_id": id, "name": "f", "arguments": "{}" })
    }

    fn said(text: &str) -> Value {
        json!({ "type": "message", "content": [{ "type": "output_text", "text": text }] })
    }

    #[test]
    fn only_the_calls_that_are_the_clients_are_shown() {
        let output = json!([said("a"), call("1"),
            { "type": "function_call_output", "call_id": "1", "output": "" }, said("b"), call("2")]);
        let completion = completion(&response(output), Stops::default()).unwrap();
        let choice = &completion["choices"][0];
        assert_eq!(choice["message"]["content"], "a\n\nb");
        assert_eq!(choice["message"]["tool_calls"].as_array().unwrap().len(), 1);
        assert_eq!(choice["message"]["tool_calls"][0]["id"], "2");
        assert_eq!(choice["finish_reason"], "tool_calls");
        assert_eq!(completion["id"], "chatcmpl-x");
        assert_eq!(completion["usage"]["prompt_tokens"], 1);
    }

    #[test]
    fn the_chunks_say_what_the_completion_says() {
        let whole = response(json!([said("one two"), call("2")]));
        let mut chunks = Chunks::new(&whole, true, Stops::default());
        let event = |kind, data| Event { kind, data };
        let all: Vec<Value> = [
            event("response.created", json!({})),
            event("response.output_item.added", json!({ "item": { "type": "message" } })),
            event("response.output_text.delta", json!({ "delta": "one" })),
            event("response.output_text.delta", json!({ "delta": " two" })),
            event("response.completed", json!({ "response": whole })),
        ]
        .iter()
        .flat_map(|event| chunks.of(event))
        .collect();
        let text: String = all
            .iter()
            .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str())
            .collect();
        assert_eq!(text, "one two");
        assert_eq!(all[3]["choices"][0]["delta"]["tool_calls"][0]["index"], 0);
        assert_eq!(all[4]["choices"][0]["finish_reason"], "tool_calls");
        assert_eq!((&all[5]["choices"], &all[5]["usage"]["total_tokens"]), (&json!([]), &json!(3)));
    }

    #[test]
    fn a_stop_ends_the_text_and_drops_the_calls_whole_and_in_chunks() {
        let stops = || Stops::read(&json!({ "stop": "tw" })).unwrap();
        let whole = response(json!([said("one two"), call("2")]));
        let choice = completion(&whole, stops()).unwrap()["choices"][0].clone();
        assert_eq!(
            (&choice["message"]["content"], &choice["finish_reason"]),
            (&json!("one "), &json!("stop"))
        );
        assert!(choice["message"].get("tool_calls").is_none());
        let mut chunks = Chunks::new(&whole, false, stops());
        let delta =
            |text| Event { kind: "response.output_text.delta", data: json!({ "delta": text }) };
        let end = Event { kind: "response.completed", data: json!({ "response": whole }) };
        let all: Vec<Value> =
            [delta("one t"), delta("wo"), end].iter().flat_map(|it| chunks.of(it)).collect();
        assert_eq!(all.len(), 2, "{all:?}");
        assert_eq!(all[0]["choices"][0]["delta"]["content"], "one ");
        assert_eq!(all[1]["choices"][0]["finish_reason"], "stop");
    }

    #[test]
    fn a_failure_is_an_error_and_no_completion() {
        let mut failed = response(json!([]));
        failed["status"] = "failed".into();
        failed["error"] = json!({ "code": "server_error", "message": "m" });
        assert_eq!(completion(&failed, Stops::default()).unwrap_err()["message"], "m");
        let mut chunks = Chunks::new(&failed, false, Stops::default());
        let last =
            chunks.of(&Event { kind: "response.failed", data: json!({ "response": failed }) });
        assert_eq!(last[0]["error"]["message"], "m");
    }
}
