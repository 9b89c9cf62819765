//! Files of the user that commands change: shown before, written as a whole.

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use super::{context::Context, exit::Stop};

/// Shows a change of somebody's files, and asks whether to make it.
///
/// # Errors
/// A terminal that cannot be read.
pub fn may(cx: &Context, yes: bool, shown: &str) -> Result<bool> {
    cx.terminal.say(shown);
    if yes {
        return Ok(true);
    }
    if !cx.terminal.asks {
        cx.terminal.say("nothing is written; --yes writes it");
        return Ok(false);
    }
    cx.terminal.say("write it? [y/N]");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).context("read the answer")?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Returns the directory of the user.
///
/// # Errors
/// `HOME` that is not set.
pub fn home() -> Result<PathBuf> {
    let home = std::env::var_os("HOME").filter(|it| !it.is_empty()).map(PathBuf::from);
    home.ok_or_else(|| Stop::usage("HOME is not set, and the file is below it").into())
}

/// Reads a file, if it is there.
///
/// # Errors
/// A file that cannot be read.
pub fn read_if_there(file: &Path) -> Result<Option<String>> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("read {}", file.display())),
    }
}

/// Writes a file that only its owner reads.
///
/// # Errors
/// A directory that cannot be written.
pub fn put_private(file: &Path, text: &str) -> Result<()> {
    use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
    let dir = file.parent().expect("it is below a directory");
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.with_context(|| format!("make {}", dir.display()))?;
    // A file that is there may have other permissions.
    let _ = fs::remove_file(file);
    let opened = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
    let mut opened = opened.with_context(|| format!("make {}", file.display()))?;
    let end = if text.ends_with('\n') { "" } else { "\n" };
    write!(opened, "{text}{end}").with_context(|| format!("write {}", file.display()))
}

/// Replaces a file as a whole; a link stays one, and so do the permissions.
///
/// # Errors
/// A directory that cannot be written.
pub fn put(file: &Path, text: &str) -> Result<()> {
    let write = || -> io::Result<()> {
        if let Some(dir) = file.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            fs::create_dir_all(dir)?;
        }
        let Ok(there) = fs::canonicalize(file) else { return fs::write(file, text) };
        let fresh = there.with_extension("moonswarm-new");
        put_private(&fresh, text).map_err(io::Error::other)?;
        fs::set_permissions(&fresh, fs::metadata(&there)?.permissions())?;
        fs::rename(&fresh, &there)
    };
    write().with_context(|| format!("write {}", file.display()))
}
