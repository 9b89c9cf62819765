//! The health of the store, from which the host decides whether it accepts work.

use super::StoreError;

/// The health of the store.
#[derive(Debug, Clone, Default)]
pub enum Health {
    /// The last write succeeded.
    #[default]
    Well,
    /// Writes fail for now. The store retries until one succeeds.
    Waiting(StoreError),
    /// This process can no longer write, because the content of the disk is no longer certain.
    Lost(StoreError),
}
