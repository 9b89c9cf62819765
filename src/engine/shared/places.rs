//! The places of entries in long histories: the entries of a step, and the parts of a step. The steps
//! of each line of the source are counted with them.
//!
//! A place is a number of an entry. What an entry says stays in the store and is read from there, so
//! nothing here goes stale: a history only grows. The entries of a run are read once, and after that
//! only those that were added since. A new history of a run replaces the earlier one.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;

use super::line_counts::LineCounts;
use crate::{
    journal::{Decision, Entry, Fact, Scheduled},
    protocol::StepKind,
    store::{Store, StoreError, read_in_pages},
};

/// The maximum number of runs whose places are kept.
const RUNS: usize = 64;
/// The maximum number of places that are kept, unless one run alone has more. A place is 8 bytes.
const PLACES: usize = 2_000_000;
/// Entries with at most this many others between them are read in one go.
const BETWEEN: u32 = 64;

/// The places of the entries of some runs.
#[derive(Debug, Default)]
pub(crate) struct PlaceBook {
    known: Mutex<KnownRuns>,
}

#[derive(Debug, Default)]
struct KnownRuns {
    runs: HashMap<u64, Page>,
    /// Counts the looks.
    looks: u64,
}

#[derive(Debug)]
struct Page {
    places: Arc<Mutex<Places>>,
    /// The number of places at the last look.
    size: usize,
    /// The last look.
    looked: u64,
}

/// The places of one run's current history.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// The first entry of the history.
    start: u32,
    /// The last entry that was read.
    upto: u32,
    /// The number of steps.
    steps: u32,
    /// The number of attempts.
    attempts: u32,
    /// Each entry about a step, with the step, in the order of the entries.
    of_steps: Vec<(u32, u32)>,
    /// Each step that is a part of another, with the other one.
    parts: Vec<(u32, u32)>,
    /// The entries about the run itself that its view shows, without the first entry.
    of_run: Vec<u32>,
    /// True if an attempt was given to somebody, or usage was reported.
    spent: bool,
    /// The steps by the line that scheduled them.
    lines: LineCounts,
}

impl PlaceBook {
    /// Looks at the places of a run, after reading the entries that were added since the last look.
    ///
    /// # Errors
    /// Fails when the store cannot be read.
    pub(crate) fn look<T>(
        &self,
        store: &dyn Store,
        run: u64,
        look: impl FnOnce(&Places) -> T,
    ) -> Result<T, StoreError> {
        let places = self.page(run);
        let mut places = places.lock();
        let upto = places.upto;
        read_in_pages(store, run, upto, |entry| places.add(entry))?;
        self.measure(run, places.size());
        Ok(look(&places))
    }

    fn page(&self, run: u64) -> Arc<Mutex<Places>> {
        let mut known = self.known.lock();
        known.looks += 1;
        let looked = known.looks;
        let page = || Page { places: Arc::default(), size: 0, looked };
        let page = known.runs.entry(run).or_insert_with(page);
        page.looked = looked;
        Arc::clone(&page.places)
    }

    /// Notes the size of a run's places, and forgets runs that were not looked at for the longest time.
    fn measure(&self, run: u64, size: usize) {
        let mut known = self.known.lock();
        if let Some(page) = known.runs.get_mut(&run) {
            page.size = size;
        }
        let mut all: usize = known.runs.values().map(|page| page.size).sum();
        while all > PLACES || known.runs.len() > RUNS {
            let others = known.runs.iter().filter(|(of, _)| **of != run);
            let oldest = others.min_by_key(|(_, page)| page.looked).map(|(of, _)| *of);
            let Some(gone) = oldest.and_then(|of| known.runs.remove(&of)) else { return };
            all -= gone.size;
        }
    }
}

impl Places {
    fn add(&mut self, entry: &Entry) {
        if let Fact::RunStarted(_) = entry.fact {
            let spent = self.spent;
            *self = Self { start: entry.seq, spent, ..Self::default() };
        }
        self.upto = entry.seq;
        self.spent |= spends(&entry.fact);
        self.lines.add(entry);
        self.attempts += u32::from(begins(&entry.fact));
        if let Fact::StepScheduled(step) | Fact::StepRecorded(step, _) = &entry.fact {
            self.steps += 1;
            self.parts.extend(step.whole().map(|whole| (step.step, whole)));
        }
        if let Some(step) = about(entry) {
            self.of_steps.push((entry.seq, step));
        } else if is_shown(&entry.fact) {
            self.of_run.push(entry.seq);
        }
    }

    fn size(&self) -> usize {
        self.of_steps.len() + self.parts.len() + self.of_run.len() + self.lines.size()
    }

    /// Returns the steps by the line that scheduled them.
    pub(crate) fn lines(&self) -> &LineCounts {
        &self.lines
    }

    /// Returns the number of steps.
    pub(crate) fn steps(&self) -> u32 {
        self.steps
    }

    /// Returns the number of attempts.
    pub(crate) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Returns the number of the first entry.
    pub(crate) fn start(&self) -> u32 {
        self.start
    }

    /// Returns true if an attempt was given to somebody, or usage was reported.
    pub(crate) fn has_spent(&self) -> bool {
        self.spent
    }

    /// Returns the entries that the view of the run is made of.
    pub(crate) fn of_run(&self) -> Vec<u32> {
        std::iter::once(self.start).chain(self.of_run.iter().copied()).collect()
    }

    /// Returns the parts of a step, in order.
    pub(crate) fn parts_of(&self, step: u32) -> impl Iterator<Item = u32> + '_ {
        self.parts.iter().filter(move |(_, whole)| *whole == step).map(|(part, _)| *part)
    }

    /// Returns the entries about some steps, in order.
    pub(crate) fn of_steps(&self, steps: &BTreeSet<u32>) -> Vec<u32> {
        let own = self.of_steps.iter().filter(|(_, step)| steps.contains(step));
        own.map(|(seq, _)| *seq).collect()
    }
}

/// Reads single entries of a run by their numbers, which ascend.
///
/// # Errors
/// Fails when the store cannot be read.
pub(crate) fn entries_at(
    store: &dyn Store,
    run: u64,
    seqs: &[u32],
) -> Result<Vec<Entry>, StoreError> {
    let mut found = Vec::with_capacity(seqs.len());
    for near in seqs.chunk_by(|a, b| b - a <= BETWEEN) {
        let (Some(first), Some(last)) = (near.first(), near.last()) else { continue };
        let window = store.window(run, first.saturating_sub(1), *last)?;
        found.extend(window.into_iter().filter(|it| near.binary_search(&it.seq).is_ok()));
    }
    Ok(found)
}

/// Returns the step that an entry opens or records.
pub(crate) fn scheduled(entry: &Entry) -> Option<&Scheduled> {
    match &entry.fact {
        Fact::StepScheduled(step) | Fact::StepRecorded(step, _) => Some(step),
        _ => None,
    }
}

/// Returns the step that an entry is about.
pub(crate) fn about(entry: &Entry) -> Option<u32> {
    match &entry.fact {
        Fact::StepScheduled(step) | Fact::StepRecorded(step, _) => Some(step.step),
        Fact::SecretAccessed { step, .. } => Some(*step),
        Fact::Decided(decision) => match decision {
            Decision::Escalate { step, .. }
            | Decision::Advise { step, .. }
            | Decision::Answered { step, .. }
            | Decision::Remind { step, .. }
            | Decision::Expire { step, .. } => Some(*step),
            Decision::Told { step, .. } => *step,
            Decision::Follow(followed) => Some(followed.step),
            Decision::Cancel { .. }
            | Decision::Pause { .. }
            | Decision::Resume { .. }
            | Decision::Compensate { .. }
            | Decision::Copied { .. }
            | Decision::Seat { .. }
            | Decision::Joined { .. } => None,
            Decision::Spent(_) => entry.additions.called(),
        },
        Fact::RunStarted(_)
        | Fact::AttemptDelivered { .. }
        | Fact::AttemptClosed(_)
        | Fact::AttemptOpened(_)
        | Fact::StepEnded { .. }
        | Fact::SignalReceived(_)
        | Fact::Noted { .. }
        | Fact::RunEnded(_) => entry.fact.step(),
    }
}

/// Returns the number of attempts in the newest history of some entries.
pub(crate) fn attempts(entries: &[Entry]) -> u32 {
    let own = entries.iter().rev().take_while(|it| !matches!(it.fact, Fact::RunStarted(_)));
    own.map(|entry| u32::from(begins(&entry.fact))).sum()
}

/// Returns true if an attempt begins with the fact: the first one of a step that somebody executes, or
/// another one.
fn begins(fact: &Fact) -> bool {
    match fact {
        Fact::StepScheduled(step) | Fact::StepRecorded(step, _) => {
            matches!(step.kind, StepKind::Task | StepKind::ModelCall | StepKind::ToolCall)
        }
        Fact::AttemptOpened(_) => true,
        _ => false,
    }
}

/// Returns true if the view of a run shows the fact.
fn is_shown(fact: &Fact) -> bool {
    match fact {
        Fact::RunEnded(_) => true,
        Fact::Decided(decision) => {
            matches!(decision, Decision::Seat { .. } | Decision::Copied { .. })
        }
        _ => false,
    }
}

fn spends(fact: &Fact) -> bool {
    match fact {
        Fact::AttemptDelivered { .. } | Fact::Decided(Decision::Spent(_)) => true,
        Fact::AttemptClosed(closed) => closed.usage.is_some(),
        Fact::Decided(Decision::Follow(followed)) => followed.usage.is_some(),
        Fact::StepEnded { usage, .. } => usage.is_some(),
        _ => false,
    }
}
