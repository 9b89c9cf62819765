//! The helper that confines itself and becomes the child: this program, with its hidden verb.

use std::{
    ffi::OsStr,
    io,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
};

use serde::de::DeserializeOwned;

use super::{
    bubblewrap::Bubblewrap,
    plan::{PROBE, PROBE_VEIL, Probed, VERB},
};

/// The path of the helper, and the program that wraps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Helper {
    program: PathBuf,
    bubblewrap: Option<Bubblewrap>,
}

/// The path of the running program.
const SELF: &str = "/proc/self/exe";
/// True if the running program handles the verb. Another program would interpret it as something
/// else, and one that opens a host would recurse.
static ANSWERS: AtomicBool = AtomicBool::new(false);

/// Records that the running program handles the verb.
pub(super) fn answers() {
    ANSWERS.store(true, Ordering::Release);
}

impl Helper {
    /// Returns the running program, even if its file was replaced since its start.
    pub fn own() -> Self {
        Self::at(SELF)
    }

    /// Returns the program at a path.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { program: path.into(), bubblewrap: Bubblewrap::find() }
    }

    /// Replaces the `bwrap` found on the PATH. `None` disables it.
    #[must_use]
    pub fn with_bubblewrap(self, path: Option<PathBuf>) -> Self {
        Self { bubblewrap: path.map(Bubblewrap::at), ..self }
    }

    /// Returns the file to execute.
    pub(super) fn program(&self) -> &Path {
        &self.program
    }

    /// Returns the file to execute, for use by another program.
    ///
    /// # Errors
    /// Fails when the file of the running program cannot be found.
    pub(super) fn path(&self) -> io::Result<PathBuf> {
        match self.program == Path::new(SELF) {
            true => own_file(),
            false => Ok(self.program.clone()),
        }
    }

    /// Returns true if the helper can be used. The running program can only if its `main` calls
    /// [`super::confined`].
    pub(super) fn usable(&self) -> bool {
        self.program != Path::new(SELF) || ANSWERS.load(Ordering::Acquire)
    }

    /// Returns the program that can wrap the helper.
    pub(super) fn bubblewrap(&self) -> Option<&Bubblewrap> {
        self.bubblewrap.as_ref()
    }

    /// Probes what the helper can do on this machine.
    pub(super) fn probe(&self) -> Result<Probed, String> {
        self.asked(&[PROBE.as_ref()])
    }

    /// Probes whether the helper can hide a directory.
    pub(super) fn probe_veil(&self, data: &Path) -> Result<(), String> {
        self.asked::<Option<String>>(&[PROBE_VEIL.as_ref(), data.as_os_str()])?.map_or(Ok(()), Err)
    }

    fn asked<T: DeserializeOwned>(&self, words: &[&OsStr]) -> Result<T, String> {
        if !self.usable() {
            return Err(
                "the program that runs the host does not call `confined` in its `main`".into()
            );
        }
        let output = Command::new(&self.program)
            .arg(VERB)
            .args(words)
            .env_clear()
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .map_err(|error| format!("the program that confines did not start: {error}"))?;
        serde_json::from_slice(&output.stdout)
            .map_err(|_| "the program that confines did not answer".to_owned())
    }
}

/// Returns the file of the running program. If it was replaced, returns the new file in its place.
///
/// # Errors
/// Fails when the file does not exist any more.
pub fn own_file() -> io::Result<PathBuf> {
    let file = std::env::current_exe()?;
    if file.is_file() {
        return Ok(file);
    }
    let name = file.as_os_str().as_bytes().strip_suffix(b" (deleted)");
    let replaced = name.map(|name| PathBuf::from(OsStr::from_bytes(name)));
    replaced.filter(|file| file.is_file()).ok_or_else(|| io::ErrorKind::NotFound.into())
}
