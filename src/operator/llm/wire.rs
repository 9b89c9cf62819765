//! The APIs of model providers.

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

/// The APIs of model providers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Wire {
    /// Chat Completions, as in OpenAI and most other servers.
    Chat,
    /// Responses, as in OpenAI and Open Responses.
    Responses,
    /// Messages, as in Anthropic.
    Anthropic,
}

impl Wire {
    /// Returns the word in a file.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Responses => "responses",
            Self::Anthropic => "anthropic",
        }
    }

    /// Returns the default base URL.
    pub(super) fn base_url(self) -> &'static str {
        match self {
            Self::Chat | Self::Responses => "https://api.openai.com/v1",
            Self::Anthropic => "https://api.anthropic.com/v1",
        }
    }

    /// Returns the name of the provider at a host, as the conventions of OpenTelemetry name it. A
    /// server that is not known is named after the API that it offers.
    pub(super) fn provider(self, host: &str) -> &'static str {
        const KNOWN: [(&str, &str); 9] = [
            ("openai.azure.com", "azure.ai.openai"),
            ("generativelanguage.googleapis.com", "gcp.gemini"),
            ("aiplatform.googleapis.com", "gcp.vertex_ai"),
            ("amazonaws.com", "aws.bedrock"),
            ("mistral.ai", "mistral_ai"),
            ("groq.com", "groq"),
            ("deepseek.com", "deepseek"),
            ("x.ai", "x_ai"),
            ("perplexity.ai", "perplexity"),
        ];
        let is_below = |domain: &str| {
            host.strip_suffix(domain)
                .is_some_and(|rest| rest.is_empty() || rest.ends_with(['.', '-']))
        };
        let known = KNOWN.iter().find(|(domain, _)| is_below(domain));
        match (known, self) {
            (Some((_, name)), _) => name,
            (None, Self::Chat | Self::Responses) => "openai",
            (None, Self::Anthropic) => "anthropic",
        }
    }

    /// Returns the path below the base URL.
    pub(super) fn path(self) -> &'static str {
        match self {
            Self::Chat => "chat/completions",
            Self::Responses => "responses",
            Self::Anthropic => "messages",
        }
    }

    /// Returns the header of the key, and the prefix of its value.
    pub(super) fn key_header(self) -> (&'static str, &'static str) {
        match self {
            Self::Chat | Self::Responses => ("authorization", "Bearer "),
            Self::Anthropic => ("x-api-key", ""),
        }
    }

    /// Adds the headers that the API requires; configured ones take precedence.
    pub(super) fn add_headers(self, headers: &mut HeaderMap) {
        if self == Self::Anthropic && !headers.contains_key("anthropic-version") {
            let version = reqwest::header::HeaderValue::from_static("2023-06-01");
            headers.insert("anthropic-version", version);
        }
    }

    /// Returns the body of a request.
    ///
    /// # Errors
    /// Fails when the API cannot represent an item of the conversation.
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

    /// Returns the parser of the response.
    pub(super) fn answer(self) -> Box<dyn Answer> {
        match self {
            Self::Chat => Box::new(ChatAnswer::default()),
            Self::Responses => Box::new(ResponsesAnswer::default()),
            Self::Anthropic => Box::new(AnthropicAnswer::default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_is_named_by_its_host_or_else_by_its_api() {
        for (wire, host, expected) in [
            (Wire::Chat, "api.openai.com", "openai"),
            (Wire::Chat, "127.0.0.1", "openai"),
            (Wire::Chat, "api.groq.com", "groq"),
            (Wire::Chat, "mine.openai.azure.com", "azure.ai.openai"),
            (Wire::Chat, "notx.ai", "openai"),
            (Wire::Anthropic, "api.anthropic.com", "anthropic"),
            (Wire::Anthropic, "europe-west1-aiplatform.googleapis.com", "gcp.vertex_ai"),
        ] {
            assert_eq!(wire.provider(host), expected, "{host}");
        }
    }
}
