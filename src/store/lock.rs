//! Ownership of a data directory, as a file lock that the kernel releases with the process.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Seek, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::Path,
    time::{Duration, Instant},
};

use rustix::fs::{FlockOperation, flock};

use super::StoreError;

/// The name of the lock file within the data directory.
pub const NAME: &str = "lock";

/// The timeout for a lock whose owner is dead. A child that the owner was just starting also holds
/// the lock, until its exec.
const DYING: Duration = Duration::from_secs(2);
const AGAIN: Duration = Duration::from_millis(5);
/// The content of the file after a clean shutdown of its owner.
const NOBODY: u32 = 0;

/// Held as long as this process owns the data directory.
///
/// The directory itself is locked as well, so that removing the lock file does not circumvent the
/// lock.
pub struct Lock {
    /// The locks last as long as these descriptors.
    file: File,
    _directory: File,
    /// The content of the file before.
    before: u32,
    /// The content that the file gets on release.
    leaves: u32,
}

impl Lock {
    /// Locks `dir` and writes our process id into the file.
    ///
    /// # Errors
    /// Returns [`StoreError::Owned`] if another process has the lock. Fails on errors of the file
    /// system.
    pub fn take(dir: &Path) -> Result<Self, StoreError> {
        let path = dir.join(NAME);
        let directory = File::open(dir).map_err(file("open", dir))?;
        let mut held = open_private(&path)?;
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
        // Some file systems do not lock directories. There, the file's lock decides.
        if !is_free(&directory, until) || !is_at(&held, &path).map_err(file("read", &path))? {
            return Err(owned(dir, &mut held));
        }
        let before = read_pid(&mut held).unwrap_or(NOBODY);
        write_pid(&mut held, std::process::id()).map_err(file("write", &path))?;
        Ok(Self { file: held, _directory: directory, before, leaves: before })
    }

    /// Returns true if the previous owner died without a clean shutdown.
    pub fn owner_died(&self) -> bool {
        self.before != NOBODY
    }

    /// Marks the directory as open: from now on, releasing the lock counts as a clean shutdown.
    /// Before this call, a release restores the previous content.
    pub fn opened(mut self) -> Self {
        self.leaves = NOBODY;
        self
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // If this fails, the next owner assumes a crash and only takes more care.
        let _ = write_pid(&mut self.file, self.leaves);
    }
}

#[expect(clippy::disallowed_methods, reason = "it waits for the kernel, before there is a host")]
fn now() -> Instant {
    Instant::now()
}

/// Makes a directory that only this user may read, with those above it. One that exists stays as it is.
///
/// # Errors
/// Fails on errors of the file system.
pub fn make_private_dir(dir: &Path) -> Result<(), StoreError> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(file("create", dir))
}

/// Opens a file that only this user may read, with its content. Creates it if it does not exist.
///
/// # Errors
/// Fails on errors of the file system.
pub fn open_private(path: &Path) -> Result<File, StoreError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(file("open", path))
}

/// Converts the error of a file operation on `path`.
pub fn file(verb: &str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    move |error| match error.kind() {
        io::ErrorKind::StorageFull => StoreError::Full,
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
            StoreError::Database {
                context: format!("{verb} {}", path.display()),
                reason: format!(
                    "{error}; make it writable for this user, or name another directory with --data"
                ),
            }
        }
        _ => StoreError::Database {
            context: format!("{verb} {}", path.display()),
            reason: error.to_string(),
        },
    }
}

/// Locks the directory. Waits for a child of a dead owner that may hold the lock.
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

/// Returns true if an open file is still the one at its path. It may have been removed before it
/// was locked.
fn is_at(held: &File, path: &Path) -> io::Result<bool> {
    let (ours, found) = (held.metadata()?, fs::metadata(path)?);
    Ok((ours.dev(), ours.ino()) == (found.dev(), found.ino()))
}

/// Overwrites the content in place, so that a full disk is no problem.
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

/// Returns true if a process exists and is not a zombie.
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
    // The owner may not have written its id yet. The refusal is valid anyway.
    let pid = read_pid(held).filter(|pid| *pid != NOBODY);
    let pid = pid.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string());
    StoreError::Owned { path: dir.display().to_string(), pid }
}
