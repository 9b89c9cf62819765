//! Parses responses of a Responses API.
//!
//! Complete items are kept as they come (`response.output_item.done`, and the final response); the
//! deltas before are for watchers. Unknown events are ignored.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    draft::{Draft, Grows},
    parts::{Answer, json},
    price::Tokens,
    wrong::{Reported, Wrong},
};
use crate::protocol::{ModelStop, sse::SseEvent};

/// Parses the events of a response.
#[derive(Debug, Default)]
pub(super) struct ResponsesAnswer {
    /// The indexes of items by their `output_index`.
    places: BTreeMap<u64, usize>,
    over: bool,
}

impl Answer for ResponsesAnswer {
    fn event(&mut self, event: &SseEvent, draft: &mut Draft) -> Result<(), Wrong> {
        if event.data == "[DONE]" {
            self.over = true;
            return Ok(());
        }
        let mut said = json(&event.data)?;
        let kind = match said["type"].as_str() {
            Some(kind) => kind.to_owned(),
            None if said.get("error").is_some_and(|error| !error.is_null()) => "error".to_owned(),
            None if !event.name.is_empty() => event.name.clone(),
            None => return Err(malformed("an event has no type", &said)),
        };
        self.take(&kind, &mut said, draft)
    }

    fn document(&mut self, mut document: Value, draft: &mut Draft) -> Result<(), Wrong> {
        let whole = document["status"].as_str();
        if whole.is_none() && document.get("error").is_some_and(|error| !error.is_null()) {
            return Err(Wrong::Reported(Reported::read(&document["error"])));
        }
        self.end(&mut document, draft)
    }

    fn is_over(&self) -> bool {
        self.over
    }
}

impl ResponsesAnswer {
    fn take(&mut self, kind: &str, said: &mut Value, draft: &mut Draft) -> Result<(), Wrong> {
        let grows = match kind {
            "response.output_text.delta" => Some((Grows::Text, "content_index")),
            "response.refusal.delta" => Some((Grows::Refusal, "content_index")),
            "response.reasoning_text.delta" | "response.reasoning.delta" => {
                Some((Grows::Reasoning, "content_index"))
            }
            "response.reasoning_summary_text.delta" | "response.reasoning_summary.delta" => {
                Some((Grows::Summary, "summary_index"))
            }
            _ => None,
        };
        if let Some((grows, part)) = grows {
            let item = self.place(said)?;
            let part = said[part].as_u64().and_then(|part| usize::try_from(part).ok());
            let delta = text(said, "delta")?;
            return draft.grow(grows, item, part.unwrap_or(0), delta);
        }
        match kind {
            "response.output_item.added" => {
                let index = index(said)?;
                let place = draft.begin(said["item"].take())?;
                self.places.insert(index, place);
                Ok(())
            }
            "response.function_call_arguments.delta" => {
                let item = self.place(said)?;
                draft.argue(item, text(said, "delta")?)
            }
            "response.output_item.done" => {
                let index = index(said)?;
                let item = said["item"].take();
                let place = *self.places.entry(index).or_insert(draft.len());
                draft.put(place, item)?;
                if place == draft.told() {
                    draft.over(place + 1);
                }
                Ok(())
            }
            "response.completed"
            | "response.incomplete"
            | "response.failed"
            | "response.cancelled" => match said.get_mut("response") {
                Some(response) => self.end(response, draft),
                None => Err(malformed("an event has no response", said)),
            },
            "error" => {
                let error = said.get("error").filter(|error| error.is_object()).unwrap_or(said);
                Err(Wrong::Reported(Reported::read(error)))
            }
            _ => Ok(()),
        }
    }

    /// Handles the final response.
    fn end(&mut self, response: &mut Value, draft: &mut Draft) -> Result<(), Wrong> {
        self.over = true;
        if let Some(model) = response["model"].as_str() {
            draft.model = Some(model.to_owned());
        }
        if response["usage"].is_object() {
            draft.tokens = tokens(&response["usage"]);
        }
        let reason = response["incomplete_details"]["reason"].as_str();
        let stop = match (response["status"].as_str(), reason) {
            (Some("completed"), _) => ModelStop::End,
            (Some("incomplete"), Some("content_filter")) => ModelStop::ContentFilter,
            (Some("incomplete"), _) => ModelStop::Length,
            (Some("failed" | "cancelled"), _) => {
                return Err(Wrong::Reported(Reported::read(&response["error"])));
            }
            _ => return Err(malformed("a response has no status that ends it", response)),
        };
        draft.stop = Some(stop);
        match response["output"].take() {
            // Some servers omit the items that they sent before.
            Value::Array(items) if !items.is_empty() => draft.replace(items),
            _ => Ok(()),
        }
    }

    fn place(&self, said: &Value) -> Result<usize, Wrong> {
        let place = self.places.get(&index(said)?).copied();
        place.ok_or_else(|| malformed("a piece belongs to no item", said))
    }
}

fn index(said: &Value) -> Result<u64, Wrong> {
    let index = said["output_index"].as_u64();
    index.ok_or_else(|| malformed("an event has no output_index", said))
}

fn text<'a>(said: &'a Value, key: &str) -> Result<&'a str, Wrong> {
    said[key].as_str().ok_or_else(|| malformed("a piece has no text", said))
}

fn tokens(usage: &Value) -> Tokens {
    Tokens {
        input: usage["input_tokens"].as_u64(),
        cached: usage["input_tokens_details"]["cached_tokens"].as_u64(),
        cache_written: None,
        output: usage["output_tokens"].as_u64(),
        reasoning: usage["output_tokens_details"]["reasoning_tokens"].as_u64(),
    }
}

fn malformed(why: &str, what: &Value) -> Wrong {
    Wrong::malformed(why, what.to_string().as_bytes())
}
