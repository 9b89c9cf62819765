//! A run in memory: its chain, its flow, and what is on its way to the disk.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use crate::{
    engine::{
        EngineError, EventView,
        run::{
            account::{Account, Held, Inputs, OwnState, ROW},
            composite::OpenComposite,
            due::{Timers, Times},
            feed::Audience,
            model_loop::OpenLoop,
            open::{OpenKind, OpenSteps},
            perform::Perform,
            readers::Subscriber,
            reply::Waiter,
            task::{AgentKey, OpenTask},
        },
    },
    journal::{Chain, Entry},
    lua::{Program, ScriptFlow},
    protocol::RunId,
    store::{ArtifactRow, Check, Header, StoreError, Write},
    token::{AttemptId, Grant},
};

/// Batches of one run that may be on their way before its flow waits for the first of them.
const AHEAD: usize = 4;

/// The same in bytes.
const AHEAD_BYTES: usize = 1024 * 1024;

/// A run that a shard has in memory.
pub(crate) struct Run {
    pub(crate) id: RunId,
    pub(crate) num: u64,
    /// Tells this life in memory from one after a reload.
    pub(crate) life: u64,
    /// As it will be stored with the next batch.
    pub(crate) header: Header,
    /// What the last submitted batch stored; `None` before the first.
    pub(crate) cursor: Option<u64>,
    /// Whether something of it is durable.
    pub(crate) is_stored: bool,
    pub(crate) chain: Chain,
    pub(crate) program: Option<Arc<Program>>,
    /// What the run may dispatch to.
    pub(crate) grant: Arc<Grant>,
    pub(crate) flow: Option<ScriptFlow>,
    pub(crate) inbox: Inputs,
    /// What it makes the host hold.
    pub(crate) account: Account,
    pub(crate) open: OpenSteps,
    /// Open composites and loops of which something ended: they have not been asked since.
    pub(crate) composing: BTreeSet<u32>,
    pub(crate) timers: Timers,
    /// When the shard looks at it by itself, as far as the shard was told.
    pub(crate) alarm: Times<Option<u64>>,
    /// Its own state, or why that could not be read.
    pub(crate) state: Result<OwnState, StoreError>,
    /// Its files, in the order of their numbers.
    pub(crate) artifacts: Vec<ArtifactRow>,
    pub(crate) pending: Pending,
    pub(crate) submitted: VecDeque<Submitted>,
    pub(crate) batches: u64,
    /// Set once a batch of it was refused: what it is in memory never happened.
    pub(crate) failed: Option<Failed>,
    pub(crate) waiters: Vec<Waiter>,
    pub(crate) subscribers: Vec<Subscriber>,
    pub(crate) audience: Arc<Audience>,
    /// Copies of its flow, in which the pieces of answers are heard.
    pub(crate) copies: Vec<ScriptFlow>,
    /// Whether it is to be dropped and read again once nothing of it is on its way.
    pub(crate) reload: bool,
    /// Whether its header is written with the next batch even if nothing happened: what it says was
    /// written by somebody who had only the journal.
    pub(crate) restate: bool,
    /// What of it turned out to be damaged in this turn: nothing of the turn is written.
    pub(crate) damaged: Option<StoreError>,
    /// Whether it is read again because its VM had no room: a limit that it breaks then, past its
    /// recorded history, is its own.
    pub(crate) broken: bool,
    /// Whether it waits for its next turn.
    pub(crate) queued: bool,
    /// Whether its last turn ended before its inputs did.
    pub(crate) greedy: bool,
    /// The batch that a fresh history waits for: with that it begins.
    pub(crate) fresh_after: Option<u64>,
    /// The batch that ends it.
    pub(crate) end_batch: Option<u64>,
    /// Whether it counts against the quotas of a token.
    pub(crate) charged: bool,
    /// Events of its life since it was read into memory.
    pub(crate) told: u32,
}

/// What is left of a run whose batch was refused, until the fate of the batches behind is known.
pub(crate) struct Failed {
    /// Whether the batch was refused for what it asked, and not by a failure of the disk.
    pub(crate) refusal: bool,
    /// What is damaged, where that is why: the run rests until somebody has repaired it.
    pub(crate) damage: Option<String>,
    /// Places that it would have given back.
    pub(crate) places: Vec<AgentKey>,
}

/// What the next batch will hold.
#[derive(Default)]
pub(crate) struct Pending {
    pub(crate) entries: Vec<Entry>,
    /// About how many bytes the entries have.
    pub(crate) entry_bytes: usize,
    pub(crate) writes: Vec<Write>,
    pub(crate) checks: Vec<Check>,
    pub(crate) after: After,
}

impl Pending {
    /// About how many bytes it will write.
    pub(crate) fn bytes(&self) -> usize {
        self.entry_bytes + self.writes.iter().map(Write::bytes).sum::<usize>()
    }
}

/// An answer that waits for a batch to be durable.
pub(crate) type Later = Box<dyn FnOnce(Result<&Run, EngineError>) + Send>;

/// A batch on its way.
pub(crate) struct Submitted {
    /// Its number within the run's life in memory.
    pub(crate) batch: u64,
    /// About how many bytes it writes.
    pub(crate) bytes: usize,
    pub(crate) after: After,
}

/// What happens once a batch is durable.
#[derive(Default)]
pub(crate) struct After {
    pub(crate) performs: Vec<Perform>,
    pub(crate) replies: Vec<Later>,
    /// The bytes of files that are on their way, by hash: the store does not have them yet.
    pub(crate) files: Vec<(String, Arc<[u8]>)>,
    /// The attempts whose files are on their way to be published.
    pub(crate) published: Vec<(u32, u32)>,
    pub(crate) events: Vec<EventView>,
}

impl After {
    /// Puts off until its own batch is durable what nothing was written for.
    pub(crate) fn extend(&mut self, before: Option<Self>) {
        let Some(before) = before else { return };
        self.performs.splice(0..0, before.performs);
        self.replies.splice(0..0, before.replies);
        self.files.splice(0..0, before.files);
        self.published.splice(0..0, before.published);
        self.events.splice(0..0, before.events);
    }
}

impl Run {
    /// A run of which nothing happened yet in this life in memory.
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
            submitted: VecDeque::new(),
            batches: 0,
            failed: None,
            waiters: Vec::new(),
            subscribers: Vec::new(),
            audience: Arc::default(),
            copies: Vec::new(),
            reload: false,
            restate: false,
            damaged: None,
            broken: false,
            queued: false,
            greedy: false,
            fresh_after: None,
            end_batch: None,
            charged: false,
            told: 0,
        }
    }

    /// What the handle of an attempt names.
    pub(crate) fn attempt_id(&self, step: u32, attempt: u32) -> AttemptId {
        let Header { epoch, nonce, .. } = self.header;
        AttemptId { run: self.num, step, attempt, epoch, nonce }
    }

    /// Whether the run has ended.
    pub(crate) fn is_ended(&self) -> bool {
        matches!(self.chain.state(), crate::journal::RunState::Ended(_))
    }

    /// What waits for batches that are not durable yet, the latest first.
    pub(crate) fn on_their_way(&self) -> impl Iterator<Item = &After> {
        std::iter::once(&self.pending.after).chain(self.submitted.iter().rev().map(|it| &it.after))
    }

    /// Whether its flow waits until something of the run is durable: the start of a fresh history,
    /// or some of what it did ahead of its commits.
    pub(crate) fn waits_for_commit(&self) -> bool {
        let first = self.submitted.front().map(|it| it.batch);
        let fresh = self
            .fresh_after
            .is_some_and(|after| self.batches < after || first.is_some_and(|first| first <= after));
        fresh
            || self.submitted.len() >= AHEAD
            || self.submitted.iter().map(|it| it.bytes).sum::<usize>() >= AHEAD_BYTES
    }

    /// Whether it has ended in memory and not yet on the disk.
    pub(crate) fn ends_on_its_way(&self) -> bool {
        let first = self.submitted.front().map(|it| it.batch);
        match self.end_batch {
            Some(end) => first.is_some_and(|first| first <= end),
            None => self.is_ended() && self.has_pending(),
        }
    }

    /// Whether there is something for the next batch.
    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.entries.is_empty()
            || !self.pending.writes.is_empty()
            || !self.pending.after.replies.is_empty()
            || !self.pending.after.performs.is_empty()
            || self.restate
    }

    /// Whether it has nothing to do in this process, and nothing on its way to the disk.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.failed.is_none()
            && self.submitted.is_empty()
            && !self.has_pending()
            && self.inbox.is_empty()
            && self.composing.is_empty()
            && self.open.sums().in_memory == 0
    }

    /// Whether it may be dropped from memory: everything that matters is on the disk.
    pub(crate) fn is_idle(&self) -> bool {
        self.submitted.is_empty()
            && !self.has_pending()
            && (self.account.parked || self.inbox.is_empty() && self.composing.is_empty())
            && self.waiters.is_empty()
            && self.subscribers.is_empty()
            && self.open.sums().in_memory == 0
    }

    /// The task behind an open step.
    pub(crate) fn task(&self, step: u32) -> Option<&OpenTask> {
        match &self.open.get(step)?.kind {
            OpenKind::Task(task) => Some(task),
            OpenKind::Timer
            | OpenKind::Signal
            | OpenKind::State { .. }
            | OpenKind::Child { .. }
            | OpenKind::Loop(_)
            | OpenKind::Composite(_) => None,
        }
    }

    /// The task behind an open step.
    pub(crate) fn task_mut(&mut self, step: u32) -> Option<&mut OpenTask> {
        match &mut self.open.get_mut(step)?.kind {
            OpenKind::Task(task) => Some(task),
            OpenKind::Timer
            | OpenKind::Signal
            | OpenKind::State { .. }
            | OpenKind::Child { .. }
            | OpenKind::Loop(_)
            | OpenKind::Composite(_) => None,
        }
    }

    /// What it makes the host hold, by what it is for.
    pub(crate) fn held(&self) -> Held {
        let names = self.artifacts.len() * ROW;
        Held {
            state: self.state.as_ref().map_or(0, |state| state.bytes),
            signals: self.chain.signal_bytes(),
            inputs: self.inbox.bytes,
            open: self.open.sums().bytes,
            ended: self.chain.kept_bytes(),
            files: names,
        }
    }

    /// What of it is on its way to the disk.
    pub(crate) fn writing(&self) -> usize {
        self.submitted.iter().map(|it| it.bytes).sum::<usize>() + self.pending.bytes()
    }

    /// The composite behind an open step.
    pub(crate) fn composite(&self, step: u32) -> Option<&OpenComposite> {
        match &self.open.get(step)?.kind {
            OpenKind::Composite(open) => Some(open),
            OpenKind::Loop(_)
            | OpenKind::Timer
            | OpenKind::Signal
            | OpenKind::State { .. }
            | OpenKind::Child { .. }
            | OpenKind::Task(_) => None,
        }
    }

    pub(crate) fn composite_mut(&mut self, step: u32) -> Option<&mut OpenComposite> {
        match &mut self.open.get_mut(step)?.kind {
            OpenKind::Composite(open) => Some(open),
            OpenKind::Loop(_)
            | OpenKind::Timer
            | OpenKind::Signal
            | OpenKind::State { .. }
            | OpenKind::Child { .. }
            | OpenKind::Task(_) => None,
        }
    }

    /// The loop behind an open step.
    pub(crate) fn model_loop(&self, step: u32) -> Option<&OpenLoop> {
        match &self.open.get(step)?.kind {
            OpenKind::Loop(open) => Some(open),
            _ => None,
        }
    }

    pub(crate) fn model_loop_mut(&mut self, step: u32) -> Option<&mut OpenLoop> {
        match &mut self.open.get_mut(step)?.kind {
            OpenKind::Loop(open) => Some(open),
            _ => None,
        }
    }
}
