//! Restores a data directory from a backup, while no host owns it.

use std::path::Path;

use super::HostError;
use crate::store;

/// The content of a restored data directory.
pub use crate::store::Restored;

/// Restores a data directory from a backup. The first start of a host there creates new keys, a new
/// admin token and a new incarnation: no token or handle of the original is valid in it.
///
/// # Errors
/// Fails when the directory is not empty, the file is not a complete backup, or a newer release
/// wrote it.
pub fn restore(from: &Path, data: &Path) -> Result<Restored, HostError> {
    Ok(store::restore(from, data)?)
}
