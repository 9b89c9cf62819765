//! The protocol between the host and the helper: the verb, the plan, the reports.

use std::{
    ffi::{OsStr, OsString},
    path::PathBuf,
};

use serde::{Deserialize, Serialize};

use super::veil::Cover;

/// The hidden verb.
pub(super) const VERB: &str = "__confine";
/// In place of a program: probe the abilities and report them.
pub(super) const PROBE: &str = "--probe";
/// In place of a program: verify the namespaces made by another program and report.
pub(super) const PROBE_WITHIN: &str = "--probe-within";
/// In place of a program: try to hide a directory and report.
pub(super) const PROBE_VEIL: &str = "--probe-veil";
/// In place of a program: start the children of a host until it ends.
pub(super) const LAUNCH: &str = "--launch";
/// The same, for children from whom the data directory is hidden.
pub(super) const LAUNCH_COVERED: &str = "--launch-covered";
/// The prefix of the child's variables while they are passed through the helper, so that none of
/// them affects the helper or its loader.
pub(super) const CHILD: &str = "child:";

/// The rights to drop and the setup of a child.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Plan {
    /// True if the child gets a boundary. Otherwise only the covered directory is hidden from it.
    pub(super) confined: bool,
    /// The directory to hide.
    pub(super) cover: Option<Cover>,
    /// The `cgroup.procs` files of the groups to join.
    pub(super) groups: Vec<PathBuf>,
    /// True if the child gets its own network namespace, without a connection.
    pub(super) closed: bool,
    /// The directory for the attempt's own files.
    pub(super) room: PathBuf,
    /// The size limit of that directory, in bytes.
    pub(super) disk: Option<u64>,
    /// The outer network namespace, if another program creates the namespaces.
    pub(super) parted: Option<String>,
    /// Directories to create if they do not exist.
    pub(super) make: Vec<PathBuf>,
    /// The initial working directory.
    pub(super) cwd: PathBuf,
    pub(super) read: Vec<PathBuf>,
    pub(super) write: Vec<PathBuf>,
}

/// The reason why the child was not started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NotBegun {
    /// The operation that failed.
    pub(super) what: String,
    /// The reason.
    pub(super) reason: String,
    /// The system's error number, if the exec itself failed.
    pub(super) exec: Option<i32>,
}

/// The probed abilities: `None`, or the reason why it is missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Probed {
    pub(super) network: Option<String>,
    pub(super) disk: Option<String>,
}

/// Converts a probe's report to a result.
pub(super) fn said(tried: Option<String>) -> Result<(), String> {
    tried.map_or(Ok(()), Err)
}

/// Returns the name under which a variable of the child is passed through the helper.
pub(super) fn handed_on(name: &OsStr) -> OsString {
    let mut handed = OsString::from(CHILD);
    handed.push(name);
    handed
}
