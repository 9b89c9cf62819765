//! The protocol between the host and the launcher: orders and reports.
//!
//! An order is one message with five files: the socket for the reports of this child, the text of the
//! order, and the child's three streams. The socket comes first: a launcher without room for all files
//! says there that it has none.

use std::{ffi::OsString, path::PathBuf};

use serde::{Deserialize, Serialize};

use super::{plan::NotBegun, veil::Cover};

/// The number of files that come with an order.
pub(super) const FILES: usize = 5;
/// The maximum size of a report, in bytes.
pub(super) const LONGEST: usize = 8 * 1024;

/// The first message of a launcher: its abilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ready {
    /// True if it can start the children that it is for: with [`LAUNCH_COVERED`], those from whom the
    /// data directory is hidden.
    ///
    /// [`LAUNCH_COVERED`]: super::plan::LAUNCH_COVERED
    pub(super) able: bool,
}

/// A child to start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Order {
    /// The directory to hide.
    pub(super) cover: Option<Cover>,
    /// The initial working directory.
    pub(super) cwd: PathBuf,
    pub(super) program: String,
    pub(super) arguments: Vec<String>,
    /// Its whole environment.
    pub(super) variables: Vec<(String, OsString)>,
}

#[cfg(test)]
impl Order {
    /// A program in the root directory, without arguments and variables.
    pub(super) fn of(program: &str) -> Self {
        Self {
            cover: None,
            cwd: PathBuf::from("/"),
            program: program.to_owned(),
            arguments: Vec::new(),
            variables: Vec::new(),
        }
    }
}

/// A report about one child.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Report {
    /// The child was started, in a process group with this number.
    Begun(i32),
    /// The child was not started.
    Not(NotBegun),
    /// The child has ended with this wait status, and its process group was killed. No other process
    /// has its number until the host has closed the socket.
    Ended(i32),
}
