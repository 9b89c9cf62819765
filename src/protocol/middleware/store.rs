//! Around state: every operation passes, not only reads and writes.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;

use super::builder::builder;
use crate::protocol::{
    Scope, StateError,
    state::{MemoryLink, SearchOptions, SearchResult, StateStore, StoreOptions},
};

/// The rest of the way of a write.
#[async_trait]
pub trait StoreWriteNext: Send + Sync {
    /// Goes on.
    ///
    /// # Errors
    /// A refusal further on, or the store's failure.
    async fn write(
        &self,
        scope: &Scope,
        key: &str,
        value: Value,
        options: Option<&StoreOptions>,
    ) -> Result<(), StateError>;
}

/// The rest of the way of a read.
#[async_trait]
pub trait StoreReadNext: Send + Sync {
    /// Goes on.
    ///
    /// # Errors
    /// A refusal further on, or the store's failure.
    async fn read(&self, scope: &Scope, key: &str) -> Result<Option<Value>, StateError>;
}

/// An operation that is neither a read nor a write.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum StoreQuestion {
    /// Remove a key.
    Delete {
        /// The key.
        key: String,
    },
    /// List keys.
    List {
        /// What they begin with.
        prefix: String,
    },
    /// Search values.
    Search {
        /// The words.
        query: String,
        /// The most hits.
        limit: usize,
        /// What else is asked.
        options: SearchOptions,
    },
    /// Link two keys.
    Link {
        /// Which to which.
        link: MemoryLink,
    },
    /// Remove a link.
    Unlink {
        /// The key that it starts from.
        from_key: String,
        /// The key that it leads to.
        to_key: String,
        /// What the one is to the other.
        relation: String,
    },
    /// Follow links.
    Traverse {
        /// The key to start from.
        from_key: String,
        /// Only links of this relation.
        relation: Option<String>,
        /// How many links away.
        max_depth: u32,
    },
}

/// What a [`StoreQuestion`] gives.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum StoreAnswer {
    /// It is done.
    Done,
    /// Keys.
    Keys(Vec<String>),
    /// Hits.
    Found(Vec<SearchResult>),
}

/// The rest of the way of an operation that is neither a read nor a write.
#[async_trait]
pub trait StoreOtherNext: Send + Sync {
    /// Goes on.
    ///
    /// # Errors
    /// A refusal further on, or the store's failure.
    async fn other(&self, scope: &Scope, asked: StoreQuestion) -> Result<StoreAnswer, StateError>;
}

/// Stands around state.
#[async_trait]
pub trait StoreMiddleware: Send + Sync {
    /// Passes a write on, or not.
    ///
    /// # Errors
    /// Its own refusal, or what came back from `next`.
    async fn write(
        &self,
        scope: &Scope,
        key: &str,
        value: Value,
        options: Option<&StoreOptions>,
        next: &dyn StoreWriteNext,
    ) -> Result<(), StateError>;

    /// Passes a read on, or not.
    ///
    /// # Errors
    /// Its own refusal, or what came back from `next`.
    async fn read(
        &self,
        scope: &Scope,
        key: &str,
        next: &dyn StoreReadNext,
    ) -> Result<Option<Value>, StateError> {
        next.read(scope, key).await
    }

    /// Passes any other operation on, or not.
    ///
    /// # Errors
    /// Its own refusal, or what came back from `next`.
    async fn other(
        &self,
        scope: &Scope,
        asked: StoreQuestion,
        next: &dyn StoreOtherNext,
    ) -> Result<StoreAnswer, StateError> {
        next.other(scope, asked).await
    }
}

/// What every operation on state passes through.
#[derive(Default)]
pub struct StoreStack {
    layers: Vec<Arc<dyn StoreMiddleware>>,
}

builder!(
    /// Collects what a [`StoreStack`] has.
    StoreStackBuilder,
    StoreStack,
    StoreMiddleware
);

impl StoreStack {
    /// Takes a write through the stack to `terminal`; an empty stack is its terminal.
    ///
    /// # Errors
    /// A refusal on the way, or the terminal's failure.
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

    /// Takes a read through the stack to `terminal`.
    ///
    /// # Errors
    /// A refusal on the way, or the terminal's failure.
    pub async fn read_with(
        &self,
        scope: &Scope,
        key: &str,
        terminal: &dyn StoreReadNext,
    ) -> Result<Option<Value>, StateError> {
        Rest { layers: &self.layers, terminal }.read(scope, key).await
    }

    /// Takes any other operation through the stack to `terminal`.
    ///
    /// # Errors
    /// A refusal on the way, or the terminal's failure.
    pub async fn other_with(
        &self,
        scope: &Scope,
        asked: StoreQuestion,
        terminal: &dyn StoreOtherNext,
    ) -> Result<StoreAnswer, StateError> {
        Rest { layers: &self.layers, terminal }.other(scope, asked).await
    }

    /// A store that every operation reaches through this stack.
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

/// A store behind a stack.
pub struct Layered<S> {
    stack: StoreStack,
    store: S,
}

/// The store itself, at the end of the way.
struct End<'a, S>(&'a S);

#[async_trait]
impl<S: StateStore> StoreWriteNext for End<'_, S> {
    async fn write(
        &self,
        scope: &Scope,
        key: &str,
        value: Value,
        options: Option<&StoreOptions>,
    ) -> Result<(), StateError> {
        match options {
            None => StateStore::write(self.0, scope, key, value).await,
            Some(options) => self.0.write_hinted(scope, key, value, options).await,
        }
    }
}

#[async_trait]
impl<S: StateStore> StoreReadNext for End<'_, S> {
    async fn read(&self, scope: &Scope, key: &str) -> Result<Option<Value>, StateError> {
        StateStore::read(self.0, scope, key).await
    }
}

#[async_trait]
impl<S: StateStore> StoreOtherNext for End<'_, S> {
    async fn other(&self, scope: &Scope, asked: StoreQuestion) -> Result<StoreAnswer, StateError> {
        let store = self.0;
        Ok(match asked {
            StoreQuestion::Delete { key } => {
                store.delete(scope, &key).await?;
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
        self.stack.other_with(scope, asked, &End(&self.store)).await
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
        self.stack.read_with(scope, key, &End(&self.store)).await
    }

    async fn write(&self, scope: &Scope, key: &str, value: Value) -> Result<(), StateError> {
        self.stack.write_with(scope, key, value, None, &End(&self.store)).await
    }

    async fn write_hinted(
        &self,
        scope: &Scope,
        key: &str,
        value: Value,
        options: &StoreOptions,
    ) -> Result<(), StateError> {
        self.stack.write_with(scope, key, value, Some(options), &End(&self.store)).await
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
