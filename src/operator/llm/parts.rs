//! The parts that every API has: options of a request, and the parser of a response.

use serde_json::Value;

use super::{draft::Draft, wrong::Wrong};
use crate::protocol::sse::SseEvent;

/// The options of a request that the operator determines.
#[derive(Debug, Clone, Copy)]
pub(super) struct Manner<'a> {
    /// The model.
    pub(super) model: &'a str,
    /// The chat API's name for the limit on output tokens.
    pub(super) max_tokens_as: &'a str,
    /// True if reasoning is sent back to the chat API.
    pub(super) send_reasoning: bool,
}

/// Parses the response of one API, event by event.
pub(super) trait Answer: Send {
    /// Handles an event of a stream.
    ///
    /// # Errors
    /// Fails when the event violates the API, or is an error of the provider.
    fn event(&mut self, event: &SseEvent, draft: &mut Draft) -> Result<(), Wrong>;

    /// Handles a response that came as one document.
    ///
    /// # Errors
    /// As for [`Answer::event`].
    fn document(&mut self, document: Value, draft: &mut Draft) -> Result<(), Wrong>;

    /// Returns true if the response is complete; later bytes are not awaited.
    fn is_over(&self) -> bool;

    /// Returns true if the model paused and must be called again with its output so far.
    fn is_paused(&self) -> bool {
        false
    }
}

/// Adds the provider's own tools to the tools of a request body.
pub(super) fn add_tools(more: &Value, body: &mut Value) {
    match (&mut body["tools"], more) {
        (Value::Array(tools), Value::Array(more)) => tools.extend(more.iter().cloned()),
        (tools, more) => *tools = more.clone(),
    }
}

/// Parses the data of an event.
pub(super) fn json(data: &str) -> Result<Value, Wrong> {
    serde_json::from_str(data)
        .map_err(|error| Wrong::malformed(format!("an event is no JSON: {error}"), data.as_bytes()))
}
