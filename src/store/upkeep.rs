//! The maintenance of a store as a whole.

use std::path::{Path, PathBuf};

use async_trait::async_trait;

use super::{
    Durability, ErasureTarget, Expiring, Space, StoreError, Tell, TracedRun, Traces, TracesInCopy,
};

/// The maintenance interface of a store: space, copies, checks and shutdown.
#[async_trait]
pub trait Upkeep: Send + Sync {
    /// Returns the disk space of the store.
    ///
    /// # Errors
    /// Fails when it cannot be read.
    fn space(&self) -> Result<Space, StoreError>;

    /// Returns the bytes that the retention policy compares with `limit`: each deletion of a run
    /// makes them fewer. As long as they are not over `limit`, they may include what deletions do
    /// not change. 0 means that nothing can be said before [`Write::Tidy`](super::Write::Tidy) has
    /// cleared what deletions left.
    ///
    /// # Errors
    /// Fails when the store cannot be read.
    fn retained_bytes(&self, _limit: u64) -> Result<u64, StoreError> {
        let Space { used, debris, .. } = self.space()?;
        Ok(if debris { 0 } else { used })
    }

    /// Returns true if there are records from before a time.
    ///
    /// # Errors
    /// Fails when the store cannot be read.
    fn has_expired(&self, what: Expiring, before_ms: u64) -> Result<bool, StoreError>;

    /// Returns at most `most` tokens that expired before a time and that nothing needs: no stored token
    /// is made from them, no open session has them, and no charge names them. Does not block the writer.
    ///
    /// # Errors
    /// Fails when the store cannot be read.
    fn expired_tokens(&self, before_ms: u64, most: usize) -> Result<Vec<String>, StoreError>;

    /// Reads everything once and reports damage. Does not block the writer.
    ///
    /// # Errors
    /// Fails when the store cannot be read at all.
    fn check(&self, tell: Tell<'_>) -> Result<(), StoreError>;

    /// Writes a consistent copy of the whole store into the new file `to`, synced, and returns its
    /// size in bytes. Does not block the writer.
    ///
    /// # Errors
    /// Fails when `to` exists or cannot be written, and for a store that has no files.
    fn backup(&self, to: &Path) -> Result<u64, StoreError>;

    /// Reads everything once and finds the rows of a target. Does not block the writer.
    ///
    /// # Errors
    /// Fails when the store cannot be read.
    fn traces(&self, target: &ErasureTarget) -> Result<Traces, StoreError>;

    /// Returns what the copies in the data directory hold of a target, and of runs that are erased.
    ///
    /// # Errors
    /// Fails when the directory cannot be read; a copy that cannot be read is part of the result.
    fn copies(
        &self,
        target: &ErasureTarget,
        runs: &[TracedRun],
    ) -> Result<Vec<TracesInCopy>, StoreError>;

    /// Returns true if the previous owner did not shut down cleanly.
    fn owner_died(&self) -> bool;

    /// Returns the migration that opening the store made, if any.
    fn migrated(&self) -> Option<Migrated>;

    /// Returns how far the clock of the store is ahead of that of this machine, in milliseconds; none for a
    /// store without a clock of its own. Blocks.
    ///
    /// # Errors
    /// Fails when the store cannot be read.
    fn clock_ahead_ms(&self) -> Result<Option<i64>, StoreError>;

    /// Returns what a failover of the database may lose; none for a store without one.
    fn durability(&self) -> Option<Durability> {
        None
    }

    /// Waits until this process can no longer write, and returns the reason.
    async fn lost(&self) -> StoreError;

    /// Commits the queued batches and closes the store. Later calls fail with
    /// [`StoreError::Closed`]. Closing again has no effect.
    ///
    /// # Errors
    /// Fails when the cleanup is incomplete. No data is lost.
    fn close(&self) -> Result<(), StoreError>;
}

/// A migration that was made when the store was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migrated {
    /// The format before.
    pub from: u32,
    /// The format after.
    pub to: u32,
    /// The path of the copy made before the migration.
    pub backup: PathBuf,
}

/// The requirements of a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Survey {
    /// The current format.
    pub format: u32,
    /// The size of the database in bytes.
    pub size: u64,
    /// The space that the migration needs in addition, in bytes.
    pub needs: u64,
    /// The space available, in bytes.
    pub free: u64,
}
