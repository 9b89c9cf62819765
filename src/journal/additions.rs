//! What may be said about an entry beside its fact.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::protocol::Json;

/// What is said about an entry beside its fact, by name.
///
/// A release keeps the names that it does not know, and makes nothing of them; so whatever is to be
/// known of an entry later needs no other stored form. Reserved are `line` (where in the source the
/// flow asked), `queued_ms` and `ran_ms` (when its work was put into a queue and when it ran),
/// `tags`, `trace` (ids of a distributed trace), `output` (all that an operator said) and
/// `traceback`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Additions(BTreeMap<String, Json>);

impl Additions {
    /// Whether nothing is said.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What is said under a name.
    pub fn get(&self, name: &str) -> Option<&Json> {
        self.0.get(name)
    }

    /// Says something under a name, in place of what was said under it.
    pub fn put(&mut self, name: impl Into<String>, value: Json) {
        self.0.insert(name.into(), value);
    }

    /// Everything, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Json)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// About how many bytes it takes.
    pub(crate) fn size(&self) -> usize {
        self.iter().map(|(name, value)| name.len() + value.len() + 4).sum()
    }
}
