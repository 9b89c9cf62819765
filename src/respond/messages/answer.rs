//! A response as a message.

use serde_json::{Value, json};

use crate::respond::{
    chat::Stops,
    response::{ended, open_calls},
    shown_id,
};

/// Converts an ended response to a message, cut at the stops.
///
/// # Errors
/// Returns the error of a failed response: `{code, message}`.
pub fn message(response: &Value, mut stops: Stops) -> Result<Value, Value> {
    ended(response)?;
    let mut content = Vec::new();
    for item in response["output"].as_array().into_iter().flatten() {
        if stops.met().is_some() {
            break;
        }
        match item["type"].as_str() {
            Some("reasoning") => content.extend(thinking(item)),
            Some("message") => {
                for text in texts(item) {
                    let cut = stops.feed(text) + &stops.rest();
                    if !cut.is_empty() {
                        content.push(json!({ "type": "text", "text": cut }));
                    }
                    if stops.met().is_some() {
                        break;
                    }
                }
            }
            _ => {}
        }
    }
    if stops.met().is_none() {
        content.extend(calls(response));
    }
    let mut message = head(response);
    message["content"] = content.into();
    message["stop_reason"] = reason(response, &stops).into();
    message["stop_sequence"] = stops.met().into();
    message["usage"] = usage(response);
    Ok(message)
}

/// A message without its content.
pub(super) fn head(response: &Value) -> Value {
    let id = response["id"].as_str().unwrap_or_default();
    json!({
        "id": shown_id("msg_", &id.replacen("resp_", "run_", 1)),
        "type": "message",
        "role": "assistant",
        "model": response["model"],
        "content": [],
        "stop_reason": null,
        "stop_sequence": null,
        "usage": usage(response),
    })
}

/// The block of a reasoning item: its texts, or its encrypted content if it shows none.
fn thinking(item: &Value) -> Option<Value> {
    let parts = |name: &str| item[name].as_array().into_iter().flatten();
    let texts: Vec<&str> =
        parts("summary").chain(parts("content")).filter_map(|it| it["text"].as_str()).collect();
    let signature = item["encrypted_content"].as_str().unwrap_or_default();
    let text = texts.join("\n\n");
    match (text.is_empty(), signature.is_empty()) {
        (true, true) => None,
        (true, false) => Some(json!({ "type": "redacted_thinking", "data": signature })),
        (false, _) => Some(json!({ "type": "thinking", "thinking": text, "signature": signature })),
    }
}

/// The texts of a message item, refusals among them.
fn texts(item: &Value) -> impl Iterator<Item = &str> {
    let parts = item["content"].as_array().into_iter().flatten();
    parts.filter_map(|part| part["text"].as_str().or_else(|| part["refusal"].as_str()))
}

/// Returns the calls without an output, which are the client's.
pub(super) fn calls(response: &Value) -> Vec<Value> {
    open_calls(response).map(|call| {
        let arguments = call["arguments"].as_str().unwrap_or_default();
        let input = match serde_json::from_str(arguments) {
            Ok(object @ Value::Object(_)) => object,
            _ if arguments.is_empty() => json!({}),
            // No tool of the client has an argument of this name, so none takes it for its own.
            Ok(_) | Err(_) => json!({ "malformed_arguments": arguments }),
        };
        json!({ "type": "tool_use", "id": call["call_id"], "name": call["name"], "input": input })
    })
    .collect()
}

/// Returns the reason why the answer ended.
pub(super) fn reason(response: &Value, stops: &Stops) -> &'static str {
    let refuses = |item: &Value| {
        item["content"].as_array().into_iter().flatten().any(|part| part["type"] == "refusal")
    };
    if stops.met().is_some() {
        return "stop_sequence";
    }
    match response["incomplete_details"]["reason"].as_str() {
        Some("content_filter") => "refusal",
        Some(_) => "max_tokens",
        None if !calls(response).is_empty() => "tool_use",
        None if response["output"].as_array().into_iter().flatten().any(refuses) => "refusal",
        None => "end_turn",
    }
}

/// Returns the usage; what was not reported is 0, as clients need a number.
pub(super) fn usage(response: &Value) -> Value {
    let used = &response["usage"];
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let cached = number(&used["input_tokens_details"]["cached_tokens"]);
    json!({
        "input_tokens": number(&used["input_tokens"]).saturating_sub(cached),
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": number(&used["output_tokens"]),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// An ended response.
    pub(in crate::respond::messages) fn response(output: Value) -> Value {
        json!({ "id": "resp_x", "created_at": 1, "model": "m", "status": "completed",
            "output": output, "error": null, "incomplete_details": null,
            "usage": { "input_tokens": 10, "output_tokens": 2, "total_tokens": 12,
            "input_tokens_details": { "cached_tokens": 4 } } })
    }

    /// A call.
    pub(in crate::respond::messages) fn call(id: &str) -> Value {
        json!({ "type": "function_call", "call_id": id, "name": "f", "arguments": "{\"a\":1}" })
    }

    /// A message.
    pub(in crate::respond::messages) fn said(text: &str) -> Value {
        json!({ "type": "message", "id": text, "content": [{ "type": "output_text", "text": text }] })
    }

    /// A thought.
    pub(in crate::respond::messages) fn thought(text: &str) -> Value {
        json!({ "type": "reasoning", "id": "rs", "encrypted_content": "sig",
            "summary": [{ "type": "summary_text", "text": text }] })
    }

    #[test]
    fn a_message_has_thoughts_texts_and_the_calls_of_the_client() {
        let output = json!([thought("hm"), said("a"), call("1"),
            { "type": "function_call_output", "call_id": "1", "output": "" }, said("b"), call("2")]);
        let message = message(&response(output), Stops::default()).unwrap();
        let kinds: Vec<_> =
            message["content"].as_array().unwrap().iter().map(|it| &it["type"]).collect();
        assert_eq!(kinds, ["thinking", "text", "text", "tool_use"]);
        assert_eq!(
            message["content"][3],
            json!({ "type": "tool_use", "id": "2", "name": "f", "input": { "a": 1 } })
        );
        assert_eq!(message["stop_reason"], "tool_use");
        assert_eq!(message["id"], "msg_x");
        let usage = json!({ "input_tokens": 6, "cache_read_input_tokens": 4,
            "cache_creation_input_tokens": 0, "output_tokens": 2 });
        assert_eq!(message["usage"], usage);
    }

    #[test]
    fn arguments_that_are_no_object_are_shown_as_what_they_are() {
        for (arguments, input) in [
            ("{\"a\": oops", json!({ "malformed_arguments": "{\"a\": oops" })),
            ("[1]", json!({ "malformed_arguments": "[1]" })),
            ("", json!({})),
        ] {
            let mut call = call("1");
            call["arguments"] = arguments.into();
            let message = message(&response(json!([call])), Stops::default()).unwrap();
            assert_eq!(message["content"][0]["input"], input, "{arguments}");
        }
    }

    #[test]
    fn an_answer_ends_for_one_reason() {
        let reason = |response: Value, stop: Value| {
            let stops = Stops::of(&json!({ "stop_sequences": stop }), "stop_sequences", 4).unwrap();
            let message = message(&response, stops).unwrap();
            (message["stop_reason"].clone(), message["stop_sequence"].clone())
        };
        let plain = || response(json!([said("one two"), call("1")]));
        assert_eq!(reason(plain(), json!(["tw"])), (json!("stop_sequence"), json!("tw")));
        let mut cut = plain();
        cut["incomplete_details"] = json!({ "reason": "max_output_tokens" });
        assert_eq!(reason(cut, json!(null)), (json!("max_tokens"), json!(null)));
        assert_eq!(reason(response(json!([said("x")])), json!(null)).0, "end_turn");
        let no =
            json!([{ "type": "message", "content": [{ "type": "refusal", "refusal": "no" }] }]);
        assert_eq!(reason(response(no), json!(null)).0, "refusal");
        let mut failed = plain();
        failed["status"] = "failed".into();
        failed["error"] = json!({ "message": "m" });
        assert_eq!(message(&failed, Stops::default()).unwrap_err()["message"], "m");
    }
}
