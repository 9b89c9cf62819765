//! The loop that owns runs: load, advance, commit, perform; in that order, always.
//!
//! A shard is one thread. Every change to a run of it happens here, one message after the other;
//! what is to leave the process waits in [`After`] until the batch that it follows from is synced.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    sync::{Arc, atomic::Ordering},
};

use tokio::sync::mpsc;

use super::{
    EngineError,
    message::{Msg, RunMsg},
    run::{After, Run},
    shared::Shared,
};
use crate::{
    journal::RunState,
    lua::Vms,
    store::{Batch, JournalRow, RunStatus, RunWrite, StoreError},
};

/// Messages that are handled before the loop looks at timers and flushes.
const DRAIN: usize = 256;
/// How far ahead timers are kept in memory, in milliseconds; later ones are read when it is time.
pub(super) const HORIZON_MS: u64 = 60_000;
/// How long a run rests after a write of it failed, in milliseconds.
const STORAGE_RETRY_MS: u64 = 1_000;

/// The runs of one thread.
pub(crate) struct Shard {
    pub(super) index: u64,
    pub(super) shared: Arc<Shared>,
    pub(super) vms: Vms,
    pub(super) runs: HashMap<u64, Box<Run>>,
    pub(super) timers: BTreeSet<(u64, u64)>,
    pub(super) ready: VecDeque<u64>,
    pub(super) recent: VecDeque<u64>,
    pub(super) horizon_ms: u64,
    pub(super) now_ms: u64,
    pub(super) lives: u64,
    pub(super) recovers: bool,
    /// The runs that this process began or read, and that have not ended.
    unfinished: HashSet<u64>,
}

impl Shard {
    /// A shard without runs. With `recovers` it takes up the stored runs that are due.
    pub(crate) fn new(index: u64, shared: Arc<Shared>, vms: Vms, recovers: bool) -> Self {
        let now_ms = shared.clock.now_ms();
        Self {
            index,
            shared,
            vms,
            runs: HashMap::new(),
            timers: BTreeSet::new(),
            ready: VecDeque::new(),
            recent: VecDeque::new(),
            horizon_ms: 0,
            now_ms,
            lives: 0,
            recovers,
            unfinished: HashSet::new(),
        }
    }

    /// Handles messages until it is told to stop.
    pub(crate) async fn serve(mut self, mut messages: mpsc::UnboundedReceiver<Msg>) {
        self.poll_due();
        loop {
            let next = self.next_due_ms();
            let clock = self.shared.clock.clone();
            tokio::select! {
                biased;
                message = messages.recv(), if self.ready.is_empty() => {
                    let Some(message) = message else { return };
                    if !self.handle(message) { return }
                }
                () = clock.sleep_until(next), if self.ready.is_empty() => {}
                () = std::future::ready(()), if !self.ready.is_empty() => {}
            }
            let began = self.shared.clock.now_ms();
            for _ in 0..DRAIN {
                if self.shared.clock.now_ms().saturating_sub(began) >= super::drive::TURN_MS {
                    break;
                }
                match messages.try_recv() {
                    Ok(message) => {
                        if !self.handle(message) {
                            return;
                        }
                    }
                    Err(_) => break,
                }
            }
            self.turn();
        }
    }

    /// Fires what is due, gives waiting runs their turn, and drops what is idle.
    pub(crate) fn turn(&mut self) {
        self.tick();
        if self.recovers && self.now_ms + HORIZON_MS / 2 >= self.horizon_ms {
            self.poll_due();
        }
        let until = self.now_ms + super::drive::TURN_MS;
        while let Some(&(due, run)) = self.timers.first() {
            if due > self.now_ms || self.shared.clock.now_ms() >= until {
                break;
            }
            self.timers.remove(&(due, run));
            self.tell(run, RunMsg::Wake);
        }
        for _ in 0..self.ready.len() {
            if self.shared.clock.now_ms() >= until + super::drive::TURN_MS {
                break;
            }
            let Some(run) = self.ready.pop_front() else { break };
            if let Some(live) = self.runs.get_mut(&run) {
                live.queued = false;
            }
            self.tell(run, RunMsg::Continue);
        }
        self.evict();
    }

    /// When something is due without a message, in Unix milliseconds.
    pub(crate) fn next_due_ms(&self) -> u64 {
        let poll = if self.recovers { self.horizon_ms - HORIZON_MS / 2 } else { u64::MAX };
        self.timers.first().map_or(poll, |(due, _)| (*due).min(poll))
    }

    /// Handles one message; false once the shard is to stop.
    pub(crate) fn handle(&mut self, message: Msg) -> bool {
        self.tick();
        match message {
            Msg::Start(new) => self.begin(*new),
            Msg::Run(run, message) => self.tell(run, message),
            Msg::Committed { run, batch, life, result } => {
                self.committed(run, batch, life, result);
            }
            Msg::Recover => {
                self.recovers = true;
                self.poll_due();
            }
            Msg::Stop(done) => {
                for (_, mut run) in self.runs.drain() {
                    cancel_workers(&mut run);
                }
                // Whoever asked may have given up waiting.
                let _ = done.send(());
                return false;
            }
        }
        true
    }

    /// Counts a run as open.
    pub(super) fn count_in(&mut self, run: u64) {
        if self.unfinished.insert(run) {
            self.shared.open_runs.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a run as ended, or as one that never was.
    pub(super) fn count_out(&mut self, run: u64) {
        if self.unfinished.remove(&run) {
            self.shared.open_runs.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn tick(&mut self) {
        self.now_ms = self.now_ms.max(self.shared.clock.now_ms());
    }

    /// Gives a message to a run, reading it into memory if it is not there.
    pub(super) fn tell(&mut self, num: u64, message: RunMsg) {
        let known = self.runs.remove(&num).filter(|run| {
            // A resting run has no flow; its cancel needs one, to compensate with.
            let flow_is_missed = matches!(message, RunMsg::Cancel { .. })
                && run.flow.is_none()
                && !run.is_ended()
                && run.is_idle();
            !flow_is_missed
        });
        let run = match known {
            Some(run) => Some(run),
            None => match self.load(num, &message, false) {
                Ok(run) => run,
                Err(error) => {
                    tracing::error!(run = num, %error, "could not read a run");
                    self.refuse(message, &error);
                    return;
                }
            },
        };
        match run {
            None => {
                self.count_out(num);
                self.refuse_unknown(num, message);
            }
            Some(mut run) => {
                self.receive(&mut run, message);
                self.settle(run);
            }
        }
    }

    /// Drives a run as far as its turn goes, submits what came of it, and keeps it.
    pub(super) fn settle(&mut self, mut run: Box<Run>) {
        self.drive(&mut run);
        self.flush(&mut run);
        if run.reload && run.submitted.is_empty() {
            cancel_workers(&mut run);
            let (num, broken, waiters, subscribers) = (
                run.num,
                run.broken,
                std::mem::take(&mut run.waiters),
                std::mem::take(&mut run.subscribers),
            );
            drop(run);
            self.reload(num, broken, waiters, subscribers);
            return;
        }
        if run.is_ended() && run.is_idle() {
            return;
        }
        if let Some((due, _, _)) = run.timers.first()
            && run.chain.paused().is_none()
        {
            self.timers.insert((*due, run.num));
        }
        if !run.inbox.is_empty() && !run.queued && run.chain.paused().is_none() {
            run.queued = true;
            self.ready.push_back(run.num);
        }
        self.recent.push_back(run.num);
        self.runs.insert(run.num, run);
    }

    fn reload(
        &mut self,
        num: u64,
        broken: bool,
        waiters: Vec<super::message::Waiter>,
        subscribers: Vec<mpsc::Sender<super::EventView>>,
    ) {
        match self.load(num, &RunMsg::Wake, broken) {
            Ok(Some(mut run)) => {
                run.broken = false;
                run.waiters = waiters;
                run.subscribers = subscribers;
                self.settle(run);
            }
            Ok(None) => {}
            Err(error) => {
                tracing::error!(run = num, %error, "could not read a run again");
                self.timers.insert((self.now_ms + STORAGE_RETRY_MS, num));
            }
        }
    }

    /// Submits what a run has for the disk, as one batch.
    pub(super) fn flush(&mut self, run: &mut Run) {
        if !run.has_pending() {
            return;
        }
        let mut pending = std::mem::take(&mut run.pending);
        if pending.entries.is_empty() && pending.writes.is_empty() && run.submitted.is_empty() {
            self.perform(run, pending.after);
            return;
        }
        run.batches += 1;
        let batch = run.batches;
        let write = (!pending.entries.is_empty()).then(|| self.run_write(run, &pending.entries));
        if !run.subscribers.is_empty() {
            pending
                .after
                .events
                .extend(pending.entries.iter().map(|e| super::events::view(run.num, e)));
        }
        run.submitted.push_back((batch, pending.after));
        let (num, life) = (run.num, run.life);
        let shared = Arc::clone(&self.shared);
        self.shared.store.submit(Batch {
            checks: pending.checks,
            run: write,
            writes: pending.writes,
            ack: Box::new(move |result| {
                shared.send(num, Msg::Committed { run: num, batch, life, result });
            }),
        });
    }

    fn run_write(&mut self, run: &mut Run, entries: &[crate::journal::Entry]) -> RunWrite {
        let expected = run.cursor;
        let mut rows = Vec::with_capacity(entries.len());
        for entry in entries {
            let lsn = self.shared.store.next_lsn();
            rows.push(JournalRow { lsn, prev: run.prev, bytes: entry.encode() });
            run.prev = Some(lsn);
            run.cursor = Some(lsn);
        }
        let whole = self.refresh_header(run) || expected.is_none();
        RunWrite { header: run.header.clone(), expected, entries: rows, whole }
    }

    /// Brings the header up to the chain; says whether more changed than its counters.
    fn refresh_header(&mut self, run: &mut Run) -> bool {
        let (steps, done) = run.chain.counts();
        let before = run.chain.next_step() - 1 - steps;
        let status = super::waiting::status(run);
        let ended = status.is_ended();
        let wake_at_ms = if ended { None } else { super::waiting::wake_at(run) };
        let waiting_on = match status {
            RunStatus::Waiting | RunStatus::Paused => super::waiting::describe(run),
            RunStatus::Running | RunStatus::Compensating if !run.open.is_empty() => {
                super::waiting::describe(run)
            }
            _ => None,
        };
        let error = match run.chain.state() {
            RunState::Ended(outcome) | RunState::Compensating(outcome) => {
                super::waiting::error(outcome)
            }
            RunState::Active => run.chain.paused().map(super::waiting::paused),
        };
        let said = run.chain.status().map(|(text, progress)| (text.to_owned(), progress));
        let header = &mut run.header;
        let (status_text, progress) = said.map_or((None, None), |(text, p)| (Some(text), p));
        let whole = header.status != status
            || header.wake_at_ms != wake_at_ms
            || header.waiting_on != waiting_on
            || header.error != error
            || header.status_text != status_text
            || header.progress != progress;
        header.status = status;
        header.wake_at_ms = wake_at_ms;
        header.waiting_on = waiting_on;
        header.error = error;
        header.status_text = status_text;
        header.progress = progress;
        header.cursor = run.cursor.unwrap_or_default();
        header.seq = run.chain.seq();
        header.steps = before + steps;
        header.steps_done = before + done;
        header.updated_ms = run.chain.last_ms();
        if ended && header.ended_ms.is_none() {
            header.ended_ms = Some(run.chain.last_ms());
        }
        whole
    }

    fn committed(&mut self, num: u64, batch: u64, life: u64, result: Result<(), StoreError>) {
        let Some(mut run) = self.runs.remove(&num) else { return };
        if run.life != life {
            self.runs.insert(num, run);
            return;
        }
        let front = run.submitted.pop_front();
        debug_assert!(front.as_ref().is_some_and(|(n, _)| *n == batch), "batches end in order");
        let Some((_, after)) = front else { return };
        match result {
            Ok(()) => {
                self.shared.storage_failed.store(false, Ordering::Relaxed);
                self.perform(&mut run, after);
                self.settle(run);
            }
            Err(error) => self.lost(run, after, error),
        }
    }

    /// A batch was refused: what the run is in memory never happened. It is read again.
    fn lost(&mut self, mut run: Box<Run>, after: After, error: StoreError) {
        let refusal = matches!(error, StoreError::Revoked { .. } | StoreError::KeyUsed { .. });
        if !refusal {
            tracing::error!(run = %run.id, %error, "could not write a run; it is read again");
            self.shared.storage_failed.store(true, Ordering::Relaxed);
        }
        let fail = |after: After| {
            for reply in after.replies {
                reply(Err(EngineError::Store(error.clone())));
            }
        };
        fail(after);
        for (_, after) in std::mem::take(&mut run.submitted) {
            fail(after);
        }
        fail(std::mem::take(&mut run.pending.after));
        cancel_workers(&mut run);
        self.release_places(&mut run);
        let wake = if refusal { self.now_ms } else { self.now_ms + STORAGE_RETRY_MS };
        self.timers.insert((wake, run.num));
    }

    /// Reads which runs are due within the horizon.
    fn poll_due(&mut self) {
        if !self.recovers {
            return;
        }
        self.tick();
        let until = self.now_ms + HORIZON_MS;
        let shards = self.shared.shards.len() as u64;
        match self.shared.store.due(self.index, shards, until, 100_000) {
            Ok(due) => {
                // A full page ends before the horizon: what lies after it is read sooner.
                let full = due.len() == 100_000;
                self.horizon_ms =
                    if full { due.last().map_or(until, |(_, at)| *at) } else { until };
                for (run, at) in due {
                    if at > 0 || !self.runs.contains_key(&run) {
                        self.timers.insert((at, run));
                    }
                }
            }
            Err(error) => {
                tracing::error!(%error, "could not read which runs are due");
                self.horizon_ms = self.now_ms + HORIZON_MS / 2 + STORAGE_RETRY_MS;
            }
        }
        self.horizon_ms = self.horizon_ms.max(self.now_ms + HORIZON_MS / 2 + 1);
    }

    /// Drops idle runs, least recently used first, while there are too many.
    fn evict(&mut self) {
        let limit = self.shared.settings.live_runs;
        let mut looks = self.recent.len();
        while self.runs.len() > limit && looks > 0 {
            looks -= 1;
            let Some(num) = self.recent.pop_front() else { break };
            match self.runs.get(&num) {
                Some(run) if run.is_idle() => {
                    self.runs.remove(&num);
                }
                Some(_) => self.recent.push_back(num),
                None => {}
            }
        }
        if self.recent.len() > 4 * limit + 1_024 {
            let mut seen = std::collections::HashSet::new();
            let kept: Vec<u64> =
                self.recent.iter().rev().copied().filter(|n| seen.insert(*n)).collect();
            self.recent = kept.into_iter().rev().filter(|n| self.runs.contains_key(n)).collect();
        }
    }
}

/// Tells every worker in the host to stop.
pub(super) fn cancel_workers(run: &mut Run) {
    for open in run.open.values_mut() {
        if let super::run::OpenKind::Task(task) = &mut open.kind
            && let Some(live) = task.live.take()
        {
            live.cancel.cancel();
        }
    }
}
