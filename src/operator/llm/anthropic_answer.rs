//! Parses responses of Anthropic's Messages API.
//!
//! Each block is an item; consecutive texts are parts of one message. The signature of thinking,
//! and redacted thinking, become the `encrypted_content` of the item, marked as Anthropic's: they
//! are returned to this API only.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    anthropic::{self, redacted, signed},
    draft::{Draft, Grows},
    parts::{Answer, json},
    wrong::{Reported, Wrong},
};
use crate::protocol::{ModelStop, sse::SseEvent};

/// The stop reason of a model that must be called again to continue.
const PAUSED: &str = "pause_turn";

/// Parses the events of a response.
#[derive(Debug, Default)]
pub(super) struct AnthropicAnswer {
    blocks: BTreeMap<u64, Block>,
    /// The message that further texts join, until another block begins.
    message: Option<(usize, usize)>,
    over: bool,
    paused: bool,
}

/// A block in progress.
#[derive(Debug)]
enum Block {
    Text {
        item: usize,
        part: usize,
    },
    Thinking {
        item: usize,
        signature: String,
    },
    /// `given` is the input at the beginning of the block.
    Call {
        item: usize,
        given: Value,
        argued: bool,
    },
    Other {
        item: usize,
        input: String,
    },
    Sealed,
}

impl Answer for AnthropicAnswer {
    fn event(&mut self, event: &SseEvent, draft: &mut Draft) -> Result<(), Wrong> {
        let mut said = json(&event.data)?;
        let kind = said["type"].as_str().unwrap_or(&event.name).to_owned();
        match kind.as_str() {
            "message_start" => {
                self.take_message(&said["message"], draft);
                Ok(())
            }
            "content_block_start" => {
                let (index, block) = (index(&said)?, said["content_block"].take());
                self.begin(index, block, draft)
            }
            "content_block_delta" => self.delta(index(&said)?, &said["delta"], draft),
            "content_block_stop" => self.end(index(&said)?, draft),
            "message_delta" => {
                if let Some(reason) = said["delta"]["stop_reason"].as_str() {
                    draft.stop = Some(stop(reason));
                    self.paused = reason == PAUSED;
                }
                count(&said["usage"], draft);
                Ok(())
            }
            "message_stop" => {
                self.over = true;
                Ok(())
            }
            "error" => Err(Wrong::Reported(Reported::read(&said["error"]))),
            "" => match said.get("error") {
                Some(error) => Err(Wrong::Reported(Reported::read(error))),
                None => Err(malformed("an event has no type", &said)),
            },
            // `ping`, and unknown events.
            _ => Ok(()),
        }
    }

    fn document(&mut self, mut document: Value, draft: &mut Draft) -> Result<(), Wrong> {
        if document["type"] == "error" || !document["content"].is_array() {
            let error = document.get("error").filter(|error| !error.is_null());
            return Err(match error {
                Some(error) => Wrong::Reported(Reported::read(error)),
                None => malformed("it has no content", &document),
            });
        }
        self.take_message(&document, draft);
        if let Value::Array(blocks) = document["content"].take() {
            for (index, block) in (0..).zip(blocks) {
                self.begin(index, block, draft)?;
                self.end(index, draft)?;
            }
        }
        draft.stop = document["stop_reason"].as_str().map(stop);
        self.paused = document["stop_reason"] == PAUSED;
        self.over = true;
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.over
    }

    fn is_paused(&self) -> bool {
        self.paused
    }
}

impl AnthropicAnswer {
    fn take_message(&mut self, message: &Value, draft: &mut Draft) {
        if let Some(model) = message["model"].as_str() {
            draft.model = Some(model.to_owned());
        }
        count(&message["usage"], draft);
    }

    fn begin(&mut self, index: u64, block: Value, draft: &mut Draft) -> Result<(), Wrong> {
        let kind = block["type"].as_str().unwrap_or_default();
        let first = match kind {
            "text" | "thinking" => block[kind].as_str().map(str::to_owned),
            _ => None,
        };
        let joins = self.message.take().filter(|_| kind == "text");
        if joins.is_none() {
            // Blocks are sequential.
            draft.over(draft.len());
        }
        let begun = match kind {
            "text" => {
                let (item, part) = match joins {
                    Some((item, part)) => (item, part + 1),
                    None => (draft.message()?, 0),
                };
                self.message = Some((item, part));
                Block::Text { item, part }
            }
            "thinking" => {
                let signature = block["signature"].as_str().unwrap_or_default().to_owned();
                Block::Thinking { item: draft.reasoning()?, signature }
            }
            "redacted_thinking" => {
                let item = draft.reasoning()?;
                seal(item, redacted(block["data"].as_str().unwrap_or_default()), draft);
                Block::Sealed
            }
            "tool_use" => {
                let name = block["name"].as_str().filter(|name| !name.is_empty());
                let name = name.ok_or_else(|| malformed("a call has no name", &block))?;
                let item = draft.call(block["id"].as_str(), name)?;
                Block::Call { item, given: block["input"].clone(), argued: false }
            }
            "" => return Err(malformed("a block has no type", &block)),
            _ => {
                let item = anthropic::own(block).map_err(|it| Wrong::malformed(it.message, b""))?;
                Block::Other { item: draft.begin(item)?, input: String::new() }
            }
        };
        self.blocks.insert(index, begun);
        match first {
            Some(first) => self.grow(index, &first, draft),
            None => Ok(()),
        }
    }

    fn delta(&mut self, index: u64, delta: &Value, draft: &mut Draft) -> Result<(), Wrong> {
        let text =
            |key: &str| delta[key].as_str().ok_or_else(|| malformed("a piece has no text", delta));
        match delta["type"].as_str().unwrap_or_default() {
            "text_delta" => self.grow(index, text("text")?, draft),
            "thinking_delta" => self.grow(index, text("thinking")?, draft),
            "signature_delta" => match self.block(index, delta)? {
                Block::Thinking { signature, .. } => {
                    signature.push_str(text("signature")?);
                    Ok(())
                }
                _ => Err(malformed("a signature belongs to no thought", delta)),
            },
            "input_json_delta" => match self.block(index, delta)? {
                Block::Call { item, argued, .. } => {
                    let (item, piece) = (*item, text("partial_json")?);
                    *argued |= !piece.is_empty();
                    draft.argue(item, piece)
                }
                Block::Other { input, .. } => {
                    input.push_str(text("partial_json")?);
                    Ok(())
                }
                _ => Err(malformed("arguments belong to no call", delta)),
            },
            // Citations, and unknown deltas.
            _ => Ok(()),
        }
    }

    fn grow(&mut self, index: u64, text: &str, draft: &mut Draft) -> Result<(), Wrong> {
        match self.block(index, &Value::Null)? {
            Block::Text { item, part } => draft.grow(Grows::Text, *item, *part, text),
            Block::Thinking { item, .. } => draft.grow(Grows::Reasoning, *item, 0, text),
            _ => Err(Wrong::malformed("a text belongs to no block", text.as_bytes())),
        }
    }

    fn end(&mut self, index: u64, draft: &mut Draft) -> Result<(), Wrong> {
        match self.blocks.remove(&index) {
            Some(Block::Thinking { item, signature }) if !signature.is_empty() => {
                seal(item, signed(&signature), draft);
                Ok(())
            }
            // A call without a delta of arguments keeps its initial input.
            Some(Block::Call { item, given: given @ Value::Object(_), argued: false }) => {
                draft.argue(item, &given.to_string())
            }
            Some(Block::Other { item, input }) if !input.is_empty() => {
                let input = json(&input)?;
                if let Some(item) = draft.item(item) {
                    item["block"]["input"] = input;
                }
                Ok(())
            }
            Some(_) => Ok(()),
            None => Err(Wrong::malformed("a block ends that did not begin", b"")),
        }
    }

    fn block(&mut self, index: u64, what: &Value) -> Result<&mut Block, Wrong> {
        self.blocks.get_mut(&index).ok_or_else(|| malformed("a piece belongs to no block", what))
    }
}

fn seal(item: usize, sealed: String, draft: &mut Draft) {
    if let Some(item) = draft.item(item) {
        item["encrypted_content"] = sealed.into();
    }
}

fn stop(reason: &str) -> ModelStop {
    match reason {
        "tool_use" => ModelStop::ToolCalls,
        "max_tokens" | "model_context_window_exceeded" => ModelStop::Length,
        "refusal" => ModelStop::Refusal,
        // `end_turn`, `stop_sequence`; after `pause_turn` the model is called again.
        _ => ModelStop::End,
    }
}

/// Adds the usage of an event: the first one has the input, the last one the output.
fn count(usage: &Value, draft: &mut Draft) {
    let tokens = &mut draft.tokens;
    let read = usage["cache_read_input_tokens"].as_u64();
    let written = usage["cache_creation_input_tokens"].as_u64();
    if let Some(plain) = usage["input_tokens"].as_u64() {
        // Tokens read from and written to a cache are not included in `input_tokens`.
        let of_cache = read.unwrap_or(0).saturating_add(written.unwrap_or(0));
        tokens.input = Some(plain.saturating_add(of_cache));
        tokens.cached = read.or(tokens.cached);
        tokens.cache_written = written.or(tokens.cache_written);
    }
    tokens.output = usage["output_tokens"].as_u64().or(tokens.output);
}

fn index(said: &Value) -> Result<u64, Wrong> {
    said["index"].as_u64().ok_or_else(|| malformed("an event has no index", said))
}

fn malformed(why: &str, what: &Value) -> Wrong {
    Wrong::malformed(why, what.to_string().as_bytes())
}
