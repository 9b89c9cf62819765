//! The program that confines itself and becomes the child: this one, by its hidden verb.

use std::{
    io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::{
    bubblewrap::Bubblewrap,
    confine::{PROBE, Probed, VERB},
};

/// Where the program is, and what may go around it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Helper {
    program: PathBuf,
    bubblewrap: Option<Bubblewrap>,
}

/// The program that runs now.
const SELF: &str = "/proc/self/exe";

impl Helper {
    /// The program that runs now, also if its file was replaced since it began.
    pub fn own() -> Self {
        Self::at(SELF)
    }

    /// The program at a path.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { program: path.into(), bubblewrap: Bubblewrap::find() }
    }

    /// The same with this `bwrap` instead of the first one on the PATH; without one, if none.
    #[must_use]
    pub fn with_bubblewrap(self, path: Option<PathBuf>) -> Self {
        Self { bubblewrap: path.map(Bubblewrap::at), ..self }
    }

    /// The file to execute.
    pub(super) fn program(&self) -> &Path {
        &self.program
    }

    /// The file to execute, for another program that executes it.
    ///
    /// # Errors
    /// When the file of this program cannot be found.
    pub(super) fn path(&self) -> io::Result<PathBuf> {
        match self.program == Path::new(SELF) {
            true => std::env::current_exe(),
            false => Ok(self.program.clone()),
        }
    }

    /// What may go around it.
    pub(super) fn bubblewrap(&self) -> Option<&Bubblewrap> {
        self.bubblewrap.as_ref()
    }

    /// Lets it try what it can do here.
    pub(super) fn probe(&self) -> Result<Probed, String> {
        let output = Command::new(&self.program)
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
