//! Reads a page of a run's steps from as little of its history as possible.

use crate::{
    journal::{Chain, Entry, Fact},
    protocol::RunId,
    store::{Store, StoreError},
};

/// The initial number of entries that are read at a time.
const WINDOW: u32 = 512;
/// The maximum number of entries that are read at a time.
const WIDEST: u32 = 8_192;
/// The number of entries that are read to find the step numbers at a position.
const PROBE: u32 = 16;

/// Returns the steps of a run's current history with a number over `after`: `limit` of them in
/// their current state, one more if there is one, and perhaps others around them.
///
/// Searches for the position where they begin, and reads on until each of them has ended.
pub(crate) fn chain_of_page(
    store: &dyn Store,
    run: RunId,
    after: u32,
    limit: usize,
) -> Result<Chain, StoreError> {
    let num = run.num();
    let damaged = |error: crate::journal::ChainError| StoreError::Damaged {
        what: format!("run {run}"),
        reason: error.to_string(),
    };
    let start = store.history_start(num)?;
    let Some(header) = store.header(num)? else { return Ok(Chain::full()) };
    let mut at = begin(store, num, after, (start, header.seq))? - 1;
    let (mut chain, mut entries) = (None::<Chain>, Vec::new());
    let mut size = WINDOW;
    while at < header.seq && !chain.as_ref().is_some_and(|chain| is_enough(chain, after, limit)) {
        let upto = at.saturating_add(size).min(header.seq);
        let more = store.window(num, at, upto)?;
        if at + 1 == start && more.first().is_some_and(|entry| !begins(entry)) {
            return Err(StoreError::Damaged {
                what: format!("run {run}"),
                reason: format!("its history does not begin with entry {start}"),
            });
        }
        match &mut chain {
            Some(chain) => more.iter().try_for_each(|entry| chain.apply(entry)).map_err(damaged)?,
            None => {
                entries.extend(more);
                chain = Chain::ending(&entries, after).map_err(damaged)?;
            }
        }
        (at, size) = (upto, size.saturating_mul(2).min(WIDEST));
    }
    Ok(chain.unwrap_or_else(Chain::full))
}

/// Returns an entry of a history, between its first and its last one, from which on the steps over
/// `after` can be read: the first entry, or one that is followed by a step up to the next one.
fn begin(
    store: &dyn Store,
    num: u64,
    after: u32,
    (start, last): (u32, u32),
) -> Result<u32, StoreError> {
    let (mut low, mut high) = (start, last.max(start));
    while after > 0 && high - low > WINDOW {
        let middle = low + (high - low) / 2;
        let probe = store.window(num, middle - 1, middle.saturating_add(PROBE))?;
        match probe.iter().find_map(scheduled) {
            Some(step) if step <= after.saturating_add(1) => low = middle,
            // Without a scheduled step the position is unknown: an earlier one is correct as well.
            Some(_) | None => high = middle,
        }
    }
    Ok(low)
}

fn begins(entry: &Entry) -> bool {
    matches!(entry.fact, Fact::RunStarted(_))
}

fn scheduled(entry: &Entry) -> Option<u32> {
    match &entry.fact {
        Fact::StepScheduled(step) | Fact::StepRecorded(step, _) => Some(step.step),
        _ => None,
    }
}

/// Returns true if no later entry changes the page.
fn is_enough(chain: &Chain, after: u32, limit: usize) -> bool {
    let steps = chain.steps();
    let first = steps.partition_point(|step| step.scheduled.step <= after);
    let page = &steps[first..];
    page.len() > limit && page[..limit].iter().all(|step| step.state.is_terminal())
}

#[cfg(test)]
pub(in crate::engine) mod tests {
    use super::*;
    use crate::{
        journal::{LINE, Outcome, RunStarted, Scheduled, ScopePath, StepKey},
        protocol::{Json, StepKind},
        store::{Batch, Header, JournalRow, Memory, Reader as _, RunStatus, RunWrite, Writer as _},
    };

    pub(in crate::engine) fn start(first_step: u32) -> Fact {
        Fact::RunStarted(Box::new(RunStarted {
            blueprint: "b".into(),
            hash: "00".into(),
            input: Json::null(),
            trigger: Json::null(),
            seed: 1,
            parent: None,
            depth: 0,
            workdir: None,
            principal: "ann".into(),
            delegate: None,
            grant: Json::null(),
            generation: 0,
            first_step,
            queued: Vec::new(),
            continues: None,
        }))
    }

    pub(in crate::engine) fn step(number: u32) -> Box<Scheduled> {
        Box::new(Scheduled {
            step: number,
            key: StepKey::new(ScopePath::main(), number),
            prev: None,
            parent: None,
            kind: StepKind::Task,
            name: "e".into(),
            call_id: None,
            request: Json::from_trusted(number.to_string()),
            fingerprint: 7,
            attempt: 1,
            epoch: 1,
            seat_epoch: 0,
            wake_at_ms: None,
            summary: None,
        })
    }

    pub(in crate::engine) fn done() -> Outcome {
        Outcome::Completed(Json::from_trusted("1"))
    }

    /// Returns a run with these facts.
    pub(in crate::engine) fn store(facts: Vec<Fact>) -> (Memory, RunId) {
        let store = Memory::new();
        let id = RunId::new(1, 5);
        let mut header =
            Header { status: RunStatus::Running, ..Header::fresh(id.num(), id.created_ms()) };
        header.seq = 0;
        append(&store, &mut header, None, facts);
        (store, id)
    }

    /// Adds these facts to a run.
    pub(in crate::engine) fn append(
        store: &Memory,
        header: &mut Header,
        mut before: Option<u64>,
        facts: Vec<Fact>,
    ) {
        let expected = before;
        let mut rows = Vec::new();
        for (seq, fact) in (header.seq + 1..).zip(facts) {
            let lsn = store.next_lsn();
            let mut entry = Entry::new(seq, 9, fact);
            if let Fact::StepScheduled(_) | Fact::StepRecorded(..) = &entry.fact {
                entry.additions.put(LINE, Json::encode(&"main.lua:3").unwrap());
            }
            rows.push(JournalRow::new(1, lsn, before, &entry));
            before = Some(lsn);
            (header.cursor, header.seq) = (lsn, seq);
        }
        let run = RunWrite { header: header.clone(), expected, entries: rows, whole: true };
        let told = Box::new(|result: Result<(), StoreError>| result.unwrap());
        store.submit(Batch { checks: vec![], run: Some(run), writes: vec![], ack: told });
    }

    /// Checks that every page has the steps of the whole history.
    fn check(facts: Vec<Fact>) {
        let (store, id) = store(facts);
        let mut whole = Chain::full();
        for entry in store.entries(1, 0).unwrap() {
            whole.apply(&entry).unwrap();
        }
        let last = whole.next_step();
        for after in [0, 1, 5, 99, 100, 700, 1_499, 1_500, 2_998, 2_999, 3_000, 4_000] {
            for limit in [1, 50, 5_000] {
                let page = chain_of_page(&store, id, after, limit).unwrap();
                let of = |chain: &Chain| -> Vec<String> {
                    let steps = chain.steps().iter().filter(|it| it.scheduled.step > after);
                    steps.take(limit).map(|step| format!("{step:?}")).collect()
                };
                assert_eq!(of(&page), of(&whole), "after {after}, {limit}");
                let more =
                    |chain: &Chain| chain.next_step() > after.saturating_add(1) + limit as u32;
                assert_eq!(more(&page), more(&whole), "after {after}, {limit} of {last}");
            }
        }
    }

    #[test]
    fn a_page_is_the_same_as_of_the_whole_history() {
        let recorded = |n| Fact::StepRecorded(step(n), done());
        let ended = |n| Fact::StepEnded {
            step: n,
            attempt: 1,
            epoch: 1,
            outcome: done(),
            effects: None,
            usage: None,
        };
        let scheduled = |n| Fact::StepScheduled(step(n));
        check(std::iter::once(start(1)).chain((1..=3_000).map(recorded)).collect());
        // All begin before the first of them ends, and a few never end.
        let wide = (1..=3_000).map(scheduled).chain((1..2_990).rev().map(ended));
        check(std::iter::once(start(1)).chain(wide).collect());
        // The history began anew; earlier steps are not shown.
        let before = std::iter::once(start(1)).chain((1..=1_400).map(recorded));
        let anew = std::iter::once(start(1_401)).chain((1_401..=3_000).map(recorded));
        check(before.chain(anew).collect());
        check(vec![start(1)]);
    }

    #[test]
    fn a_page_of_a_long_history_reads_little_of_it() {
        let recorded = |n| Fact::StepRecorded(step(n), done());
        let (store, id) =
            store(std::iter::once(start(1)).chain((1..=20_000).map(recorded)).collect());
        for after in [0, 9_000, 19_000] {
            let read = chain_of_page(&store, id, after, 100).unwrap().steps().len();
            assert!(read <= 3 * WINDOW as usize, "after {after}: {read} steps");
        }
    }
}
