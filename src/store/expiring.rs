//! The records of a host that expire: found and removed a part at a time, because there may be any number of
//! them, and others wait for the writer.

use super::Write;

/// Records that expire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiring {
    /// Responses under idempotency keys, by the time at which they were stored.
    Answers,
    /// Values of layers, by their expiry.
    Kept,
    /// Closed sessions, by the time of their end.
    Sessions,
}

impl Expiring {
    /// Returns the write that removes at most `rows` of those from before a time, the oldest first.
    pub fn removal(self, before_ms: u64, rows: usize) -> Write {
        match self {
            Self::Answers => Write::ExpireIdempotency { before_ms, rows },
            Self::Kept => Write::ExpireKept { before_ms, rows },
            Self::Sessions => Write::ForgetSessions { before_ms, rows },
        }
    }
}
