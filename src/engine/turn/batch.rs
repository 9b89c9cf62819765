//! Submits the pending writes of a run as one batch.
//!
//! A shard gathers the batches of a round and submits them together: else the writer would be woken
//! for the first, and commit it alone. A batch that is made outside of a round is submitted at once.
//!
//! Gathered batches are handed in before anything that may take long, since their runs wait for the
//! commit, and before another thread is asked to write about a run, since the writes of a run keep
//! their order.

use std::{cell::RefCell, mem, sync::Arc};

use crate::{
    clock::Clock,
    engine::{
        run::{
            log_line,
            resident::{After, Pending, Submitted},
            task::OpenTask,
        },
        shared::message::Msg,
        turn::{claims, facts::Turn, waiting},
    },
    fault::{self, Break},
    journal::{Entry, RunState},
    store::{Batch, Check, RunStatus, RunWrite, Store, Used, Write, append},
};

/// The number of gathered rows from which on they are submitted.
const ROWS: usize = 96;
/// The same in bytes.
const BYTES: usize = 128 << 10;
/// The time after which they are submitted, in whole milliseconds: more than one has passed then.
const MILLIS: u64 = 2;

thread_local! {
    static ROUND: RefCell<Option<Round>> = const { RefCell::new(None) };
}

/// The gathered batches of a shard's thread.
#[derive(Default)]
struct Round {
    batches: Vec<Batch>,
    rows: usize,
    bytes: usize,
    /// The time of the first batch, on the steady clock.
    since_ms: Option<u64>,
}

/// Gathers the batches of this thread until dropped, also by a panic.
#[must_use]
pub(crate) struct Gathering<'a>(&'a dyn Store);

/// Begins to gather the batches of this thread, which go to `store`.
pub(crate) fn gather(store: &dyn Store) -> Gathering<'_> {
    ROUND.set(Some(Round::default()));
    Gathering(store)
}

impl Drop for Gathering<'_> {
    fn drop(&mut self) {
        // First the round ends: a panic of the store must not leave one that nobody hands in.
        submit_all(self.0, ROUND.take());
    }
}

/// Submits what this thread has gathered.
pub(crate) fn hand_in(store: &dyn Store) {
    submit_all(store, ROUND.with_borrow_mut(|round| round.as_mut().map(mem::take)));
}

fn submit_all(store: &dyn Store, round: Option<Round>) {
    if let Some(Round { batches, .. }) = round.filter(|round| !round.batches.is_empty()) {
        store.submit_all(batches);
    }
}

/// Submits what this thread has gathered, if that is much or some time ago.
pub(crate) fn hand_in_due(store: &dyn Store, clock: &Clock) {
    let is_old = |since| clock.steady_ms().saturating_sub(since) >= MILLIS;
    let is_due = |round: &Round| {
        let is_late = round.since_ms.is_some_and(is_old);
        is_late || round.rows >= ROWS || round.bytes >= BYTES
    };
    if ROUND.with_borrow(|round| round.as_ref().is_some_and(is_due)) {
        hand_in(store);
    }
}

/// Submits a batch of so many bytes, or adds it to those that are gathered.
fn pass_on(store: &dyn Store, clock: &Clock, batch: Batch, bytes: usize) {
    let alone = ROUND.with_borrow_mut(|round| {
        let Some(round) = round else { return Some(batch) };
        round.since_ms.get_or_insert_with(|| clock.steady_ms());
        round.rows += batch.writes.len() + batch.run.as_ref().map_or(0, |run| run.entries.len());
        round.bytes += bytes;
        round.batches.push(batch);
        None
    });
    if let Some(batch) = alone {
        store.submit(batch);
    }
}

/// Submits what a run has for the disk, as one batch. Without anything to write it gives back
/// what was to follow.
pub(crate) fn submit(turn: &mut Turn<'_>) -> Option<After> {
    if !turn.run.has_pending() || turn.run.damaged.is_some() {
        return None;
    }
    claims::claim(turn);
    let mut pending = std::mem::take(&mut turn.run.pending);
    let restate = std::mem::take(&mut turn.run.restate);
    let states = restate || !pending.entries.is_empty();
    if !states && pending.writes.is_empty() && turn.run.submitted.is_empty() {
        return Some(pending.after);
    }
    turn.run.batches += 1;
    let batch = turn.run.batches;
    if turn.run.is_ended() && turn.run.end_batch.is_none() {
        turn.run.end_batch = Some(batch);
    }
    if let (true, Some(cursor)) = (pending.entries.is_empty(), turn.run.cursor) {
        // Without entries nothing else would refuse it after a batch before it failed.
        pending.checks.push(Check::RunAt { run: turn.run.num, cursor });
    }
    // Before the rows get their numbers; until the batch is durable or refused.
    let flight = states.then(|| turn.shared.in_flight.begin(&*turn.shared.store));
    let write = states.then(|| run_write(turn, &pending.entries));
    if turn.run.charged {
        charge(turn, &mut pending, write.as_ref());
    }
    let bytes = pending.bytes();
    let is_taken = |step| turn.run.task(step).is_some_and(OpenTask::is_taken);
    let span = |step| turn.shared.span_of(turn.run, step);
    let lines = log_line::lines(turn.run.id, &turn.run.header, &pending.entries, is_taken, span);
    pending.after.lines = lines;
    if !turn.run.subscribers.is_empty() {
        pending.after.events.extend(
            pending.entries.iter().map(|e| crate::engine::view::events::view(turn.run.num, e)),
        );
    }
    let early =
        fault::is_broken(Break::AckBeforeCommit).then(|| std::mem::take(&mut pending.after));
    turn.run.submitted.push_back(Submitted { batch, bytes, after: pending.after });
    let (num, life) = (turn.run.num, turn.run.life);
    let shared = Arc::clone(turn.shared);
    let whole = Batch {
        checks: pending.checks,
        run: write,
        writes: pending.writes,
        ack: Box::new(move |result| {
            drop(flight);
            shared.send(num, Msg::Committed { run: num, batch, life, result });
        }),
    };
    pass_on(&*turn.shared.store, &turn.shared.clock, whole, bytes);
    early
}

/// Charges a run for what it stores, in the commit that stores it.
fn charge(turn: &Turn<'_>, pending: &mut Pending, write: Option<&RunWrite>) {
    let rows = write.map_or(&[][..], |write| &write.entries);
    let entries: u64 = rows.iter().map(|row| row.bytes.len() as u64).sum();
    let files = pending.writes.iter().map(|write| match write {
        Write::PutArtifact(file) => file.size,
        _ => 0,
    });
    let bytes = entries + files.sum::<u64>();
    let row = turn.shared.accounts.charge(turn.run.num, turn.run.chain.spent(), bytes);
    pending.writes.extend(row.map(Write::PutCharge));
}

fn run_write(turn: &mut Turn<'_>, entries: &[Entry]) -> RunWrite {
    let run = &mut *turn.run;
    let expected = run.cursor;
    let rows = append(&*turn.shared.store, &mut run.header, expected, entries);
    run.cursor = rows.last().map(|row| row.lsn).or(expected);
    // Usage that comes late changes nothing else that is shown.
    let is_late = entries.iter().any(|entry| entry.additions.called().is_some());
    let whole = refresh_header(turn, is_late) || expected.is_none();
    RunWrite { header: turn.run.header.clone(), expected, entries: rows, whole }
}

/// Brings the header up to the chain; says whether more changed than its counters.
fn refresh_header(turn: &mut Turn<'_>, is_late: bool) -> bool {
    let (steps, done) = turn.run.chain.counts();
    let before = turn.run.chain.next_step() - 1 - steps;
    let status = waiting::status(turn.run);
    let ended = status.is_ended();
    let wake_at_ms = if ended { None } else { waiting::wake_at(turn.run, &turn.shared.clock) };
    let waiting_on = match status {
        RunStatus::Waiting | RunStatus::Paused => waiting::describe(turn.run, status, turn.shared),
        RunStatus::Running | RunStatus::Compensating
            if !turn.run.open.is_empty()
                || turn.run.chain.paused().is_some()
                || turn.run.account.parked =>
        {
            waiting::describe(turn.run, status, turn.shared)
        }
        _ => None,
    };
    let error = match turn.run.chain.state() {
        RunState::Ended(outcome) | RunState::Compensating(outcome) => waiting::error(outcome),
        RunState::Active => turn.run.chain.paused().map(waiting::paused),
    };
    let said = turn.run.chain.status().map(|(text, progress)| (text.to_owned(), progress));
    let (header, chain) = (&mut turn.run.header, &turn.run.chain);
    let (status_text, progress) = said.map_or((None, None), |(text, p)| (Some(text), p));
    let whole = is_late
        || header.status != status
        || header.wake_at_ms != wake_at_ms
        || header.waiting_on != waiting_on
        || header.error != error
        || header.status_text != status_text
        || header.progress != progress;
    if whole || header.cursor == 0 {
        header.used = Used::encode(chain.spent(), chain.agents());
    }
    header.status = status;
    header.wake_at_ms = wake_at_ms;
    header.waiting_on = waiting_on;
    header.error = error;
    header.status_text = status_text;
    header.progress = progress;
    header.cursor = turn.run.cursor.unwrap_or_default();
    header.seq = turn.run.chain.seq();
    header.steps = before + steps;
    header.steps_done = before + done;
    header.updated_ms = turn.run.chain.last_ms();
    if ended && header.ended_ms.is_none() {
        header.ended_ms = Some(turn.run.chain.last_ms());
    }
    whole
}

#[cfg(test)]
mod tests {
    use std::{
        panic::{AssertUnwindSafe, catch_unwind},
        time::Duration,
    };

    use super::*;
    use crate::store::Memory;

    fn batch(rows: usize) -> Batch {
        let row = |n: usize| Write::PutMeta { key: n.to_string(), value: String::new() };
        let writes = (0..rows).map(row).collect();
        Batch { checks: Vec::new(), run: None, writes, ack: Box::new(|_| {}) }
    }

    #[test]
    fn the_batches_of_a_round_are_handed_in_together_and_others_at_once() {
        let (store, clock) = (Memory::held(), Clock::manual(0));
        pass_on(&store, &clock, batch(1), 0);
        assert_eq!(store.waiting(), 1);
        let round = gather(&store);
        pass_on(&store, &clock, batch(1), 0);
        pass_on(&store, &clock, batch(1), 0);
        assert_eq!(store.waiting(), 1);
        hand_in(&store);
        assert_eq!(store.waiting(), 3);
        pass_on(&store, &clock, batch(1), 0);
        drop(round);
        assert_eq!(store.waiting(), 4);
        pass_on(&store, &clock, batch(1), 0);
        assert_eq!(store.waiting(), 5);
    }

    #[test]
    fn a_batch_that_has_waited_is_handed_in_and_the_next_has_a_time_of_its_own() {
        let (store, clock) = (Memory::held(), Clock::manual(0));
        let _round = gather(&store);
        for handed_in in [1, 2] {
            pass_on(&store, &clock, batch(1), 0);
            hand_in_due(&store, &clock);
            assert_eq!(store.waiting(), handed_in - 1);
            clock.advance(Duration::from_millis(MILLIS));
            hand_in_due(&store, &clock);
            assert_eq!(store.waiting(), handed_in);
        }
    }

    #[test]
    fn many_rows_and_many_bytes_are_not_held_back_and_a_panic_loses_none() {
        let (store, clock) = (Memory::held(), Clock::manual(0));
        let panics = AssertUnwindSafe(|| {
            let _round = gather(&store);
            pass_on(&store, &clock, batch(ROWS), 0);
            hand_in_due(&store, &clock);
            assert_eq!(store.waiting(), 1);
            pass_on(&store, &clock, batch(1), BYTES);
            hand_in_due(&store, &clock);
            assert_eq!(store.waiting(), 2);
            pass_on(&store, &clock, batch(1), 0);
            panic!("a turn fails");
        });
        assert!(catch_unwind(panics).is_err());
        assert_eq!(store.waiting(), 3);
    }
}
