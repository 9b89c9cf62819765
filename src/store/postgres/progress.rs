//! The progress of a database, as a data directory has seen it: a small file that outlives both.
//!
//! The file is outside the database on purpose: a database that is behind it has lost commits, because it
//! was restored to an earlier time, or a standby that was behind took over. Handles and answers that were given
//! out since then do not fit the runs in it, so they go on only with new ones.

use std::{fs, io, path::Path};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{
    failed::Failed,
    kept,
    session::Session,
    value::{damaged, uint},
    wire::Wire,
};
use crate::store::{Durability, Restored, StoreError, lock::file, padded::PaddedFile};

/// The name of the file within the data directory.
const NAME: &str = "progress";
/// The key of the mark of a database that lacks acknowledged commits.
const WENT_BACK: &str = "went_back";
/// The numbers of runs and of rows that are skipped after a loss: so many may have been given out.
const SKIPPED: i64 = 1 << 20;

/// The progress of a database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Progress {
    /// The life of the database: another one has numbers of its own.
    incarnation: String,
    /// The largest number of a run.
    run: u64,
    /// The largest number of a row of the journal.
    row: u64,
}

impl Progress {
    /// Reads that of a database; `None` before its first host has started.
    fn of(session: &Session) -> Result<Option<Self>, Failed> {
        let Some(incarnation) = kept::meta(session, "incarnation")? else { return Ok(None) };
        let (run, row) = high(session)?;
        Ok(Some(Self { incarnation, run, row }))
    }

    /// Returns true if a database with the progress `found` has lost commits.
    fn is_ahead_of(&self, found: &Self) -> bool {
        self.incarnation == found.incarnation && (self.run > found.run || self.row > found.row)
    }
}

/// The file of a data directory.
pub struct ProgressFile {
    file: PaddedFile,
    seen: Mutex<Option<Progress>>,
}

impl ProgressFile {
    /// Opens the file of the data directory `dir`.
    ///
    /// # Errors
    /// Fails on errors of the file system.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        let (file, seen) = PaddedFile::open(&dir.join(NAME), true)?;
        Ok(Self { file, seen: Mutex::new(seen) })
    }

    /// Returns true if the database has lost commits that this data directory, or any node, has seen.
    pub fn is_ahead(&self, session: &Session) -> Result<bool, Failed> {
        if kept::meta(session, WENT_BACK)?.is_some() {
            return Ok(true);
        }
        let found = Progress::of(session)?;
        let seen = self.seen.lock();
        Ok(seen.as_ref().zip(found).is_some_and(|(seen, found)| seen.is_ahead_of(&found)))
    }

    /// Checks that the database has lost no commits that this data directory has seen, unless a loss is
    /// accepted.
    ///
    /// # Errors
    /// Returns [`StoreError::Unfit`] if it has. Fails when the database cannot be read.
    pub fn check(
        &self,
        session: &Session,
        wire: &Wire,
        durability: Durability,
    ) -> Result<(), Failed> {
        if durability == Durability::Asynchronous || !self.is_ahead(session)? {
            return Ok(());
        }
        Err(Failed::Store(StoreError::Unfit {
            database: wire.address().to_string(),
            reason: "it lacks commits that this data directory or a node has seen, as after a restore to an \
                     earlier time or a failover to a standby that was behind; restore a newer copy, \
                     or let its runs go on from what is there with `moonswarm cluster restored`"
                .to_owned(),
        }))
    }

    /// Lets the runs of a database that lost commits go on, within a transaction of the host that takes it
    /// over, if a loss is accepted. Returns true if it has lost some.
    ///
    /// # Errors
    /// Fails like [`ProgressFile::check`].
    pub fn settle(
        &self,
        session: &Session,
        wire: &Wire,
        durability: Durability,
    ) -> Result<bool, Failed> {
        self.check(session, wire, durability)?;
        let has_lost = self.is_ahead(session)?;
        if has_lost {
            let restored = begin_anew(session)?;
            tracing::error!(
                open_runs = restored.open,
                "the database has lost commits, as asynchronous standbys may; handles from before are void, \
                 and open runs go on from what is there"
            );
        }
        Ok(has_lost)
    }

    /// Notes the progress of the database. If that fails, the older note stays, which never counts as a
    /// loss.
    pub fn note(&self, session: &Session) {
        let found = match Progress::of(session) {
            Ok(Some(found)) => found,
            Ok(None) => return,
            Err(error) => {
                tracing::debug!(
                    reason = error.reason(),
                    "the progress of the database is not read"
                );
                return;
            }
        };
        let mut seen = self.seen.lock();
        if seen.as_ref().is_some_and(|seen| *seen == found || seen.is_ahead_of(&found)) {
            return;
        }
        match self.file.write(&found) {
            Ok(()) => *seen = Some(found),
            Err(error) => tracing::warn!(%error, "failed to note the progress of the database"),
        }
    }
}

/// Removes the file of a data directory whose runs are copied.
///
/// # Errors
/// Fails on errors of the file system.
pub fn forget(dir: &Path) -> Result<(), StoreError> {
    let path = dir.join(NAME);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(file("remove", &path)(error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Returns the largest numbers of a run and of a row, also of those that were deleted.
pub fn high(session: &Session) -> Result<(u64, u64), Failed> {
    let row = session.one(
        "SELECT greatest(high_run, (SELECT coalesce(max(num), 0) FROM runs)),
                greatest(high_lsn, (SELECT coalesce(max(lsn), 0) FROM journal)) FROM cluster",
        &[],
    )?;
    let Some(row) = row else { return Err(Failed::Silent) };
    Ok((uint(&row, 0)?, uint(&row, 1)?))
}

/// Notes that the database lacks acknowledged commits, within a transaction: nobody drives it until it
/// begins anew.
pub fn note_loss(session: &Session) -> Result<(), Failed> {
    let sql = "INSERT INTO meta (key, value) VALUES ($1, '1') ON CONFLICT (key) DO NOTHING";
    session.execute(sql, &[&WENT_BACK.as_bytes()]).map(drop)
}

/// Makes a database that lost commits independent of its past, within a transaction of a session that may
/// take long: handles from before are no longer valid, attempts of workers are tried again, and the numbers
/// that may have been given out are not used again.
pub fn begin_anew(session: &Session) -> Result<Restored, Failed> {
    // The next start creates a new incarnation.
    session.execute(
        "DELETE FROM meta WHERE key IN ('incarnation', 'bad_ends', 'taking_up', 'went_back')",
        &[],
    )?;
    session.execute(
        "UPDATE cluster SET
             high_run = $1 + greatest(high_run, (SELECT coalesce(max(num), 0) FROM runs)),
             high_lsn = $1 + greatest(high_lsn, (SELECT coalesce(max(lsn), 0) FROM journal))",
        &[&SKIPPED],
    )?;
    // From 5 on a run has ended, and 3 is paused.
    let open = session.execute("UPDATE runs SET epoch = epoch + 1 WHERE status < 5", &[])?;
    // 1 is delivered: those workers can no longer report. Their runs are loaded when the host starts.
    session.execute(
        "UPDATE runs SET wake_at_ms = 0
         WHERE status < 5 AND status <> 3 AND num IN (SELECT run FROM tasks WHERE phase = 1)",
        &[],
    )?;
    let counts = session.one(
        "SELECT (SELECT count(*) FROM tasks WHERE phase = 1), (SELECT count(*) FROM runs WHERE status >= 5)",
        &[],
    )?;
    let counts = counts.ok_or_else(|| damaged("the database", "a count has no row"))?;
    Ok(Restored { ended: uint(&counts, 1)?, open, reopened: uint(&counts, 0)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_of_the_same_life_that_is_behind_in_anything_has_lost_commits() {
        let seen = Progress { incarnation: "7".to_owned(), run: 2, row: 2 };
        assert!(!seen.is_ahead_of(&seen));
        assert!(!seen.is_ahead_of(&Progress { run: 3, row: 4, ..seen.clone() }));
        assert!(seen.is_ahead_of(&Progress { run: 1, row: 4, ..seen.clone() }));
        assert!(seen.is_ahead_of(&Progress { row: 1, ..seen.clone() }));
        let other = Progress { incarnation: "8".to_owned(), run: 0, row: 0 };
        assert!(!seen.is_ahead_of(&other), "another database has numbers of its own");
    }
}
