//! The stored data that the commands of a flow need, and that is read while the flow waits.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use crate::{
    engine::run::perform::Stored,
    flow::{Command, NextAction},
    journal::{Entry, StepKey},
    lua::Program,
    token::Grant,
};

/// The grant of the publisher of a version when it was published; `None` if it was never published.
pub(crate) type Publisher = Option<Arc<Grant>>;

/// Data in the store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Lookup {
    /// The program that a reference stands for, for a run of this blueprint.
    Program(String),
    /// The facts of another run: its creation time, and its end.
    Run(u64),
    /// The content of a file, by its hash.
    File(String),
    /// The journal of the run itself.
    Entries,
}

/// The data that a lookup returned.
#[derive(Clone)]
pub(crate) enum Found {
    Program((Arc<Program>, Publisher)),
    Run(Option<StoredRun>),
    File(Option<Arc<[u8]>>),
    Entries(Arc<[Entry]>),
}

/// The result of a lookup; an error is its text.
pub(crate) type LookupResult = Result<Found, String>;

/// The facts of another run that a signal depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoredRun {
    pub(crate) created_ms: u64,
    pub(crate) is_ended: bool,
}

/// The reason for lookups.
pub(crate) enum Purpose {
    /// The flow's next command.
    Command,
    /// The start of the child run of a step. Nobody deletes a blueprint while `stored` exists; it is
    /// dropped with the message if the step has ended in the meantime.
    Child { step: u32, stored: Stored },
    /// A copy of the flow, in which a listener is called; the attempt is dispatched then.
    Copy { dispatch: Option<(u32, u32)> },
}

/// The commands of a flow that wait for a lookup.
pub(crate) struct Rest {
    pub(crate) commands: Vec<Command>,
    pub(crate) next: NextAction,
}

/// The lookups of a run.
#[derive(Default)]
pub(crate) struct Lookups {
    /// The number of reads under way.
    pub(crate) reading: usize,
    /// The commands that wait for one of them, or for the next turn.
    pub(crate) rest: Option<Rest>,
    /// True while a read is under way for the commands.
    pub(crate) is_waiting: bool,
    /// The listeners for whose copies the journal is being read.
    pub(crate) copying: BTreeSet<StepKey>,
    /// The results.
    pub(crate) found: HashMap<Lookup, LookupResult>,
}

impl Lookups {
    /// Drops the commands that wait: they are not to be carried out any more.
    pub(crate) fn drop_rest(&mut self) {
        self.rest = None;
        self.is_waiting = false;
        self.found.clear();
    }
}
