//! The feed of the whole host: the events of all runs, in the order in which they became durable, and
//! those of the host beside its runs.
//!
//! The feed is read from the journal and the host's log, so a reader that comes back with its cursor
//! misses nothing: each event arrives at least once, and those of a run in their order. A reader
//! holds one page of memory, counted against its token, however slow it is.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use data_encoding::BASE64URL_NOPAD;

use crate::{
    engine::{
        Caller, Engine, EngineError, HostEventView, rfc3339,
        run::readers::{PageMemory, Room},
        shared::{
            host_log::{HostFact, HostLog},
            shards::Shared,
        },
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
/// The maximum number of events beside the runs on a page.
const FACTS: usize = 128;
/// The first byte of a cursor.
const VERSION: u8 = 2;
/// That of a cursor of an older release, which has no events beside the runs.
const RUNS_ONLY: u8 = 1;

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
    /// The words of the types that the caller may not see.
    hidden: Vec<&'static str>,
    /// The last rows that were read.
    after: Place,
    ready: VecDeque<HostEventView>,
    /// The memory of the page that is ready.
    held: Option<PageMemory>,
    passed: usize,
    known: Known,
}

/// A place in the feed: the last row of the journal, and of the host's log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Place {
    lsn: u64,
    fact: u64,
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
        let hidden = hidden(caller, &ask)?;
        let shared = Arc::clone(&self.inner.shared);
        let settled = Place {
            lsn: shared.in_flight.settled(&*shared.store),
            fact: shared.host_log.durable(),
        };
        let after = match &ask.since {
            Since::Now => settled,
            Since::First => Place::default(),
            Since::Cursor(text) => {
                read_cursor(text).filter(|after| after.lsn <= settled.lsn).ok_or_else(|| {
                    EngineError::BadRequest("the cursor is not one of this host's events".into())
                })?
            }
            Since::Time(at_ms) => {
                let at_ms = *at_ms;
                let lsn = self.read(move |store| row_before(store, at_ms, settled.lsn)).await?;
                Place { lsn, fact: HostLog::before(at_ms) }
            }
        };
        let room = shared.readers.room(&caller.jti);
        Ok(HostEvents {
            shared,
            room,
            ask,
            hidden,
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
            let settled = Place {
                lsn: shared.in_flight.settled(&*shared.store),
                fact: shared.host_log.durable(),
            };
            if self.after.lsn < settled.lsn || self.after.fact < settled.fact {
                self.page(settled).await?;
            } else {
                changed.await;
            }
        }
    }

    /// Reads a page of rows up to settled ones.
    async fn page(&mut self, settled: Place) -> Result<(), EngineError> {
        let held = self.room.page(BYTES).await;
        let (shared, mut at) = (Arc::clone(&self.shared), self.after);
        let (ask, mut known) = (self.ask.clone(), std::mem::take(&mut self.known));
        let hidden = self.hidden.clone();
        let read = self.shared.tasks.spawn_blocking(move || {
            let (facts, more_facts) = match at.fact < settled.fact {
                true => HostLog::after(&*shared.store, at.fact, FACTS)?,
                false => (Vec::new(), false),
            };
            let rows = match at.lsn < settled.lsn {
                true => shared.store.feed(at.lsn, settled.lsn, ROWS, BYTES)?,
                false => Vec::new(),
            };
            // A page that is not full is the last one up to the settled row.
            let is_full =
                rows.len() == ROWS || rows.iter().map(|row| row.bytes).sum::<usize>() >= BYTES;
            let passed = rows.len() + facts.len();
            let mut ready = VecDeque::new();
            let mut facts = facts.into_iter().peekable();
            for row in &rows {
                while let Some((number, fact)) =
                    facts.next_if(|(_, fact)| fact.at_ms < row.entry.at_ms)
                {
                    at.fact = number;
                    ready.extend(told(fact, at, &ask, &hidden));
                }
                at.lsn = row.lsn;
                ready.extend(known.event(&*shared.store, row, at, &ask)?);
            }
            for (number, fact) in facts {
                at.fact = number;
                ready.extend(told(fact, at, &ask, &hidden));
            }
            if !is_full {
                at.lsn = at.lsn.max(settled.lsn);
            }
            if !more_facts {
                at.fact = at.fact.max(settled.fact);
            }
            Ok::<_, StoreError>((ready, known, at, passed))
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
        at: Place,
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
        let fitting = said.filter(|(kind, _)| is_wanted(ask, kind));
        Ok(fitting.map(|(kind, data)| HostEventView {
            cursor: cursor(at),
            kind: kind.to_owned(),
            at: rfc3339(entry.at_ms),
            run: Some(run),
            blueprint: Some(blueprint),
            seq: Some(entry.seq),
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

/// Returns an event beside the runs, if it fits.
fn told(fact: HostFact, at: Place, ask: &HostEventsAsk, hidden: &[&str]) -> Option<HostEventView> {
    let is_shown = is_wanted(ask, &fact.kind)
        && !hidden.iter().any(|word| fits(word, &fact.kind))
        && (ask.blueprint.is_none() || ask.blueprint == fact.blueprint);
    is_shown.then(|| HostEventView {
        cursor: cursor(at),
        kind: fact.kind,
        at: rfc3339(fact.at_ms),
        run: None,
        blueprint: fact.blueprint,
        seq: None,
        data: fact.data.into(),
    })
}

/// Returns the words of the types that a caller may not see.
///
/// # Errors
/// Fails when the caller asks for one of them.
fn hidden(caller: &Caller, ask: &HostEventsAsk) -> Result<Vec<&'static str>, EngineError> {
    let every = |kind| [Need::Every(kind)];
    let groups = [
        ("blueprint", Verb::BlueprintRead, every(ScopeKind::Blueprint)),
        ("session", Verb::OperatorRead, every(ScopeKind::Operator)),
        ("worker", Verb::OperatorRead, every(ScopeKind::Queue)),
    ];
    let mut hidden = Vec::new();
    for (word, verb, needs) in groups {
        let Err(refused) = caller.grant.check(verb, &needs) else { continue };
        if ask.types.iter().any(|it| it.split('.').next() == Some(word)) {
            return Err(refused.into());
        }
        hidden.push(word);
    }
    Ok(hidden)
}

fn is_wanted(ask: &HostEventsAsk, kind: &str) -> bool {
    ask.types.is_empty() || ask.types.iter().any(|wanted| fits(wanted, kind))
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

fn cursor(at: Place) -> String {
    let mut bytes = [VERSION; 17];
    bytes[1..9].copy_from_slice(&at.lsn.to_be_bytes());
    bytes[9..].copy_from_slice(&at.fact.to_be_bytes());
    BASE64URL_NOPAD.encode(&bytes)
}

fn read_cursor(text: &str) -> Option<Place> {
    let bytes = BASE64URL_NOPAD.decode(text.as_bytes()).ok()?;
    let number = |bytes: &[u8]| Some(u64::from_be_bytes(bytes.try_into().ok()?));
    match bytes.split_first()? {
        (&VERSION, rest) => {
            let (lsn, fact) = rest.split_at_checked(8)?;
            Some(Place { lsn: number(lsn)?, fact: number(fact)? })
        }
        (&RUNS_ONLY, rest) => Some(Place { lsn: number(rest)?, fact: 0 }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_back_and_nothing_else_is_one() {
        for lsn in [0, 1, u64::MAX] {
            let at = Place { lsn, fact: 7 };
            assert_eq!(read_cursor(&cursor(at)), Some(at));
        }
        // Of an older release.
        assert_eq!(read_cursor("AQAAAAAAAAAD"), Some(Place { lsn: 3, fact: 0 }));
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
