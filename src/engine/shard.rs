//! The loop that owns runs: load, advance, commit, perform; in that order, always.
//!
//! A shard is one thread. Every change to a run of it happens here, one message after the other;
//! what is to leave the process waits in [`After`](super::run::After) until the batch that it follows from is synced.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    sync::{Arc, atomic::Ordering},
};

use tokio::sync::mpsc;

use super::{
    message::{Msg, RunMsg},
    readers::Subscriber,
    run::Run,
    shared::Shared,
};
use crate::{
    fault::{self, Break},
    lua::Vms,
    store::StoreError,
};

/// Messages that are handled before the loop looks at timers and flushes.
const DRAIN: usize = 256;
/// How far ahead timers are kept in memory, in milliseconds; later ones are read when it is time.
pub(super) const HORIZON_MS: u64 = 60_000;
/// How long a run rests after a write of it failed, in milliseconds.
pub(super) const STORAGE_RETRY_MS: u64 = 1_000;

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
    /// The runs that may have lost what others carried to them.
    pub(super) unheard: HashSet<u64>,
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
            unheard: HashSet::new(),
        }
    }

    /// Handles messages until it is told to stop.
    pub(crate) async fn serve(mut self, mut messages: mpsc::UnboundedReceiver<Msg>) {
        self.boot();
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

    /// Takes up what is due; before anything else.
    pub(crate) fn boot(&mut self) {
        self.poll_due();
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
            if let Some(live) = self.runs.get_mut(&run).filter(|live| live.alarm == Some(due)) {
                live.alarm = None;
            }
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
            Msg::Unheard(run) => self.carry_later(run, STORAGE_RETRY_MS),
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
        // The clock may be set back; each run sees to it that its own time is not. What was to be
        // read again in a moment does not wait until the clock has come that far once more.
        let now_ms = self.shared.clock.now_ms();
        if now_ms < self.now_ms {
            self.timers.extend(self.unheard.iter().map(|run| (now_ms, *run)));
        }
        self.now_ms = now_ms;
    }

    /// Gives a message to a run, reading it into memory if it is not there.
    pub(super) fn tell(&mut self, num: u64, message: RunMsg) {
        if let RunMsg::Delta(feed) = message {
            // It changes nothing: no flow is driven, and no run is read for it.
            if let Some(mut run) = self.runs.remove(&num) {
                self.take_pieces(&mut run, &feed);
                self.runs.insert(num, run);
            }
            return;
        }
        if self.unheard.remove(&num) {
            self.carry_again(num);
        }
        let mut known = self.runs.remove(&num);
        if let Some(mut failed) = known.take_if(|run| run.failed.is_some()) {
            failed.held.push(message);
            self.runs.insert(num, failed);
            return;
        }
        // A resting run has no flow; its cancel needs one, to compensate with. An ended one has none
        // either; a query needs it.
        if let Some(run) = &mut known
            && run.flow.is_none()
            && if run.is_ended() { message.is_query() } else { message.is_cancel() }
        {
            if !run.submitted.is_empty() || run.has_pending() {
                run.held.push(message);
                self.runs.extend(known.map(|run| (num, run)));
                return;
            }
            if let Some(resting) = known.take() {
                known = self.read_again(resting, &message);
            }
        }
        let run = match known {
            Some(run) => Some(run),
            None => match self.load(num, &message, false) {
                Ok(run) => run,
                Err(error) => {
                    tracing::error!(run = num, %error, "could not read a run");
                    if matches!(error, StoreError::Damaged { .. }) {
                        self.quarantine(num, &error);
                    }
                    self.refuse(message, &error);
                    return;
                }
            },
        };
        match run {
            None => {
                // One that has ended was counted out, and keeps what it was charged.
                self.shared.accounts.never(num);
                self.count_out(num);
                self.refuse_unknown(num, message);
            }
            Some(mut run) => {
                self.receive(&mut run, message);
                self.settle(run);
            }
        }
    }

    /// Reads a run of which nothing is on its way once more, for a message; nothing where it cannot
    /// be read.
    fn read_again(&mut self, mut run: Box<Run>, message: &RunMsg) -> Option<Box<Run>> {
        cancel_workers(&mut run);
        self.recount_places(&mut run, Vec::new());
        let (waiters, subscribers) =
            (std::mem::take(&mut run.waiters), std::mem::take(&mut run.subscribers));
        let mut fresh = self.load(run.num, message, false).ok()??;
        fresh.waiters = waiters;
        fresh.audience.set(!subscribers.is_empty());
        fresh.subscribers = subscribers;
        Some(fresh)
    }

    /// Drives a run as far as its turn goes, submits what came of it, and keeps it.
    pub(super) fn settle(&mut self, mut run: Box<Run>) {
        self.drive(&mut run);
        if let Some(error) = run.damaged.take() {
            self.fail(&mut run, Default::default(), &error);
            match run.submitted.is_empty() {
                true => self.lost(run),
                false => drop(self.runs.insert(run.num, run)),
            }
            return;
        }
        self.flush(&mut run);
        if run.reload && run.submitted.is_empty() {
            cancel_workers(&mut run);
            self.recount_places(&mut run, Vec::new());
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
        if run.is_ended() && run.submitted.is_empty() && !run.has_pending() {
            // They were sent the end, or read it from the store.
            run.subscribers.clear();
        }
        if run.is_ended() && run.is_idle() {
            self.silence(&run);
            return;
        }
        self.set_alarm(&mut run);
        if !run.inbox.is_empty() && !run.queued && run.chain.paused().is_none() {
            run.queued = true;
            self.ready.push_back(run.num);
        }
        self.recent.push_back(run.num);
        self.runs.insert(run.num, run);
    }

    /// Lets a run be woken at its next time, and at no other that it had before: a run that lives
    /// long has many, and most of them never come.
    fn set_alarm(&mut self, run: &mut Run) {
        let next = match run.chain.paused() {
            Some(_) => None,
            None => run.timers.first().map(|(due, _, _)| due),
        };
        if run.alarm != next {
            self.silence(run);
            self.timers.extend(next.map(|due| (due, run.num)));
            run.alarm = next;
        }
    }

    fn silence(&mut self, run: &Run) {
        if let Some(due) = run.alarm {
            self.timers.remove(&(due, run.num));
        }
    }

    fn reload(
        &mut self,
        num: u64,
        broken: bool,
        waiters: Vec<super::message::Waiter>,
        subscribers: Vec<Subscriber>,
    ) {
        match self.load(num, &RunMsg::Wake, broken) {
            Ok(Some(mut run)) => {
                run.broken = false;
                run.waiters = waiters;
                run.audience.set(!subscribers.is_empty());
                run.subscribers = subscribers;
                self.settle(run);
            }
            Ok(None) => {}
            Err(error) => {
                tracing::error!(run = num, %error, "could not read a run again");
                if matches!(error, StoreError::Damaged { .. }) {
                    self.quarantine(num, &error);
                    return;
                }
                self.carry_later(num, STORAGE_RETRY_MS);
            }
        }
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
                    if fault::is_broken(Break::LoseTimerAtBoot) && at <= self.now_ms {
                        continue;
                    }
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
            if let Some(run) = self.runs.get_mut(&num) {
                run.subscribers.retain(|subscriber| !subscriber.is_closed());
            }
            match self.runs.get(&num) {
                Some(run) if run.is_idle() => {
                    let stored = run.header.wake_at_ms;
                    let later = run.alarm.filter(|due| *due > self.horizon_ms);
                    if let Some(due) = later.filter(|due| self.recovers && stored == Some(*due)) {
                        // It is read from the store when its time is near.
                        self.timers.remove(&(due, num));
                    }
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
    for (_, open) in run.open.each_mut() {
        if let super::run::OpenKind::Task(task) = &mut open.kind
            && let Some(live) = task.live.take()
        {
            live.cancel.cancel();
        }
    }
}
