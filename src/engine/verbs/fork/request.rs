//! The request for a fork, and the history that was cut for it.

use std::{collections::BTreeMap, sync::Arc};

use crate::{engine::Program, journal::Entry, lua, protocol::Json};

/// The parameters of a fork.
#[derive(Debug, Clone, Default)]
pub struct Fork {
    /// The first step that is executed again; the number after the last step copies all of them.
    pub from_step: u32,
    /// A JSON merge patch for the input of the run.
    pub input_patch: Option<Json>,
    /// The input of the step `from_step`, in place of the recorded one.
    pub step_input: Option<Json>,
    /// The outputs of kept steps, in place of the recorded ones.
    pub outputs: BTreeMap<u32, Json>,
    /// The program to execute; the original's own version if absent.
    pub program: Option<Program>,
}

impl Fork {
    /// Creates a fork that executes a step and all later ones again.
    pub fn new(from_step: u32) -> Self {
        Self { from_step, ..Self::default() }
    }
}

/// A history that was cut for a fork.
pub(super) struct Prepared {
    pub(super) program: Arc<lua::Program>,
    /// The entries of the original's current history.
    pub(super) entries: Vec<Entry>,
    /// Those of the fork.
    pub(super) kept: Vec<Entry>,
}
