//! The vocabulary of one call of a model: what it is asked, what it says, and what is heard of it
//! meanwhile.
//!
//! Conversations are items in the shapes of Open Responses (`message`, `function_call`,
//! `function_call_output`, `reasoning`, `compaction`), whatever the provider speaks: an operator
//! that calls a model translates. Items are kept verbatim, so a field that this crate does not know
//! comes back to the provider as it left it.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What a model is asked: one request to one provider.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelRequest {
    /// The provider's name of the model; the operator's default if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The system prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// The conversation so far, the oldest first: input items of Open Responses.
    pub items: Vec<Value>,
    /// What it may call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<FunctionTool>,
    /// Which of them it must or may call, in the words of Open Responses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_choice: Option<Value>,
    /// Whether it may call several at once; the provider's default if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallel_tool_calls: Option<bool>,
    /// Everything else that shapes an answer, in the words of Open Responses: `temperature`,
    /// `top_p`, `max_output_tokens`, `reasoning`, `text`, `presence_penalty`, …
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub options: Map<String, Value>,
}

/// A function that a model may call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FunctionTool {
    /// Its name: letters, digits, `_` and `-`, at most 64 bytes.
    pub name: String,
    /// What it is for, as the model reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The JSON Schema of its arguments, an object.
    pub parameters: Value,
    /// Whether the provider shall hold the model to the schema.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

/// What a model said.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelReply {
    /// The model that answered, as the provider names it.
    pub model: String,
    /// Output items of Open Responses, in their order. Each has an `id`.
    pub items: Vec<Value>,
    /// Why it ended there.
    pub stop: ModelStop,
}

/// What a caller adds to an agent's own settings for one answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelAsk {
    /// The conversation, in place of the agent's rendered prompt: input items of Open Responses.
    pub items: Vec<Value>,
    /// What is said to the model after the agent's own system prompt.
    pub instructions: Option<String>,
    /// Functions that the caller executes itself: a batch of calls that has one of them ends the
    /// loop and is handed back whole.
    pub tools: Vec<FunctionTool>,
    /// As [`ModelRequest::tool_choice`], for the first call of the model.
    pub tool_choice: Option<Value>,
    /// As [`ModelRequest::parallel_tool_calls`].
    pub parallel_tool_calls: Option<bool>,
    /// The most calls of tools in all.
    pub max_tool_calls: Option<u32>,
    /// As [`ModelRequest::options`], over the agent's own.
    pub options: Map<String, Value>,
}

/// What an agent's loop came to, for a caller that asked with a [`ModelAsk`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelAnswer {
    /// The model that answered last, as the provider names it.
    pub model: String,
    /// Every item of the loop in its order, calls of tools and their outputs included.
    pub items: Vec<Value>,
    /// Why it ended there.
    pub end: ModelEnd,
}

/// Why a loop ended with an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelEnd {
    /// The model had said everything.
    Complete,
    /// The caller's tools are to be called; the calls are the last items.
    HandedBack,
    /// The model reached the limit of output tokens.
    Length,
    /// A filter of the provider cut it off.
    ContentFilter,
    /// The most calls of tools were made.
    MaxToolCalls,
}

/// Why a model stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelStop {
    /// It had said everything.
    End,
    /// It wants tools called; their calls are among the items.
    ToolCalls,
    /// It reached the limit of output tokens.
    Length,
    /// A filter of the provider cut it off.
    ContentFilter,
    /// It would not.
    Refusal,
}

/// A piece of an answer under way. Lossy: who misses one finds the whole in the reply.
///
/// `item` is the item's place in the reply, from 0; `part` the place within its content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ModelDelta {
    /// An item begins, as far as it is known: its `type`, `id`, and of a call `name` and `call_id`.
    Item {
        /// Its place.
        item: usize,
        /// What is known of it.
        begins: Value,
    },
    /// Text for the reader.
    Text {
        /// Its item's place.
        item: usize,
        /// Its part's place.
        part: usize,
        /// The text.
        delta: String,
    },
    /// Why it would not.
    Refusal {
        /// Its item's place.
        item: usize,
        /// Its part's place.
        part: usize,
        /// The text.
        delta: String,
    },
    /// What it thinks.
    Reasoning {
        /// Its item's place.
        item: usize,
        /// Its part's place.
        part: usize,
        /// The text.
        delta: String,
    },
    /// A summary of what it thinks.
    ReasoningSummary {
        /// Its item's place.
        item: usize,
        /// Its part's place.
        part: usize,
        /// The text.
        delta: String,
    },
    /// A piece of a call's arguments: JSON text.
    Arguments {
        /// Its item's place.
        item: usize,
        /// The text.
        delta: String,
    },
    /// An item is over: as it will stand in the reply.
    Done {
        /// Its place.
        item: usize,
        /// The item.
        whole: Value,
    },
}

/// Which text of an answer a piece belongs to: its kind, its item's place and its part's.
pub type TextLane = (std::mem::Discriminant<ModelDelta>, usize, usize);

impl ModelDelta {
    /// The piece of a text that this is, if it is one, and of which text.
    pub fn text(&self) -> Option<(TextLane, &str)> {
        let (item, part, text) = match self {
            Self::Text { item, part, delta }
            | Self::Refusal { item, part, delta }
            | Self::Reasoning { item, part, delta }
            | Self::ReasoningSummary { item, part, delta } => (*item, *part, delta),
            Self::Arguments { item, delta } => (*item, 0, delta),
            Self::Item { .. } | Self::Done { .. } => return None,
        };
        Some(((std::mem::discriminant(self), item, part), text))
    }

    /// The same piece of a text, to be changed.
    pub fn text_mut(&mut self) -> Option<&mut String> {
        match self {
            Self::Text { delta, .. }
            | Self::Refusal { delta, .. }
            | Self::Reasoning { delta, .. }
            | Self::ReasoningSummary { delta, .. }
            | Self::Arguments { delta, .. } => Some(delta),
            Self::Item { .. } | Self::Done { .. } => None,
        }
    }
}

impl ModelReply {
    /// The text that it says to the reader: every `output_text` of its messages.
    pub fn text(&self) -> String {
        output_text(&self.items)
    }

    /// The calls that it asks for, in their order.
    pub fn calls(&self) -> impl Iterator<Item = &Value> {
        self.items.iter().filter(|item| item["type"] == "function_call")
    }
}

/// The text that items say to the reader: every `output_text` of the messages among them.
pub fn output_text(items: &[Value]) -> String {
    let messages = items.iter().filter(|item| item["type"] == "message");
    let parts = messages.filter_map(|item| item["content"].as_array()).flatten();
    let texts = parts.filter(|part| part["type"] == "output_text");
    texts.filter_map(|part| part["text"].as_str()).collect()
}
