//! Restore: a new data directory from a backup.
//!
//! The copy is independent of the original: it drops the original's incarnation, every open run
//! gets a new epoch, and attempts held elsewhere are retried. So no handle or token of the original
//! is valid in it, and no work is done twice under the same name.

use std::{
    fs::{self, File},
    path::Path,
};

use rusqlite::{Connection, OpenFlags};

use super::{
    backup, check,
    connection::{DATABASE, Synchronous, sync, writable},
    error::{database, file},
    format, header,
    mark::Mark,
    value::{int, uint},
};
use crate::store::{
    StoreError,
    lock::{Lock, make_private_dir},
};

/// The file that becomes the database when the copy is complete, and those that SQLite may have
/// beside it.
const DRAFT: [&str; 3] = ["moonswarm.draft", "moonswarm.draft-wal", "moonswarm.draft-shm"];

/// The content of a restored data directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restored {
    /// The number of ended runs.
    pub ended: u64,
    /// The number of runs that continue when the directory is opened.
    pub open: u64,
    /// The number of attempts that were delivered to workers. Each is retried.
    pub reopened: u64,
}

/// Creates a data directory from a backup.
///
/// # Errors
/// Returns [`StoreError::Occupied`] if `dir` is not empty, [`StoreError::Owned`],
/// [`StoreError::Newer`], or [`StoreError::Damaged`] if the backup is not intact. Fails on errors
/// of the file system or the database. The directory is then unchanged, except for its lock and for
/// what a restore that was killed has left.
pub fn restore(from: &Path, dir: &Path) -> Result<Restored, StoreError> {
    verify(from)?;
    make_private_dir(dir)?;
    // Held to the end, so that no host opens an incomplete directory.
    let _lock = Lock::take(dir)?;
    vacant(dir)?;
    remove_draft(dir);
    let draft = dir.join(DRAFT[0]);
    let restored = backup::copy(from, &draft).and_then(|_| begin_anew(&draft)).and_then(|found| {
        File::open(&draft).and_then(|it| it.sync_all()).map_err(file("sync", &draft))?;
        fs::rename(&draft, dir.join(DATABASE)).map_err(file("rename", &draft))?;
        Ok(found)
    });
    if restored.is_err() {
        remove_draft(dir);
    }
    let restored = restored?;
    sync(dir)?;
    Ok(restored)
}

/// Checks that a file is an intact moonswarm database in a known format.
fn verify(from: &Path) -> Result<(), StoreError> {
    let context = || format!("open {}", from.display());
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(from, flags).map_err(database(context()))?;
    if format::check(&conn, from)? == 0 {
        let reason = "it is not a database of moonswarm".to_owned();
        return Err(StoreError::Database { context: context(), reason });
    }
    match check::pages(&conn, "integrity_check", 1)?.pop() {
        None => Ok(()),
        Some(reason) => Err(StoreError::Damaged { what: from.display().to_string(), reason }),
    }
}

fn remove_draft(dir: &Path) {
    for name in DRAFT {
        // It may not exist.
        let _ = fs::remove_file(dir.join(name));
    }
}

/// Checks that a directory has nothing but its lock, and what a restore that was killed has left.
fn vacant(dir: &Path) -> Result<(), StoreError> {
    for entry in fs::read_dir(dir).map_err(file("list", dir))? {
        let name = entry.map_err(file("list", dir))?.file_name();
        if name != "lock" && !DRAFT.iter().any(|draft| name == *draft) {
            return Err(StoreError::Occupied {
                path: dir.display().to_string(),
                found: name.to_string_lossy().into_owned(),
            });
        }
    }
    Ok(())
}

/// Makes the copy independent of the original.
fn begin_anew(draft: &Path) -> Result<Restored, StoreError> {
    let mut conn = writable(draft, Synchronous::Full)?;
    change_hands(&mut conn)
        .and_then(|restored| {
            // Only the database file itself is moved to its place, so it must have no log.
            conn.pragma_update(None, "journal_mode", "DELETE")?;
            Ok(restored)
        })
        .map_err(database("give the copy a life of its own"))
}

/// Makes a database that has lost commits independent of its past: its handles and tokens become
/// invalid, and its numbers up to `mark` are not allocated again.
pub fn begin_after(conn: &mut Connection, mark: &Mark) -> Result<(), StoreError> {
    conn.execute(
        "UPDATE high_water SET run = max(run, ?1), lsn = max(lsn, ?2)",
        [int(mark.run), int(mark.lsn)],
    )
    .and_then(|_| change_hands(conn))
    .map(drop)
    .map_err(database("begin anew after a loss"))
}

fn change_hands(conn: &mut Connection) -> rusqlite::Result<Restored> {
    const OPEN: &str = "status NOT IN ('completed', 'failed', 'canceled')";
    let tx = conn.transaction()?;
    // The first start creates a new incarnation with its own keys.
    tx.execute_batch(
        "DELETE FROM meta WHERE key IN ('incarnation', 'bad_ends', 'taking_up', 'mark')",
    )?;
    let open = tx.execute(&format!("UPDATE runs SET epoch = epoch + 1 WHERE {OPEN}"), [])?;
    // Workers that held an attempt can no longer report. Their runs are loaded when the host
    // starts.
    tx.execute_batch(
        "UPDATE runs SET wake_at_ms = 0 WHERE status NOT IN ('paused', 'completed', 'failed', 'canceled')
             AND num IN (SELECT run FROM tasks WHERE phase = 'delivered')",
    )?;
    header::seal(&tx, OPEN)?;
    let reopened =
        tx.query_row("SELECT count(*) FROM tasks WHERE phase = 'delivered'", [], |row| {
            uint(row, 0)
        })?;
    let ended = header::ended(&tx)?;
    tx.commit()?;
    Ok(Restored { ended, open: open as u64, reopened })
}
