//! The kinds that can be declared, and what each makes of its keys.

use std::{fmt, path::Path, sync::Arc};

use async_trait::async_trait;
use serde::de::DeserializeOwned;
use toml::de::{Error, ValueDeserializer};

use crate::operator::{
    Backend, Builtin, Composite, composite::CompositeSettings, echo::EchoSettings,
    http::HttpSettings, human::HumanSettings, llm::LlmSettings, lua::LuaSettings,
    main_ai::MainAiSettings, mcp::McpSettings, process::ProcessSettings, queue::QueueSettings,
};

/// The keys of one kind, read and valid.
#[async_trait]
pub trait Settings: fmt::Debug + Send + Sync {
    /// The kind: `process`, `http`.
    fn kind(&self) -> &'static str;

    /// Makes the operator; nothing is started and nobody is asked yet.
    fn build(&self, builtin: &Builtin) -> Arc<dyn Backend>;

    /// The same with its relative paths below a directory; nothing if it has none.
    fn beside(&self, _dir: &Path) -> Option<Arc<dyn Settings>> {
        None
    }

    /// Who its members are, if it only stands for others.
    fn composite(&self) -> Option<&Composite> {
        None
    }

    /// Looks whether it could be used now, and says what was found or what is missing.
    ///
    /// # Errors
    /// Why it cannot be used, as a sentence for a person.
    async fn inspect(&self) -> Result<String, String>;
}

/// Reads the keys of one kind.
pub(super) type Read = fn(ValueDeserializer<'_>) -> Result<Arc<dyn Settings>, Error>;

/// Every kind by its word.
pub(super) const KINDS: [(&str, Read); 10] = [
    ("composite", read::<CompositeSettings>),
    ("echo", read::<EchoSettings>),
    ("http", read::<HttpSettings>),
    ("human", read::<HumanSettings>),
    ("llm", read::<LlmSettings>),
    ("lua", read::<LuaSettings>),
    ("main_ai", read::<MainAiSettings>),
    ("mcp", read::<McpSettings>),
    ("process", read::<ProcessSettings>),
    ("queue", read::<QueueSettings>),
];

fn read<S>(keys: ValueDeserializer<'_>) -> Result<Arc<dyn Settings>, Error>
where
    S: Settings + DeserializeOwned + 'static,
{
    S::deserialize(keys).map(|settings| Arc::new(settings) as Arc<dyn Settings>)
}
