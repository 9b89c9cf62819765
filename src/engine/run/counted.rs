//! The counts of a batch for the metrics of the host.

use crate::{journal::Ending, metrics::Attempt, protocol::StepKind};

/// Something to count.
#[derive(Debug)]
pub(crate) enum Counted {
    /// A run started.
    Started { trigger: String },
    /// A run ended.
    Ended { ending: Ending, took_ms: u64 },
    /// A step ended; one that was decided at once took no time.
    Step { kind: StepKind, ending: Ending, took_ms: Option<u64> },
    /// An attempt of a task ended.
    Attempt(Box<Attempt>),
}
