//! The feed of the whole host: the events of all runs, in the order in which they became durable.
//!
//! It is read from the journal, so a reader that comes back with its cursor misses nothing: each event
//! arrives at least once, and those of a run in their order. A reader holds one page of memory, counted
//! against its token, however slow it is.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use data_encoding::BASE64URL_NOPAD;

use crate::{
    engine::{
        Caller, Engine, EngineError, HostEventView, rfc3339,
        run::readers::{PageMemory, Room},
        shared::shards::Shared,
        verbs::step_page::chain_of_page,
        view::host_events::{TYPES, TaskOf, say},
    },
    journal::Fact,
    protocol::RunId,
    store::{FeedRow, Store, StoreError},
    token::{Need, ScopeKind, Verb},
};

/// The maximum number of rows of a page.
const ROWS: usize = 512;
/// The maximum number of bytes of a page, unless a single row is larger.
const BYTES: usize = 256 << 10;
/// The maximum number of runs, and of tasks, that a reader remembers.
const KNOWN: usize = 4_096;
/// The number of rows without an event after which the place is shown.
const PASSED: usize = 4_096;
/// The first byte of a cursor.
const VERSION: u8 = 1;

/// Which events of the host to read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostEventsAsk {
    /// Types, or their first words: `run`, `task.opened`; all if empty.
    pub types: Vec<String>,
    /// Only runs of this blueprint.
    pub blueprint: Option<String>,
    /// The beginning.
    pub since: Since,
}

/// The place where a reader of the feed begins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Since {
    /// With what happens from now on.
    #[default]
    Now,
    /// With the oldest event that is stored.
    First,
    /// After an event that was read, by its cursor.
    Cursor(String),
    /// With the events at or after a time, in Unix milliseconds, and perhaps some before it.
    Time(u64),
}

/// An item of the feed.
#[derive(Debug, Clone)]
pub enum HostEvent {
    /// An event.
    Event(Box<HostEventView>),
    /// Many rows passed without an event that fits: the cursor behind them.
    Passed(String),
}

/// A reader of the feed.
pub struct HostEvents {
    shared: Arc<Shared>,
    room: Room,
    ask: HostEventsAsk,
    /// The last row that was read.
    after: u64,
    ready: VecDeque<HostEventView>,
    /// The memory of the page that is ready.
    held: Option<PageMemory>,
    passed: usize,
    known: Known,
}

/// The runs and tasks that a reader has seen.
#[derive(Default)]
struct Known {
    /// The id and blueprint; `None` for a run that was deleted.
    runs: HashMap<u64, Option<(RunId, String)>>,
    tasks: HashMap<(u64, u32), Option<TaskOf>>,
}

impl Engine {
    /// Returns the events of all runs from a place on, and then those that follow.
    ///
    /// # Errors
    /// Fails when the caller may not read all runs, a type does not exist, or the cursor is not one of
    /// this host.
    pub async fn host_events(
        &self,
        caller: &Caller,
        ask: HostEventsAsk,
    ) -> Result<HostEvents, EngineError> {
        caller.grant.check(Verb::RunRead, &[Need::Every(ScopeKind::Run)])?;
        if let Some(wrong) = ask.types.iter().find(|it| !TYPES.iter().any(|kind| fits(it, kind))) {
            let known = TYPES.join(", ");
            let wrong: String = wrong.chars().take(80).collect();
            return Err(EngineError::BadRequest(format!("there is no type {wrong:?}: {known}")));
        }
        let shared = Arc::clone(&self.inner.shared);
        let settled = shared.in_flight.settled(&*shared.store);
        let after = match &ask.since {
            Since::Now => settled,
            Since::First => 0,
            Since::Cursor(text) => {
                read_cursor(text).filter(|after| *after <= settled).ok_or_else(|| {
                    EngineError::BadRequest("the cursor is not one of this host's events".into())
                })?
            }
            Since::Time(at_ms) => {
                let at_ms = *at_ms;
                self.read(move |store| row_before(store, at_ms, settled)).await?
            }
        };
        let room = shared.readers.room(&caller.jti);
        Ok(HostEvents {
            shared,
            room,
            ask,
            after,
            ready: VecDeque::new(),
            held: None,
            passed: 0,
            known: Known::default(),
        })
    }
}

impl HostEvents {
    /// Returns the next event; waits for it.
    ///
    /// # Errors
    /// Fails when the store cannot be read.
    ///
    /// # Cancel safety
    /// May be dropped between two events; what was read is kept.
    pub async fn next(&mut self) -> Result<HostEvent, EngineError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.passed = 0;
                return Ok(HostEvent::Event(Box::new(event)));
            }
            self.held = None;
            if self.passed >= PASSED {
                self.passed = 0;
                return Ok(HostEvent::Passed(cursor(self.after)));
            }
            let shared = Arc::clone(&self.shared);
            let mut changed = std::pin::pin!(shared.in_flight.changed());
            // Registered before the look, so that nothing is missed.
            changed.as_mut().enable();
            let settled = shared.in_flight.settled(&*shared.store);
            if self.after < settled {
                self.page(settled).await?;
            } else {
                changed.await;
            }
        }
    }

    /// Reads a page of rows up to a settled one.
    async fn page(&mut self, settled: u64) -> Result<(), EngineError> {
        let held = self.room.page(BYTES).await;
        let (shared, after) = (Arc::clone(&self.shared), self.after);
        let (ask, mut known) = (self.ask.clone(), std::mem::take(&mut self.known));
        let read = self.shared.tasks.spawn_blocking(move || {
            let rows = shared.store.feed(after, settled, ROWS, BYTES)?;
            let last = rows.last().map(|row| row.lsn);
            // A page that is not full is the last one up to the settled row.
            let is_full =
                rows.len() == ROWS || rows.iter().map(|row| row.bytes).sum::<usize>() >= BYTES;
            let after = if is_full { last.unwrap_or(settled) } else { settled };
            let passed = rows.len();
            let mut ready = VecDeque::new();
            for row in &rows {
                ready.extend(known.event(&*shared.store, row, &ask)?);
            }
            Ok::<_, StoreError>((ready, known, after, passed))
        });
        let (ready, known, after, passed) = read.await.map_err(|_| EngineError::Stopping)??;
        (self.ready, self.known, self.after) = (ready, known, after);
        self.passed += passed;
        self.held = Some(held);
        Ok(())
    }
}

impl Known {
    fn event(
        &mut self,
        store: &dyn Store,
        row: &FeedRow,
        ask: &HostEventsAsk,
    ) -> Result<Option<HostEventView>, StoreError> {
        if self.runs.len() > KNOWN {
            self.runs.clear();
        }
        if self.tasks.len() > KNOWN {
            self.tasks.clear();
        }
        let (num, entry) = (row.run, &row.entry);
        if let Fact::StepScheduled(step) = &entry.fact {
            self.tasks.insert((num, step.step), TaskOf::of(num, step, entry.at_ms));
        }
        let run = match self.runs.get(&num) {
            Some(known) => known.clone(),
            None => {
                let header = store.header(num)?;
                let known = header.map(|it| (RunId::new(num, it.created_ms), it.blueprint.clone()));
                self.runs.insert(num, known.clone());
                known
            }
        };
        // Of a run that was deleted meanwhile nothing is shown.
        let Some((run, blueprint)) = run else { return Ok(None) };
        if ask.blueprint.as_ref().is_some_and(|wanted| *wanted != blueprint) {
            return Ok(None);
        }
        let tasks = &mut self.tasks;
        let mut problem = None;
        let said = say(num, entry, &mut |step| match tasks.get(&(num, step)) {
            Some(known) => known.clone(),
            None => {
                let found = task_of(store, run, step);
                let found = found.unwrap_or_else(|error| {
                    problem = Some(error);
                    None
                });
                tasks.insert((num, step), found.clone());
                found
            }
        });
        if let Some(error) = problem {
            return Err(error);
        }
        let fitting = said.filter(|(kind, _)| {
            ask.types.is_empty() || ask.types.iter().any(|wanted| fits(wanted, kind))
        });
        Ok(fitting.map(|(kind, data)| HostEventView {
            cursor: cursor(row.lsn),
            kind: kind.to_owned(),
            at: rfc3339(entry.at_ms),
            run,
            blueprint,
            seq: entry.seq,
            data: data.into(),
        }))
    }
}

/// Returns the task of a step whose beginning the reader did not read.
fn task_of(store: &dyn Store, run: RunId, step: u32) -> Result<Option<TaskOf>, StoreError> {
    let chain = chain_of_page(store, run, step.saturating_sub(1), 1)?;
    if let Some(found) = chain.step(step) {
        return Ok(TaskOf::of(run.num(), &found.scheduled, found.scheduled_ms));
    }
    // Of an earlier history of the run.
    let entries = store.all_entries(run.num(), 0)?;
    Ok(entries.iter().find_map(|entry| match &entry.fact {
        Fact::StepScheduled(it) if it.step == step => TaskOf::of(run.num(), it, entry.at_ms),
        _ => None,
    }))
}

/// Returns true if a type is the wanted one, or begins with its words.
fn fits(wanted: &str, kind: &str) -> bool {
    kind.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Returns a row before the events at a time, found by halves. Times of rows grow with their numbers,
/// but for clocks that are set; then there are some events too many.
fn row_before(store: &dyn Store, at_ms: u64, settled: u64) -> Result<u64, StoreError> {
    let (mut low, mut high) = (0, settled);
    while low < high {
        let middle = low + (high - low) / 2;
        match store.feed(middle, settled, 1, 1)?.first() {
            Some(row) if row.entry.at_ms < at_ms => low = row.lsn,
            Some(_) | None => high = middle,
        }
    }
    Ok(low.min(high))
}

fn cursor(lsn: u64) -> String {
    let mut bytes = [VERSION; 9];
    bytes[1..].copy_from_slice(&lsn.to_be_bytes());
    BASE64URL_NOPAD.encode(&bytes)
}

fn read_cursor(text: &str) -> Option<u64> {
    let bytes = BASE64URL_NOPAD.decode(text.as_bytes()).ok()?;
    let (&VERSION, rest) = bytes.split_first()? else { return None };
    Some(u64::from_be_bytes(rest.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_back_and_nothing_else_is_one() {
        for lsn in [0, 1, u64::MAX] {
            assert_eq!(read_cursor(&cursor(lsn)), Some(lsn));
        }
        for text in ["", "x", "AAAAAAAAAAAA", "AQAAAAAAAAAAAQ", "ää"] {
            assert_eq!(read_cursor(text), None, "{text}");
        }
    }

    #[test]
    fn a_type_is_named_as_a_whole_or_by_its_first_word() {
        assert!(fits("run", "run.ended") && fits("run.ended", "run.ended"));
        assert!(
            !fits("ru", "run.ended") && !fits("run.", "run.ended") && !fits("task", "run.ended")
        );
    }
}
