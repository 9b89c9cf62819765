//! The lock of the processes that end a host's children: the next host of the data directory waits for it.
//!
//! When a host is killed, its launchers (`births.rs`) and its death watch (`death_watch.rs`) outlive it
//! for a moment, to kill its children. Each holds this lock, which the kernel releases with the process.
//! A host that starts while one of them still works would repeat an attempt whose child is still alive.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    process::Stdio,
    sync::mpsc,
    time::Duration,
};

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};

use super::place::make_private;

/// The lock of one host's processes. Without an owner of the data directory nothing is locked: the
/// processes of a command beside a host are no reason for that host to wait.
#[derive(Debug, Default)]
pub(super) struct ChildrenLock(Mutex<Option<PathBuf>>);

impl ChildrenLock {
    /// Waits until the processes of an earlier host have ended, and locks for those that start from
    /// now on. Creates the directory.
    ///
    /// # Errors
    /// Fails with [`io::ErrorKind::TimedOut`] when they have not ended within the limit, and on errors
    /// of the file system. Those that start from now on lock all the same.
    pub(super) fn take_over(&self, directory: &Path, limit: Duration) -> io::Result<()> {
        make_private(directory)?;
        let file = File::open(directory)?;
        *self.0.lock() = Some(directory.to_owned());
        let (tell, ended) = mpsc::sync_channel(1);
        // The system has no limit for this wait. A thread that is left waiting does no harm.
        std::thread::Builder::new().name("children-lock".to_owned()).spawn(move || {
            // Some file systems do not lock directories; there is nothing to wait for.
            while flock(&file, FlockOperation::LockExclusive) == Err(rustix::io::Errno::INTR) {}
            drop(file);
            let _ = tell.send(());
        })?;
        ended.recv_timeout(limit).map_err(|_| io::ErrorKind::TimedOut.into())
    }

    /// Lets those that start from now on lock nothing: this host has ended.
    pub(super) fn give_up(&self) {
        *self.0.lock() = None;
    }

    /// Returns the locked directory, if this host owns the data directory.
    pub(super) fn directory(&self) -> Option<PathBuf> {
        self.0.lock().clone()
    }

    /// Returns the stdout of a process that prints nothing and is to hold the lock until it ends.
    pub(super) fn stdout(&self) -> Stdio {
        let file = self.0.lock().as_ref().and_then(|directory| File::open(directory).ok());
        file.map_or_else(Stdio::null, |file| {
            // A host that waits for the others keeps the lock for a moment only.
            let _ = flock(&file, FlockOperation::LockShared);
            Stdio::from(file)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_host_waits_for_the_processes_of_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let killed = ChildrenLock::default();
        killed.take_over(dir.path(), LONG).unwrap();
        let mut launcher = Command::new("cat");
        launcher.stdin(Stdio::piped()).stdout(killed.stdout());
        let mut working = launcher.spawn().unwrap();
        drop(launcher);

        let next = ChildrenLock::default();
        let waited = next.take_over(dir.path(), Duration::ZERO).unwrap_err();
        assert_eq!(waited.kind(), io::ErrorKind::TimedOut);
        drop(working.stdin.take());
        next.take_over(dir.path(), LONG).unwrap();
        assert!(working.wait().unwrap().success(), "nothing was written into the lock");
    }

    #[test]
    fn a_command_beside_a_host_locks_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let _stdout = ChildrenLock::default().stdout();
        ChildrenLock::default().take_over(dir.path(), LONG).unwrap();
    }
}
