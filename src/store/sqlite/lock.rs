//! The ownership of a data directory, as a lock that the kernel drops with its process.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
};

use rustix::fs::{FlockOperation, flock};

use super::error::file;
use crate::store::StoreError;

/// The file's name within the data directory.
pub const NAME: &str = "lock";

/// Held as long as the data directory is ours.
///
/// The directory itself is locked too, so that nobody gets past a lock whose file was removed.
pub struct Lock {
    /// The locks live as long as these descriptors.
    _files: (File, File),
}

impl Lock {
    /// Takes the lock of `dir` and writes our process id into its file.
    ///
    /// # Errors
    /// [`StoreError::Owned`] when somebody has it, and what the file system says.
    pub fn take(dir: &Path) -> Result<Self, StoreError> {
        let path = dir.join(NAME);
        let directory = File::open(dir).map_err(file("open", dir))?;
        let mut held = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(file("open", &path))?;
        match flock(&held, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(owned(dir, &mut held)),
            Err(error) => return Err(file("lock", &path)(error.into())),
        }
        // Some file systems do not lock directories; the file's lock is what counts there.
        if flock(&directory, FlockOperation::NonBlockingLockExclusive)
            == Err(rustix::io::Errno::WOULDBLOCK)
            || !is_at(&held, &path).map_err(file("read", &path))?
        {
            return Err(owned(dir, &mut held));
        }
        write_pid(&mut held).map_err(file("write", &path))?;
        Ok(Self { _files: (held, directory) })
    }
}

/// Whether a file is what is found under its name: it may have been removed before it was locked.
fn is_at(held: &File, path: &Path) -> io::Result<bool> {
    let (ours, found) = (held.metadata()?, std::fs::metadata(path)?);
    Ok((ours.dev(), ours.ino()) == (found.dev(), found.ino()))
}

fn write_pid(held: &mut File) -> io::Result<()> {
    held.set_len(0)?;
    held.rewind()?;
    write!(held, "{}", std::process::id())
}

fn owned(dir: &Path, held: &mut File) -> StoreError {
    let mut pid = String::new();
    // The owner may be between taking the lock and writing its id; the refusal stands anyway.
    if held.read_to_string(&mut pid).is_err() || pid.trim().is_empty() {
        pid = "unknown".to_owned();
    }
    StoreError::Owned { path: dir.display().to_string(), pid: pid.trim().to_owned() }
}
