//! Submits the pending writes of a run as one batch.

use std::sync::Arc;

use crate::{
    engine::{
        run::{
            log_line,
            resident::{After, Pending, Submitted},
            task::OpenTask,
        },
        shared::message::Msg,
        turn::{facts::Turn, waiting},
    },
    fault::{self, Break},
    journal::{Entry, RunState},
    store::{Batch, Check, RunStatus, RunWrite, Used, Write, append},
};

/// Submits what a run has for the disk, as one batch. Without anything to write it gives back
/// what was to follow.
pub(crate) fn submit(turn: &mut Turn<'_>) -> Option<After> {
    if !turn.run.has_pending() || turn.run.damaged.is_some() {
        return None;
    }
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
    turn.shared.store.submit(Batch {
        checks: pending.checks,
        run: write,
        writes: pending.writes,
        ack: Box::new(move |result| {
            drop(flight);
            shared.send(num, Msg::Committed { run: num, batch, life, result });
        }),
    });
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
    let whole = refresh_header(turn) || expected.is_none();
    RunWrite { header: turn.run.header.clone(), expected, entries: rows, whole }
}

/// Brings the header up to the chain; says whether more changed than its counters.
fn refresh_header(turn: &mut Turn<'_>) -> bool {
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
    let whole = header.status != status
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
