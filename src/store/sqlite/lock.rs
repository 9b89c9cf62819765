//! The ownership of a data directory, as a lock that the kernel drops with its process.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
    time::{Duration, Instant},
};

use rustix::fs::{FlockOperation, flock};

use super::error::file;
use crate::store::StoreError;

/// The file's name within the data directory.
pub const NAME: &str = "lock";

/// How long a lock is waited for whose owner is dead: a child that it was just starting has the lock
/// as well, until it becomes the program that it was started for.
const DYING: Duration = Duration::from_secs(2);
const AGAIN: Duration = Duration::from_millis(5);
/// What the file says once its owner ended in order.
const NOBODY: u32 = 0;

/// Held as long as the data directory is ours.
///
/// The directory itself is locked too, so that nobody gets past a lock whose file was removed.
pub struct Lock {
    /// The locks live as long as these descriptors.
    file: File,
    _directory: File,
    /// What the file said before.
    before: u32,
    /// What it is to say once the lock is let go.
    leaves: u32,
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
        let until = now() + DYING;
        loop {
            match flock(&held, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    if now() >= until || read_pid(&mut held).is_none_or(is_alive) {
                        return Err(owned(dir, &mut held));
                    }
                    std::thread::park_timeout(AGAIN);
                }
                Err(error) => return Err(file("lock", &path)(error.into())),
            }
        }
        // Some file systems do not lock directories; the file's lock is what counts there.
        if !is_free(&directory, until) || !is_at(&held, &path).map_err(file("read", &path))? {
            return Err(owned(dir, &mut held));
        }
        let before = read_pid(&mut held).unwrap_or(NOBODY);
        write_pid(&mut held, std::process::id()).map_err(file("write", &path))?;
        Ok(Self { file: held, _directory: directory, before, leaves: before })
    }

    /// Whether the owner before this one did not give the directory up: it died.
    pub fn owner_died(&self) -> bool {
        self.before != NOBODY
    }

    /// The directory is open: when the lock is let go, its owner ended in order. Before, the file
    /// goes on saying what it said.
    pub fn opened(mut self) -> Self {
        self.leaves = NOBODY;
        self
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Who is not told takes us for dead, and is only more careful.
        let _ = write_pid(&mut self.file, self.leaves);
    }
}

#[expect(clippy::disallowed_methods, reason = "it waits for the kernel, before there is a host")]
fn now() -> Instant {
    Instant::now()
}

/// Locks the directory, whose lock a child of a dead owner may have as well.
fn is_free(directory: &File, until: Instant) -> bool {
    while flock(directory, FlockOperation::NonBlockingLockExclusive)
        == Err(rustix::io::Errno::WOULDBLOCK)
    {
        if now() >= until {
            return false;
        }
        std::thread::park_timeout(AGAIN);
    }
    true
}

/// Whether a file is what is found under its name: it may have been removed before it was locked.
fn is_at(held: &File, path: &Path) -> io::Result<bool> {
    let (ours, found) = (held.metadata()?, fs::metadata(path)?);
    Ok((ours.dev(), ours.ino()) == (found.dev(), found.ino()))
}

/// Writes over what is there, so that it needs no room on a full disk.
fn write_pid(held: &mut File, pid: u32) -> io::Result<()> {
    let text = pid.to_string();
    held.rewind()?;
    held.write_all(text.as_bytes())?;
    held.set_len(text.len() as u64)
}

fn read_pid(held: &mut File) -> Option<u32> {
    let mut pid = String::new();
    held.rewind().ok()?;
    held.read_to_string(&mut pid).ok()?;
    pid.trim().parse().ok()
}

/// Whether a process is there and is more than what is left of one until its parent asks for it.
fn is_alive(pid: u32) -> bool {
    if pid == NOBODY {
        return false;
    }
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => {
            let state = stat.rsplit(')').next().map(str::trim_start);
            !state.is_some_and(|state| state.starts_with(['Z', 'X']))
        }
        Err(_) if Path::new("/proc/self/stat").exists() => false,
        Err(_) => i32::try_from(pid)
            .ok()
            .and_then(rustix::process::Pid::from_raw)
            .is_some_and(|pid| rustix::process::test_kill_process(pid).is_ok()),
    }
}

fn owned(dir: &Path, held: &mut File) -> StoreError {
    // The owner may be between taking the lock and writing its id; the refusal stands anyway.
    let pid = read_pid(held).filter(|pid| *pid != NOBODY);
    let pid = pid.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string());
    StoreError::Owned { path: dir.display().to_string(), pid }
}
