//! The kinds that can be declared, each with the parser of its settings.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use toml::de::{Error, ValueDeserializer};

use crate::operator::{
    Settings, agent_cli::AgentCliSettings, composite::settings::CompositeSettings,
    echo::EchoSettings, http::HttpSettings, human::HumanSettings, llm::LlmSettings,
    lua::LuaSettings, main_ai::MainAiSettings, mcp::McpSettings, process::ProcessSettings,
    queue::QueueSettings,
};

/// Parses the settings of one kind.
pub(super) type Read = fn(ValueDeserializer<'_>) -> Result<Arc<dyn Settings>, Error>;

/// Every kind by name.
pub(super) const KINDS: [(&str, Read); 11] = [
    ("agent_cli", read::<AgentCliSettings>),
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

/// The lines that declare an operator of a kind which has none by default.
pub(in crate::operator) fn lines_of(kind: &str) -> Option<&'static str> {
    Some(match kind {
        "llm" => {
            "[operators.model]\nkind = \"llm\"\napi = \"anthropic\"\nmodel = \"claude-sonnet-4-5\"\n\
             key = { env = \"ANTHROPIC_API_KEY\" }"
        }
        "agent_cli" => "[operators.claude]\nkind = \"agent_cli\"\nprofile = \"claude-code\"",
        "http" => "[operators.hook]\nkind = \"http\"\nurl = \"https://ci.example.com/hooks/swarm\"",
        "mcp" => "[operators.files]\nkind = \"mcp\"\ncommand = [\"mcp-server-filesystem\", \".\"]",
        "composite" => {
            "[operators.either]\nkind = \"composite\"\nrule = \"fallback\"\nmembers = [\"human\", \"queue\"]"
        }
        _ => return None,
    })
}

fn read<S>(keys: ValueDeserializer<'_>) -> Result<Arc<dyn Settings>, Error>
where
    S: Settings + DeserializeOwned + 'static,
{
    S::deserialize(keys).map(|settings| Arc::new(settings) as Arc<dyn Settings>)
}
