//! The loop that owns runs: load, advance, commit, perform; in that order, always.
//!
//! A shard is one thread. Every change to a run of it happens here, one message after the other;
//! what is to leave the process waits in [`After`](crate::engine::run::resident::After) until the
//! batch that it follows from is synced.
//!
//! # Turns
//!
//! A message changes the facts of its run, which is little work, and lines the run up for a turn. In
//! its turn a run's flow takes its inputs, for a few milliseconds or some hundred inputs or so many
//! bytes, and what came of it is submitted as one batch. A run whose inputs are not at their end then
//! is *greedy*: it lines up behind the others of its kind, and runs that need one short turn go
//! before it. One with several batches on their way, or whose fresh history is not durable, waits
//! for the commit. So a run that never rests is late by what its like take, and nobody else is by
//! more than one turn.
//!
//! The batches of one round of the loop go to the writer together, but none of them waits through a
//! turn that may be long: one of a run whose last took over a millisecond, or the first of a run if
//! that of the run before it of the same version did.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    sync::{Arc, atomic::Ordering},
};

use hashlink::LinkedHashSet;

use crate::{
    engine::{
        inbox::{receive, repeats::live_token, signals},
        run::{due::Times, loaded::Again, reply::Asked, resident::Run},
        settings::{ROOM_MS, STORAGE_RETRY_MS},
        shard::{commit, owner::Shard},
        shared::{
            mailbox::Mailbox,
            message::{ControlAsk, Internal, Msg, Poll, RunMsg, WorkerAsk},
            shards::Shared,
        },
        turn::{batch, compose, drive, helping, limits, pieces, places, weight},
    },
    fault::{self, Break},
    lua::Vms,
    metrics::log_lines,
    store::{MovingRuns, StoreError, Write},
};

/// Messages that are handled before the loop looks at timers and gives turns.
const DRAIN: usize = 256;

/// Runs that are due, of which a page is read at a time.
const DUE: usize = 100_000;

/// Time that the messages, the timers and the turns of one round take each, in milliseconds, but for
/// the last of them.
const ROUND_MS: u64 = 5;

/// The horizon of timers in memory, in milliseconds; later ones are read from the store in time.
pub(crate) const HORIZON_MS: u64 = 60_000;

impl Shard {
    /// A shard without runs. With `recovers` it takes up the stored runs that are due.
    pub(crate) fn new(index: u64, shared: Arc<Shared>, vms: Vms, recovers: bool) -> Self {
        let clock = &shared.clock;
        let (now_ms, steady_ms, offset_ms) = (clock.now_ms(), clock.steady_ms(), clock.offset_ms());
        Self {
            index,
            shared,
            vms,
            runs: HashMap::new(),
            away: BTreeMap::new(),
            alarms: Times { wall: BTreeSet::new(), steady: BTreeSet::new() },
            prompt: VecDeque::new(),
            patient: VecDeque::new(),
            recent: LinkedHashSet::new(),
            horizon_ms: 0,
            now_ms,
            steady_ms,
            offset_ms,
            lives: 0,
            recovers,
            loading: HashMap::new(),
            unread: VecDeque::new(),
            reading: 0,
            poll: None,
            unplaced: HashMap::new(),
            held: HashMap::new(),
            unfinished: HashSet::new(),
            unheard: HashSet::new(),
            resting: HashMap::new(),
            outside: Vec::new(),
            weighed_ms: 0,
        }
    }

    /// Handles messages until it is told to stop.
    pub(crate) async fn serve(mut self, mut messages: Mailbox) {
        self.boot();
        let shared = Arc::clone(&self.shared);
        let (store, clock) = (&*shared.store, &shared.clock);
        loop {
            // What a run does next is one more batch to write: they rest until there is room.
            store.room().await;
            let next = self.next_due();
            let first = tokio::select! {
                biased;
                message = messages.next(), if !self.is_ready() => Some(message),
                () = clock.sleep_until_either(next.wall, next.steady), if !self.is_ready() => None,
                () = std::future::ready(()), if self.is_ready() => None,
            };
            let lines = log_lines::gather();
            if !self.round(first, &mut messages, DRAIN) {
                return;
            }
            drop(lines);
        }
    }

    /// Handles so many messages, and gives turns; false once the shard is to stop. The batches of the
    /// round are gathered.
    pub(crate) fn round(
        &mut self,
        mut first: Option<Msg>,
        messages: &mut Mailbox,
        most: usize,
    ) -> bool {
        let shared = Arc::clone(&self.shared);
        let (store, clock) = (&*shared.store, &shared.clock);
        let _batches = batch::gather(store);
        let began = clock.steady_ms();
        for _ in 0..most {
            let Some(message) = first.take().or_else(|| messages.take()) else { break };
            if !self.handle(message) {
                return false;
            }
            batch::hand_in_due(store, clock);
            if clock.steady_ms().saturating_sub(began) >= ROUND_MS {
                break;
            }
        }
        batch::hand_in(store);
        self.turn();
        true
    }

    /// Takes up what is due; before anything else.
    pub(crate) fn boot(&mut self) {
        self.poll_due();
    }

    /// Returns true if a run waits for its turn.
    pub(crate) fn is_ready(&self) -> bool {
        !self.prompt.is_empty() || !self.patient.is_empty()
    }

    /// Fires what is due, gives waiting runs their turn, and drops what is idle.
    pub(crate) fn turn(&mut self) {
        let _moving = MovingRuns::begin();
        self.tick();
        if self.now_ms + HORIZON_MS / 2 >= self.horizon_ms {
            self.poll_due();
        }
        let until = self.steady_ms + ROUND_MS;
        while self.shared.clock.steady_ms() < until {
            let Some(run) = self.next_alarm() else { break };
            self.tell(run, Internal::Wake.into());
            batch::hand_in_due(&*self.shared.store, &self.shared.clock);
        }
        let began = self.shared.clock.steady_ms();
        let is_over =
            |shard: &Self| shard.shared.clock.steady_ms().saturating_sub(began) >= ROUND_MS;
        for _ in 0..self.prompt.len() {
            let Some(run) = self.prompt.pop_front() else { break };
            self.take_turn(run);
            batch::hand_in_due(&*self.shared.store, &self.shared.clock);
            if is_over(self) {
                break;
            }
        }
        batch::hand_in(&*self.shared.store);
        for _ in 0..self.patient.len() {
            let Some(run) = self.patient.pop_front() else { break };
            self.take_turn(run);
            batch::hand_in(&*self.shared.store);
            if is_over(self) {
                break;
            }
        }
        self.evict();
        self.publish_gauges();
    }

    /// Takes a run that is to be woken by now.
    fn next_alarm(&mut self) -> Option<u64> {
        let Times { wall, steady } = &mut self.alarms;
        for (alarms, now, is_wall) in [(wall, self.now_ms, true), (steady, self.steady_ms, false)] {
            let Some(&(due, run)) = alarms.first().filter(|(due, _)| *due <= now) else { continue };
            alarms.remove(&(due, run));
            if let Some(live) = self.runs.get_mut(&run) {
                let set = if is_wall { &mut live.alarm.wall } else { &mut live.alarm.steady };
                set.take_if(|at| *at == due);
            }
            return Some(run);
        }
        None
    }

    /// Returns the next time at which something is due without a message, on each of the clocks.
    fn next_due(&self) -> Times<u64> {
        let poll = match self.poll {
            None if self.recovers => self.horizon_ms.saturating_sub(HORIZON_MS / 2),
            None | Some(_) => u64::MAX,
        };
        let first = |alarms: &BTreeSet<(u64, u64)>| alarms.first().map_or(u64::MAX, |(at, _)| *at);
        let Times { wall, steady } = &self.alarms;
        Times { wall: first(wall).min(poll), steady: first(steady) }
    }

    /// Returns true if something is due without a message.
    pub(crate) fn is_due(&self) -> bool {
        let (next, clock) = (self.next_due(), &self.shared.clock);
        next.wall <= clock.now_ms() || next.steady <= clock.steady_ms()
    }

    /// Returns the next alarm, in the time of the wall clock.
    pub(crate) fn alarms_ms(&self) -> impl Iterator<Item = u64> {
        let steady = self.alarms.steady.iter().map(|(at, _)| self.shared.clock.wall_of(*at));
        self.alarms.wall.iter().map(|(at, _)| *at).chain(steady)
    }

    /// Wakes a run after a pause.
    pub(crate) fn wake_later(&mut self, run: u64, pause_ms: u64) {
        self.alarms.steady.insert((self.steady_ms + pause_ms, run));
    }

    /// Lets a run wait for its turn.
    pub(crate) fn line_up(&mut self, run: &mut Run) {
        if run.queued {
            return;
        }
        run.queued = true;
        if run.greedy {
            self.patient.push_back(run.num);
        } else {
            self.prompt.push_back(run.num);
        }
    }

    /// Drives a run as far as its turn goes, submits what came of it, and keeps it.
    pub(crate) fn take_turn(&mut self, num: u64) {
        // It may have gone meanwhile, or have had its turn when it was canceled.
        let Some(mut run) = self.runs.remove(&num) else { return };
        if !std::mem::take(&mut run.queued) || run.failed.is_some() {
            self.runs.insert(num, run);
            return;
        }
        if run.is_slow {
            batch::hand_in(&*self.shared.store);
        }
        let is_first = run.cursor.is_none();
        self.tick();
        if drive::drive(&mut self.on(&mut run)) {
            self.wake_later(num, ROOM_MS);
        }
        run.is_slow = self.shared.clock.steady_ms() > self.steady_ms + 1;
        if let Some(program) = run.program.as_ref().filter(|_| is_first) {
            program.note_begin(run.is_slow);
        }
        if let Some(error) = run.damaged.take() {
            commit::fail(&mut run, Default::default(), &error);
            match run.submitted.is_empty() {
                true => self.lost(run),
                false => drop(self.runs.insert(num, run)),
            }
            return;
        }
        limits::weigh(&mut self.on(&mut run));
        self.count_out_ended(&run);
        weight::rest_weight(&mut run);
        self.flush(&mut run);
        if run.reload && run.submitted.is_empty() {
            drop(self.held.remove(&num));
            let broken = run.broken;
            self.read_again(run, Internal::Wake.into(), broken);
            return;
        }
        if run.is_ended() && run.submitted.is_empty() && !run.has_pending() {
            // They were sent the end, or read it from the store.
            run.subscribers.clear();
        }
        if run.is_ended() && run.is_idle() {
            drop(self.held.remove(&num));
            self.silence(&run);
            return;
        }
        if self.goes_home(&mut run) {
            self.give_home(run);
            return;
        }
        self.set_alarm(&mut run);
        run.greedy = !run.inbox.is_empty();
        let is_held_up = run.waits_for_commit()
            || run.account.parked
            || run.lookups.is_waiting
            || helping::is_leaving(&run, self.steady_ms);
        if run.greedy && run.chain.paused().is_none() && !is_held_up {
            self.line_up(&mut run);
        }
        self.recent.insert(num);
        self.runs.insert(num, run);
    }

    /// Handles one message; false once the shard is to stop.
    pub(crate) fn handle(&mut self, message: Msg) -> bool {
        let _moving = MovingRuns::begin();
        self.tick();
        match message {
            Msg::Start(new) => self.begin(*new),
            // It may have come before the start of the run, which was sent earlier.
            Msg::Run(run, message @ RunMsg::Internal(Internal::CancelFrom { .. }))
                if !self.runs.contains_key(&run) =>
            {
                self.shared.send(run, Msg::Late(run, message));
            }
            Msg::Run(run, message) | Msg::Late(run, message) => self.tell(run, message),
            Msg::Committed { run, batch, life, result } => {
                self.committed(run, batch, life, result);
            }
            Msg::Loaded { run, ticket, result } => {
                // A replay may be long.
                batch::hand_in(&*self.shared.store);
                self.loaded(run, ticket, *result);
            }
            Msg::Recounted(run, tasks) => self.give_back(run, &tasks),
            Msg::Due(poll, due) => self.polled(poll, due),
            Msg::Unheard(run) => self.carry_later(run, STORAGE_RETRY_MS),
            Msg::Stirred(run) => self.stirred(run),
            Msg::Home(run, rest) => self.come_home(run, rest),
            Msg::MakeRoom => {}
            Msg::Interrupt => self.interrupt(),
            Msg::Recover => {
                self.recovers = true;
                self.poll_due();
            }
            Msg::Stop(done) => {
                batch::hand_in(&*self.shared.store);
                for (_, mut run) in self.runs.drain() {
                    places::cancel_workers(&mut run);
                }
                // Whoever asked may have given up waiting.
                let _ = done.send(());
                return false;
            }
        }
        true
    }

    /// Counts a run as open.
    pub(crate) fn count_in(&mut self, run: u64) {
        if self.unfinished.insert(run) {
            self.shared.open_runs.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a run as ended, or as one that never was.
    pub(crate) fn count_out(&mut self, run: u64) {
        if self.unfinished.remove(&run) {
            self.shared.open_runs.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn count_out_ended(&mut self, run: &Run) {
        if run.is_ended() {
            self.count_out(run.num);
        }
    }

    fn tick(&mut self) {
        let clock = &self.shared.clock;
        clock.look();
        // The wall clock may be set back; each run sees to it that its own time is not.
        (self.now_ms, self.steady_ms) = (clock.now_ms(), clock.steady_ms());
        let offset_ms = clock.offset_ms();
        if offset_ms < self.offset_ms && self.recovers {
            // What is stored with times of before seems to be due later than it is.
            self.horizon_ms = 0;
            self.poll = None;
        }
        self.offset_ms = offset_ms;
    }

    /// Gives a message to a run, reading it into memory if it is not there.
    pub(crate) fn tell(&mut self, num: u64, message: RunMsg) {
        let Some(message) = self.hold_away(num, message) else { return };
        if let RunMsg::Internal(Internal::Delta(feed)) = message {
            // It changes nothing: no flow is driven, and no run is read for it.
            if let Some(mut run) = self.runs.remove(&num) {
                pieces::take_pieces(&mut self.on(&mut run), &feed);
                self.runs.insert(num, run);
            }
            return;
        }
        if let RunMsg::Internal(Internal::IsAtRest(reply)) = message {
            // Whoever asked may have given up waiting.
            let _ = reply.send(
                !self.loading.contains_key(&num)
                    && self.runs.get(&num).is_none_or(|run| run.is_at_rest()),
            );
            return;
        }
        if let RunMsg::Control(Asked { ask: ControlAsk::Quarantine { reason }, reply }) = message {
            self.quarantine(num, reason, reply);
            return;
        }
        let Some(message) = self.hold(num, message) else { return };
        let Some(mut run) = self.runs.remove(&num) else {
            if self.may_read(&message) {
                self.ask_for(num, message, None);
            }
            return;
        };
        if self.unheard.remove(&num) {
            signals::carry_again(&self.shared, num);
            if message.is_carried() {
                self.runs.insert(num, run);
                return;
            }
        }
        if run.failed.is_some() || run.is_to_be_lent() {
            self.held.entry(num).or_default().push(message);
            self.runs.insert(num, run);
            return;
        }
        // A resting run has no flow; its cancel needs one, to compensate with. An ended one has none
        // either; a query needs it.
        let needs_flow = if run.is_ended() { message.is_query() } else { message.is_cancel() };
        if run.flow.is_none() && needs_flow {
            if !run.submitted.is_empty() || run.has_pending() {
                self.held.entry(num).or_default().push(message);
                self.runs.insert(num, run);
            } else {
                self.read_again(run, message, false);
            }
            return;
        }
        if message.is_cancel() {
            // The flow takes its inputs to their end, which may be long.
            batch::hand_in(&*self.shared.store);
            // It does not stand in line behind its own kind.
            run.greedy = false;
            run.queued = false;
        }
        self.hear(run, message);
    }

    /// Gives a message to a run that is in memory.
    pub(crate) fn hear(&mut self, mut run: Box<Run>, message: RunMsg) {
        if run.has_pending() && !joins(&run, &message) {
            // A refusal is about one request: nothing else stands in its batch, least of all the
            // same request again.
            compose::compose(&mut self.on(&mut run));
            self.flush(&mut run);
        }
        receive::receive(&mut self.on(&mut run), message);
        self.settle(run);
    }

    /// Has a run of which nothing is on its way read once more, for a message.
    fn read_again(&mut self, mut run: Box<Run>, message: RunMsg, broken: bool) {
        places::cancel_workers(&mut run);
        self.let_go(&mut run, Vec::new());
        self.silence(&run);
        let (waiters, subscribers) =
            (std::mem::take(&mut run.waiters), std::mem::take(&mut run.subscribers));
        let num = run.num;
        drop(run);
        if self.may_read(&message) {
            self.ask_for(num, message, Some(Again { broken, waiters, subscribers }));
        }
    }

    /// Keeps a run that something happened to; what follows from it comes with its next turn.
    pub(crate) fn settle(&mut self, mut run: Box<Run>) {
        self.count_out_ended(&run);
        if run.is_ended() && run.submitted.is_empty() && !run.has_pending() {
            // They were sent the end, or read it from the store.
            run.subscribers.clear();
        }
        if run.is_ended() && run.is_idle() {
            // Whoever asks for it now reads it as it is stored.
            drop(self.held.remove(&run.num));
            self.silence(&run);
            return;
        }
        self.line_up(&mut run);
        self.runs.insert(run.num, run);
    }

    /// Lets a run be woken at its next time, and at no other that it had before: a run that lives
    /// long has many, and most of them never come.
    fn set_alarm(&mut self, run: &mut Run) {
        let next = match run.chain.paused() {
            Some(_) => Times { wall: None, steady: None },
            None => run.timers.first(),
        };
        if run.alarm != next {
            self.silence(run);
            self.alarms.wall.extend(next.wall.map(|due| (due, run.num)));
            self.alarms.steady.extend(next.steady.map(|due| (due, run.num)));
            run.alarm = next;
        }
    }

    pub(crate) fn silence(&mut self, run: &Run) {
        if let Some(due) = run.alarm.wall {
            self.alarms.wall.remove(&(due, run.num));
        }
        if let Some(due) = run.alarm.steady {
            self.alarms.steady.remove(&(due, run.num));
        }
    }

    /// Asks which runs are due within the horizon.
    fn poll_due(&mut self) {
        if !self.recovers || self.poll.is_some() {
            return;
        }
        self.tick();
        self.lives += 1;
        // Times that were stored while the wall clock was further ahead come sooner than they say.
        let slack_ms = self.shared.clock.slack_ms();
        let poll = Poll { ticket: self.lives, until_ms: self.now_ms + HORIZON_MS, slack_ms };
        self.poll = Some(poll);
        let (index, shared) = (self.index, Arc::clone(&self.shared));
        self.shared.tasks.spawn_blocking(move || {
            let until_ms = poll.until_ms + poll.slack_ms;
            let due = shared.store.due(&shared.parts_of(index), until_ms, DUE);
            shared.send_to(index, Msg::Due(poll, due));
        });
    }

    /// Takes the list of runs that are due, and wakes them in time.
    fn polled(&mut self, poll: Poll, due: Result<Vec<(u64, u64)>, StoreError>) {
        if self.poll != Some(poll) {
            return;
        }
        self.poll = None;
        let (until, clock) = (poll.until_ms, self.shared.clock.clone());
        match due {
            Ok(due) => {
                // A full page ends before the horizon: what lies after it is read sooner.
                let full = due.len() == DUE;
                self.horizon_ms =
                    if full { due.last().map_or(until, |(_, at)| until.min(*at)) } else { until };
                for (run, at) in due {
                    if fault::is_broken(Break::LoseTimerAtBoot) && at <= self.now_ms {
                        continue;
                    }
                    if at > 0 || !self.runs.contains_key(&run) {
                        if poll.slack_ms > 0 {
                            self.alarms.steady.insert((clock.earliest_of(at), run));
                        }
                        self.alarms.wall.insert((at, run));
                    }
                }
            }
            Err(error) => {
                // A store that is closed is that of a host that stops.
                if !matches!(error, StoreError::Closed) {
                    tracing::error!(%error, "could not read which runs are due");
                }
                self.horizon_ms = self.now_ms + HORIZON_MS / 2 + STORAGE_RETRY_MS;
            }
        }
        self.horizon_ms = self.horizon_ms.max(self.now_ms + HORIZON_MS / 2 + 1);
    }
}

/// Returns true if what follows from a message can stand in the batch that is pending: nothing
/// refuses the one without the other.
fn joins(run: &Run, message: &RunMsg) -> bool {
    let checks = &run.pending.checks;
    let (holder, ask) = match message {
        RunMsg::Control(Asked { ask: ControlAsk::Lease { .. }, .. }) => return checks.is_empty(),
        RunMsg::Worker(holder, asked) => (holder, &asked.ask),
        RunMsg::Control(_) | RunMsg::Internal(_) => {
            return !message.is_checked() && checks.is_empty();
        }
    };
    let is_plain = match ask {
        WorkerAsk::Report(report) => report.effects.is_empty(),
        WorkerAsk::Heartbeat | WorkerAsk::Prompt => true,
        _ => false,
    };
    let plans = |write: &Write| matches!(write, Write::ChangeState(_));
    is_plain
        && live_token(holder).all(|check| checks.contains(&check))
        && checks.iter().all(|check| live_token(holder).any(|own| own == *check))
        && !run.pending.writes.iter().any(plans)
}
