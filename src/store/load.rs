//! What a run is taken up from, read together.

use super::{ArtifactRow, ChargeRow, Header, StateRow, StoreError, TaskRow};
use crate::journal::Entry;

/// What is wanted of a run.
pub struct Want<'a> {
    /// Whether more than the header is wanted of a run with this header.
    pub rows: &'a dyn Fn(&Header) -> bool,
    /// The most bytes of a history, and of a state, that are read.
    pub most: u64,
}

/// A run as it was at one moment.
#[derive(Debug)]
pub struct Loaded {
    /// Its header.
    pub header: Header,
    /// Everything else, if it was wanted.
    pub rows: Option<LoadedRows>,
}

/// What belongs to a run beside its header.
#[derive(Debug)]
pub struct LoadedRows {
    /// The entries of its current history, oldest first.
    pub entries: Vec<Entry>,
    /// Its open tasks, by step.
    pub tasks: Vec<TaskRow>,
    /// Its files, in order.
    pub files: Vec<ArtifactRow>,
    /// What it is charged, if anything counts it.
    pub charge: Option<ChargeRow>,
    /// Its own state, sorted by key. [`StoreError::Damaged`] or [`StoreError::TooLarge`] where that
    /// alone cannot be read: the run can go on as far as it does not need it.
    pub state: Result<Vec<StateRow>, StoreError>,
}

impl LoadedRows {
    /// The state, if what is wrong with it is about the state alone.
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
