//! What is done with a store as a whole, beside what is written and read of single things.

use std::path::{Path, PathBuf};

use async_trait::async_trait;

use super::{Space, StoreError, Tell};

/// A store as its host looks after it: its room, its copies, its health and its end.
#[async_trait]
pub trait Upkeep: Send + Sync {
    /// How much room the store takes.
    ///
    /// # Errors
    /// When it cannot be read.
    fn space(&self) -> Result<Space, StoreError>;

    /// Reads everything once and tells of what is not what was stored. Holds no writer up.
    ///
    /// # Errors
    /// When the store cannot be read at all.
    fn check(&self, tell: Tell<'_>) -> Result<(), StoreError>;

    /// Writes one state of the whole store into the new file `to`, synced, and gives its size in
    /// bytes. Holds no writer up.
    ///
    /// # Errors
    /// When `to` exists or cannot be written, and for a store that has no files.
    fn backup(&self, to: &Path) -> Result<u64, StoreError>;

    /// Whether the owner before this one did not end in order.
    fn owner_died(&self) -> bool;

    /// What opening it changed of its format, if anything.
    fn migrated(&self) -> Option<Migrated>;

    /// Waits until nothing can be written any more by this process, and says why.
    async fn lost(&self) -> StoreError;

    /// Commits what is queued and gives the store up. Calls after it are answered with
    /// [`StoreError::Closed`]; closing again does nothing.
    ///
    /// # Errors
    /// When not all could be tidied up; nothing is lost by that.
    fn close(&self) -> Result<(), StoreError>;
}

/// A store that was brought to another format when it was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migrated {
    /// The format that it had.
    pub from: u32,
    /// The format that it has.
    pub to: u32,
    /// A copy from before.
    pub backup: PathBuf,
}

/// What it takes to bring a database to another format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Survey {
    /// The format that it has.
    pub format: u32,
    /// Its size in bytes.
    pub size: u64,
    /// The room that a migration from its format takes beside it, in bytes.
    pub needs: u64,
    /// The room that there is, in bytes.
    pub free: u64,
}
