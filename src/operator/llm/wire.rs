//! Which API is spoken.

use reqwest::header::HeaderMap;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    anthropic,
    anthropic_answer::AnthropicAnswer,
    chat,
    chat_answer::ChatAnswer,
    parts::{Answer, Manner},
    responses,
    responses_answer::ResponsesAnswer,
};
use crate::protocol::{Failure, ModelRequest};

/// The APIs of providers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Wire {
    /// Chat Completions, as OpenAI and most others speak it.
    Chat,
    /// Responses, as OpenAI and Open Responses speak it.
    Responses,
    /// Messages, as Anthropic speaks it.
    Anthropic,
}

impl Wire {
    /// Where it is, where nothing else is said.
    pub(super) fn base_url(self) -> &'static str {
        match self {
            Self::Chat | Self::Responses => "https://api.openai.com/v1",
            Self::Anthropic => "https://api.anthropic.com/v1",
        }
    }

    /// What is added to the base address.
    pub(super) fn path(self) -> &'static str {
        match self {
            Self::Chat => "chat/completions",
            Self::Responses => "responses",
            Self::Anthropic => "messages",
        }
    }

    /// The header that has the key, and what stands before the key.
    pub(super) fn key_header(self) -> (&'static str, &'static str) {
        match self {
            Self::Chat | Self::Responses => ("authorization", "Bearer "),
            Self::Anthropic => ("x-api-key", ""),
        }
    }

    /// Headers that it wants besides; configured ones go before them.
    pub(super) fn add_headers(self, headers: &mut HeaderMap) {
        if self == Self::Anthropic && !headers.contains_key("anthropic-version") {
            let version = reqwest::header::HeaderValue::from_static("2023-06-01");
            headers.insert("anthropic-version", version);
        }
    }

    /// The body of a request.
    ///
    /// # Errors
    /// When the conversation has something that the API has no word for.
    pub(super) fn body(
        self,
        request: &ModelRequest,
        options: &Map<String, Value>,
        manner: Manner<'_>,
    ) -> Result<Value, Failure> {
        match self {
            Self::Chat => chat::body(request, options, manner),
            Self::Responses => Ok(responses::body(request, options, manner)),
            Self::Anthropic => anthropic::body(request, options, manner),
        }
    }

    /// Who reads the answer.
    pub(super) fn answer(self) -> Box<dyn Answer> {
        match self {
            Self::Chat => Box::new(ChatAnswer::default()),
            Self::Responses => Box::new(ResponsesAnswer::default()),
            Self::Anthropic => Box::new(AnthropicAnswer::default()),
        }
    }
}
