//! How the store is, for whoever decides whether the host takes work.

use super::StoreError;

/// How the store is.
#[derive(Debug, Clone, Default)]
pub enum Health {
    /// The last write went well.
    #[default]
    Well,
    /// Nothing can be written for now; the store tries again by itself until it can.
    Waiting(StoreError),
    /// Nothing is written any more by this process: what the disk has can no longer be known.
    Lost(StoreError),
}
