//! Everything that is needed to load a run.

use super::{ArtifactRow, ChargeRow, Header, StateRow, StoreError, TaskRow};
use crate::journal::Entry;

/// The parts of a run to read.
pub struct Want<'a> {
    /// True if more than the header is read, given the header.
    pub rows: &'a dyn Fn(&Header) -> bool,
    /// The most bytes of a history, and of a state, that are read.
    pub most: u64,
}

/// A run in one snapshot.
#[derive(Debug)]
pub struct Loaded {
    /// Its header.
    pub header: Header,
    /// Everything else, if it was requested.
    pub rows: Option<LoadedRows>,
}

/// The rows of a run besides its header.
#[derive(Debug)]
pub struct LoadedRows {
    /// The entries of its current history, oldest first.
    pub entries: Vec<Entry>,
    /// Its open tasks, by step.
    pub tasks: Vec<TaskRow>,
    /// Its files, in order.
    pub files: Vec<ArtifactRow>,
    /// Its charges, if it counts against a quota.
    pub charge: Option<ChargeRow>,
    /// Its own state, sorted by key. [`StoreError::Damaged`] or [`StoreError::TooLarge`] if only the
    /// state cannot be read: the run can continue until it needs it.
    pub state: Result<Vec<StateRow>, StoreError>,
}

impl LoadedRows {
    /// Separates an error of the state alone from one of the store.
    pub(super) fn state(
        read: Result<Vec<StateRow>, StoreError>,
    ) -> Result<Result<Vec<StateRow>, StoreError>, StoreError> {
        match read {
            Err(error @ (StoreError::Damaged { .. } | StoreError::TooLarge { .. })) => {
                Ok(Err(error))
            }
            Err(error) => Err(error),
            Ok(rows) => Ok(Ok(rows)),
        }
    }
}
