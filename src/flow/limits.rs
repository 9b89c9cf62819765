//! The limits of a run.

/// The resources that a run may use. A breach fails the run with kind `limit`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunLimits {
    /// CPU time between two awaits, in milliseconds.
    pub slice_ms: u64,
    /// Memory of the run's script, in bytes.
    pub memory: usize,
    /// Number of steps in one history.
    pub steps: u32,
    /// Number of entries in one history.
    pub entries: u32,
    /// Number of steps open at the same time.
    pub open_steps: u32,
    /// Number of branches open at the same time.
    pub branches: u32,
    /// Size of one value (an input, an output, a signal's payload), in bytes of JSON.
    pub value: usize,
    /// Memory of the host that the run takes beside its script, in bytes: its own state, queued
    /// signals, unread results, open steps.
    pub held: usize,
    /// Size of the entries of one history, in bytes.
    pub history: u64,
    /// Stored bytes of the run: its histories, its state and its files.
    pub stored: u64,
    /// Depth of nested runs.
    pub depth: u32,
    /// Total duration of the run, in milliseconds; unlimited by default.
    pub wall_ms: Option<u64>,
}

impl Default for RunLimits {
    fn default() -> Self {
        Self {
            slice_ms: 100,
            memory: 64 << 20,
            steps: 100_000,
            entries: 500_000,
            open_steps: 20_000,
            branches: 20_000,
            value: 4 << 20,
            held: 64 << 20,
            history: 256 << 20,
            stored: 8 << 30,
            depth: 8,
            wall_ms: None,
        }
    }
}
