//! What the shards of one engine share.

use std::sync::{Arc, OnceLock, atomic::AtomicU64};

use tokio::sync::mpsc;

use super::{
    accounts::Accounts,
    capacity::Capacity,
    message::{Msg, RunMsg},
    programs::Programs,
    readers::Readers,
    stacks::StackBook,
    watches::WatchBoard,
};
use crate::{
    clock::Clock,
    flow::RunLimits,
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
    pub(crate) shards: Vec<mpsc::UnboundedSender<Msg>>,
    pub(crate) url: OnceLock<Arc<str>>,
    pub(crate) open_runs: AtomicU64,
    pub(crate) watches: WatchBoard,
    pub(crate) readers: Readers,
    pub(crate) accounts: Accounts,
}

/// The engine's numbers.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The limits of every run.
    pub limits: RunLimits,
    /// How long a queue worker keeps a task without a heartbeat, in milliseconds.
    pub lease_ms: u64,
    /// How long a task waits for somebody to take it, in milliseconds.
    pub park_ms: u64,
    /// How long compensations may take, in milliseconds.
    pub compensation_ms: u64,
    /// Runs that a shard keeps in memory.
    pub live_runs: usize,
    /// Runs that may be open at all; more are refused with `too_many_runs`.
    pub open_runs: u64,
    /// Signals that may be queued at a run.
    pub queued_signals: usize,
    /// What becomes of effects that the host has no word for.
    pub custom_effects: super::CustomEffects,
    /// How long ended runs are kept.
    pub retention: super::Retention,
    /// Where runs without a working directory of their own work: `work/<run>` below it.
    pub work: std::path::PathBuf,
}

impl Shared {
    /// The shard that a run belongs to.
    pub(crate) fn shard_of(&self, run: u64) -> u64 {
        run % self.shards.len() as u64
    }

    /// Tells a run something. Nothing happens once the engine has stopped.
    pub(crate) fn tell(&self, run: u64, message: RunMsg) {
        self.send(run, Msg::Run(run, message));
    }

    /// Tells the shard of a run something.
    pub(crate) fn send(&self, run: u64, message: Msg) {
        let shard = usize::try_from(self.shard_of(run)).expect("shards are few");
        // A closed channel means that the shard has stopped: nobody is left to be told.
        let _ = self.shards[shard].send(message);
    }
}
