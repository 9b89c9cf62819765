//! The findings of a check of the whole store.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A line of a check, in the order in which it comes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Checked {
    /// The progress: more of one part was read.
    Progress {
        /// The part: `pages`, `runs`, `state`, `blobs`, `blueprints`, `rows`.
        part: String,
        /// The amount that was read.
        done: u64,
        /// The approximate amount.
        of: u64,
    },
    /// Something is not what was stored.
    Damaged {
        /// The damaged thing.
        what: String,
        /// The problem.
        reason: String,
        /// The remedy.
        next: String,
    },
    /// Something is there that nothing refers to; it takes room and does no harm.
    Orphan {
        /// The thing.
        what: String,
    },
    /// All of it was read.
    Done {
        /// Runs that were read, with every row of their histories.
        runs: u64,
        /// Rows of their histories.
        entries: u64,
        /// Values of state that were read.
        state: u64,
        /// Files that were hashed.
        blobs: u64,
        /// The number of earlier lines with `damaged`.
        damaged: u64,
    },
}

/// Receives the findings of a check. Returns false to stop the check.
pub type Tell<'a> = &'a mut dyn FnMut(Checked) -> bool;

/// The counters of a check in progress, and the receiver of its lines.
pub(super) struct Findings<'a> {
    tell: Tell<'a>,
    /// Runs that were read.
    pub runs: u64,
    /// Rows of their histories.
    pub entries: u64,
    /// Values of state that were read.
    pub state: u64,
    /// Files that were hashed.
    pub blobs: u64,
    damaged: u64,
    is_stopped: bool,
}

impl<'a> Findings<'a> {
    /// Creates the findings of a check that begins.
    pub(super) fn new(tell: Tell<'a>) -> Self {
        Self { tell, runs: 0, entries: 0, state: 0, blobs: 0, damaged: 0, is_stopped: false }
    }

    /// Returns true if the receiver asked to stop.
    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Reports how much of a part was read.
    pub(super) fn progress(&mut self, part: &str, done: u64, of: u64) {
        self.send(Checked::Progress { part: part.to_owned(), done, of: of.max(done) });
    }

    /// Reports damage: the damaged thing, the problem, and the remedy.
    pub(super) fn damaged(
        &mut self,
        what: impl Into<String>,
        reason: impl ToString,
        next: impl Into<String>,
    ) {
        self.damaged += 1;
        let (what, reason, next) = (what.into(), reason.to_string(), next.into());
        self.send(Checked::Damaged { what, reason, next });
    }

    /// Reports something that nothing refers to.
    pub(super) fn orphan(&mut self, what: String) {
        self.send(Checked::Orphan { what });
    }

    /// Reports the end of the check.
    pub(super) fn done(mut self) {
        let Self { runs, entries, state, blobs, damaged, .. } = self;
        self.send(Checked::Done { runs, entries, state, blobs, damaged });
    }

    fn send(&mut self, line: Checked) {
        self.is_stopped |= !(self.tell)(line);
    }
}
