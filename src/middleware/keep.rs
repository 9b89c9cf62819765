//! Data of layers that outlives a host.

use std::collections::BTreeMap;

use async_trait::async_trait;
use parking_lot::Mutex;

use super::audit_line::{AuditLine, Chained};
use crate::{
    clock::Clock,
    protocol::{Failure, Json},
};

/// A change to the stored data of layers.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Stores a value.
    Put {
        /// The name of the layer.
        layer: String,
        /// The key.
        key: String,
        /// The value.
        value: Json,
        /// The time at which the value expires, in Unix milliseconds.
        expires_ms: Option<u64>,
    },
    /// Removes a value.
    Remove {
        /// The name of the layer.
        layer: String,
        /// The key.
        key: String,
    },
    /// Appends a line to the audit log.
    Audit(Box<AuditLine>),
}

/// Stores the data of layers beyond the life of the host.
#[async_trait]
pub trait Keep: Send + Sync {
    /// Returns a stored value that has not expired, with every change that was posted before.
    ///
    /// # Errors
    /// Fails when it cannot be read.
    async fn read(&self, layer: &str, key: &str) -> Result<Option<Json>, Failure>;

    /// Makes a change durable before it returns.
    ///
    /// # Errors
    /// Fails when the change could not be made durable.
    async fn write(&self, change: Change) -> Result<(), Failure>;

    /// Queues a change after all earlier ones. A failure is logged.
    fn post(&self, change: Change);

    /// Returns true if the engine stores a value that depends on an accepted result in the commit
    /// that accepts it; else it is posted after that commit.
    fn joins_commits(&self) -> bool {
        false
    }
}

/// Stores everything in memory; for tests, and for stacks without a host.
pub struct MemoryKeep {
    clock: Clock,
    kept: Mutex<MemoryData>,
}

#[derive(Default)]
struct MemoryData {
    values: BTreeMap<(String, String), (Json, Option<u64>)>,
    audit: Vec<Chained>,
}

impl MemoryKeep {
    /// Creates an empty store; `clock` determines expiry.
    pub fn new(clock: Clock) -> Self {
        Self { clock, kept: Mutex::default() }
    }

    /// Returns the audit log so far.
    pub fn audit(&self) -> Vec<Chained> {
        self.kept.lock().audit.clone()
    }
}

#[async_trait]
impl Keep for MemoryKeep {
    async fn read(&self, layer: &str, key: &str) -> Result<Option<Json>, Failure> {
        let now = self.clock.now_ms();
        let kept = self.kept.lock();
        let found = kept.values.get(&(layer.to_owned(), key.to_owned()));
        let alive = found.filter(|(_, expires)| expires.is_none_or(|at| at > now));
        Ok(alive.map(|(value, _)| value.clone()))
    }

    async fn write(&self, change: Change) -> Result<(), Failure> {
        self.post(change);
        Ok(())
    }

    fn post(&self, change: Change) {
        let mut kept = self.kept.lock();
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
