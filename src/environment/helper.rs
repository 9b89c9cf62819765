//! The program that confines itself and becomes the child: this one, by its hidden verb.

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

/// Where the program is, and what may go around it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Helper {
    program: PathBuf,
    bubblewrap: Option<Bubblewrap>,
}

/// The program that runs now.
const SELF: &str = "/proc/self/exe";
/// Whether the program that runs now knows the verb: another would take it for something else, and
/// one that opens a host would do so again and again.
static ANSWERS: AtomicBool = AtomicBool::new(false);

/// Notes that the program that runs now knows the verb.
pub(super) fn answers() {
    ANSWERS.store(true, Ordering::Release);
}

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
            true => own_file(),
            false => Ok(self.program.clone()),
        }
    }

    /// Whether it can be used: this program only if its `main` calls [`super::confined`].
    pub(super) fn usable(&self) -> bool {
        self.program != Path::new(SELF) || ANSWERS.load(Ordering::Acquire)
    }

    /// What may go around it.
    pub(super) fn bubblewrap(&self) -> Option<&Bubblewrap> {
        self.bubblewrap.as_ref()
    }

    /// Lets it try what it can do here.
    pub(super) fn probe(&self) -> Result<Probed, String> {
        self.asked(&[PROBE.as_ref()])
    }

    /// Lets it try to hide a directory.
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

/// The file of the program that runs now. One that was replaced meanwhile is found in its place.
///
/// # Errors
/// When it is not there any more.
pub fn own_file() -> io::Result<PathBuf> {
    let file = std::env::current_exe()?;
    if file.is_file() {
        return Ok(file);
    }
    let name = file.as_os_str().as_bytes().strip_suffix(b" (deleted)");
    let replaced = name.map(|name| PathBuf::from(OsStr::from_bytes(name)));
    replaced.filter(|file| file.is_file()).ok_or_else(|| io::ErrorKind::NotFound.into())
}
