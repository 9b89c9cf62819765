//! A data directory from a backup, while nobody owns it.

use std::path::Path;

use super::HostError;
use crate::store;

/// What a restored data directory holds.
pub use crate::store::Restored;

/// Makes a data directory of a backup. The first start of a host there makes new keys, a new admin
/// token and a new incarnation: nothing that the original gave out is good in it.
///
/// # Errors
/// When the directory is not empty, the file is no whole backup, or a newer release wrote it.
pub fn restore(from: &Path, data: &Path) -> Result<Restored, HostError> {
    Ok(store::restore(from, data)?)
}
