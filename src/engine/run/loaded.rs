//! What a run is taken up from, as a thread that may wait has read it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use crate::{
    engine::{
        EngineError,
        run::{account::OwnState, readers::Subscriber, reply::Waiter},
    },
    journal::{Chain, Entry, Outcome, Usage},
    lua::Program,
    store::{ArtifactRow, ChargeRow, Header, StoreError, TaskRow},
};

/// A stored run.
pub(crate) struct Loaded {
    pub(crate) header: Header,
    /// Nothing of a run that is not to be read for the message that it was asked for.
    pub(crate) rows: Option<Box<Rows>>,
}

/// Everything beside the header.
pub(crate) struct Rows {
    pub(crate) entries: Vec<Entry>,
    /// The fold of the entries.
    pub(crate) chain: Chain,
    pub(crate) program: Result<Arc<Program>, EngineError>,
    /// The open tasks by step.
    pub(crate) tasks: BTreeMap<u32, TaskRow>,
    pub(crate) files: Vec<ArtifactRow>,
    pub(crate) charge: Option<ChargeRow>,
    pub(crate) state: Result<OwnState, StoreError>,
    /// What became of the runs that open steps call, by step.
    pub(crate) called: HashMap<u32, Called>,
}

/// What became of a called run.
pub(crate) enum Called {
    /// It was never stored.
    Nowhere,
    /// It has not ended.
    Open,
    /// It has ended.
    Ended(Outcome, Option<Usage>),
    /// It could not be read.
    Unknown(StoreError),
}

/// A run that is being read.
pub(crate) struct Loading {
    /// Tells this read from one that was given up.
    pub(crate) ticket: u64,
    /// Set where the run was in memory until now.
    pub(crate) again: Option<Again>,
}

/// What a run that is read once more has outside of the store.
pub(crate) struct Again {
    /// Whether its VM had no room.
    pub(crate) broken: bool,
    pub(crate) waiters: Vec<Waiter>,
    pub(crate) subscribers: Vec<Subscriber>,
}
