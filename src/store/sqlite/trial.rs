//! A copy of a database that another release tries out, in a directory of its own.

use std::{
    fs::{self, DirBuilder, File},
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use super::{backup, connection::DATABASE, error::file};
use crate::store::StoreError;

/// The beginning of the names of the directories with copies.
const PREFIX: &str = ".upgrade-";
/// The data directory within one of them.
const DATA: &str = "data";

/// A copy of a database, gone when it is dropped.
///
/// Its directory is locked as long as its process lives, so that a start knows those that a killed
/// process left.
pub struct TrialCopy {
    dir: PathBuf,
    data: PathBuf,
    /// The lock lasts as long as this descriptor.
    _lock: File,
}

impl TrialCopy {
    /// Copies the database of `of` into a new directory below it. The database may be in use.
    ///
    /// # Errors
    /// Fails on errors of the file system or the database.
    pub fn make(of: &Path) -> Result<Self, StoreError> {
        let dir = of.join(format!("{PREFIX}{}", uuid::Uuid::new_v4().simple()));
        make_dir(&dir)?;
        let lock = File::open(&dir).map_err(file("open", &dir))?;
        // A start may look at it just now. Where files cannot be locked, no start removes it.
        while flock(&lock, FlockOperation::LockExclusive) == Err(Errno::INTR) {}
        let copy = Self { data: dir.join(DATA), dir, _lock: lock };
        make_dir(&copy.data)?;
        backup::copy(&of.join(DATABASE), &copy.data.join(DATABASE))?;
        Ok(copy)
    }

    /// The data directory that has the copy.
    pub fn data(&self) -> &Path {
        &self.data
    }
}

impl Drop for TrialCopy {
    fn drop(&mut self) {
        remove(&self.dir);
    }
}

/// Removes the copies of processes that were killed.
pub fn clear_trials(data: &Path) {
    let Ok(entries) = fs::read_dir(data) else { return };
    for entry in entries.flatten() {
        let is_dir = entry.file_type().is_ok_and(|it| it.is_dir());
        if !is_dir || !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let dir = entry.path();
        let Ok(held) = File::open(&dir) else { continue };
        // One without data has just been made, and is locked next. Earlier releases had the
        // database in the directory itself.
        let has_data = dir.join(DATA).exists() || dir.join(DATABASE).exists();
        if flock(&held, FlockOperation::NonBlockingLockExclusive).is_ok() && has_data {
            remove(&dir);
        }
    }
}

fn make_dir(dir: &Path) -> Result<(), StoreError> {
    DirBuilder::new().mode(0o700).create(dir).map_err(file("create", dir))
}

fn remove(dir: &Path) {
    if let Err(error) = fs::remove_dir_all(dir) {
        tracing::warn!(%error, dir = %dir.display(), "could not remove the copy of a database");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_of_a_killed_process_goes_and_one_in_use_stays() {
        let dir = tempfile::tempdir().unwrap();
        rusqlite::Connection::open(dir.path().join(DATABASE))
            .unwrap()
            .execute_batch("CREATE TABLE t (n INTEGER)")
            .unwrap();
        let left = dir.path().join(".upgrade-left");
        fs::create_dir_all(left.join(DATA)).unwrap();
        fs::write(left.join(DATA).join(DATABASE), "x").unwrap();
        let fresh = dir.path().join(".upgrade-fresh");
        fs::create_dir(&fresh).unwrap();
        let copy = TrialCopy::make(dir.path()).unwrap();
        clear_trials(dir.path());
        assert!(!left.exists());
        assert!(fresh.exists());
        assert!(copy.data().join(DATABASE).is_file());
        let there = copy.dir.clone();
        drop(copy);
        assert!(!there.exists());
    }
}
