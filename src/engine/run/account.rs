//! The memory that one run makes the host hold, beside what its script has in its VM.
//!
//! Owns the sum and its limits. Each thing that is held counts its own bytes as it changes: own
//! state, queued signals, inputs that wait for the flow, open steps with what they were asked and
//! what came of their parts, batches on their way to the disk. Over its limit a run fails alone,
//! with kind `limit`; a caller that would make it hold more is refused before.

use std::collections::{BTreeMap, VecDeque};

use crate::engine::{
    EngineError, inbox::receive::refuse, run::resident::Run, shard::serve::Shard,
    shared::message::RunMsg,
};
use crate::{
    flow::Input,
    journal::RunState,
    memory::{Level, Pass, Share},
    store::StateRow,
};

/// What a row of a table in memory takes beside its payload.
pub(crate) const ROW: usize = 160;
/// What a run that holds more than it may, from before there was a limit, has for everything else.
const SPARE: usize = 1 << 20;
/// What a step of a history takes.
const STEP: usize = 480;
/// How long a run waits until it is looked at again whether there is room, in milliseconds.
pub(crate) const ROOM_MS: u64 = 250;

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
    fn most(&self) -> &'static str {
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
    share: Share,
    limit: usize,
    /// What it may hold: the limit, or a little over what it held already when it was read.
    most: usize,
    /// What its own state may hold: the limit, or what it had already when it was read.
    most_state: usize,
    /// Why it is to end: what its flow was refused.
    pub(crate) over: Option<String>,
    /// Set while it goes on although the host has no room left.
    pass: Option<Pass>,
    /// Whether it waits until the host has room.
    pub(crate) parked: bool,
}

impl Account {
    /// That of a run which holds nothing yet.
    pub(crate) fn new(share: Share, limit: usize) -> Self {
        Self { share, limit, most: limit, most_state: limit, over: None, pass: None, parked: false }
    }

    /// Lets a run that was read keep what it holds: before there was a limit it could hold more.
    fn keep(&mut self, held: usize) {
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
    bytes: usize,
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
    bytes: usize,
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

impl Run {
    /// What it makes the host hold, by what it is for.
    pub(crate) fn held(&self) -> Held {
        let names = self.artifacts.as_ref().map_or(0, Vec::len) * ROW;
        Held {
            state: self.state.as_ref().map_or(0, |state| state.bytes),
            signals: self.chain.signal_bytes(),
            inputs: self.inbox.bytes,
            open: self.open.sums().bytes,
            ended: self.chain.kept_bytes(),
            files: names,
        }
    }

    /// What of it is on its way to the disk.
    fn writing(&self) -> usize {
        self.submitted.iter().map(|it| it.bytes).sum::<usize>() + self.pending.bytes()
    }
}

impl Shard {
    /// Why a run may hold no more, if it may not.
    pub(crate) fn overweight(&self, run: &Run) -> Option<String> {
        let limits = &self.shared.settings.limits;
        // What a run defers may take a little more: it ends the run in order.
        let is_ending = *run.chain.state() != RunState::Active;
        let spare = |most: u64| if is_ending { most.saturating_add(most / 4) } else { most };
        if run.account.over.is_some() && !is_ending {
            return run.account.over.clone();
        }
        let held = run.held();
        let over = |bytes: usize, most: usize| bytes as u64 > spare(most as u64);
        if over(held.total(), run.account.most) || over(held.state, run.account.most_state) {
            return Some(format!(
                "it holds {} bytes in memory, {} are allowed; most of it is {}",
                held.total(),
                run.account.most,
                held.most()
            ));
        }
        if run.chain.history_bytes() > spare(limits.history) {
            return Some(format!(
                "more than {} bytes in one history; use ctx:continue_as",
                limits.history
            ));
        }
        if run.header.bytes > spare(limits.stored) {
            return Some(format!(
                "it stores {} bytes, {} are allowed: its histories, its state and its files",
                run.header.bytes, limits.stored
            ));
        }
        None
    }

    /// Counts a run as what it holds now, and ends it if that is too much.
    pub(crate) fn weigh(&mut self, run: &mut Run) {
        if !run.is_ended()
            && run.chain.paused().is_none()
            && let Some(breach) = self.overweight(run)
        {
            self.break_limit(run, breach);
        }
        let (steps, _) = run.chain.counts();
        let bytes = run.held().total() + run.writing() + steps as usize * STEP + ROW;
        run.account.share.set(bytes);
    }

    /// Lets a run that was read hold what it holds already.
    pub(crate) fn keep_weight(run: &mut Run) {
        let held = run.held().total();
        run.account.keep(held);
    }

    /// Why a run may not hold so much more, if it may not.
    pub(crate) fn too_heavy(run: &Run, more: usize) -> Option<String> {
        let (held, account) = (run.held(), &run.account);
        let is_over = more > 0
            && (held.total().saturating_add(more) > account.most
                || held.state.saturating_add(more) > account.most_state);
        is_over.then(|| {
            format!(
                "it would hold {} bytes in memory, {} are allowed; most of it is {}",
                held.total().saturating_add(more),
                account.most,
                held.most()
            )
        })
    }

    /// Refuses what a caller would make a run hold, where that is too much.
    pub(crate) fn check_weight(run: &Run, what: &str, more: usize) -> Result<(), EngineError> {
        match Self::too_heavy(run, more) {
            Some(why) => Err(run_full(format!("accept {what} of {more} bytes: {why}"))),
            None => Ok(()),
        }
    }

    /// Refuses a file of a worker while too much of the run is on its way, or stored.
    pub(crate) fn check_file(&self, run: &Run, bytes: usize) -> Result<(), EngineError> {
        let limits = &self.shared.settings.limits;
        let writing = run.writing();
        if writing > 0 && writing.saturating_add(bytes) > limits.held {
            let message = format!(
                "accept a file of {bytes} bytes: {writing} bytes of run {} are on their way to the disk",
                run.id
            );
            return Err(run_full(message));
        }
        if run.header.bytes.saturating_add(bytes as u64) > limits.stored {
            let message = format!(
                "accept a file of {bytes} bytes: run {} stores {} bytes, {} are allowed",
                run.id, run.header.bytes, limits.stored
            );
            return Err(run_full(message));
        }
        Ok(())
    }

    /// Whether a run's flow waits until the host has room. One run at a time goes on without.
    pub(crate) fn parks(&mut self, run: &mut Run) -> bool {
        let memory = &self.shared.memory;
        let is_full = memory.level() == Level::Full;
        if !is_full {
            run.account.pass = None;
        } else if run.account.pass.is_none() {
            run.account.pass = memory.pass(run.num);
        }
        let parks = is_full && run.account.pass.is_none();
        if parks != run.account.parked {
            run.account.parked = parks;
            run.restate = true;
        }
        if parks {
            self.wake_later(run.num, ROOM_MS);
            self.shared.make_room();
        }
        parks
    }

    /// Gives the right to go on without room back, once a run has nothing to do.
    pub(crate) fn rest_weight(run: &mut Run) {
        if run.inbox.is_empty() {
            run.account.pass = None;
            run.restate |= std::mem::take(&mut run.account.parked);
        }
    }

    /// Whether a run may be read into memory for a message. What ends work, or lets it rest, always
    /// may: it makes room.
    pub(crate) fn has_room_for(&self, num: u64, message: &RunMsg) -> bool {
        let memory = &self.shared.memory;
        if memory.level() != Level::Full
            || message.is_cancel()
            || matches!(message, RunMsg::Pause { .. } | RunMsg::Quarantine { .. })
        {
            return true;
        }
        self.shared.make_room();
        // One at a time goes on; it takes the right to when its flow is about to.
        memory.pass(num).is_some()
    }

    /// Has a message for a run that cannot be read now come again, or refuses it.
    pub(crate) fn put_off(&mut self, num: u64, message: RunMsg) {
        match message {
            RunMsg::Wake => self.wake_later(num, ROOM_MS),
            _ => self.carry_later(num, ROOM_MS),
        }
        refuse(message, || self.shared.no_room("read a run into memory"));
    }

    /// An account for a run that is to be in memory.
    pub(crate) fn account(&self) -> Account {
        Account::new(self.shared.memory.share(), self.shared.settings.limits.held)
    }
}

/// The refusal for what would make a run hold more than it may.
pub(crate) fn run_full(message: String) -> EngineError {
    EngineError::Busy { code: "run_full", message, retry_after_s: 5 }
}
