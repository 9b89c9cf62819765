//! State: the traits by which it is read and written, and what a write may say about its value.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{DurationMs, Scope, StateError};

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

/// What a read or a write may say about a value; a backend may ignore it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StoreOptions {
    /// How fast it should be at hand.
    pub tier: Option<MemoryTier>,
    /// How long it should live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifetime: Option<Lifetime>,
    /// What kind of knowledge it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_kind: Option<ContentKind>,
    /// How important it is, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub salience: Option<f64>,
    /// When it expires, counted from the write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<DurationMs>,
}

/// What a search may ask for besides its words; a backend may ignore it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SearchOptions {
    /// The least score.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_score: Option<f64>,
    /// Only this kind of knowledge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_kind: Option<ContentKind>,
    /// Only this tier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<MemoryTier>,
    /// How many links away a hit may lie, where links are followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_depth: Option<u32>,
}

/// A key that a search found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SearchResult {
    /// The key.
    pub key: String,
    /// How well it fits; more is better.
    pub score: f64,
    /// The part of the value that fits.
    pub snippet: Option<String>,
}

impl SearchResult {
    /// A hit without a snippet.
    pub fn new(key: impl Into<String>, score: f64) -> Self {
        Self { key: key.into(), score, snippet: None }
    }
}

/// Keeps values by scope and key, for whoever may write them.
#[async_trait]
pub trait StateStore: Send + Sync {
    /// The value of a key; nothing if there is none.
    ///
    /// # Errors
    /// When it cannot be read.
    async fn read(&self, scope: &Scope, key: &str) -> Result<Option<Value>, StateError>;

    /// Writes a value, over what was there.
    ///
    /// # Errors
    /// When it was not written.
    async fn write(&self, scope: &Scope, key: &str, value: Value) -> Result<(), StateError>;

    /// Removes a key, also one that is not there.
    ///
    /// # Errors
    /// When it was not removed.
    async fn delete(&self, scope: &Scope, key: &str) -> Result<(), StateError>;

    /// The keys that begin with `prefix`, sorted; all of the scope for an empty one.
    ///
    /// # Errors
    /// When they cannot be read.
    async fn list(&self, scope: &Scope, prefix: &str) -> Result<Vec<String>, StateError>;

    /// The keys whose values fit `query`, the best first; none where that is not supported.
    ///
    /// # Errors
    /// When they cannot be read.
    async fn search(
        &self,
        scope: &Scope,
        query: &str,
        limit: usize,
    ) -> Result<Vec<SearchResult>, StateError>;

    /// As [`StateStore::read`], with hints.
    ///
    /// # Errors
    /// See [`StateStore::read`].
    async fn read_hinted(
        &self,
        scope: &Scope,
        key: &str,
        _options: &StoreOptions,
    ) -> Result<Option<Value>, StateError> {
        self.read(scope, key).await
    }

    /// As [`StateStore::write`], with hints.
    ///
    /// # Errors
    /// See [`StateStore::write`].
    async fn write_hinted(
        &self,
        scope: &Scope,
        key: &str,
        value: Value,
        _options: &StoreOptions,
    ) -> Result<(), StateError> {
        self.write(scope, key, value).await
    }

    /// Forgets every value whose lifetime is [`Lifetime::Transient`].
    fn clear_transient(&self) {}

    /// Links two keys of a scope.
    ///
    /// # Errors
    /// When links are not supported, or it was not written.
    async fn link(&self, _scope: &Scope, _link: &MemoryLink) -> Result<(), StateError> {
        Err(no_links())
    }

    /// Removes a link between two keys of a scope, also one that is not there.
    ///
    /// # Errors
    /// See [`StateStore::link`].
    async fn unlink(
        &self,
        _scope: &Scope,
        _from_key: &str,
        _to_key: &str,
        _relation: &str,
    ) -> Result<(), StateError> {
        Err(no_links())
    }

    /// The keys that at most `max_depth` links lead to, the nearest first; along links of one
    /// relation, or of any.
    ///
    /// # Errors
    /// When links are not supported, or cannot be read.
    async fn traverse(
        &self,
        _scope: &Scope,
        _from_key: &str,
        _relation: Option<&str>,
        _max_depth: u32,
    ) -> Result<Vec<String>, StateError> {
        Err(no_links())
    }

    /// As [`StateStore::search`], with hints.
    ///
    /// # Errors
    /// See [`StateStore::search`].
    async fn search_hinted(
        &self,
        scope: &Scope,
        query: &str,
        limit: usize,
        _options: &SearchOptions,
    ) -> Result<Vec<SearchResult>, StateError> {
        self.search(scope, query, limit).await
    }
}

fn no_links() -> StateError {
    StateError::Other("graph operations not supported by this store".into())
}

/// What an operator sees of state: it reads, and writes by its effects alone.
///
/// Every [`StateStore`] is one.
#[async_trait]
pub trait StateReader: Send + Sync {
    /// See [`StateStore::read`].
    ///
    /// # Errors
    /// When it cannot be read.
    async fn read(&self, scope: &Scope, key: &str) -> Result<Option<Value>, StateError>;

    /// See [`StateStore::list`].
    ///
    /// # Errors
    /// When they cannot be read.
    async fn list(&self, scope: &Scope, prefix: &str) -> Result<Vec<String>, StateError>;

    /// See [`StateStore::search`].
    ///
    /// # Errors
    /// When they cannot be read.
    async fn search(
        &self,
        scope: &Scope,
        query: &str,
        limit: usize,
    ) -> Result<Vec<SearchResult>, StateError>;

    /// See [`StateStore::read_hinted`].
    ///
    /// # Errors
    /// When it cannot be read.
    async fn read_hinted(
        &self,
        scope: &Scope,
        key: &str,
        _options: &StoreOptions,
    ) -> Result<Option<Value>, StateError> {
        self.read(scope, key).await
    }

    /// See [`StateStore::clear_transient`].
    fn clear_transient(&self) {}

    /// See [`StateStore::traverse`]; nothing where links are not supported.
    ///
    /// # Errors
    /// When links cannot be read.
    async fn traverse(
        &self,
        _scope: &Scope,
        _from_key: &str,
        _relation: Option<&str>,
        _max_depth: u32,
    ) -> Result<Vec<String>, StateError> {
        Ok(Vec::new())
    }

    /// See [`StateStore::search_hinted`].
    ///
    /// # Errors
    /// When they cannot be read.
    async fn search_hinted(
        &self,
        scope: &Scope,
        query: &str,
        limit: usize,
        _options: &SearchOptions,
    ) -> Result<Vec<SearchResult>, StateError> {
        self.search(scope, query, limit).await
    }
}

#[async_trait]
impl<T: StateStore> StateReader for T {
    async fn read(&self, scope: &Scope, key: &str) -> Result<Option<Value>, StateError> {
        StateStore::read(self, scope, key).await
    }

    async fn list(&self, scope: &Scope, prefix: &str) -> Result<Vec<String>, StateError> {
        StateStore::list(self, scope, prefix).await
    }

    async fn search(
        &self,
        scope: &Scope,
        query: &str,
        limit: usize,
    ) -> Result<Vec<SearchResult>, StateError> {
        StateStore::search(self, scope, query, limit).await
    }

    async fn read_hinted(
        &self,
        scope: &Scope,
        key: &str,
        options: &StoreOptions,
    ) -> Result<Option<Value>, StateError> {
        StateStore::read_hinted(self, scope, key, options).await
    }

    fn clear_transient(&self) {
        StateStore::clear_transient(self);
    }

    async fn traverse(
        &self,
        scope: &Scope,
        from_key: &str,
        relation: Option<&str>,
        max_depth: u32,
    ) -> Result<Vec<String>, StateError> {
        StateStore::traverse(self, scope, from_key, relation, max_depth).await
    }

    async fn search_hinted(
        &self,
        scope: &Scope,
        query: &str,
        limit: usize,
        options: &SearchOptions,
    ) -> Result<Vec<SearchResult>, StateError> {
        StateStore::search_hinted(self, scope, query, limit, options).await
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
