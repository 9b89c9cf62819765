//! A run in memory: its chain, its flow, and its batches that are being written.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{Arc, OnceLock},
};

use crate::{
    engine::{
        EngineError, EventView,
        run::{
            account::{Account, Inputs, MemoryUse, OwnState, ROW},
            composite::OpenComposite,
            counted::Counted,
            driver::Driver,
            due::{Timers, Times},
            feed::Audience,
            loan::{Lent, Place},
            log_line::LogLine,
            lookups::{Lookups, Publisher},
            model_loop::OpenLoop,
            open::{Open, OpenSteps},
            perform::Perform,
            readers::Subscriber,
            reply::Waiter,
            task::{AgentKey, OpenTask},
        },
    },
    journal::{Chain, Entry, ReportMark},
    lua::{Program, ScriptFlow},
    metrics::RunSeries,
    protocol::{ArtifactId, RunId},
    store::{ArtifactRow, Check, Header, StoreError, Write},
    token::{AttemptId, Grant},
};

/// The maximum number of batches of one run that are being written before its flow waits for the
/// first.
const AHEAD: usize = 4;

/// The same limit in bytes.
const AHEAD_BYTES: usize = 1024 * 1024;

/// A run that a shard has in memory.
pub(crate) struct Run {
    pub(crate) id: RunId,
    pub(crate) num: u64,
    /// Distinguishes this life in memory from one after a reload.
    pub(crate) life: u64,
    /// The header as the next batch will store it.
    pub(crate) header: Header,
    /// The cursor that the last submitted batch stored; `None` before the first.
    pub(crate) cursor: Option<u64>,
    /// True if something of it is durable.
    pub(crate) is_stored: bool,
    pub(crate) chain: Chain,
    pub(crate) program: Option<Arc<Program>>,
    /// Its blueprint, the hash of that, and who started it, as the layers get them; set with its
    /// first task.
    pub(crate) names: OnceLock<[Arc<str>; 3]>,
    /// The grant of the run's dispatches.
    pub(crate) grant: Arc<Grant>,
    pub(crate) flow: Option<ScriptFlow>,
    pub(crate) inbox: Inputs,
    /// The memory that is held for it.
    pub(crate) account: Account,
    pub(crate) open: OpenSteps,
    /// Open composites and loops with a part that ended since they were last asked.
    pub(crate) composing: BTreeSet<u32>,
    pub(crate) timers: Timers,
    /// The time of the next wake-up, as far as the shard knows.
    pub(crate) alarm: Times<Option<u64>>,
    /// Its own state, or why that could not be read.
    pub(crate) state: Result<OwnState, StoreError>,
    /// Its files, in the order of their numbers.
    pub(crate) artifacts: Vec<ArtifactRow>,
    pub(crate) pending: Pending,
    /// The accepted report of an attempt (step, attempt) whose end is the next fact of it.
    pub(crate) accepted: Option<((u32, u32), ReportMark)>,
    pub(crate) submitted: VecDeque<Submitted>,
    pub(crate) batches: u64,
    /// Set once a batch was refused: the state in memory never happened.
    pub(crate) failed: Option<Failed>,
    pub(crate) waiters: Vec<Waiter>,
    pub(crate) subscribers: Vec<Subscriber>,
    pub(crate) audience: Arc<Audience>,
    /// Copies of its flow, in which `on_delta` functions are called.
    pub(crate) copies: Vec<ScriptFlow>,
    /// True if it must be dropped and reloaded once none of its batches is being written.
    pub(crate) reload: bool,
    /// True if the next batch writes the header even if nothing happened: it was written by a
    /// process that only had the journal.
    pub(crate) restate: bool,
    /// The damage that was found in this turn: nothing of the turn is written.
    pub(crate) damaged: Option<StoreError>,
    /// True if it is reloaded because its VM was out of memory: if it exceeds the limit again,
    /// beyond its recorded history, the run is the cause.
    pub(crate) broken: bool,
    /// True if it waits for its next turn.
    pub(crate) queued: bool,
    /// True if its last turn ended before all inputs were consumed.
    pub(crate) greedy: bool,
    /// True if its next turn may be long, as far as is known: its last was, or there was none.
    pub(crate) is_slow: bool,
    /// The batch that a fresh history waits for, and begins with.
    pub(crate) fresh_after: Option<u64>,
    /// The batch with its end.
    pub(crate) end_batch: Option<u64>,
    /// True if it counts against the quotas of a token.
    pub(crate) charged: bool,
    /// The number of lifecycle events since it was loaded.
    pub(crate) told: u32,
    /// The reads that its flow waits for.
    pub(crate) lookups: Lookups,
    /// The publisher of its version when it was loaded.
    pub(crate) publisher: Publisher,
    /// The counters of its blueprint, once something was counted.
    pub(crate) series: Option<Arc<RunSeries>>,
    /// The node that drives it, if it could be lent: a helper gets it once its start is stored.
    pub(crate) place: Option<Place>,
    /// The mark of a run that is driven for another node.
    pub(crate) lent: Option<Lent>,
}

/// The remains of a run whose batch was refused, until the outcome of the later batches is known.
pub(crate) struct Failed {
    /// True if the batch was refused by a check, and not by a failure of the disk.
    pub(crate) refusal: bool,
    /// The damage, if that is the reason: the run is paused until it is repaired.
    pub(crate) damage: Option<String>,
    /// Places that it would have released.
    pub(crate) places: Vec<AgentKey>,
}

/// The content of the next batch.
#[derive(Default)]
pub(crate) struct Pending {
    pub(crate) entries: Vec<Entry>,
    /// The approximate size of the entries in bytes.
    pub(crate) entry_bytes: usize,
    pub(crate) writes: Vec<Write>,
    pub(crate) checks: Vec<Check>,
    pub(crate) after: After,
}

impl Pending {
    /// Returns the approximate number of bytes that it will write.
    pub(crate) fn bytes(&self) -> usize {
        self.entry_bytes + self.writes.iter().map(Write::bytes).sum::<usize>()
    }
}

/// A reply that waits for a batch to be durable.
pub(crate) type Later = Box<dyn FnOnce(Result<&Run, EngineError>) + Send>;

/// A batch that is being written.
pub(crate) struct Submitted {
    /// Its number within the run's life in memory.
    pub(crate) batch: u64,
    /// The approximate number of bytes that it writes.
    pub(crate) bytes: usize,
    pub(crate) after: After,
}

/// The actions once a batch is durable.
#[derive(Default)]
pub(crate) struct After {
    pub(crate) performs: Vec<Perform>,
    pub(crate) replies: Vec<Later>,
    /// The bytes of files that are being written, by hash: the store does not have them yet.
    pub(crate) files: Vec<(String, Arc<[u8]>)>,
    /// The attempts whose files are being published.
    pub(crate) published: Vec<(u32, u32)>,
    pub(crate) events: Vec<EventView>,
    /// The log line.
    pub(crate) lines: Vec<LogLine>,
    /// The counts of its batch for the metrics.
    pub(crate) counts: Vec<Counted>,
}

impl After {
    /// Prepends the actions of an earlier batch that wrote nothing, so that they wait for this one.
    pub(crate) fn extend(&mut self, before: Option<Self>) {
        let Some(before) = before else { return };
        self.performs.splice(0..0, before.performs);
        self.replies.splice(0..0, before.replies);
        self.files.splice(0..0, before.files);
        self.published.splice(0..0, before.published);
        self.events.splice(0..0, before.events);
        self.lines.splice(0..0, before.lines);
        self.counts.splice(0..0, before.counts);
    }
}

impl Run {
    /// Returns a run to which nothing has happened yet in this life in memory.
    pub(crate) fn new(life: u64, header: Header, grant: Arc<Grant>, account: Account) -> Self {
        Self {
            id: RunId::new(header.num, header.created_ms),
            num: header.num,
            life,
            header,
            cursor: None,
            is_stored: false,
            chain: Chain::lean(),
            program: None,
            grant,
            flow: None,
            inbox: Inputs::default(),
            account,
            open: OpenSteps::default(),
            composing: BTreeSet::new(),
            timers: Timers::default(),
            alarm: Times { wall: None, steady: None },
            state: Ok(OwnState::default()),
            artifacts: Vec::new(),
            pending: Pending::default(),
            accepted: None,
            submitted: VecDeque::new(),
            batches: 0,
            failed: None,
            waiters: Vec::new(),
            subscribers: Vec::new(),
            audience: Arc::default(),
            names: OnceLock::new(),
            copies: Vec::new(),
            reload: false,
            restate: false,
            damaged: None,
            broken: false,
            queued: false,
            greedy: false,
            is_slow: true,
            fresh_after: None,
            end_batch: None,
            charged: false,
            told: 0,
            lookups: Lookups::default(),
            publisher: None,
            series: None,
            place: None,
            lent: None,
        }
    }

    /// Returns the identity of an attempt in its handle.
    pub(crate) fn attempt_id(&self, step: u32, attempt: u32) -> AttemptId {
        let Header { epoch, nonce, .. } = self.header;
        AttemptId { run: self.num, step, attempt, epoch, nonce }
    }

    /// Returns whether the run has ended.
    pub(crate) fn is_ended(&self) -> bool {
        matches!(self.chain.state(), crate::journal::RunState::Ended(_))
    }

    /// Returns the actions that wait for batches that are not durable yet, the latest first.
    pub(crate) fn on_their_way(&self) -> impl Iterator<Item = &After> {
        std::iter::once(&self.pending.after).chain(self.submitted.iter().rev().map(|it| &it.after))
    }

    /// Returns true if its flow waits until a batch is durable: the start of a fresh history, or
    /// one of those that it ran ahead of.
    pub(crate) fn waits_for_commit(&self) -> bool {
        let first = self.submitted.front().map(|it| it.batch);
        let fresh = self
            .fresh_after
            .is_some_and(|after| self.batches < after || first.is_some_and(|first| first <= after));
        fresh
            || self.submitted.len() >= AHEAD
            || self.submitted.iter().map(|it| it.bytes).sum::<usize>() >= AHEAD_BYTES
    }

    /// Returns true if it has ended in memory but not yet in the store.
    pub(crate) fn ends_on_its_way(&self) -> bool {
        let first = self.submitted.front().map(|it| it.batch);
        match self.end_batch {
            Some(end) => first.is_some_and(|first| first <= end),
            None => self.is_ended() && self.has_pending(),
        }
    }

    /// Returns true if there is something for the next batch.
    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.entries.is_empty()
            || !self.pending.writes.is_empty()
            || !self.pending.after.replies.is_empty()
            || !self.pending.after.performs.is_empty()
            || self.restate
    }

    /// Returns true if it is not busy in this process, and none of its batches is being written.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.failed.is_none()
            && self.submitted.is_empty()
            && !self.has_pending()
            && self.inbox.is_empty()
            && self.composing.is_empty()
            && self.lookups.reading == 0
            && self.open.sums().in_memory == 0
    }

    /// Returns true if a helper gets it once its start is stored.
    pub(crate) fn is_to_be_lent(&self) -> bool {
        matches!(self.place, Some(Place::There(..)))
    }

    /// Returns true if it may be dropped from memory: everything that matters is in the store.
    pub(crate) fn is_idle(&self) -> bool {
        self.submitted.is_empty()
            && !self.has_pending()
            && (self.account.parked || self.inbox.is_empty() && self.composing.is_empty())
            && self.lookups.reading == 0
            && self.waiters.is_empty()
            && self.subscribers.is_empty()
            && self.open.sums().in_memory == 0
    }

    /// Returns the task of an open step.
    pub(crate) fn task(&self, step: u32) -> Option<&OpenTask> {
        match self.open.get(step)? {
            Open::Task(task) => Some(task),
            _ => None,
        }
    }

    /// Returns the task of an open step for changes.
    pub(crate) fn task_mut(&mut self, step: u32) -> Option<&mut OpenTask> {
        match self.open.get_mut(step)? {
            Open::Task(task) => Some(task),
            _ => None,
        }
    }

    /// Returns the memory that is held for it, by purpose.
    pub(crate) fn held(&self) -> MemoryUse {
        let names = self.artifacts.len() * ROW;
        MemoryUse {
            state: self.state.as_ref().map_or(0, |state| state.bytes),
            signals: self.chain.signal_bytes(),
            inputs: self.inbox.bytes,
            open: self.open.sums().bytes,
            ended: self.chain.kept_bytes(),
            files: names,
        }
    }

    /// Returns the size of its batches that are being written.
    pub(crate) fn writing(&self) -> usize {
        self.submitted.iter().map(|it| it.bytes).sum::<usize>() + self.pending.bytes()
    }

    /// Returns the hash of a published file of its own, or of a run whose history it has.
    pub(crate) fn file_hash(&self, id: ArtifactId) -> Option<&str> {
        let is_published = |row: &ArtifactRow| {
            let of = (row.step, row.attempt);
            row.published || self.on_their_way().any(|after| after.published.contains(&of))
        };
        let row = self.artifacts.iter().find(|row| row.n == id.number() && is_published(row))?;
        Some(&row.hash)
    }

    /// Returns the content of a file that is being written.
    pub(crate) fn file_on_its_way(&self, hash: &str) -> Option<Arc<[u8]>> {
        let mut files = self.on_their_way().flat_map(|after| &after.files);
        files.find(|(of, _)| of == hash).map(|(_, data)| Arc::clone(data))
    }

    /// Returns the driver of an open step whose parts are steps of their own.
    pub(crate) fn driver(&self, step: u32) -> Option<&dyn Driver> {
        self.open.get(step)?.driver()
    }

    /// Returns the driver of an open step for changes.
    pub(crate) fn driver_mut(&mut self, step: u32) -> Option<&mut dyn Driver> {
        self.open.get_mut(step)?.driver_mut()
    }

    /// Returns the composite of an open step.
    pub(crate) fn composite(&self, step: u32) -> Option<&OpenComposite> {
        match self.open.get(step)? {
            Open::Composite(open) => Some(open),
            _ => None,
        }
    }

    /// Returns the loop of an open step.
    pub(crate) fn model_loop(&self, step: u32) -> Option<&OpenLoop> {
        match self.open.get(step)? {
            Open::Loop(open) => Some(open),
            _ => None,
        }
    }

    pub(crate) fn model_loop_mut(&mut self, step: u32) -> Option<&mut OpenLoop> {
        match self.open.get_mut(step)? {
            Open::Loop(open) => Some(open),
            _ => None,
        }
    }
}
