//! The archived blueprints, as the host remembers them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The key of the stored data.
pub(crate) const KEY: &str = "blueprints.archived";

/// The archived blueprints, as they are stored.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    /// The stored text, which a change replaces.
    pub(crate) text: Option<String>,
    /// The archived blueprints, by name.
    pub(crate) names: BTreeMap<String, Archived>,
}

/// An archived blueprint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Archived {
    /// The version that its name stood for.
    pub(crate) hash: String,
    /// The time, in Unix milliseconds.
    pub(crate) at_ms: u64,
    /// The subject that archived it.
    pub(crate) by: String,
}

impl Archive {
    /// Reads the stored text. A text that cannot be read archives nothing: it never stops a start.
    pub(crate) fn read(text: Option<String>) -> Self {
        let names = text.as_deref().map(serde_json::from_str).transpose();
        let names = names.unwrap_or_else(|error| {
            tracing::warn!(%error, "the list of archived blueprints cannot be read");
            None
        });
        Self { text, names: names.unwrap_or_default() }
    }
}
