//! The traits for reading and writing state, and the metadata of its values.

use std::fmt;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{DurationMs, Scope, StateError, WorkflowId};

/// The storage tier of a value; a backend may ignore it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryTier {
    /// Read often.
    #[default]
    Hot,
    /// Read sometimes.
    Warm,
    /// Rarely read.
    Cold,
}

/// The lifetime of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lifetime {
    /// Until it is cleared; never stored durably.
    Transient,
    /// As long as the session.
    Session,
    /// Permanent.
    Durable,
}

/// The kind of knowledge that a value holds.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContentKind {
    /// An event.
    Episodic,
    /// A fact.
    Semantic,
    /// A procedure.
    Procedural,
    /// The structure of the surroundings.
    Structural,
    /// A custom kind.
    Custom(String),
}

/// A named, directed link between two keys of one scope.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemoryLink {
    /// The source key.
    pub from_key: String,
    /// The target key.
    pub to_key: String,
    /// The relation of the link.
    pub relation: String,
    /// Additional data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
}

impl MemoryLink {
    /// Creates a link without metadata.
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

/// Hints for a read or a write; a backend may ignore them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StoreOptions {
    /// The storage tier.
    pub tier: Option<MemoryTier>,
    /// The lifetime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifetime: Option<Lifetime>,
    /// The kind of knowledge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_kind: Option<ContentKind>,
    /// The importance, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub salience: Option<f64>,
    /// The time until the value expires, from the write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<DurationMs>,
}

/// The name of a change that a host makes at least once: each time it is made, it has the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ChangeKey {
    /// The run that asked for the change.
    pub run: WorkflowId,
    /// The step of that run.
    pub step: u32,
    /// Tells the changes of one step apart; 0 for the change of a flow.
    pub n: u64,
}

impl ChangeKey {
    /// Creates a key.
    pub fn new(run: impl Into<WorkflowId>, step: u32, n: u64) -> Self {
        Self { run: run.into(), step, n }
    }
}

/// As `run/step/n`.
impl fmt::Display for ChangeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.run, self.step, self.n)
    }
}

/// Further conditions of a search; a backend may ignore them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SearchOptions {
    /// The minimum score.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_score: Option<f64>,
    /// Only this kind of knowledge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_kind: Option<ContentKind>,
    /// Only this tier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<MemoryTier>,
    /// The maximum number of links from a hit, where links are followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_depth: Option<u32>,
}

/// A key that a search found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SearchResult {
    /// The key.
    pub key: String,
    /// The score; higher is better.
    pub score: f64,
    /// The part of the value that matches.
    pub snippet: Option<String>,
}

impl SearchResult {
    /// Creates a hit without a snippet.
    pub fn new(key: impl Into<String>, score: f64) -> Self {
        Self { key: key.into(), score, snippet: None }
    }
}

/// Stores values by scope and key, for callers that may write.
#[async_trait]
pub trait StateStore: Send + Sync {
    /// Returns the value of a key, or `None`.
    ///
    /// # Errors
    /// Fails when the value cannot be read.
    async fn read(&self, scope: &Scope, key: &str) -> Result<Option<Value>, StateError>;

    /// Writes a value, and overwrites an earlier one.
    ///
    /// # Errors
    /// Fails when the value was not written.
    async fn write(&self, scope: &Scope, key: &str, value: Value) -> Result<(), StateError>;

    /// Removes a key; succeeds if the key does not exist.
    ///
    /// # Errors
    /// Fails when the key was not removed.
    async fn delete(&self, scope: &Scope, key: &str) -> Result<(), StateError>;

    /// Returns the keys that begin with `prefix`, sorted; every key of the scope for an empty
    /// prefix.
    ///
    /// # Errors
    /// Fails when the keys cannot be read.
    async fn list(&self, scope: &Scope, prefix: &str) -> Result<Vec<String>, StateError>;

    /// Returns the keys whose values match `query`, best first; none if search is not supported.
    ///
    /// # Errors
    /// Fails when the keys cannot be read.
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

    /// As [`StateStore::write_hinted`], for a host that makes a change at least once. A store that
    /// keeps the keys of its last changes can leave out one that it has made.
    ///
    /// # Errors
    /// See [`StateStore::write`]. The host makes the change again after
    /// [`StateError::WriteFailed`], and drops it after any other error.
    async fn write_keyed(
        &self,
        scope: &Scope,
        key: &str,
        value: Value,
        options: &StoreOptions,
        _change: &ChangeKey,
    ) -> Result<(), StateError> {
        self.write_hinted(scope, key, value, options).await
    }

    /// As [`StateStore::delete`], for a host that makes a change at least once.
    ///
    /// # Errors
    /// See [`StateStore::write_keyed`].
    async fn delete_keyed(
        &self,
        scope: &Scope,
        key: &str,
        _change: &ChangeKey,
    ) -> Result<(), StateError> {
        self.delete(scope, key).await
    }

    /// Removes every value whose lifetime is [`Lifetime::Transient`].
    fn clear_transient(&self) {}

    /// Links two keys of a scope.
    ///
    /// # Errors
    /// Fails when links are not supported, or the link was not written.
    async fn link(&self, _scope: &Scope, _link: &MemoryLink) -> Result<(), StateError> {
        Err(no_links())
    }

    /// Removes a link between two keys of a scope; succeeds if the link does not exist.
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

    /// Returns the keys that are reachable over at most `max_depth` links, nearest first; follows
    /// one relation, or any.
    ///
    /// # Errors
    /// Fails when links are not supported, or cannot be read.
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

/// The view of state that an operator has: it reads directly, and writes only by effects.
///
/// Every [`StateStore`] implements it.
#[async_trait]
pub trait StateReader: Send + Sync {
    /// See [`StateStore::read`].
    ///
    /// # Errors
    /// Fails when it cannot be read.
    async fn read(&self, scope: &Scope, key: &str) -> Result<Option<Value>, StateError>;

    /// See [`StateStore::list`].
    ///
    /// # Errors
    /// Fails when they cannot be read.
    async fn list(&self, scope: &Scope, prefix: &str) -> Result<Vec<String>, StateError>;

    /// See [`StateStore::search`].
    ///
    /// # Errors
    /// Fails when they cannot be read.
    async fn search(
        &self,
        scope: &Scope,
        query: &str,
        limit: usize,
    ) -> Result<Vec<SearchResult>, StateError>;

    /// See [`StateStore::read_hinted`].
    ///
    /// # Errors
    /// Fails when it cannot be read.
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

    /// See [`StateStore::traverse`]; returns nothing if links are not supported.
    ///
    /// # Errors
    /// Fails when links cannot be read.
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
    /// Fails when they cannot be read.
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
