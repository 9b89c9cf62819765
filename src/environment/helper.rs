//! The program that confines itself and becomes the child: this one, by its hidden verb.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::confine::{PROBE, Probed, VERB};

/// Where the program is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Helper(PathBuf);

impl Helper {
    /// The program that runs now, also if its file was replaced since it began.
    pub fn own() -> Self {
        Self(PathBuf::from("/proc/self/exe"))
    }

    /// The program at a path.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// The file to execute.
    pub(super) fn program(&self) -> &Path {
        &self.0
    }

    /// Lets it try what it can do here.
    pub(super) fn probe(&self) -> Result<Probed, String> {
        let output = Command::new(&self.0)
            .args([VERB, PROBE])
            .env_clear()
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .map_err(|error| format!("the program that confines did not start: {error}"))?;
        serde_json::from_slice(&output.stdout)
            .map_err(|_| "the program that confines did not answer".to_owned())
    }
}
