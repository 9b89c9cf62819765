//! The limits of a run: how much a flow may ask for.

/// What a run may use. A breach fails that run with kind `limit`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunLimits {
    /// CPU time between two awaits, in milliseconds.
    pub slice_ms: u64,
    /// Memory of the run's script, in bytes.
    pub memory: usize,
    /// Steps in one history.
    pub steps: u32,
    /// Entries in one history.
    pub entries: u32,
    /// Steps open at the same time.
    pub open_steps: u32,
    /// Branches open at the same time.
    pub branches: u32,
    /// One value (an input, an output, a signal's payload), in bytes of JSON.
    pub value: usize,
    /// What the run makes the host hold beside its script: own state, queued signals, results that
    /// wait, open steps; in bytes.
    pub held: usize,
    /// Entries of one history, in bytes.
    pub history: u64,
    /// What the run stores: its histories, its state and its files; in bytes.
    pub stored: u64,
    /// Runs below each other.
    pub depth: u32,
    /// The run's whole duration, in milliseconds; none by default.
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
