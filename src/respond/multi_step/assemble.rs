//! The conversion of a stored chain to a response.

use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::{
    journal::{Chain, Outcome, RunState},
    protocol::{Json, ModelEnd, StepKind},
    store::Header,
};

/// Returns the response in the format of Open Responses: the items of its outermost chain, in
/// order.
pub(super) fn assembled(request_id: &str, header: &Header, chain: &Chain) -> Value {
    let asked = chain.started().map_or(Value::Null, |(it, _)| it.input.to_value());
    let visible = chain.steps().iter().filter(|step| step.scheduled.key.scope.is_main());
    let (mut output, mut model) = (Vec::new(), asked["model"].clone());
    for step in visible {
        let said = step.output.as_ref().map(Json::to_value);
        match (step.scheduled.kind, said) {
            (StepKind::ModelCall, Some(reply)) => {
                model = reply["model"].clone();
                output.extend(reply["items"].as_array().cloned().unwrap_or_default());
            }
            (StepKind::ToolCall, said) => {
                let text = match (said, &step.error) {
                    (Some(Value::String(text)), _) => text,
                    (Some(value), _) => value.to_string(),
                    (None, Some(error)) => error.to_string(),
                    (None, None) => continue,
                };
                output.push(json!({
                    "type": "function_call_output", "id": format!("fco_{}", step.scheduled.step),
                    "call_id": step.scheduled.call_id, "output": text, "status": "completed",
                }));
            }
            _ => {}
        }
    }
    let usage = chain.steps().iter().filter_map(|step| {
        let reply = step.output.as_ref().filter(|_| step.scheduled.kind == StepKind::ModelCall)?;
        reply.to_value().get("usage").filter(|usage| usage.is_object()).cloned()
    });
    let usage = usage.reduce(|mut sum, more| {
        add_numbers(&mut sum, &more);
        sum
    });
    let (status, error) = match chain.state() {
        RunState::Ended(Outcome::Completed(value)) => match cut_off(&value.to_value()["end"]) {
            Some(_) => ("incomplete", Value::Null),
            None => ("completed", Value::Null),
        },
        RunState::Ended(Outcome::Failed(failure)) => {
            let message = format!("{}: {}", failure.kind, failure.message);
            ("failed", json!({ "code": code_of(&failure.kind), "message": message }))
        }
        RunState::Ended(Outcome::Canceled(_)) => ("cancelled", Value::Null),
        RunState::Active | RunState::Compensating(_) => ("in_progress", Value::Null),
    };
    let seconds = |ms: u64| ms / 1_000;
    let incomplete = match chain.state() {
        RunState::Ended(Outcome::Completed(value)) => cut_off(&value.to_value()["end"]),
        _ => None,
    };
    let option = |name: &str, default: Value| match &asked["options"][name] {
        Value::Null => default,
        given => given.clone(),
    };
    json!({
        "id": format!("resp_{}", request_id.strip_prefix("run_").unwrap_or(request_id)),
        "object": "response",
        "created_at": seconds(header.created_ms),
        "completed_at": header.ended_ms.filter(|_| status == "completed").map(seconds),
        "status": status,
        "incomplete_details": incomplete.map(|reason| json!({ "reason": reason })),
        "model": model,
        "previous_response_id": option("previous_response_id", Value::Null),
        "instructions": asked["instructions"],
        "output": output,
        "error": error,
        "tools": asked["tools"].as_array().cloned().unwrap_or_default(),
        "tool_choice": match &asked["tool_choice"] { Value::Null => json!("auto"), it => it.clone() },
        "truncation": option("truncation", json!("disabled")),
        "parallel_tool_calls": asked["parallel_tool_calls"].as_bool().unwrap_or(true),
        "text": option("text", json!({ "format": { "type": "text" } })),
        "top_p": option("top_p", json!(1.0)),
        "presence_penalty": option("presence_penalty", json!(0.0)),
        "frequency_penalty": option("frequency_penalty", json!(0.0)),
        "top_logprobs": option("top_logprobs", json!(0)),
        "temperature": option("temperature", json!(1.0)),
        "reasoning": option("reasoning", Value::Null),
        "usage": usage,
        "max_output_tokens": option("max_output_tokens", Value::Null),
        "max_tool_calls": option("max_tool_calls", Value::Null),
        "store": option("store", json!(true)),
        "background": option("background", json!(false)),
        "service_tier": option("service_tier", json!("default")),
        "metadata": option("metadata", json!({})),
        "safety_identifier": option("safety_identifier", Value::Null),
        "prompt_cache_key": option("prompt_cache_key", Value::Null),
    })
}

/// Returns the reason why an answer was cut off, from the end of its loop.
fn cut_off(end: &Value) -> Option<&'static str> {
    match ModelEnd::deserialize(end).ok()? {
        ModelEnd::Length => Some("max_output_tokens"),
        ModelEnd::ContentFilter => Some("content_filter"),
        ModelEnd::MaxToolCalls => Some("max_tool_calls"),
        ModelEnd::Complete | ModelEnd::HandedBack => None,
    }
}

/// Returns the code of a failure's kind that clients know.
pub(in crate::respond) fn code_of(kind: &str) -> &'static str {
    match kind {
        "rate_limited" | "rate_limit" | "overloaded" => "rate_limit_exceeded",
        "invalid_input" | "invalid_prompt" => "invalid_prompt",
        _ => "server_error",
    }
}

/// Adds the numbers of one object to those of another, recursively.
fn add_numbers(sum: &mut Value, more: &Value) {
    let (Value::Object(sum), Value::Object(more)) = (sum, more) else { return };
    for (key, value) in more {
        match (sum.get_mut(key), value) {
            (Some(Value::Number(had)), Value::Number(has)) => {
                if let (Some(a), Some(b)) = (had.as_u64(), has.as_u64()) {
                    *had = a.saturating_add(b).into();
                }
            }
            (Some(inner @ Value::Object(_)), Value::Object(_)) => add_numbers(inner, value),
            (Some(_), _) => {}
            (None, value) => {
                sum.insert(key.clone(), value.clone());
            }
        }
    }
}
