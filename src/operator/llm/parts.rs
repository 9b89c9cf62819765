//! What every API has: a manner of asking, and a reader of the answer.

use serde_json::Value;

use super::{draft::Draft, wrong::Wrong};
use crate::protocol::sse::SseEvent;

/// What of a request the operator decides, and not the conversation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Manner<'a> {
    /// The model.
    pub(super) model: &'a str,
    /// What the chat API calls the most tokens of an answer.
    pub(super) max_tokens_as: &'a str,
    /// Whether the chat API gets back what a model thought.
    pub(super) send_reasoning: bool,
}

/// Reads the answer of one API, event by event.
pub(super) trait Answer: Send {
    /// Takes an event of a stream.
    ///
    /// # Errors
    /// When it is not what the API says, or is an error of the provider.
    fn event(&mut self, event: &SseEvent, draft: &mut Draft) -> Result<(), Wrong>;

    /// Takes an answer that came as one document.
    ///
    /// # Errors
    /// As for [`Answer::event`].
    fn document(&mut self, document: Value, draft: &mut Draft) -> Result<(), Wrong>;

    /// Whether nothing more is needed: what comes now is not waited for.
    fn is_over(&self) -> bool;

    /// Whether the model stopped to be asked on: it is given what it said so far.
    fn is_paused(&self) -> bool {
        false
    }
}

/// Adds tools that the provider itself executes to those of a body.
pub(super) fn add_tools(more: &Value, body: &mut Value) {
    match (&mut body["tools"], more) {
        (Value::Array(tools), Value::Array(more)) => tools.extend(more.iter().cloned()),
        (tools, more) => *tools = more.clone(),
    }
}

/// Reads the data of an event.
pub(super) fn json(data: &str) -> Result<Value, Wrong> {
    serde_json::from_str(data)
        .map_err(|error| Wrong::malformed(format!("an event is no JSON: {error}"), data.as_bytes()))
}
