//! What the host and the program that confines say to each other: the verb, the plan, the answers.

use std::{
    ffi::{OsStr, OsString},
    path::PathBuf,
};

use serde::{Deserialize, Serialize};

use super::veil::Cover;

/// The verb.
pub(super) const VERB: &str = "__confine";
/// Instead of a program: try what can be done, and say it.
pub(super) const PROBE: &str = "--probe";
/// Instead of a program: say what another program has done already.
pub(super) const PROBE_WITHIN: &str = "--probe-within";
/// Instead of a program: try to hide a directory.
pub(super) const PROBE_VEIL: &str = "--probe-veil";
/// What stands before the name of each variable of the child, so that none of them is one of this
/// program or of its loader.
pub(super) const CHILD: &str = "child:";

/// What to give up.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Plan {
    /// Whether the child gets a boundary; else it is only kept from what is covered.
    pub(super) confined: bool,
    /// What is hidden.
    pub(super) cover: Option<Cover>,
    /// The lists of processes to get into.
    pub(super) groups: Vec<PathBuf>,
    /// Whether the network is left behind.
    pub(super) closed: bool,
    /// The attempt's own files.
    pub(super) room: PathBuf,
    /// How large these may be, in bytes.
    pub(super) disk: Option<u64>,
    /// The network to be left behind, where another program has made the namespaces.
    pub(super) parted: Option<String>,
    /// Directories to make, where they are not there.
    pub(super) make: Vec<PathBuf>,
    /// Where to begin.
    pub(super) cwd: PathBuf,
    pub(super) read: Vec<PathBuf>,
    pub(super) write: Vec<PathBuf>,
}

/// Why the child was not begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NotBegun {
    /// What was tried.
    pub(super) what: String,
    /// Why it failed.
    pub(super) reason: String,
    /// The system's number, where the program itself could not be started.
    pub(super) exec: Option<i32>,
}

/// What can be done here; of the rest, why not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Probed {
    pub(super) network: Option<String>,
    pub(super) disk: Option<String>,
}

/// What was tried, as a result: why it cannot be done, if it cannot.
pub(super) fn said(tried: Option<String>) -> Result<(), String> {
    tried.map_or(Ok(()), Err)
}

/// The name under which a variable of the child is handed on.
pub(super) fn handed_on(name: &OsStr) -> OsString {
    let mut handed = OsString::from(CHILD);
    handed.push(name);
    handed
}
