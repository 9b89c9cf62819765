//! One step with all that is shown of it: its attempts and events, and its parts, which are the calls
//! of a model's loop or the members of a composite.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    engine::{
        AttemptsView, Caller, Engine, EngineError, EventView, StepView, rfc3339,
        shared::places::{PlaceBook, about, entries_at},
        verbs::{attempts::AttemptRows, runs::one_step},
        view,
    },
    journal::{Decision, Entry, Fact, Step},
    protocol::{RunId, StepKind},
    store::{Store, StoreError},
    token::Verb,
};

/// A part of a step.
#[derive(Debug, Clone)]
pub struct StepPart {
    /// The part, with its request and its result.
    pub step: StepView,
    /// The people who answered for it, each with the time: those who approved a call, for example.
    pub answered: Vec<(String, String)>,
}

/// The parts of a step.
#[derive(Debug, Clone, Default)]
pub struct StepParts {
    /// The last ones, in their order.
    pub items: Vec<StepPart>,
    /// The number of those before them.
    pub earlier: usize,
}

/// A step with all that is shown of it.
#[derive(Debug, Clone)]
pub struct WholeStep {
    /// The step, with its request and its result.
    pub step: StepView,
    /// Its attempts.
    pub attempts: AttemptsView,
    /// Its parts.
    pub parts: StepParts,
    /// Its last events, in their order.
    pub events: Vec<EventView>,
    /// The number of its events before them.
    pub earlier: usize,
}

/// The maximum number of parts and of events of a step that are read.
#[derive(Debug, Clone, Copy)]
pub struct StepBounds {
    /// The parts.
    pub parts: usize,
    /// The events.
    pub events: usize,
}

impl Engine {
    /// Returns a step with its attempts, its last parts and its last events. Reads the entries about
    /// these and no others, once the places of the run's entries are known.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or there is no such step.
    pub async fn whole_step(
        &self,
        caller: &Caller,
        run: RunId,
        seq: u32,
        most: StepBounds,
    ) -> Result<WholeStep, EngineError> {
        caller.may(Verb::RunRead, run)?;
        let header = self.header(run).await?;
        let book = Arc::clone(&self.inner.places);
        let read = self.read(move |store| {
            let found = Found::read(store, &book, run.num(), seq, most.parts)?;
            let own: Vec<Entry> =
                found.entries.iter().filter(|it| about(it) == Some(seq)).cloned().collect();
            let rows = AttemptRows::of(store, run.num(), seq, (own, found.start))?;
            Ok((found, rows))
        });
        let (found, rows) = read.await?;
        let missing = || EngineError::NotFound { what: "step", id: format!("{run}/{seq}") };
        let step = one_step(run, seq, &rows.entries)?.ok_or_else(missing)?;
        let earlier = rows.entries.len().saturating_sub(most.events);
        let event = |entry| view::events::view(run.num(), entry);
        Ok(WholeStep {
            step: view::step(run, &step, true),
            attempts: self.attempts_of(caller, &header, seq, &rows).await?,
            parts: found.parts(run)?,
            events: rows.entries[earlier..].iter().map(event).collect(),
            earlier,
        })
    }
}

/// The entries about a step and its last parts.
struct Found {
    entries: Vec<Entry>,
    /// The last parts, and the number of those before them.
    parts: Vec<u32>,
    earlier: usize,
    /// The first entry of the history.
    start: u32,
}

impl Found {
    fn read(
        store: &dyn Store,
        book: &PlaceBook,
        run: u64,
        seq: u32,
        most: usize,
    ) -> Result<Self, StoreError> {
        let (seqs, parts, earlier, start) = book.look(store, run, |places| {
            let mut parts: Vec<u32> = places.parts_of(seq).collect();
            let earlier = parts.len().saturating_sub(most);
            parts.drain(..earlier);
            let steps: BTreeSet<u32> = parts.iter().copied().chain([seq]).collect();
            (places.of_steps(&steps), parts, earlier, places.start())
        })?;
        Ok(Self { entries: entries_at(store, run, &seqs)?, parts, earlier, start })
    }

    fn parts(&self, run: RunId) -> Result<StepParts, StoreError> {
        let mut own: BTreeMap<u32, Vec<Entry>> = BTreeMap::new();
        for entry in &self.entries {
            if let Some(step) = about(entry).filter(|it| self.parts.binary_search(it).is_ok()) {
                own.entry(step).or_default().push(entry.clone());
            }
        }
        let mut items = Vec::with_capacity(own.len());
        for (part, entries) in &own {
            if let Some(step) = one_step(run, *part, entries)? {
                items.push(part_of(run, &step, answered(entries)));
            }
        }
        Ok(StepParts { items, earlier: self.earlier })
    }
}

fn part_of(run: RunId, step: &Step, mut answered: Vec<(String, String)>) -> StepPart {
    let shown = view::step(run, step, true);
    // A task within a loop of a model is a question to a person. If one answer is enough, it is the
    // result of the task.
    let is_question = step.scheduled.kind == StepKind::Task && step.scheduled.member().is_none();
    if is_question
        && answered.is_empty()
        && let (Some(by), Some(at)) = (&step.worker, &shown.ended_at)
    {
        answered.push((by.clone(), at.clone()));
    }
    StepPart { step: shown, answered }
}

/// Returns who answered for a step.
fn answered(entries: &[Entry]) -> Vec<(String, String)> {
    let answers = entries.iter().filter_map(|entry| match &entry.fact {
        Fact::Decided(Decision::Answered { by, .. }) => Some((by.clone(), rfc3339(entry.at_ms))),
        _ => None,
    });
    answers.collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::{
        engine::shared::places::Places,
        engine::verbs::{
            runs::RunRows,
            step_page::tests::{append, done, start, step, store},
        },
        store::{Header, Memory, PAGE_ENTRIES, Reader as _},
    };

    /// The number of the step that is still open, in the middle of a long history.
    const OPEN: u32 = 5_000;

    /// Reads what a refresh of the step's page reads. Returns the numbers of its entries, and how many
    /// entries were read.
    fn refresh(store: &Memory, book: &PlaceBook) -> (Vec<u32>, usize) {
        let before = store.entries_read.load(Ordering::Relaxed);
        // As an engine keeps it for a run with tasks.
        let used = Some("{}".to_owned());
        let header = Header { used, ..store.header(1).unwrap().unwrap() };
        let view = RunRows::read(store, book, &header).unwrap();
        assert!(matches!(view.entries[0].fact, Fact::RunStarted(_)));
        let found = Found::read(store, book, 1, OPEN, 200).unwrap();
        AttemptRows::of(store, 1, OPEN, (Vec::new(), found.start)).unwrap();
        let own = found.entries.iter().map(|entry| entry.seq).collect();
        (own, store.entries_read.load(Ordering::Relaxed) - before)
    }

    #[test]
    fn a_refresh_of_a_step_of_a_long_run_reads_the_entries_that_it_shows() {
        let fact = |n: u32| match n {
            OPEN => Fact::StepScheduled(step(n)),
            n if n.is_multiple_of(1_000) => {
                let mut part = step(n);
                part.parent = Some(OPEN);
                Fact::StepRecorded(part, done())
            }
            n => Fact::StepRecorded(step(n), done()),
        };
        let facts = std::iter::once(start(1)).chain((1..=10_000).map(fact)).collect();
        let (store, _) = store(facts);
        let book = PlaceBook::default();
        let parts = [1_001, 2_001, 3_001, 4_001, 5_001, 6_001, 7_001, 8_001, 9_001, 10_001];
        let (own, read) = refresh(&store, &book);
        assert_eq!((own.as_slice(), read > 10_000), (&parts[..], true), "the first one reads all");
        let (own, read) = refresh(&store, &book);
        assert_eq!((own.as_slice(), read), (&parts[..], 11), "and the next ones little");
        let mut header = store.header(1).unwrap().unwrap();
        let delivered = Fact::AttemptDelivered {
            step: OPEN,
            attempt: 1,
            worker: "w".into(),
            deadline_ms: None,
        };
        let before = Some(header.cursor);
        append(
            &store,
            &mut header,
            before,
            vec![Fact::StepRecorded(step(10_001), done()), delivered],
        );
        let (own, read) = refresh(&store, &book);
        assert_eq!((own.len(), own.last(), read), (11, Some(&10_003), 15), "with what was added");
        let found = Found::read(&store, &book, 1, OPEN, 3).unwrap();
        assert_eq!((found.parts, found.earlier), (vec![8_000, 9_000, 10_000], 6));
    }

    #[test]
    fn the_places_and_the_usage_of_a_long_history_are_read_in_pages() {
        const STEPS: u32 = 2_000;
        let scheduled = |n| Fact::StepScheduled(step(n));
        let delivered =
            Fact::AttemptDelivered { step: 1, attempt: 1, worker: "w".into(), deadline_ms: None };
        let facts = std::iter::once(start(1)).chain((1..=STEPS).map(scheduled)).chain([delivered]);
        let (store, _) = store(facts.collect());
        // As of a run that ended before headers had the usage.
        let header = store.header(1).unwrap().unwrap();
        assert_eq!(header.used, None);
        RunRows::read(&store, &PlaceBook::default(), &header).unwrap();
        let read = store.entries_read.load(Ordering::Relaxed);
        assert!(read > 2 * STEPS as usize, "once for the places, once for the usage: {read}");
        let most = store.most_read.load(Ordering::Relaxed);
        assert!(most <= PAGE_ENTRIES as usize, "{most} at once");
    }

    #[test]
    fn a_history_that_begins_anew_replaces_the_one_before_it() {
        let recorded = |n| Fact::StepRecorded(step(n), done());
        let (store, _) = store(std::iter::once(start(1)).chain((1..=3).map(recorded)).collect());
        let book = PlaceBook::default();
        let steps = |places: &Places| (places.start(), places.steps(), places.of_run());
        assert_eq!(book.look(&store, 1, steps).unwrap(), (1, 3, vec![1]));
        let mut header = store.header(1).unwrap().unwrap();
        let before = Some(header.cursor);
        append(&store, &mut header, before, vec![start(4), recorded(4)]);
        assert_eq!(book.look(&store, 1, steps).unwrap(), (5, 1, vec![5]));
        let of = |places: &Places| places.of_steps(&[3, 4].into());
        assert_eq!(book.look(&store, 1, of).unwrap(), [6]);
    }
}
