//! `kind = "llm"` in a file.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use reqwest::Url;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{price::Price, script::Script, wire::Wire};
use crate::{
    environment::{Egress, Text},
    operator::declared::{HeaderNameText, duration, maybe_url},
};

/// The upper bound of the limit on an answer, in bytes.
const LARGEST: usize = 256 * 1024 * 1024;

/// The settings of an llm operator.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "Keys")]
pub(in crate::operator) struct LlmSettings {
    /// The provider.
    pub(super) provider: Provider,
    /// The model of agents without one.
    pub(super) model: Option<String>,
    /// The prices of tokens, by model.
    pub(super) prices: BTreeMap<String, Price>,
    /// Default options of a request; the agent's and the call's override them.
    pub(super) options: Map<String, Value>,
    /// The timeout of one attempt, if neither the call nor its agent has one.
    pub(super) timeout: Duration,
    /// The maximum size of an answer, in bytes.
    pub(super) max_answer: usize,
}

/// The provider of a model.
#[derive(Debug, Clone)]
pub(super) enum Provider {
    /// A server.
    Server(Box<Server>),
    /// A script without a server.
    Script(Script),
}

/// The server of a provider.
#[derive(Debug, Clone)]
pub(super) struct Server {
    pub(super) wire: Wire,
    /// The URL of requests.
    pub(super) url: Url,
    /// The base URL, as configured.
    pub(super) base: Url,
    /// Headers of every request, including the key.
    pub(super) headers: BTreeMap<HeaderNameText, Text>,
    pub(super) egress: Egress,
    /// The time limit of connecting.
    pub(super) connect: Duration,
    /// The time limit until the response begins.
    pub(super) first_byte: Duration,
    /// The maximum time without data within a response.
    pub(super) between_bytes: Duration,
    pub(super) max_tokens_as: String,
    pub(super) send_reasoning: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Api {
    Chat,
    Responses,
    Anthropic,
    Script,
}

/// The keys as written in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    api: Api,
    #[serde(default, deserialize_with = "maybe_url")]
    base_url: Option<Url>,
    model: Option<String>,
    key: Option<Text>,
    #[serde(default)]
    headers: BTreeMap<HeaderNameText, Text>,
    #[serde(default)]
    prices: BTreeMap<String, Price>,
    #[serde(default)]
    options: Map<String, Value>,
    #[serde(default = "connect", deserialize_with = "duration")]
    connect: Duration,
    #[serde(default = "first_byte", deserialize_with = "duration")]
    first_byte: Duration,
    #[serde(default = "between_bytes", deserialize_with = "duration")]
    between_bytes: Duration,
    #[serde(default = "timeout", deserialize_with = "duration")]
    timeout: Duration,
    #[serde(default = "max_answer")]
    max_answer: usize,
    max_tokens_as: Option<String>,
    #[serde(default)]
    send_reasoning: bool,
    #[serde(default)]
    allow_private: bool,
    #[serde(default)]
    allow_hosts: Vec<String>,
    turns: Option<PathBuf>,
    pace: Option<f64>,
}

impl TryFrom<Keys> for LlmSettings {
    type Error = String;

    fn try_from(keys: Keys) -> Result<Self, String> {
        if keys.options.contains_key("model") || keys.options.contains_key("stream") {
            return Err("`options` shape an answer; `model` and `stream` are not among them".into());
        }
        let (model, prices, options) =
            (keys.model.clone(), keys.prices.clone(), keys.options.clone());
        let (timeout, max_answer) = (keys.timeout, keys.max_answer.min(LARGEST));
        let provider = match keys.api {
            Api::Script => Provider::Script(keys.script()?),
            Api::Chat => Provider::Server(keys.server(Wire::Chat)?),
            Api::Responses => Provider::Server(keys.server(Wire::Responses)?),
            Api::Anthropic => Provider::Server(keys.server(Wire::Anthropic)?),
        };
        Ok(Self { provider, model, prices, options, timeout, max_answer })
    }
}

impl Keys {
    fn script(self) -> Result<Script, String> {
        let of_a_server = self.base_url.is_some() || self.key.is_some() || !self.headers.is_empty();
        if of_a_server {
            return Err("a script asks nobody: it has no `base_url`, `key` or `headers`".into());
        }
        Script::new(self.turns, self.pace)
    }

    fn server(self, wire: Wire) -> Result<Box<Server>, String> {
        if self.turns.is_some() || self.pace.is_some() {
            return Err("`turns` and `pace` are only for api = \"script\"".into());
        }
        let base = match self.base_url {
            Some(base) => base,
            None => wire.base_url().parse().map_err(|_| "its address is none".to_owned())?,
        };
        let mut url = base.clone();
        {
            let path = url.path_segments_mut();
            let mut path = path.map_err(|()| "`base_url` has no path".to_owned())?;
            path.pop_if_empty().extend(wire.path().split('/'));
        }
        let mut headers = self.headers;
        if let Some(key) = self.key {
            let (header, before) = wire.key_header();
            let with = |prefix: String| if prefix.is_empty() { before.to_owned() } else { prefix };
            let key = match key {
                Text::Plain(_) => {
                    let why = "a `key` is a reference: { env = \"NAME\" } or { file = \"PATH\" }";
                    return Err(why.to_owned());
                }
                Text::Env { name, prefix } => Text::Env { name, prefix: with(prefix) },
                Text::File { path, prefix } => Text::File { path, prefix: with(prefix) },
            };
            let taken = headers.insert(HeaderNameText(header.to_owned()), key);
            if taken.is_some() {
                return Err(format!("`key` and `headers` both set {header}"));
            }
        }
        let at_openai = base.host_str() == Some("api.openai.com");
        let max_tokens_as = self.max_tokens_as.unwrap_or_else(|| {
            if at_openai { "max_completion_tokens" } else { "max_tokens" }.to_owned()
        });
        Ok(Box::new(Server {
            wire,
            url,
            base,
            headers,
            egress: Egress { allow_private: self.allow_private, allow_hosts: self.allow_hosts },
            connect: self.connect,
            first_byte: self.first_byte,
            between_bytes: self.between_bytes,
            max_tokens_as,
            send_reasoning: self.send_reasoning,
        }))
    }
}

fn connect() -> Duration {
    Duration::from_secs(10)
}

fn first_byte() -> Duration {
    Duration::from_secs(120)
}

fn between_bytes() -> Duration {
    Duration::from_secs(60)
}

fn timeout() -> Duration {
    Duration::from_secs(600)
}

fn max_answer() -> usize {
    16 * 1024 * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Result<LlmSettings, String> {
        toml::from_str(text).map_err(|error| error.message().trim_end().to_owned())
    }

    fn server(text: &str) -> Server {
        match settings(text).unwrap().provider {
            Provider::Server(server) => *server,
            Provider::Script(_) => panic!("it is a server"),
        }
    }

    #[test]
    fn every_api_has_its_address_and_its_header_for_the_key() {
        let openai = server("api = \"chat\"\nkey = { env = \"K\" }");
        assert_eq!(openai.url.as_str(), "https://api.openai.com/v1/chat/completions");
        assert_eq!(openai.max_tokens_as, "max_completion_tokens");
        let key = &openai.headers[&HeaderNameText("authorization".into())];
        assert_eq!(*key, Text::Env { name: "K".into(), prefix: "Bearer ".into() });
        let local = server("api = \"responses\"\nbase_url = \"http://localhost:8080/v1/\"");
        assert_eq!(local.url.as_str(), "http://localhost:8080/v1/responses");
        assert!(local.headers.is_empty() && local.max_tokens_as == "max_tokens");
        let claude = server("api = \"anthropic\"\nkey = { file = \"k\" }");
        assert_eq!(claude.url.as_str(), "https://api.anthropic.com/v1/messages");
        assert!(claude.headers.contains_key(&HeaderNameText("x-api-key".into())));
    }

    #[test]
    fn prices_and_options_are_read() {
        let text = "api = \"chat\"\nmodel = \"m-1\"\n[options]\ntemperature = 0.2\n\
                    reasoning = { effort = \"low\" }\n\
                    [prices.\"m-1\"]\ninput = \"0.25\"\noutput = 2\ncached = \"0.025\"";
        let it = settings(text).unwrap();
        assert!(it.prices.contains_key("m-1"));
        assert_eq!(it.options["reasoning"], serde_json::json!({ "effort": "low" }));
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        for (text, part) in [
            ("model = \"m\"", "missing field `api`"),
            ("api = \"gemini\"", "unknown variant `gemini`"),
            ("api = \"chat\"\nkey = \"sk-1\"", "a `key` is a reference"),
            ("api = \"chat\"\nturns = \"t.json\"", "only for api = \"script\""),
            ("api = \"script\"\nkey = { env = \"K\" }", "a script asks nobody"),
            ("api = \"script\"\npace = 0", "`pace`"),
            ("api = \"chat\"\n[options]\nstream = false", "not among them"),
            (
                "api = \"chat\"\nkey = { env = \"K\" }\nheaders = { authorization = \"x\" }",
                "both set authorization",
            ),
            ("api = \"chat\"\nbase_ulr = \"https://x\"", "unknown field `base_ulr`"),
        ] {
            let error = settings(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
