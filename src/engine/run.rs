//! A run in memory: its chain, its flow, and what is on its way to the disk.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Arc,
};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{EngineError, EventView, capacity::AgentKey, message::Waiter};
use crate::{
    blueprint::CompiledAgent,
    flow::{Backoff, Input, TaskRequest},
    journal::{Chain, Entry},
    lua::{Program, ScriptFlow},
    operator::Residence,
    protocol::{Json, RunId},
    store::{Check, Header, TaskRow, Write},
    token::Grant,
};

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
    /// The row that the next entry follows; `None` at the start of a history.
    pub(crate) prev: Option<u64>,
    pub(crate) chain: Chain,
    pub(crate) program: Option<Arc<Program>>,
    /// What the run may dispatch to.
    pub(crate) grant: Arc<Grant>,
    pub(crate) flow: Option<ScriptFlow>,
    pub(crate) inbox: VecDeque<(Input, u64)>,
    pub(crate) open: HashMap<u32, Open>,
    pub(crate) timers: BTreeSet<(u64, u32, Due)>,
    pub(crate) state: Option<BTreeMap<String, Json>>,
    pub(crate) artifacts: Option<u32>,
    pub(crate) pending: Pending,
    pub(crate) submitted: VecDeque<(u64, After)>,
    pub(crate) batches: u64,
    pub(crate) waiters: Vec<Waiter>,
    pub(crate) subscribers: Vec<mpsc::Sender<EventView>>,
    /// Whether it is to be dropped and read again once nothing of it is on its way.
    pub(crate) reload: bool,
    /// Whether it is read again because its VM had no room: a limit that it breaks then, past its
    /// recorded history, is its own.
    pub(crate) broken: bool,
    /// Whether it waits for its next turn.
    pub(crate) queued: bool,
}

/// What the next batch will hold.
#[derive(Default)]
pub(crate) struct Pending {
    pub(crate) entries: Vec<Entry>,
    pub(crate) writes: Vec<Write>,
    pub(crate) checks: Vec<Check>,
    pub(crate) after: After,
}

/// An answer that waits for a batch to be durable.
pub(crate) type Later = Box<dyn FnOnce(Result<&Run, EngineError>) + Send>;

/// What happens once a batch is durable.
#[derive(Default)]
pub(crate) struct After {
    pub(crate) performs: Vec<Perform>,
    pub(crate) replies: Vec<Later>,
    pub(crate) events: Vec<EventView>,
}

/// Something that leaves the engine.
pub(crate) enum Perform {
    /// Give an attempt to its operator.
    Dispatch { step: u32, attempt: u32 },
    /// Tell a worker in the host to stop.
    CancelWorker(CancellationToken),
    /// Tell a worker in the host that its result came through the worker API.
    Reported(CancellationToken),
    /// Begin the run that a child step calls.
    StartChild { step: u32 },
    /// Cancel the run that a child step called.
    CancelChild { child: RunId, reason: String },
    /// Tell the calling run how this one ended.
    TellParent,
    /// Carry a signal to another run.
    SendSignal { step: u32, to: u64, name: String, payload: Json },
    /// Give back a place of an agent.
    Release(AgentKey),
}

/// What is due by itself. The order of the variants is the order at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Due {
    /// A timer step.
    Timer,
    /// The end of a wait for a signal.
    SignalDeadline,
    /// An attempt's timeout.
    Attempt,
    /// A queue worker's lease.
    Lease,
    /// Nobody took the task.
    Park,
    /// The next attempt.
    Retry,
    /// The run's `wall` limit.
    Wall,
    /// The end of the time for compensations.
    Compensation,
}

/// An open step.
pub(crate) struct Open {
    pub(crate) kind: OpenKind,
}

/// What an open step waits for.
pub(crate) enum OpenKind {
    /// A time.
    Timer,
    /// A signal.
    Signal,
    /// A called run.
    Child { run: RunId, blueprint: String, input: Json },
    /// An operator.
    Task(Box<OpenTask>),
}

/// An open task.
pub(crate) struct OpenTask {
    pub(crate) request: TaskRequest,
    pub(crate) agent: Arc<CompiledAgent>,
    pub(crate) operator: Arc<str>,
    pub(crate) residence: Residence,
    pub(crate) retry: Backoff,
    pub(crate) timeout_ms: Option<u64>,
    pub(crate) park_ms: Option<u64>,
    pub(crate) attempt: u32,
    pub(crate) counted: u32,
    pub(crate) phase: Phase,
    /// The stored row of an attempt that leaves the process.
    pub(crate) row: Option<Box<TaskRow>>,
    /// The worker in the host, if there is one.
    pub(crate) live: Option<Live>,
    /// Whether it holds a place of its agent.
    pub(crate) place: bool,
    /// Results of this attempt that broke the schema.
    pub(crate) invalid: u32,
}

/// How far the open attempt of a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Waits for a place of its agent.
    Capacity,
    /// Waits for the time of its next attempt.
    Retry,
    /// Waits for somebody to take it.
    Pending,
    /// Somebody has it.
    Delivered,
}

/// A worker in the host.
#[derive(Clone)]
pub(crate) struct Live {
    pub(crate) cancel: CancellationToken,
    pub(crate) reported: CancellationToken,
}

impl Run {
    /// Whether the run has ended.
    pub(crate) fn is_ended(&self) -> bool {
        matches!(self.chain.state(), crate::journal::RunState::Ended(_))
    }

    /// Whether there is something for the next batch.
    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.entries.is_empty()
            || !self.pending.writes.is_empty()
            || !self.pending.after.replies.is_empty()
            || !self.pending.after.performs.is_empty()
    }

    /// Whether it may be dropped from memory: everything that matters is on the disk.
    pub(crate) fn is_idle(&self) -> bool {
        self.submitted.is_empty()
            && !self.has_pending()
            && self.inbox.is_empty()
            && self.waiters.is_empty()
            && self.subscribers.is_empty()
            && self.open.values().all(Open::outlives_memory)
    }

    /// The task behind an open step.
    pub(crate) fn task(&self, step: u32) -> Option<&OpenTask> {
        match &self.open.get(&step)?.kind {
            OpenKind::Task(task) => Some(task),
            OpenKind::Timer | OpenKind::Signal | OpenKind::Child { .. } => None,
        }
    }

    /// The task behind an open step.
    pub(crate) fn task_mut(&mut self, step: u32) -> Option<&mut OpenTask> {
        match &mut self.open.get_mut(&step)?.kind {
            OpenKind::Task(task) => Some(task),
            OpenKind::Timer | OpenKind::Signal | OpenKind::Child { .. } => None,
        }
    }

    /// Removes every timer of a step.
    pub(crate) fn clear_timers(&mut self, step: u32) {
        self.timers.retain(|(_, of, _)| *of != step);
    }
}

impl Open {
    fn outlives_memory(&self) -> bool {
        match &self.kind {
            OpenKind::Timer | OpenKind::Signal => true,
            OpenKind::Child { .. } => false,
            OpenKind::Task(task) => match task.phase {
                Phase::Capacity => false,
                Phase::Retry => true,
                Phase::Pending | Phase::Delivered => task.residence == Residence::Elsewhere,
            },
        }
    }
}
