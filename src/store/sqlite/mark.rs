//! The mark: a small file beside the lock that records how far the database has come.
//!
//! Overwritten in place after the first commit of a start and after each checkpoint. It is outside
//! the database on purpose: a database that is behind its mark has lost commits, because its log
//! was removed or its file was rolled back.

use std::{fs, io, path::Path};

use rusqlite::Connection;
use serde::{Deserialize, Serialize};

use super::{
    error::{database, file},
    header, meta,
};
use crate::store::{StoreError, padded::PaddedFile};

/// The name of the file within the data directory.
const NAME: &str = "mark";
/// The maximum length of a stored reason, in characters.
const REASON: usize = 128;
/// The key in `meta` for the number of the last mark.
pub const KEY: &str = "mark";

/// The progress of a database.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Mark {
    /// The number of the mark. The database has the same number from the commit before this mark
    /// on.
    pub number: u64,
    /// The largest run number.
    pub run: u64,
    /// The largest number of a journal row.
    pub lsn: u64,
    /// True if the owner has not closed the database cleanly.
    pub open: bool,
    /// The reason why its owner gave it up, if the next one must check it.
    pub suspect: Option<String>,
}

impl Mark {
    /// Returns the progress of the database behind `conn`.
    ///
    /// # Errors
    /// Returns the database's error.
    pub fn of(conn: &Connection) -> Result<Self, StoreError> {
        let failed = || database("read how far the database has come");
        let (run, lsn) = header::high_water(conn).map_err(failed())?;
        let number = meta::one(conn, KEY).map_err(failed())?;
        let number = number.and_then(|number| number.parse().ok()).unwrap_or_default();
        Ok(Self { number, run, lsn, ..Self::default() })
    }

    /// Returns true if a database with the progress `found` has lost commits.
    pub fn is_ahead_of(&self, found: &Self) -> bool {
        self.number > found.number || self.run > found.run || self.lsn > found.lsn
    }
}

/// The file of a mark.
pub struct MarkFile {
    file: PaddedFile,
    mark: Mark,
}

impl MarkFile {
    /// Opens the mark file of `dir`. A missing or truncated mark counts as unknown progress.
    ///
    /// # Errors
    /// Fails on errors of the file system.
    pub fn open(dir: &Path, durable: bool) -> Result<Self, StoreError> {
        let (file, mark) = PaddedFile::open(&dir.join(NAME), durable)?;
        Ok(Self { file, mark: mark.unwrap_or_default() })
    }

    /// Returns the current mark.
    pub fn mark(&self) -> &Mark {
        &self.mark
    }

    /// Continues the numbers from a database with this progress, and clears the suspicion.
    pub fn begin(&mut self, found: &Mark) {
        let number = self.mark.number.max(found.number);
        self.mark = Mark { number, suspect: None, ..self.mark.clone() };
    }

    /// Writes a mark, if it differs from the current one.
    ///
    /// A failed write leaves the old mark. That is behind the database, which never counts as a
    /// loss.
    pub fn put(&mut self, mark: Mark) {
        if mark == self.mark {
            return;
        }
        match self.file.write(&mark) {
            Ok(()) => self.mark = mark,
            Err(error) => tracing::warn!(%error, "could not write the mark beside the database"),
        }
    }

    /// Records why the database is given up. The next start then checks it.
    pub fn suspect(&mut self, reason: &str) {
        // Only characters that need no escape: each takes at most four bytes, so that the file has
        // room.
        let plain = reason.chars().filter(|c| !c.is_control() && !matches!(c, '"' | '\\'));
        let reason = plain.take(REASON).collect();
        self.put(Mark { suspect: Some(reason), ..self.mark.clone() });
    }

    /// Records a clean shutdown.
    pub fn close(&mut self) {
        self.put(Mark { open: false, ..self.mark.clone() });
    }
}

/// Removes the mark of a directory, whose database is replaced.
///
/// # Errors
/// Fails on errors of the file system.
pub fn remove(dir: &Path) -> Result<(), StoreError> {
    let path = dir.join(NAME);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(file("remove", &path)(error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::padded::BYTES;

    #[test]
    fn a_mark_is_read_back_and_has_room_for_its_reason() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = MarkFile::open(dir.path(), true).unwrap();
        assert_eq!(*file.mark(), Mark::default());
        let mark = Mark { number: 7, run: 8, lsn: 9, open: true, suspect: None };
        file.put(mark.clone());
        file.suspect(&"\u{1}\"🌙".repeat(9_999));
        assert_eq!(std::fs::read(dir.path().join(NAME)).unwrap().len(), BYTES);
        file.put(Mark { suspect: None, ..mark.clone() });
        drop(file);
        assert_eq!(*MarkFile::open(dir.path(), true).unwrap().mark(), mark);
    }

    #[test]
    fn a_database_that_is_behind_in_anything_has_lost_commits() {
        let mark = Mark { number: 2, run: 2, lsn: 2, ..Mark::default() };
        assert!(!mark.is_ahead_of(&mark));
        assert!(!mark.is_ahead_of(&Mark { number: 3, lsn: 4, ..mark.clone() }));
        for behind in [
            Mark { number: 1, ..mark.clone() },
            Mark { run: 1, ..mark.clone() },
            Mark { lsn: 1, ..mark.clone() },
        ] {
            assert!(mark.is_ahead_of(&behind), "{behind:?}");
        }
    }
}
