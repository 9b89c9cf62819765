//! A line of the audit log, and the chain of hashes that ties it to all lines before.

use serde::{Deserialize, Serialize};

use crate::clock::rfc3339;

/// One thing that passed a boundary: who, what and how it ended; never what it carried.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// `dispatch`, `store` or `exec`.
    pub boundary: String,
    /// What happened: `dispatched`, `settled`, `read`, `started`.
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
    /// Who started the run: a token's subject.
    pub principal: Option<String>,
    /// BLAKE3 of what was carried, in hex.
    pub hash: Option<String>,
    /// How it ended: `done`, `parked`, or a failure's kind.
    pub outcome: Option<String>,
}

/// A line with its place in the chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chained {
    /// Its number, from 1 and without gaps.
    pub seq: u64,
    /// When, as RFC 3339.
    pub at: String,
    /// The line, as JSON: the very bytes that were hashed.
    pub line: String,
    /// BLAKE3, in hex, of the hash before, the number, the time and the line.
    pub hash: String,
}

/// The hash that the first line follows.
pub const GENESIS: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Why a log is not the one that was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Tampered {
    /// A number is missing, or there twice.
    #[error("verify line {expected} of the audit log: line {found} is in its place")]
    Order {
        /// The number that had to come.
        expected: u64,
        /// The number that came.
        found: u64,
    },
    /// A line does not have the hash that it should.
    #[error("verify line {seq} of the audit log: it was changed, or a line before it")]
    Hash {
        /// The line's number.
        seq: u64,
    },
}

impl Chained {
    /// The line that follows `last`.
    pub fn after(last: Option<&Self>, at_ms: u64, line: &Line) -> Self {
        let seq = last.map_or(1, |last| last.seq + 1);
        let before = last.map_or(GENESIS, |last| &last.hash);
        let at = rfc3339(at_ms);
        let line = serde_json::to_string(line).expect("a line is plain data");
        let hash = digest(before, seq, &at, &line);
        Self { seq, at, line, hash }
    }

    /// Whether it follows the line with number `seq` and hash `hash`.
    ///
    /// # Errors
    /// How it does not.
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
    // Each part with its length: no two logs have the same bytes.
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
        let line = |event: &str| Line { event: event.into(), ..Line::default() };
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
        // What was cut off at the end is found by the hash that was noted before.
        assert_eq!(verify(&log()[..2]), Ok(()));
    }
}
