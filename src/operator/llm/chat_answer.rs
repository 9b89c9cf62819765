//! Parses responses of the Chat Completions API.
//!
//! Accepts the variants of servers other than OpenAI's: calls without an index or all at index 0,
//! arguments that are an object, `reasoning_content` and `reasoning`, content as a list of parts,
//! and one document in place of a stream. A response is complete with its `finish_reason`; one that
//! ends before is cut off.

use serde_json::Value;

use super::{
    draft::{Draft, Grows},
    parts::{Answer, json},
    price::Tokens,
    wrong::{Reported, Wrong},
};
use crate::protocol::{ModelStop, sse::SseEvent};

/// Parses the chunks of a response.
#[derive(Debug, Default)]
pub(super) struct ChatAnswer {
    message: Option<(usize, Grows, usize)>,
    reasoning: Option<usize>,
    calls: Vec<Call>,
    over: bool,
}

/// A call in progress.
#[derive(Debug)]
struct Call {
    index: Option<u64>,
    id: Option<String>,
    item: usize,
}

impl Answer for ChatAnswer {
    fn event(&mut self, event: &SseEvent, draft: &mut Draft) -> Result<(), Wrong> {
        if event.data == "[DONE]" {
            self.over = true;
            return Ok(());
        }
        let chunk = json(&event.data)?;
        self.chunk(&chunk, "delta", draft)
    }

    fn document(&mut self, document: Value, draft: &mut Draft) -> Result<(), Wrong> {
        self.chunk(&document, "message", draft)?;
        self.over = true;
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.over
    }
}

impl ChatAnswer {
    fn chunk(&mut self, chunk: &Value, says: &str, draft: &mut Draft) -> Result<(), Wrong> {
        if let Some(error) = chunk.get("error").filter(|error| !error.is_null()) {
            return Err(Wrong::Reported(Reported::read(error)));
        }
        if chunk["object"] == "error" {
            return Err(Wrong::Reported(Reported::read(chunk)));
        }
        let choices = chunk.get("choices").and_then(Value::as_array);
        let usage = chunk.get("usage").filter(|usage| usage.is_object());
        if choices.is_none() && usage.is_none() {
            return Err(malformed("a chunk has no choices", chunk));
        }
        if let Some(model) = chunk["model"].as_str().filter(|model| !model.is_empty()) {
            draft.model.get_or_insert_with(|| model.to_owned());
        }
        if let Some(usage) = usage {
            draft.tokens = tokens(usage);
        }
        // The request never asks for more than one choice.
        let first = |choice: &&Value| choice["index"].as_u64().is_none_or(|index| index == 0);
        for choice in choices.into_iter().flatten().filter(first) {
            if let Some(delta) = choice.get(says).filter(|delta| delta.is_object()) {
                self.delta(delta, draft)?;
            }
            match &choice["finish_reason"] {
                Value::Null => {}
                // Some servers send it with every chunk.
                Value::String(reason) if reason.is_empty() => {}
                Value::String(reason) => draft.stop = Some(stop(reason, chunk)?),
                _ => return Err(malformed("a finish_reason is no text", chunk)),
            }
        }
        Ok(())
    }

    fn delta(&mut self, delta: &Value, draft: &mut Draft) -> Result<(), Wrong> {
        for key in ["reasoning_content", "reasoning"] {
            if let Some(text) = delta[key].as_str() {
                self.think(text, draft)?;
                break;
            }
        }
        match &delta["content"] {
            Value::Null => {}
            Value::String(text) => self.say(Grows::Text, text, draft)?,
            Value::Array(parts) => {
                for part in parts {
                    self.part(part, draft)?;
                }
            }
            _ => return Err(malformed("a content is neither text nor list", delta)),
        }
        if let Some(text) = delta["refusal"].as_str() {
            self.say(Grows::Refusal, text, draft)?;
        }
        match &delta["tool_calls"] {
            Value::Null => {}
            Value::Array(calls) => {
                for call in calls {
                    self.call(call, draft)?;
                }
            }
            _ => return Err(malformed("tool_calls is no list", delta)),
        }
        if let Some(function) = delta.get("function_call").filter(|it| it.is_object()) {
            self.call(&serde_json::json!({ "index": 0, "function": function }), draft)?;
        }
        Ok(())
    }

    /// Handles a part of a content that is a list.
    fn part(&mut self, part: &Value, draft: &mut Draft) -> Result<(), Wrong> {
        match part["type"].as_str() {
            Some("text") => self.say(Grows::Text, part["text"].as_str().unwrap_or_default(), draft),
            Some("thinking") => match &part["thinking"] {
                Value::String(text) => self.think(text, draft),
                Value::Array(parts) => parts.iter().try_for_each(|part| {
                    self.think(part["text"].as_str().unwrap_or_default(), draft)
                }),
                _ => Err(malformed("a thought is neither text nor list", part)),
            },
            _ => Err(malformed("a part of the content has an unknown type", part)),
        }
    }

    fn say(&mut self, grows: Grows, text: &str, draft: &mut Draft) -> Result<(), Wrong> {
        if text.is_empty() {
            return Ok(());
        }
        let (item, part) = match self.message {
            Some((item, last, part)) if last == grows => (item, part),
            Some((item, _, part)) => (item, part + 1),
            None => {
                self.reasoning = None;
                self.end_before(draft);
                (draft.message()?, 0)
            }
        };
        self.message = Some((item, grows, part));
        draft.grow(grows, item, part, text)
    }

    fn think(&mut self, text: &str, draft: &mut Draft) -> Result<(), Wrong> {
        if text.is_empty() {
            return Ok(());
        }
        let item = match self.reasoning {
            Some(item) => item,
            None => {
                self.message = None;
                self.end_before(draft);
                *self.reasoning.insert(draft.reasoning()?)
            }
        };
        draft.grow(Grows::Reasoning, item, 0, text)
    }

    /// Ends the items before the first call when something else begins; calls may be interleaved.
    fn end_before(&self, draft: &mut Draft) {
        if self.calls.is_empty() {
            draft.over(draft.len());
        }
    }

    fn call(&mut self, call: &Value, draft: &mut Draft) -> Result<(), Wrong> {
        let index = call["index"].as_u64();
        let id = call["id"].as_str().filter(|id| !id.is_empty());
        let function = &call["function"];
        let name = function["name"].as_str().filter(|name| !name.is_empty());
        let known = self.calls.iter().rposition(|known| match (index, id, known.id.as_deref()) {
            // Some servers give every call the index 0; a different id is a different call.
            (_, Some(id), Some(known_id)) if id != known_id => false,
            (Some(index), _, _) if known.index.is_some() => known.index == Some(index),
            (_, Some(id), Some(known_id)) => id == known_id,
            _ => true,
        });
        // Without index and id, a name begins a call, and anything else continues the last one.
        let known = known.filter(|_| index.is_some() || id.is_some() || name.is_none());
        let item = match known {
            Some(at) => {
                let known = &mut self.calls[at];
                if let (None, Some(id)) = (&known.id, id) {
                    known.id = Some(id.to_owned());
                    if let Some(item) = draft.item(known.item) {
                        item["call_id"] = id.into();
                    }
                }
                known.item
            }
            None => {
                let name = name.ok_or_else(|| malformed("a call has no name", call))?;
                (self.message, self.reasoning) = (None, None);
                self.end_before(draft);
                let item = draft.call(id, name)?;
                self.calls.push(Call { index, id: id.map(str::to_owned), item });
                item
            }
        };
        match &function["arguments"] {
            Value::Null => Ok(()),
            Value::String(text) => draft.argue(item, text),
            object @ Value::Object(_) => draft.argue(item, &object.to_string()),
            _ => Err(malformed("arguments are neither text nor object", call)),
        }
    }
}

fn stop(reason: &str, chunk: &Value) -> Result<ModelStop, Wrong> {
    match reason {
        "length" | "max_tokens" => Ok(ModelStop::Length),
        "tool_calls" | "function_call" => Ok(ModelStop::ToolCalls),
        "content_filter" => Ok(ModelStop::ContentFilter),
        "error" => Err(malformed("the provider ended it with an error", chunk)),
        // `stop`, and its synonyms in other servers.
        _ => Ok(ModelStop::End),
    }
}

fn tokens(usage: &Value) -> Tokens {
    let count = |value: &Value| value.as_u64();
    let cached = count(&usage["prompt_tokens_details"]["cached_tokens"])
        .or_else(|| count(&usage["prompt_cache_hit_tokens"]));
    Tokens {
        input: count(&usage["prompt_tokens"]),
        cached,
        cache_written: None,
        output: count(&usage["completion_tokens"]),
        reasoning: count(&usage["completion_tokens_details"]["reasoning_tokens"]),
    }
}

fn malformed(why: &str, what: &Value) -> Wrong {
    Wrong::malformed(why, what.to_string().as_bytes())
}
