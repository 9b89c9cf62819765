//! The numbers of an engine.

use crate::flow::RunLimits;

/// The time for which an answer is kept under its idempotency key, in milliseconds.
pub(crate) const IDEMPOTENCY_MS: u64 = 24 * 3_600 * 1_000;

/// The pause of a run after a failed write, in milliseconds.
pub(crate) const STORAGE_RETRY_MS: u64 = 1_000;

/// The interval at which a run checks for memory, in milliseconds.
pub(crate) const ROOM_MS: u64 = 250;

/// The number of open tasks that are read at a time: each can have an input of several megabytes.
pub(crate) const TASKS_READ: usize = 16;

/// The engine's numbers.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The limits of every run.
    pub limits: RunLimits,
    /// The lease of a queue worker without a heartbeat, in milliseconds.
    pub lease_ms: u64,
    /// The time for which a task waits to be taken, in milliseconds.
    pub park_ms: u64,
    /// The time limit of compensations, in milliseconds.
    pub compensation_ms: u64,
    /// The memory budget of all runs together, in bytes.
    pub memory: usize,
    /// Runs that a shard keeps in memory.
    pub live_runs: usize,
    /// The rule by which runs are lent to other nodes.
    pub lend: crate::engine::Lend,
    /// Runs that may be open at all; more are refused with `too_many_runs`.
    pub open_runs: u64,
    /// Signals that may be queued at a run.
    pub queued_signals: usize,
    /// The handling of unknown effects.
    pub custom_effects: crate::engine::CustomEffects,
    /// The retention of ended runs.
    pub retention: crate::engine::Retention,
    /// The webhooks that are called when a task for people has opened, by name.
    pub webhooks: std::collections::BTreeMap<String, crate::operator::TaskWebhook>,
    /// The parent of the working directories of runs without one of their own: `work/<run>` below
    /// it.
    pub work: std::path::PathBuf,
}

impl Settings {
    /// Returns the directory of the files of blueprints: it is beside [`Settings::work`].
    pub(crate) fn bundles(&self) -> std::path::PathBuf {
        self.work.with_file_name("bundles")
    }
}

/// The handling of an unknown effect.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CustomEffects {
    /// The effect is kept with the result, and the log says so.
    Warn,
    /// The result is refused.
    #[default]
    Error,
}

/// The retention of ended runs. Zero is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// A run goes this long after its end, in milliseconds.
    pub age_ms: u64,
    /// So many ended runs stay, the younger ones.
    pub runs: u64,
    /// The oldest go while the database uses more bytes.
    pub bytes: u64,
}

impl Retention {
    /// Everything stays.
    pub const FOR_EVER: Self = Self { age_ms: 0, runs: 0, bytes: 0 };
}

impl Default for Retention {
    fn default() -> Self {
        Self { age_ms: 30 * 86_400_000, runs: 100_000, bytes: 10 << 30 }
    }
}
