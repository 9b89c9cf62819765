//! What every response and every stream must keep to.
//!
//! The schemas are those of the Open Responses specification, where its document is beside the
//! repository (`OPEN_RESPONSES_OPENAPI` names it otherwise); a test that misses it says so by name.
//! The order of events is checked here, in every case.

use std::{collections::BTreeMap, path::PathBuf, sync::OnceLock};

use futures::StreamExt as _;
use serde_json::{Value, json};

use crate::support::repository;

/// The keys of a response, and which of them may be null.
const KEYS: [(&str, bool); 31] = [
    ("id", false),
    ("object", false),
    ("created_at", false),
    ("completed_at", true),
    ("status", false),
    ("incomplete_details", true),
    ("model", false),
    ("previous_response_id", true),
    ("instructions", true),
    ("output", false),
    ("error", true),
    ("tools", false),
    ("tool_choice", false),
    ("truncation", false),
    ("parallel_tool_calls", false),
    ("text", false),
    ("top_p", false),
    ("presence_penalty", false),
    ("frequency_penalty", false),
    ("top_logprobs", false),
    ("temperature", false),
    ("reasoning", true),
    ("usage", true),
    ("max_output_tokens", true),
    ("max_tool_calls", true),
    ("store", false),
    ("background", false),
    ("service_tier", false),
    ("metadata", false),
    ("safety_identifier", true),
    ("prompt_cache_key", true),
];

/// The document of the specification, as far as it is here.
struct Specification {
    components: Value,
    validators: std::sync::Mutex<BTreeMap<String, &'static jsonschema::Validator>>,
}

fn specification() -> Option<&'static Specification> {
    static DOCUMENT: OnceLock<Option<Specification>> = OnceLock::new();
    DOCUMENT
        .get_or_init(|| {
            let named = std::env::var_os("OPEN_RESPONSES_OPENAPI").map(PathBuf::from);
            let path =
                named.unwrap_or_else(|| repository("../shared/data/open-responses/openapi.json"));
            let Ok(text) = std::fs::read_to_string(&path) else {
                let test = std::thread::current().name().unwrap_or_default().to_owned();
                eprintln!(
                    "{test}: not held against Open Responses: {} is not there",
                    path.display()
                );
                return None;
            };
            let mut document: Value = serde_json::from_str(&text).unwrap();
            let mut components = document["components"].take();
            // It says null for a schema that it requires in a request; its own clients send one.
            components["schemas"]["JsonSchemaResponseFormat"]["properties"]["schema"] = json!({});
            Some(Specification { components, validators: Default::default() })
        })
        .as_ref()
}

/// Panics unless a value fits a schema of the specification.
#[track_caller]
pub fn fits(schema: &str, value: &Value) {
    let Some(specification) = specification() else { return };
    let validator = {
        let mut validators = specification.validators.lock().unwrap();
        *validators.entry(schema.to_owned()).or_insert_with(|| {
            let root = json!({
                "$ref": format!("#/components/schemas/{schema}"),
                "components": specification.components,
            });
            Box::leak(Box::new(jsonschema::validator_for(&root).unwrap()))
        })
    };
    let wrong: Vec<String> = validator
        .iter_errors(value)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(wrong.is_empty(), "{value} is no {schema}: {wrong:?}");
}

/// Panics unless a value is a response.
#[track_caller]
pub fn check_response(response: &Value) {
    let map = response.as_object().unwrap_or_else(|| panic!("{response}"));
    for (key, nullable) in KEYS {
        let value = map.get(key).unwrap_or_else(|| panic!("{key} is not in {response}"));
        assert!(nullable || !value.is_null(), "{key} is null in {response}");
    }
    assert_eq!(map.len(), KEYS.len(), "{response}");
    let ids: Vec<&str> = response["output"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["id"].as_str().unwrap())
        .collect();
    let distinct: std::collections::BTreeSet<&str> = ids.iter().copied().collect();
    assert_eq!(distinct.len(), ids.len(), "{ids:?}");
    fits("ResponseResource", response);
}

fn schema_of(kind: &str) -> &'static str {
    match kind {
        "response.created" => "ResponseCreatedStreamingEvent",
        "response.queued" => "ResponseQueuedStreamingEvent",
        "response.in_progress" => "ResponseInProgressStreamingEvent",
        "response.completed" => "ResponseCompletedStreamingEvent",
        "response.failed" => "ResponseFailedStreamingEvent",
        "response.incomplete" => "ResponseIncompleteStreamingEvent",
        "response.output_item.added" => "ResponseOutputItemAddedStreamingEvent",
        "response.output_item.done" => "ResponseOutputItemDoneStreamingEvent",
        "response.content_part.added" => "ResponseContentPartAddedStreamingEvent",
        "response.content_part.done" => "ResponseContentPartDoneStreamingEvent",
        "response.output_text.delta" => "ResponseOutputTextDeltaStreamingEvent",
        "response.output_text.done" => "ResponseOutputTextDoneStreamingEvent",
        "response.output_text.annotation.added" => {
            "ResponseOutputTextAnnotationAddedStreamingEvent"
        }
        "response.refusal.delta" => "ResponseRefusalDeltaStreamingEvent",
        "response.refusal.done" => "ResponseRefusalDoneStreamingEvent",
        "response.reasoning.delta" => "ResponseReasoningDeltaStreamingEvent",
        "response.reasoning.done" => "ResponseReasoningDoneStreamingEvent",
        "response.reasoning_summary_part.added" => {
            "ResponseReasoningSummaryPartAddedStreamingEvent"
        }
        "response.reasoning_summary_part.done" => "ResponseReasoningSummaryPartDoneStreamingEvent",
        "response.reasoning_summary_text.delta" => "ResponseReasoningSummaryDeltaStreamingEvent",
        "response.reasoning_summary_text.done" => "ResponseReasoningSummaryDoneStreamingEvent",
        "response.function_call_arguments.delta" => {
            "ResponseFunctionCallArgumentsDeltaStreamingEvent"
        }
        "response.function_call_arguments.done" => {
            "ResponseFunctionCallArgumentsDoneStreamingEvent"
        }
        other => panic!("{other} is no event of a response"),
    }
}

/// What is open while a stream is read.
#[derive(Default)]
struct Open {
    /// The item: its index and id.
    item: Option<(u64, Value)>,
    /// The part: its index, and whether its text is done.
    part: Option<(Value, bool)>,
    text: String,
    calls: bool,
}

/// Panics unless these are all events of one response, in their order, each of its shape. With
/// `exact`, deltas add up to the text that they belong to. Returns the response of the end.
#[track_caller]
pub fn check_stream(events: &[Value], exact: bool) -> Value {
    let mut open = Open::default();
    let mut items = Vec::new();
    let mut last = None;
    for (number, event) in events.iter().enumerate() {
        let kind = event["type"].as_str().unwrap();
        fits(schema_of(kind), event);
        assert_eq!(event["sequence_number"], number, "{event}");
        assert!(last.is_none(), "after the end: {event}");
        let name = kind.strip_prefix("response.").unwrap();
        match name {
            "created" => assert_eq!(number, 0, "created comes first, and once"),
            "queued" => assert_eq!(number, 1),
            "in_progress" => {
                assert!(number == 1 || events[1]["type"] == "response.queued" && number == 2);
            }
            "completed" | "failed" | "incomplete" => {
                assert!(number >= 2, "{event}");
                check_response(&event["response"]);
                if name == "completed" {
                    assert!(open.item.is_none(), "an item is open: {event}");
                    assert_eq!(event["response"]["output"], Value::Array(items.clone()));
                }
                last = Some(event["response"].clone());
            }
            "output_item.added" => {
                assert!(open.item.is_none(), "another item is open: {event}");
                let index = event["output_index"].as_u64().unwrap();
                assert_eq!(index, items.len() as u64, "{event}");
                open = Open { item: Some((index, event["item"]["id"].clone())), ..Open::default() };
            }
            "output_item.done" => {
                let (index, id) = open.item.take().expect("an item is open");
                assert!(open.part.is_none(), "a part is open: {event}");
                assert_eq!(event["output_index"], index);
                if exact {
                    assert_eq!(event["item"]["id"], id);
                }
                items.push(event["item"].clone());
            }
            _ => check_part(&mut open, name, event, exact),
        }
    }
    assert_eq!(events[0]["type"], "response.created");
    last.expect("every stream has an end")
}

fn check_part(open: &mut Open, name: &str, event: &Value, exact: bool) {
    let (index, id) = open.item.clone().unwrap_or_else(|| panic!("no item is open: {event}"));
    assert_eq!(event["output_index"], index, "{event}");
    if exact {
        assert_eq!(event["item_id"], id, "{event}");
    }
    let place = match (&event["content_index"], &event["summary_index"]) {
        (Value::Null, place) => place.clone(),
        (place, _) => place.clone(),
    };
    let arguments = name.starts_with("function_call_arguments");
    match name.rsplit_once('.').unwrap().1 {
        "added" if name.contains("annotation") => {}
        "added" => {
            assert!(open.part.is_none(), "another part is open: {event}");
            open.part = Some((place, false));
            open.text.clear();
        }
        "delta" => {
            if !arguments {
                assert_eq!(open.part, Some((place, false)), "{event}");
            }
            let delta = event["delta"].as_str().unwrap();
            assert!(!delta.is_empty(), "{event}");
            open.text.push_str(delta);
        }
        "done" if name.contains("part") => {
            assert_eq!(open.part.take(), Some((place, true)), "{event}");
        }
        "done" => {
            let words = ["text", "refusal", "arguments"];
            let whole = words.iter().find_map(|word| event[*word].as_str()).unwrap();
            if exact {
                assert_eq!(open.text, whole, "{event}");
            }
            if arguments {
                assert!(!std::mem::replace(&mut open.calls, true), "twice: {event}");
            } else {
                assert_eq!(open.part, Some((place.clone(), false)), "{event}");
                open.part = Some((place, true));
            }
        }
        other => panic!("{other}: {event}"),
    }
}

/// The lines of a stream of server-sent events: the name and the data of each.
pub async fn frames(answer: reqwest::Response) -> Vec<(Option<String>, String)> {
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    let (mut chunks, mut text, mut frames) = (answer.bytes_stream(), String::new(), Vec::new());
    while let Some(Ok(chunk)) = chunks.next().await {
        text.push_str(std::str::from_utf8(&chunk).unwrap());
        while let Some((frame, rest)) = text.split_once("\n\n") {
            let line = |name: &str| {
                frame.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned)
            };
            assert!(line("id: ").is_none(), "{frame}");
            if let Some(data) = line("data: ") {
                frames.push((line("event: "), data));
            }
            text = rest.to_owned();
        }
    }
    frames
}

/// The events of a stream that went to its end.
pub async fn events(answer: reqwest::Response) -> Vec<Value> {
    let mut frames = frames(answer).await;
    assert_eq!(frames.pop(), Some((None, "[DONE]".to_owned())));
    let read = |(name, data): (Option<String>, String)| {
        let event: Value = serde_json::from_str(&data).unwrap();
        assert_eq!(name.as_deref(), event["type"].as_str());
        event
    };
    frames.into_iter().map(read).collect()
}

/// The types of events, without the word that all have.
pub fn kinds(events: &[Value]) -> Vec<&str> {
    events
        .iter()
        .map(|it| it["type"].as_str().unwrap().strip_prefix("response.").unwrap())
        .collect()
}
