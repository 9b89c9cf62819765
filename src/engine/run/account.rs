//! The memory that one run makes the host hold, beside what its script has in its VM.
//!
//! Owns the sum and its limits. Each thing that is held counts its own bytes as it changes: own
//! state, queued signals, inputs that wait for the flow, open steps with what they were asked and
//! what came of their parts, batches on their way to the disk. Over its limit a run fails alone,
//! with kind `limit`; a caller that would make it hold more is refused before.

use std::collections::{BTreeMap, VecDeque};

use crate::{
    flow::Input,
    memory::{Pass, Share},
    store::StateRow,
};

/// What a row of a table in memory takes beside its payload.
pub(crate) const ROW: usize = 160;

/// What a run that holds more than it may, from before there was a limit, has for everything else.
const SPARE: usize = 1 << 20;

/// What a step of a history takes.
pub(crate) const STEP: usize = 480;

/// What a run holds, by what it is for, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// The values of its own state.
    pub(crate) state: usize,
    /// Signals that nobody waited for yet.
    pub(crate) signals: usize,
    /// Inputs that its flow has not taken.
    pub(crate) inputs: usize,
    /// Open steps: what they were asked, and what came of their parts.
    pub(crate) open: usize,
    /// What ended steps left behind: failures, and what they left to others.
    pub(crate) ended: usize,
    /// The names of its files.
    pub(crate) files: usize,
}

impl Held {
    /// All of it.
    pub(crate) fn total(&self) -> usize {
        self.state + self.signals + self.inputs + self.open + self.ended + self.files
    }

    /// What most of it is.
    pub(crate) fn most(&self) -> &'static str {
        let parts = [
            (self.state, "own state"),
            (self.signals, "signals that nobody took"),
            (self.inputs, "results that wait for the flow"),
            (self.open, "open steps"),
            (self.ended, "failures of ended steps"),
            (self.files, "names of files"),
        ];
        parts.into_iter().max_by_key(|(bytes, _)| *bytes).map_or("", |(_, what)| what)
    }
}

/// What a run is counted as.
pub(crate) struct Account {
    pub(crate) share: Share,
    pub(crate) limit: usize,
    /// What it may hold: the limit, or a little over what it held already when it was read.
    pub(crate) most: usize,
    /// What its own state may hold: the limit, or what it had already when it was read.
    pub(crate) most_state: usize,
    /// Why it is to end: what its flow was refused.
    pub(crate) over: Option<String>,
    /// Set while it goes on although the host has no room left.
    pub(crate) pass: Option<Pass>,
    /// Whether it waits until the host has room.
    pub(crate) parked: bool,
}

impl Account {
    /// That of a run which holds nothing yet.
    pub(crate) fn new(share: Share, limit: usize) -> Self {
        Self { share, limit, most: limit, most_state: limit, over: None, pass: None, parked: false }
    }

    /// Lets a run that was read keep what it holds: before there was a limit it could hold more.
    pub(crate) fn keep(&mut self, held: usize) {
        if held > self.limit {
            let spared = self.limit.saturating_add(SPARE);
            let most = if held <= spared { spared } else { held.saturating_add(SPARE) };
            self.most = self.most.max(most);
        }
    }

    /// Counts the entries of a run while it is read.
    pub(crate) fn read(&mut self, bytes: u64) {
        self.share.set(usize::try_from(bytes).unwrap_or(usize::MAX / 2));
    }

    /// Lets a run keep the state that it has.
    pub(crate) fn keep_state(&mut self, bytes: usize) {
        self.most_state = self.limit.max(bytes);
        self.keep(bytes);
    }
}

/// A run's own state: the rows, and what they take.
#[derive(Default)]
pub(crate) struct OwnState {
    rows: BTreeMap<String, StateRow>,
    pub(crate) bytes: usize,
}

impl OwnState {
    /// What they take.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The rows.
    pub(crate) fn rows(&self) -> &BTreeMap<String, StateRow> {
        &self.rows
    }

    /// Puts a row in its place.
    pub(crate) fn insert(&mut self, row: StateRow) {
        self.bytes += row_bytes(&row) + ROW;
        if let Some(gone) = self.rows.insert(row.key.clone(), row) {
            self.bytes -= row_bytes(&gone) + ROW;
        }
    }

    /// Takes a row out.
    pub(crate) fn remove(&mut self, key: &str) -> Option<StateRow> {
        let gone = self.rows.remove(key)?;
        self.bytes -= row_bytes(&gone) + ROW;
        Some(gone)
    }
}

impl FromIterator<StateRow> for OwnState {
    fn from_iter<T: IntoIterator<Item = StateRow>>(rows: T) -> Self {
        let mut state = Self::default();
        rows.into_iter().for_each(|row| state.insert(row));
        state
    }
}

/// The bytes that a value of state is counted as, with its key.
pub(crate) fn row_bytes(row: &StateRow) -> usize {
    row.key.len() + row.value.len()
}

/// The inputs that a flow has not taken, and what they take.
#[derive(Default)]
pub(crate) struct Inputs {
    queue: VecDeque<(Input, u64)>,
    pub(crate) bytes: usize,
}

impl Inputs {
    /// Puts one behind the others.
    pub(crate) fn push_back(&mut self, input: (Input, u64)) {
        self.bytes += input_bytes(&input.0);
        self.queue.push_back(input);
    }

    /// Puts one before the others.
    pub(crate) fn push_front(&mut self, input: (Input, u64)) {
        self.bytes += input_bytes(&input.0);
        self.queue.push_front(input);
    }

    /// Takes the first.
    pub(crate) fn pop_front(&mut self) -> Option<(Input, u64)> {
        let input = self.queue.pop_front()?;
        self.bytes -= input_bytes(&input.0);
        Some(input)
    }

    /// The first.
    pub(crate) fn front(&self) -> Option<&(Input, u64)> {
        self.queue.front()
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Drops them all.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

fn input_bytes(input: &Input) -> usize {
    let payload = match input {
        Input::Completed { output, .. } => output.len(),
        Input::Failed { failure, .. } => failure.size(),
        Input::Start | Input::More | Input::Compensate => 0,
    };
    ROW + payload
}
