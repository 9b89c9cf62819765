//! The vocabulary of one model call: the request, the reply, and the deltas in between.
//!
//! Conversations are items in the shapes of Open Responses (`message`, `function_call`,
//! `function_call_output`, `reasoning`, `compaction`), whatever the provider uses: the operator
//! that calls the model translates them. Items are kept verbatim, so fields that this crate does
//! not know return to the provider unchanged.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One request to one model provider.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelRequest {
    /// The provider's name of the model; the operator's default if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The system prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// The conversation so far, oldest first: input items of Open Responses.
    pub items: Vec<Value>,
    /// The functions that the model may call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<FunctionTool>,
    /// Which of the tools the model must or may call, as in Open Responses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_choice: Option<Value>,
    /// True if the model may call several tools at once; the provider's default if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallel_tool_calls: Option<bool>,
    /// All other options, named as in Open Responses: `temperature`, `top_p`, `max_output_tokens`,
    /// `reasoning`, `text`, `presence_penalty`, …
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub options: Map<String, Value>,
}

/// A function that a model may call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FunctionTool {
    /// The name: letters, digits, `_` and `-`, at most 64 bytes.
    pub name: String,
    /// The description for the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The JSON Schema of the arguments, an object.
    pub parameters: Value,
    /// True if the provider enforces the schema.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

/// The reply of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelReply {
    /// The model that replied, as the provider names it.
    pub model: String,
    /// Output items of Open Responses, in order. Each has an `id`.
    pub items: Vec<Value>,
    /// The reason why the model stopped.
    pub stop: ModelStop,
}

/// Settings that a caller adds to those of the agent, for one answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelAsk {
    /// The conversation, in place of the agent's rendered prompt: input items of Open Responses.
    pub items: Vec<Value>,
    /// Instructions, appended to the agent's own system prompt.
    pub instructions: Option<String>,
    /// Functions that the caller executes itself: a batch of calls that contains one of them ends
    /// the loop and is returned whole.
    pub tools: Vec<FunctionTool>,
    /// As [`ModelRequest::tool_choice`], for the first model call.
    pub tool_choice: Option<Value>,
    /// As [`ModelRequest::parallel_tool_calls`].
    pub parallel_tool_calls: Option<bool>,
    /// The maximum number of tool calls in the whole loop.
    pub max_tool_calls: Option<u32>,
    /// As [`ModelRequest::options`]; overrides the agent's own.
    pub options: Map<String, Value>,
}

/// The result of an agent's loop, for a caller that sent a [`ModelAsk`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelAnswer {
    /// The model that replied last, as the provider names it.
    pub model: String,
    /// Every item of the loop in order, tool calls and their outputs included.
    pub items: Vec<Value>,
    /// The reason why the loop ended.
    pub end: ModelEnd,
}

/// The reason why a loop ended with an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelEnd {
    /// The model finished its answer.
    Complete,
    /// The caller must execute its tools; their calls are the last items.
    HandedBack,
    /// The model reached the limit of output tokens.
    Length,
    /// A content filter of the provider cut the answer off.
    ContentFilter,
    /// The maximum number of tool calls was reached.
    MaxToolCalls,
}

/// The reason why a model stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelStop {
    /// The model finished its reply.
    End,
    /// The model requests tool calls, which are among the items.
    ToolCalls,
    /// The model reached the limit of output tokens.
    Length,
    /// A content filter of the provider cut the reply off.
    ContentFilter,
    /// The model refused.
    Refusal,
}

/// A part of a reply in progress. Lossy: the reply contains everything that a reader missed.
///
/// `item` is the index of the item in the reply, from 0; `part` is the index within its content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ModelDelta {
    /// An item begins, with the fields that are known: `type`, `id`, and for a call `name` and
    /// `call_id`.
    Item {
        /// The index of the item.
        item: usize,
        /// The known fields.
        begins: Value,
    },
    /// Text for the reader.
    Text {
        /// The index of the item.
        item: usize,
        /// The index of the part.
        part: usize,
        /// The text.
        delta: String,
    },
    /// The reason of a refusal.
    Refusal {
        /// The index of the item.
        item: usize,
        /// The index of the part.
        part: usize,
        /// The text.
        delta: String,
    },
    /// Reasoning of the model.
    Reasoning {
        /// The index of the item.
        item: usize,
        /// The index of the part.
        part: usize,
        /// The text.
        delta: String,
    },
    /// A summary of the reasoning.
    ReasoningSummary {
        /// The index of the item.
        item: usize,
        /// The index of the part.
        part: usize,
        /// The text.
        delta: String,
    },
    /// A part of the arguments of a call: JSON text.
    Arguments {
        /// The index of the item.
        item: usize,
        /// The text.
        delta: String,
    },
    /// An item is complete.
    Done {
        /// The index of the item.
        item: usize,
        /// The item, as in the reply.
        whole: Value,
    },
}

/// Identifies one text of a reply: the kind of delta, the index of the item and of the part.
pub type TextLane = (std::mem::Discriminant<ModelDelta>, usize, usize);

impl ModelDelta {
    /// Returns the text of this delta and its lane; `None` if it has no text.
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

    /// Returns the text of this delta for changes.
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
    /// Returns the text for the reader: every `output_text` of the messages.
    pub fn text(&self) -> String {
        output_text(&self.items)
    }

    /// Returns the requested calls, in order.
    pub fn calls(&self) -> impl Iterator<Item = &Value> {
        self.items.iter().filter(|item| item["type"] == "function_call")
    }
}

/// Returns the text for the reader: every `output_text` of the messages among `items`.
pub fn output_text(items: &[Value]) -> String {
    let messages = items.iter().filter(|item| item["type"] == "message");
    let parts = messages.filter_map(|item| item["content"].as_array()).flatten();
    let texts = parts.filter(|part| part["type"] == "output_text");
    texts.filter_map(|part| part["text"].as_str()).collect()
}
