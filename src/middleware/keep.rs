//! What layers keep beyond the life of a host.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;

use super::audit_line::{Chained, Line};
use crate::{
    clock::Clock,
    protocol::{Failure, Json},
};

/// A change to what is kept.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Keep a value.
    Put {
        /// The layer, by a name of its own.
        layer: String,
        /// The key.
        key: String,
        /// The value.
        value: Json,
        /// When it may be forgotten, in Unix milliseconds.
        expires_ms: Option<u64>,
    },
    /// Forget a value.
    Remove {
        /// The layer.
        layer: String,
        /// The key.
        key: String,
    },
    /// Add a line to the audit log.
    Audit(Box<Line>),
}

/// Where layers keep what must outlive the host.
#[async_trait]
pub trait Keep: Send + Sync {
    /// A value that was kept and has not expired.
    ///
    /// # Errors
    /// When it cannot be read.
    async fn read(&self, layer: &str, key: &str) -> Result<Option<Json>, Failure>;

    /// Makes a change; it is durable when this returns.
    ///
    /// # Errors
    /// When it could not be made durable.
    async fn write(&self, change: Change) -> Result<(), Failure>;

    /// Makes a change soon, after all that were made before. A failure is logged.
    fn post(&self, change: Change);
}

/// Keeps everything in memory: for tests, and for stacks without a host.
pub struct MemoryKeep {
    clock: Clock,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    values: BTreeMap<(String, String), (Json, Option<u64>)>,
    audit: Vec<Chained>,
}

impl MemoryKeep {
    /// Nothing is kept yet; what expires does so by `clock`.
    pub fn new(clock: Clock) -> Self {
        Self { clock, kept: Mutex::default() }
    }

    /// The audit log so far.
    pub fn audit(&self) -> Vec<Chained> {
        self.kept().audit.clone()
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Keep for MemoryKeep {
    async fn read(&self, layer: &str, key: &str) -> Result<Option<Json>, Failure> {
        let now = self.clock.now_ms();
        let kept = self.kept();
        let found = kept.values.get(&(layer.to_owned(), key.to_owned()));
        let alive = found.filter(|(_, expires)| expires.is_none_or(|at| at > now));
        Ok(alive.map(|(value, _)| value.clone()))
    }

    async fn write(&self, change: Change) -> Result<(), Failure> {
        self.post(change);
        Ok(())
    }

    fn post(&self, change: Change) {
        let mut kept = self.kept();
        match change {
            Change::Put { layer, key, value, expires_ms } => {
                kept.values.insert((layer, key), (value, expires_ms));
            }
            Change::Remove { layer, key } => {
                kept.values.remove(&(layer, key));
            }
            Change::Audit(line) => {
                let next = Chained::after(kept.audit.last(), self.clock.now_ms(), &line);
                kept.audit.push(next);
            }
        }
    }
}
