//! The kind `llm`: its settings as an operator.

use std::{path::Path, sync::Arc};

use async_trait::async_trait;

use super::{
    provider::Llm,
    settings::{LlmSettings, Provider},
};
use crate::operator::{Backend, Builtin, Settings, ShownSettings};

#[async_trait]
impl Settings for LlmSettings {
    fn kind(&self) -> &'static str {
        "llm"
    }

    fn build(&self, builtin: &Builtin) -> Arc<dyn Backend> {
        Arc::new(Llm::new(self.clone(), builtin))
    }

    fn beside(&self, dir: &Path) -> Option<Arc<dyn Settings>> {
        match &self.provider {
            Provider::Script(script) => {
                let provider = Provider::Script(script.beside(dir));
                Some(Arc::new(Self { provider, ..self.clone() }))
            }
            Provider::Server(_) => None,
        }
    }

    fn shown(&self) -> ShownSettings {
        let shown = match &self.provider {
            Provider::Script(_) => ShownSettings::default().with("api", "script"),
            Provider::Server(server) => ShownSettings::default()
                .with("api", server.wire.as_str())
                .url("base_url", &server.base)
                .headers("headers", &server.headers)
                .time("connect", server.connect)
                .time("first_byte", server.first_byte)
                .time("between_bytes", server.between_bytes)
                .with("max_tokens_as", &server.max_tokens_as)
                .with("send_reasoning", server.send_reasoning)
                .with("allow_private", server.egress.allow_private)
                .list("allow_hosts", &server.egress.allow_hosts),
        };
        let priced: Vec<String> = self.prices.keys().cloned().collect();
        let options: Vec<String> = self.options.keys().cloned().collect();
        shown
            .maybe("model", self.model.as_ref())
            .list("prices", &priced)
            .list("options", &options)
            .time("timeout", self.timeout)
            .with("max_answer", self.max_answer)
    }

    async fn inspect(&self, _builtin: &Builtin) -> Result<String, String> {
        let model = self.model.as_deref().unwrap_or("the model that the agent names");
        let priced = match self.prices.len() {
            0 => "without prices, so its cost is not reported".to_owned(),
            1 => "with the prices of 1 model".to_owned(),
            n => format!("with the prices of {n} models"),
        };
        match &self.provider {
            Provider::Script(script) => script.inspect(),
            Provider::Server(server) => {
                let host = server.reach().await?;
                let key = match server.headers.values().any(|text| text.source().is_some()) {
                    true => "its key is there",
                    false => "it has no key",
                };
                Ok(format!("asks {model} at {host}, which answers; {key}; {priced}"))
            }
        }
    }
}
