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
