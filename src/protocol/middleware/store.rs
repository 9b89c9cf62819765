//! Middleware around state: every operation passes through it, not only reads and writes.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;

use super::builder::builder;
use crate::protocol::{
    Scope, StateError,
    state::{ChangeKey, MemoryLink, SearchOptions, SearchResult, StateStore, StoreOptions},
};

/// The remaining stack of a write.
#[async_trait]
pub trait StoreWriteNext: Send + Sync {
    /// Calls the remaining stack.
    ///
    /// # Errors
    /// Fails when an inner layer refuses, or the store fails.
    async fn write(
        &self,
        scope: &Scope,
        key: &str,
        value: Value,
        options: Option<&StoreOptions>,
    ) -> Result<(), StateError>;
}

/// The remaining stack of a read.
#[async_trait]
pub trait StoreReadNext: Send + Sync {
    /// Calls the remaining stack.
    ///
    /// # Errors
    /// Fails when an inner layer refuses, or the store fails.
    async fn read(&self, scope: &Scope, key: &str) -> Result<Option<Value>, StateError>;
}

/// An operation that is neither a read nor a write.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum StoreQuestion {
    /// Removes a key.
    Delete {
        /// The key.
        key: String,
    },
    /// Lists keys.
    List {
        /// The prefix of the keys.
        prefix: String,
    },
    /// Searches values.
    Search {
        /// The search terms.
        query: String,
        /// The maximum number of hits.
        limit: usize,
        /// Further conditions.
        options: SearchOptions,
    },
    /// Links two keys.
    Link {
        /// The link.
        link: MemoryLink,
    },
    /// Removes a link.
    Unlink {
        /// The source key.
        from_key: String,
        /// The target key.
        to_key: String,
        /// The relation of the link.
        relation: String,
    },
    /// Follows links.
    Traverse {
        /// The first key.
        from_key: String,
        /// The relation to follow; every relation if absent.
        relation: Option<String>,
        /// The maximum number of links to follow.
        max_depth: u32,
    },
}

/// The result of a [`StoreQuestion`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum StoreAnswer {
    /// The change was made.
    Done,
    /// The keys.
    Keys(Vec<String>),
    /// The hits.
    Found(Vec<SearchResult>),
}

/// The remaining stack of an operation that is neither a read nor a write.
#[async_trait]
pub trait StoreOtherNext: Send + Sync {
    /// Calls the remaining stack.
    ///
    /// # Errors
    /// Fails when an inner layer refuses, or the store fails.
    async fn other(&self, scope: &Scope, asked: StoreQuestion) -> Result<StoreAnswer, StateError>;
}

/// Wraps the operations on state.
#[async_trait]
pub trait StoreMiddleware: Send + Sync {
    /// Handles a write; calls `next` to continue.
    ///
    /// # Errors
    /// Fails when it refuses, or with the error of `next`.
    async fn write(
        &self,
        scope: &Scope,
        key: &str,
        value: Value,
        options: Option<&StoreOptions>,
        next: &dyn StoreWriteNext,
    ) -> Result<(), StateError>;

    /// Handles a read; calls `next` to continue.
    ///
    /// # Errors
    /// Fails when it refuses, or with the error of `next`.
    async fn read(
        &self,
        scope: &Scope,
        key: &str,
        next: &dyn StoreReadNext,
    ) -> Result<Option<Value>, StateError> {
        next.read(scope, key).await
    }

    /// Handles any other operation; calls `next` to continue.
    ///
    /// # Errors
    /// Fails when it refuses, or with the error of `next`.
    async fn other(
        &self,
        scope: &Scope,
        asked: StoreQuestion,
        next: &dyn StoreOtherNext,
    ) -> Result<StoreAnswer, StateError> {
        next.other(scope, asked).await
    }
}

/// The middleware of every operation on state.
#[derive(Default)]
pub struct StoreStack {
    layers: Vec<Arc<dyn StoreMiddleware>>,
}

builder!(
    /// Builds a [`StoreStack`].
    StoreStackBuilder,
    StoreStack,
    StoreMiddleware
);

impl StoreStack {
    /// Sends a write through the stack to `terminal`; an empty stack calls `terminal` directly.
    ///
    /// # Errors
    /// Fails when a layer refuses, or with the error of `terminal`.
    pub async fn write_with(
        &self,
        scope: &Scope,
        key: &str,
        value: Value,
        options: Option<&StoreOptions>,
        terminal: &dyn StoreWriteNext,
    ) -> Result<(), StateError> {
        Rest { layers: &self.layers, terminal }.write(scope, key, value, options).await
    }

    /// Sends a read through the stack to `terminal`.
    ///
    /// # Errors
    /// Fails when a layer refuses, or with the error of `terminal`.
    pub async fn read_with(
        &self,
        scope: &Scope,
        key: &str,
        terminal: &dyn StoreReadNext,
    ) -> Result<Option<Value>, StateError> {
        Rest { layers: &self.layers, terminal }.read(scope, key).await
    }

    /// Sends any other operation through the stack to `terminal`.
    ///
    /// # Errors
    /// Fails when a layer refuses, or with the error of `terminal`.
    pub async fn other_with(
        &self,
        scope: &Scope,
        asked: StoreQuestion,
        terminal: &dyn StoreOtherNext,
    ) -> Result<StoreAnswer, StateError> {
        Rest { layers: &self.layers, terminal }.other(scope, asked).await
    }

    /// Wraps a store, so that every operation passes through this stack.
    pub fn over<S: StateStore>(self, store: S) -> Layered<S> {
        Layered { stack: self, store }
    }
}

struct Rest<'a, T: ?Sized> {
    layers: &'a [Arc<dyn StoreMiddleware>],
    terminal: &'a T,
}

#[async_trait]
impl StoreWriteNext for Rest<'_, dyn StoreWriteNext + '_> {
    async fn write(
        &self,
        scope: &Scope,
        key: &str,
        value: Value,
        options: Option<&StoreOptions>,
    ) -> Result<(), StateError> {
        match self.layers.split_first() {
            None => self.terminal.write(scope, key, value, options).await,
            Some((layer, layers)) => {
                let next = Rest { layers, terminal: self.terminal };
                layer.write(scope, key, value, options, &next).await
            }
        }
    }
}

#[async_trait]
impl StoreReadNext for Rest<'_, dyn StoreReadNext + '_> {
    async fn read(&self, scope: &Scope, key: &str) -> Result<Option<Value>, StateError> {
        match self.layers.split_first() {
            None => self.terminal.read(scope, key).await,
            Some((layer, layers)) => {
                let next = Rest { layers, terminal: self.terminal };
                layer.read(scope, key, &next).await
            }
        }
    }
}

#[async_trait]
impl StoreOtherNext for Rest<'_, dyn StoreOtherNext + '_> {
    async fn other(&self, scope: &Scope, asked: StoreQuestion) -> Result<StoreAnswer, StateError> {
        match self.layers.split_first() {
            None => self.terminal.other(scope, asked).await,
            Some((layer, layers)) => {
                let next = Rest { layers, terminal: self.terminal };
                layer.other(scope, asked, &next).await
            }
        }
    }
}

/// A store wrapped by a stack. The hints of a read and the key of a change reach the store, and no
/// layer sees them; what a layer writes besides has the same key.
pub struct Layered<S> {
    stack: StoreStack,
    store: S,
}

/// The store itself, at the end of the stack, with what the layers do not see of an operation.
struct Innermost<'a, S> {
    store: &'a S,
    /// The hints of a read.
    hints: Option<&'a StoreOptions>,
    /// The key of a change that is made at least once.
    change: Option<&'a ChangeKey>,
}

impl<'a, S> Innermost<'a, S> {
    fn of(store: &'a S) -> Self {
        Self { store, hints: None, change: None }
    }
}

#[async_trait]
impl<S: StateStore> StoreWriteNext for Innermost<'_, S> {
    async fn write(
        &self,
        scope: &Scope,
        key: &str,
        value: Value,
        options: Option<&StoreOptions>,
    ) -> Result<(), StateError> {
        match (self.change, options) {
            (None, None) => StateStore::write(self.store, scope, key, value).await,
            (None, Some(options)) => self.store.write_hinted(scope, key, value, options).await,
            (Some(change), options) => {
                let options = options.cloned().unwrap_or_default();
                self.store.write_keyed(scope, key, value, &options, change).await
            }
        }
    }
}

#[async_trait]
impl<S: StateStore> StoreReadNext for Innermost<'_, S> {
    async fn read(&self, scope: &Scope, key: &str) -> Result<Option<Value>, StateError> {
        match self.hints {
            None => StateStore::read(self.store, scope, key).await,
            Some(hints) => StateStore::read_hinted(self.store, scope, key, hints).await,
        }
    }
}

#[async_trait]
impl<S: StateStore> StoreOtherNext for Innermost<'_, S> {
    async fn other(&self, scope: &Scope, asked: StoreQuestion) -> Result<StoreAnswer, StateError> {
        let store = self.store;
        Ok(match asked {
            StoreQuestion::Delete { key } => {
                match self.change {
                    None => store.delete(scope, &key).await?,
                    Some(change) => store.delete_keyed(scope, &key, change).await?,
                }
                StoreAnswer::Done
            }
            StoreQuestion::List { prefix } => {
                StoreAnswer::Keys(StateStore::list(store, scope, &prefix).await?)
            }
            StoreQuestion::Search { query, limit, options } => StoreAnswer::Found(
                StateStore::search_hinted(store, scope, &query, limit, &options).await?,
            ),
            StoreQuestion::Link { link } => {
                store.link(scope, &link).await?;
                StoreAnswer::Done
            }
            StoreQuestion::Unlink { from_key, to_key, relation } => {
                store.unlink(scope, &from_key, &to_key, &relation).await?;
                StoreAnswer::Done
            }
            StoreQuestion::Traverse { from_key, relation, max_depth } => StoreAnswer::Keys(
                StateStore::traverse(store, scope, &from_key, relation.as_deref(), max_depth)
                    .await?,
            ),
        })
    }
}

impl<S: StateStore> Layered<S> {
    async fn ask(&self, scope: &Scope, asked: StoreQuestion) -> Result<StoreAnswer, StateError> {
        self.stack.other_with(scope, asked, &Innermost::of(&self.store)).await
    }

    async fn keys(&self, scope: &Scope, asked: StoreQuestion) -> Result<Vec<String>, StateError> {
        match self.ask(scope, asked).await? {
            StoreAnswer::Keys(keys) => Ok(keys),
            StoreAnswer::Done | StoreAnswer::Found(_) => Err(odd()),
        }
    }
}

fn odd() -> StateError {
    StateError::Other("a middleware answered another question".into())
}

#[async_trait]
impl<S: StateStore> StateStore for Layered<S> {
    async fn read(&self, scope: &Scope, key: &str) -> Result<Option<Value>, StateError> {
        self.stack.read_with(scope, key, &Innermost::of(&self.store)).await
    }

    async fn write(&self, scope: &Scope, key: &str, value: Value) -> Result<(), StateError> {
        self.stack.write_with(scope, key, value, None, &Innermost::of(&self.store)).await
    }

    async fn write_hinted(
        &self,
        scope: &Scope,
        key: &str,
        value: Value,
        options: &StoreOptions,
    ) -> Result<(), StateError> {
        let end = Innermost::of(&self.store);
        self.stack.write_with(scope, key, value, Some(options), &end).await
    }

    async fn write_keyed(
        &self,
        scope: &Scope,
        key: &str,
        value: Value,
        options: &StoreOptions,
        change: &ChangeKey,
    ) -> Result<(), StateError> {
        let end = Innermost { change: Some(change), ..Innermost::of(&self.store) };
        self.stack.write_with(scope, key, value, Some(options), &end).await
    }

    async fn read_hinted(
        &self,
        scope: &Scope,
        key: &str,
        options: &StoreOptions,
    ) -> Result<Option<Value>, StateError> {
        let end = Innermost { hints: Some(options), ..Innermost::of(&self.store) };
        self.stack.read_with(scope, key, &end).await
    }

    async fn delete_keyed(
        &self,
        scope: &Scope,
        key: &str,
        change: &ChangeKey,
    ) -> Result<(), StateError> {
        let asked = StoreQuestion::Delete { key: key.to_owned() };
        let end = Innermost { change: Some(change), ..Innermost::of(&self.store) };
        self.stack.other_with(scope, asked, &end).await.map(drop)
    }

    async fn delete(&self, scope: &Scope, key: &str) -> Result<(), StateError> {
        self.ask(scope, StoreQuestion::Delete { key: key.to_owned() }).await.map(drop)
    }

    async fn list(&self, scope: &Scope, prefix: &str) -> Result<Vec<String>, StateError> {
        self.keys(scope, StoreQuestion::List { prefix: prefix.to_owned() }).await
    }

    async fn search(
        &self,
        scope: &Scope,
        query: &str,
        limit: usize,
    ) -> Result<Vec<SearchResult>, StateError> {
        StateStore::search_hinted(self, scope, query, limit, &SearchOptions::default()).await
    }

    async fn search_hinted(
        &self,
        scope: &Scope,
        query: &str,
        limit: usize,
        options: &SearchOptions,
    ) -> Result<Vec<SearchResult>, StateError> {
        let (query, options) = (query.to_owned(), options.clone());
        match self.ask(scope, StoreQuestion::Search { query, limit, options }).await? {
            StoreAnswer::Found(found) => Ok(found),
            StoreAnswer::Done | StoreAnswer::Keys(_) => Err(odd()),
        }
    }

    fn clear_transient(&self) {
        StateStore::clear_transient(&self.store);
    }

    async fn link(&self, scope: &Scope, link: &MemoryLink) -> Result<(), StateError> {
        self.ask(scope, StoreQuestion::Link { link: link.clone() }).await.map(drop)
    }

    async fn unlink(
        &self,
        scope: &Scope,
        from_key: &str,
        to_key: &str,
        relation: &str,
    ) -> Result<(), StateError> {
        let asked = StoreQuestion::Unlink {
            from_key: from_key.to_owned(),
            to_key: to_key.to_owned(),
            relation: relation.to_owned(),
        };
        self.ask(scope, asked).await.map(drop)
    }

    async fn traverse(
        &self,
        scope: &Scope,
        from_key: &str,
        relation: Option<&str>,
        max_depth: u32,
    ) -> Result<Vec<String>, StateError> {
        let (from_key, relation) = (from_key.to_owned(), relation.map(str::to_owned));
        self.keys(scope, StoreQuestion::Traverse { from_key, relation, max_depth }).await
    }
}
