//! The numbers of an engine.

use crate::flow::RunLimits;

/// How long an answer is kept under its idempotency key, in milliseconds.
pub(crate) const IDEMPOTENCY_MS: u64 = 24 * 3_600 * 1_000;

/// How long a run rests after a write of it failed, in milliseconds.
pub(crate) const STORAGE_RETRY_MS: u64 = 1_000;

/// How long a run waits until it is looked at again whether there is room, in milliseconds.
pub(crate) const ROOM_MS: u64 = 250;

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
    /// What all runs together may make the host hold, in bytes.
    pub memory: usize,
    /// Runs that a shard keeps in memory.
    pub live_runs: usize,
    /// Runs that may be open at all; more are refused with `too_many_runs`.
    pub open_runs: u64,
    /// Signals that may be queued at a run.
    pub queued_signals: usize,
    /// What becomes of effects that the host has no word for.
    pub custom_effects: crate::engine::CustomEffects,
    /// How long ended runs are kept.
    pub retention: crate::engine::Retention,
    /// Where runs without a working directory of their own work: `work/<run>` below it.
    pub work: std::path::PathBuf,
}

/// What becomes of an effect that the host has no word for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CustomEffects {
    /// It is kept with the result, and the log says so.
    Warn,
    /// The result is refused.
    #[default]
    Error,
}

/// How long ended runs are kept. Zero is no limit.
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
