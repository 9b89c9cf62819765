//! What the shards of one engine share.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU64, Ordering},
};

use crate::{
    clock::Clock,
    engine::{
        EngineError,
        run::readers::Readers,
        settings::Settings,
        shared::{
            accounts::Accounts,
            capacity::Capacity,
            mailbox::Mail,
            message::{Msg, RunMsg},
            programs::Programs,
            stacks::StackBook,
            watch_board::WatchBoard,
        },
    },
    memory::Memory,
    operator::{QueueHub, Registry},
    session,
    spawner::SpawnerAdapter,
    store::{DurableState, Store},
    tasks::Tasks,
    token::HandleKey,
};

/// What does not change while the host runs, and what all shards count together.
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) state: DurableState,
    pub(crate) clock: Clock,
    /// When this process began to hear anybody, on the steady clock.
    pub(crate) booted_ms: u64,
    pub(crate) tasks: Tasks,
    pub(crate) registry: Registry,
    pub(crate) spawner: Arc<dyn SpawnerAdapter>,
    pub(crate) stacks: StackBook,
    pub(crate) hub: Arc<QueueHub>,
    pub(crate) sessions: Arc<session::Hub>,
    pub(crate) capacity: Capacity,
    pub(crate) programs: Programs,
    pub(crate) handles: HandleKey,
    pub(crate) settings: Settings,
    pub(crate) shards: Vec<Mail>,
    pub(crate) url: OnceLock<Arc<str>>,
    pub(crate) open_runs: AtomicU64,
    pub(crate) watches: WatchBoard,
    pub(crate) taking_up: crate::engine::shared::taking_up::TakingUp,
    /// What all runs make the host hold.
    pub(crate) memory: Arc<Memory>,
    /// When room was last asked for, in Unix milliseconds.
    pub(crate) room_asked_ms: AtomicU64,
    pub(crate) readers: Readers,
    pub(crate) accounts: Accounts,
}

impl Shared {
    /// The shard that a run belongs to.
    pub(crate) fn shard_of(&self, run: u64) -> u64 {
        run % self.shards.len() as u64
    }

    /// The refusal for what would make the host hold more than it may.
    pub(crate) fn no_room(&self, what: &str) -> EngineError {
        let (used, limit) = (self.memory.used(), self.memory.limit());
        EngineError::Busy {
            code: "memory_full",
            message: format!(
                "{what}: the host holds {used} bytes for its runs, {limit} are allowed"
            ),
            retry_after_s: 2,
        }
    }

    /// Asks every shard to drop what rests, a few times a second at most.
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

    /// Tells a run something. Nothing happens once the engine has stopped.
    pub(crate) fn tell(&self, run: u64, message: impl Into<RunMsg>) {
        self.send(run, Msg::Run(run, message.into()));
    }

    /// Tells the shard of a run something.
    pub(crate) fn send(&self, run: u64, message: Msg) {
        self.mail_of(run).send(message);
    }

    /// Asks the shard of a run something for a caller.
    ///
    /// # Errors
    /// `overloaded`, where too much waits there already.
    pub(crate) fn offer(&self, run: u64, message: Msg) -> Result<(), EngineError> {
        self.mail_of(run).offer(message).map_err(|_| EngineError::Busy {
            code: "overloaded",
            message: "too many requests wait for the runs of one shard".to_owned(),
            retry_after_s: 1,
        })
    }

    fn mail_of(&self, run: u64) -> &Mail {
        let shard = usize::try_from(self.shard_of(run)).expect("shards are few");
        &self.shards[shard]
    }
}
