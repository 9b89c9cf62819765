//! The memory that the host holds for one run, in addition to its script's own in the VM.
//!
//! Owns the sum and its limits. Each kind of data counts its own bytes as it changes: own state,
//! queued signals, inputs that wait for the flow, open steps with their requests and the results of
//! their parts, batches that are being written. A run over its limit fails alone, with kind
//! `limit`; a caller that would exceed it is refused before.

use std::collections::{BTreeMap, VecDeque};

use crate::{
    flow::Input,
    memory::{Pass, Share},
    store::StateRow,
};

/// The size of a row of a table in memory, in addition to its payload.
pub(crate) const ROW: usize = 160;

/// The space that is left to a run that exceeds its limit since before the limit existed.
const SPARE: usize = 1 << 20;

/// The size of a step of a history.
pub(crate) const STEP: usize = 480;

/// The memory of a run by purpose, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct MemoryUse {
    /// The values of its own state.
    pub(crate) state: usize,
    /// Signals that are queued.
    pub(crate) signals: usize,
    /// Inputs that its flow has not consumed.
    pub(crate) inputs: usize,
    /// Open steps: their requests, and the results of their parts.
    pub(crate) open: usize,
    /// Data that is kept of ended steps: failures, and follow-ups.
    pub(crate) ended: usize,
    /// The names of its files.
    pub(crate) files: usize,
}

impl MemoryUse {
    /// Returns the sum.
    pub(crate) fn total(&self) -> usize {
        self.state + self.signals + self.inputs + self.open + self.ended + self.files
    }

    /// Returns the name of the largest part.
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

/// The account of a run.
pub(crate) struct Account {
    pub(crate) share: Share,
    pub(crate) limit: usize,
    /// The effective limit: the configured one, or a little more than the run held when it was
    /// loaded.
    pub(crate) most: usize,
    /// The limit of its own state: the configured one, or the size when the run was loaded.
    pub(crate) most_state: usize,
    /// The reason to end the run: a request of its flow that was refused.
    pub(crate) over: Option<String>,
    /// Set while it continues although the host has no memory left.
    pub(crate) pass: Option<Pass>,
    /// True if it waits until the host has memory.
    pub(crate) parked: bool,
}

impl Account {
    /// Returns the account of an empty run.
    pub(crate) fn new(share: Share, limit: usize) -> Self {
        Self { share, limit, most: limit, most_state: limit, over: None, pass: None, parked: false }
    }

    /// Lets a loaded run keep what it holds: before the limit existed it could hold more.
    pub(crate) fn keep(&mut self, held: usize) {
        if held > self.limit {
            let spared = self.limit.saturating_add(SPARE);
            let most = if held <= spared { spared } else { held.saturating_add(SPARE) };
            self.most = self.most.max(most);
        }
    }

    /// Counts the entries of a run while it is loaded.
    pub(crate) fn read(&mut self, bytes: u64) {
        self.share.set(usize::try_from(bytes).unwrap_or(usize::MAX / 2));
    }

    /// Lets a run keep its current state.
    pub(crate) fn keep_state(&mut self, bytes: usize) {
        self.most_state = self.limit.max(bytes);
        self.keep(bytes);
    }
}

/// A run's own state: its rows, and their size.
#[derive(Default)]
pub(crate) struct OwnState {
    rows: BTreeMap<String, StateRow>,
    pub(crate) bytes: usize,
}

impl OwnState {
    /// Returns their size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the rows.
    pub(crate) fn rows(&self) -> &BTreeMap<String, StateRow> {
        &self.rows
    }

    /// Inserts a row, or replaces it.
    pub(crate) fn insert(&mut self, row: StateRow) {
        self.bytes += row_bytes(&row) + ROW;
        if let Some(gone) = self.rows.insert(row.key.clone(), row) {
            self.bytes -= row_bytes(&gone) + ROW;
        }
    }

    /// Removes a row.
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

/// Returns the size of a value of state, with its key, as it is counted.
pub(crate) fn row_bytes(row: &StateRow) -> usize {
    row.key.len() + row.value.len()
}

/// The inputs that a flow has not consumed, and their size.
#[derive(Default)]
pub(crate) struct Inputs {
    queue: VecDeque<(Input, u64)>,
    pub(crate) bytes: usize,
}

impl Inputs {
    /// Appends an input.
    pub(crate) fn push_back(&mut self, input: (Input, u64)) {
        self.bytes += input_bytes(&input.0);
        self.queue.push_back(input);
    }

    /// Prepends an input.
    pub(crate) fn push_front(&mut self, input: (Input, u64)) {
        self.bytes += input_bytes(&input.0);
        self.queue.push_front(input);
    }

    /// Removes the first input.
    pub(crate) fn pop_front(&mut self) -> Option<(Input, u64)> {
        let input = self.queue.pop_front()?;
        self.bytes -= input_bytes(&input.0);
        Some(input)
    }

    /// Returns the first input.
    pub(crate) fn front(&self) -> Option<&(Input, u64)> {
        self.queue.front()
    }

    /// Returns true if there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Removes all inputs.
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
