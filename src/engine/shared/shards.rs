//! The data that the shards of one engine share.

use crate::protocol::{Code, Sampling, TraceParent};
use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU64, Ordering},
};

use crate::{
    clock::Clock,
    engine::{
        EngineError,
        run::{conversations::Conversations, loan::GoHome, readers::Readers, resident::Run},
        settings::Settings,
        shared::{
            accounts::Accounts,
            announcements::Announcements,
            capacity::Capacity,
            changing::Changing,
            host_facts::HostFacts,
            host_log::{HostFact, HostLog},
            in_flight::InFlight,
            lanes::Lanes,
            ledger::AuditLog,
            lending::Lending,
            mailbox::Mail,
            message::{Internal, Msg, RunMsg},
            presence::Presence,
            programs::Programs,
            proven::Proven,
            server_spans::ServerSpans,
            speakers::Speakers,
            stacks::StackBook,
            trigger_board::TriggerBoard,
            turns,
            watch_board::WatchBoard,
        },
    },
    memory::Memory,
    metrics::{Counts, ShardGauges},
    operator::{LeaseReturn, QueueHub, Registry, Ticket},
    session,
    spawner::SpawnerAdapter,
    store::{DurableState, Partition, Store},
    tasks::Tasks,
    token::HandleKey,
};

/// The parts that all shards share.
pub(crate) type Shared = Proven<Parts>;

/// The immutable parts of the engine, and the counters of all shards.
pub(crate) struct Parts {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) state: DurableState,
    /// The changes on their way to stores of somebody else's.
    pub(crate) lanes: Lanes,
    pub(crate) clock: Clock,
    /// The time at which this process could first receive reports, on the steady clock.
    pub(crate) booted_ms: u64,
    pub(crate) tasks: Tasks,
    pub(crate) registry: Registry,
    pub(crate) spawner: Arc<dyn SpawnerAdapter>,
    pub(crate) stacks: StackBook,
    pub(crate) hub: Arc<QueueHub>,
    pub(crate) sessions: Arc<session::Hub>,
    pub(crate) capacity: Capacity,
    pub(crate) changing: Changing,
    pub(crate) conversations: Arc<Conversations>,
    pub(crate) programs: Programs,
    pub(crate) handles: HandleKey,
    pub(crate) settings: Settings,
    pub(crate) shards: Vec<Mail>,
    pub(crate) url: OnceLock<Arc<str>>,
    pub(crate) facts: OnceLock<Arc<dyn HostFacts>>,
    pub(crate) open_runs: AtomicU64,
    pub(crate) watches: WatchBoard,
    pub(crate) triggers: TriggerBoard,
    pub(crate) taking_up: crate::engine::shared::taking_up::TakingUp,
    /// The memory that is held for all runs.
    pub(crate) memory: Arc<Memory>,
    /// The time at which memory was last requested, in Unix milliseconds.
    pub(crate) room_asked_ms: AtomicU64,
    pub(crate) readers: Readers,
    pub(crate) in_flight: Arc<InFlight>,
    pub(crate) host_log: HostLog,
    pub(crate) presence: Presence,
    pub(crate) speakers: Speakers,
    /// Opened tasks on their way to webhooks.
    pub(crate) announcements: Announcements,
    /// The audit log.
    pub(crate) audit: AuditLog,
    pub(crate) accounts: Accounts,
    /// The counters of the host, and the gauges of each shard.
    pub(crate) counts: Counts,
    /// The traces that are exported; empty if none are.
    pub(crate) traced: OnceLock<Sampling>,
    /// The spans of requests, on their way to the export.
    pub(crate) server_spans: ServerSpans,
    pub(crate) gauges: Vec<ShardGauges>,
    /// The runs that other nodes drive.
    pub(crate) lending: Lending,
    /// The way home of the runs of this process, if it drives them for another node.
    pub(crate) helps: Option<GoHome>,
}

impl Shared {
    /// Returns the span that is passed on to the worker of a step; step 0 is the run. It is the step's
    /// own span if traces are exported, else the one that the run was started in, if there is one.
    pub(crate) fn span_of(&self, run: &Run, step: u32) -> Option<TraceParent> {
        let within = run.chain.trace();
        let Some(sampling) = self.traced.get() else { return within };
        let span = TraceParent::of_step(run.num, run.header.nonce, within, step);
        Some(sampling.of(span, within))
    }

    /// Returns the shard that a run belongs to: the owner of its partition.
    pub(crate) fn shard_of(&self, run: u64) -> u64 {
        self.owner_of(Partition::of(run))
    }

    fn owner_of(&self, part: Partition) -> u64 {
        u64::from(part.number()) % self.shards.len() as u64
    }

    /// Returns the partitions that a shard owns.
    pub(crate) fn parts_of(&self, shard: u64) -> Vec<Partition> {
        Partition::all().filter(|part| self.owner_of(*part) == shard).collect()
    }

    /// Returns the number of runs that wait for a thread.
    pub(crate) fn waiting(&self) -> usize {
        let waiting = self.gauges.iter().map(|gauges| gauges.ready.whole());
        usize::try_from(waiting.sum::<u64>()).unwrap_or(usize::MAX)
    }

    /// Returns the refusal of a request that would exceed the memory limit of the host.
    pub(crate) fn no_room(&self, what: &str) -> EngineError {
        let (used, limit) = (self.memory.used(), self.memory.limit());
        EngineError::Busy {
            code: Code::MemoryFull,
            message: format!(
                "{what}: the host holds {used} bytes for its runs, {limit} are allowed"
            ),
            retry_after_s: 2,
        }
    }

    /// Asks every shard to drop idle runs, at most a few times a second.
    pub(crate) fn make_room(&self) {
        let now_ms = self.clock.now_ms();
        let before = self.room_asked_ms.load(Ordering::Relaxed);
        let is_due = now_ms.abs_diff(before) >= crate::engine::settings::ROOM_MS / 2;
        let swap = |now| {
            self.room_asked_ms.compare_exchange(before, now, Ordering::Relaxed, Ordering::Relaxed)
        };
        if is_due && swap(now_ms).is_ok() {
            self.shards.iter().for_each(|shard| shard.send(Msg::MakeRoom));
        }
    }

    /// Writes an event of the host that is about who is there.
    pub(crate) fn post(&self, fact: HostFact) {
        self.host_log.post(&*self.store, &self.in_flight, fact);
    }

    /// Sends a message to a run. Has no effect once the engine has stopped.
    pub(crate) fn tell(&self, run: u64, message: impl Into<RunMsg>) {
        self.send(run, Msg::Run(run, message.into()));
    }

    /// Sends a message to the shard of a run.
    pub(crate) fn send(&self, run: u64, message: Msg) {
        self.mail_of(run).send(message);
    }

    /// Sends a caller's message to the shard of a run.
    ///
    /// # Errors
    /// Returns `overloaded` if too many messages wait there.
    pub(crate) fn offer(&self, run: u64, message: Msg) -> Result<(), EngineError> {
        let mail = self.mail_of(run);
        let offered = match turns::is_behind() {
            true => mail.offer_in_order(message),
            false => mail.offer(message),
        };
        turns::end();
        offered.map_err(|_| EngineError::Busy {
            code: Code::Overloaded,
            message: "too many requests wait for the runs of one shard".to_owned(),
            retry_after_s: 1,
        })
    }

    /// Sends a message to a shard.
    pub(crate) fn send_to(&self, shard: u64, message: Msg) {
        self.mail(shard).send(message);
    }

    fn mail_of(&self, run: u64) -> &Mail {
        self.mail(self.shard_of(run))
    }

    fn mail(&self, shard: u64) -> &Mail {
        &self.shards[usize::try_from(shard).expect("shards are few")]
    }
}

impl LeaseReturn for Shared {
    fn give_back(&self, Ticket { run, step, attempt }: Ticket) {
        self.tell(run, Internal::Undelivered { step, attempt });
    }
}
