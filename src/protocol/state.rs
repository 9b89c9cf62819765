//! What a write to state may say about the value: where to keep it, for how long, what it is.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How fast a value should be at hand; a backend may ignore it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryTier {
    /// Read often.
    #[default]
    Hot,
    /// Read now and then.
    Warm,
    /// Kept rather than read.
    Cold,
}

/// How long a value should live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lifetime {
    /// Until it is cleared; never stored durably.
    Transient,
    /// As long as its session.
    Session,
    /// For good.
    Durable,
}

/// What kind of knowledge a value is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContentKind {
    /// Something that happened.
    Episodic,
    /// Something that is so.
    Semantic,
    /// How something is done.
    Procedural,
    /// How the surroundings are laid out.
    Structural,
    /// A kind of the author's own.
    Custom(String),
}

/// A named, directed link between two keys of one scope.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemoryLink {
    /// The key that it starts from.
    pub from_key: String,
    /// The key that it leads to.
    pub to_key: String,
    /// What the one is to the other.
    pub relation: String,
    /// Anything more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
}

impl MemoryLink {
    /// A link without metadata.
    pub fn new(
        from_key: impl Into<String>,
        to_key: impl Into<String>,
        relation: impl Into<String>,
    ) -> Self {
        Self {
            from_key: from_key.into(),
            to_key: to_key.into(),
            relation: relation.into(),
            metadata: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn hints_are_snake_case_words() {
        assert_eq!(serde_json::to_value(MemoryTier::default()).unwrap(), json!("hot"));
        assert_eq!(serde_json::to_value(Lifetime::Transient).unwrap(), json!("transient"));
        assert_eq!(
            serde_json::to_value(ContentKind::Custom("x".into())).unwrap(),
            json!({"custom": "x"})
        );
    }

    #[test]
    fn a_link_without_metadata_says_nothing_of_it() {
        let link = MemoryLink::new("a", "b", "supersedes");
        assert_eq!(
            serde_json::to_value(&link).unwrap(),
            json!({"from_key": "a", "to_key": "b", "relation": "supersedes"})
        );
    }
}
