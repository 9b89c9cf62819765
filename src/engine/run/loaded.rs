//! A stored run, as read by a blocking thread for its shard.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use crate::{
    engine::{
        EngineError,
        run::{account::OwnState, lookups::Publisher, readers::Subscriber, reply::Waiter},
    },
    journal::{Chain, Entry, Outcome, Usage},
    lua::Program,
    protocol::RunId,
    store::{ArtifactRow, ChargeRow, Header, StoreError, TaskRow},
};

/// A stored run.
pub(crate) struct Loaded {
    pub(crate) header: Header,
    /// `None` if the message that the run is loaded for does not need them.
    pub(crate) rows: Option<Box<Rows>>,
}

/// Everything beside the header.
pub(crate) struct Rows {
    pub(crate) entries: Vec<Entry>,
    /// The fold of the entries.
    pub(crate) chain: Chain,
    pub(crate) program: Result<Arc<Program>, EngineError>,
    pub(crate) publisher: Publisher,
    /// The open tasks by step.
    pub(crate) tasks: BTreeMap<u32, TaskRow>,
    pub(crate) files: Vec<ArtifactRow>,
    pub(crate) charge: Option<ChargeRow>,
    pub(crate) state: Result<OwnState, StoreError>,
    /// The state of the child runs of open steps, by step.
    pub(crate) called: HashMap<u32, Called>,
    /// The usage of child runs that ended after their step was canceled, last step first.
    pub(crate) late: Vec<(u32, RunId, Usage)>,
}

/// The state of a child run.
pub(crate) enum Called {
    /// The run was never stored.
    Nowhere,
    /// The run has not ended.
    Open,
    /// The run has ended.
    Ended(Outcome, Option<Usage>),
    /// The run could not be read.
    Unknown(StoreError),
}

/// A run that is being loaded.
pub(crate) struct Loading {
    /// Identifies the load; the result of an abandoned one is ignored.
    pub(crate) ticket: u64,
    /// Set where the run was in memory until now.
    pub(crate) again: Option<Again>,
}

/// The data that a reloaded run keeps from its previous life in memory.
pub(crate) struct Again {
    /// True if its VM had no room.
    pub(crate) broken: bool,
    pub(crate) waiters: Vec<Waiter>,
    pub(crate) subscribers: Vec<Subscriber>,
}
