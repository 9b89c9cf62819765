//! A line of the audit log, and the hash chain over all lines.

use serde::{Deserialize, Serialize};

use crate::clock::rfc3339;

/// One event at a boundary: the parties and the outcome, never the content.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditLine {
    /// `dispatch`, `store` or `exec`.
    pub boundary: String,
    /// The event: `dispatched`, `settled`, `read`, `started`.
    pub event: String,
    /// The run's id.
    pub run: Option<String>,
    /// The task's id.
    pub task: Option<String>,
    /// The attempt.
    pub attempt: Option<u32>,
    /// The agent.
    pub agent: Option<String>,
    /// The operator, the state's scope or the program.
    pub target: Option<String>,
    /// The subject that started the run.
    pub principal: Option<String>,
    /// BLAKE3 of the content, in hex.
    pub hash: Option<String>,
    /// The outcome: `done`, `parked`, or the kind of a failure.
    pub outcome: Option<String>,
}

/// A line with its position in the chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chained {
    /// The sequence number, from 1 and without gaps.
    pub seq: u64,
    /// The time, as RFC 3339.
    pub at: String,
    /// The line, as JSON: the exact bytes that were hashed.
    pub line: String,
    /// BLAKE3, in hex, of the previous hash, the number, the time and the line.
    pub hash: String,
}

/// The previous hash of the first line.
pub const GENESIS: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// The reason why an audit log does not verify.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Tampered {
    /// A number is missing or repeated.
    #[error("verify line {expected} of the audit log: line {found} is in its place")]
    Order {
        /// The expected number.
        expected: u64,
        /// The number that was found.
        found: u64,
    },
    /// A line does not have the expected hash.
    #[error("verify line {seq} of the audit log: it was changed, or a line before it")]
    Hash {
        /// The line's number.
        seq: u64,
    },
}

impl Chained {
    /// Returns the line that follows `last`.
    pub fn after(last: Option<&Self>, at_ms: u64, line: &AuditLine) -> Self {
        let seq = last.map_or(1, |last| last.seq + 1);
        let before = last.map_or(GENESIS, |last| &last.hash);
        let at = rfc3339(at_ms);
        let line = serde_json::to_string(line).expect("a line is plain data");
        let hash = digest(before, seq, &at, &line);
        Self { seq, at, line, hash }
    }

    /// Verifies that this line follows the line with number `seq` and hash `hash`.
    ///
    /// # Errors
    /// Returns the kind of mismatch.
    pub fn follows(&self, seq: u64, hash: &str) -> Result<(), Tampered> {
        if self.seq != seq + 1 {
            return Err(Tampered::Order { expected: seq + 1, found: self.seq });
        }
        if digest(hash, self.seq, &self.at, &self.line) != self.hash {
            return Err(Tampered::Hash { seq: self.seq });
        }
        Ok(())
    }
}

fn digest(before: &str, seq: u64, at: &str, line: &str) -> String {
    let mut hasher = blake3::Hasher::new();
    // Each part is hashed with its length, so that no two logs hash the same bytes.
    for part in [before, &seq.to_string(), at, line] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> Vec<Chained> {
        let line = |event: &str| AuditLine { event: event.into(), ..AuditLine::default() };
        let mut log: Vec<Chained> = Vec::new();
        for event in ["a", "b", "c"] {
            let next = Chained::after(log.last(), 1_700_000_000_000, &line(event));
            log.push(next);
        }
        log
    }

    fn verify(log: &[Chained]) -> Result<(), Tampered> {
        let mut last = (0, GENESIS.to_owned());
        for line in log {
            line.follows(last.0, &last.1)?;
            last = (line.seq, line.hash.clone());
        }
        Ok(())
    }

    #[test]
    fn a_log_as_it_was_written_is_whole() {
        assert_eq!(verify(&log()), Ok(()));
    }

    #[test]
    fn every_change_to_a_line_is_found() {
        for change in [
            (|line: &mut Chained| line.line = line.line.replace("\"b\"", "\"x\"")) as fn(&mut _),
            |line| line.at = "2026-01-01T00:00:00.000Z".into(),
            |line| line.hash = GENESIS.into(),
        ] {
            let mut log = log();
            change(&mut log[1]);
            assert!(matches!(verify(&log), Err(Tampered::Hash { seq: 2 | 3 })));
        }
    }

    #[test]
    fn a_line_that_is_gone_or_moved_is_found() {
        let mut gone = log();
        gone.remove(1);
        assert_eq!(verify(&gone), Err(Tampered::Order { expected: 2, found: 3 }));
        let mut moved = log();
        moved.swap(0, 1);
        assert_eq!(verify(&moved), Err(Tampered::Order { expected: 1, found: 2 }));
        // Truncation at the end is detected by a hash that was recorded earlier.
        assert_eq!(verify(&log()[..2]), Ok(()));
    }
}
