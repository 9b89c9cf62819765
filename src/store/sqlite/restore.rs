//! A data directory from a backup.
//!
//! The copy is a life of its own: it forgets the incarnation that it comes from, every open run
//! changes hands, and what somebody elsewhere held is tried again. So nothing that the original
//! gave out is good in it, and nothing of it is done twice under the same name.

use std::{
    fs::{self, DirBuilder, File},
    os::unix::fs::DirBuilderExt,
    path::Path,
};

use rusqlite::{Connection, OpenFlags};

use super::{
    backup, check,
    connection::{DATABASE, Synchronous, sync, writable},
    error::{database, file},
    format, header,
    lock::Lock,
    mark::Mark,
    value::{int, uint},
};
use crate::store::StoreError;

/// What a restored data directory holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restored {
    /// Runs that have ended.
    pub ended: u64,
    /// Runs that go on when it is opened.
    pub open: u64,
    /// Attempts that were out of the host: each is tried again.
    pub reopened: u64,
}

/// Makes a data directory of a backup.
///
/// # Errors
/// [`StoreError::Occupied`] when something is in `dir`, [`StoreError::Owned`], [`StoreError::Newer`],
/// [`StoreError::Damaged`] for a file that is not whole, and what the file system or the database
/// say. The directory is then as it was, but for its lock.
pub fn restore(from: &Path, dir: &Path) -> Result<Restored, StoreError> {
    verify(from)?;
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(file("create", dir))?;
    // Held to the end: no host opens what is not finished.
    let _lock = Lock::take(dir)?;
    vacant(dir)?;
    let draft = dir.join("moonswarm.draft");
    let restored = backup::copy(from, &draft).and_then(|_| begin_anew(&draft)).and_then(|found| {
        File::open(&draft).and_then(|it| it.sync_all()).map_err(file("sync", &draft))?;
        fs::rename(&draft, dir.join(DATABASE)).map_err(file("rename", &draft))?;
        Ok(found)
    });
    if restored.is_err() {
        for name in ["moonswarm.draft", "moonswarm.draft-wal", "moonswarm.draft-shm"] {
            // It may not have been made.
            let _ = fs::remove_file(dir.join(name));
        }
    }
    let restored = restored?;
    sync(dir)?;
    Ok(restored)
}

/// Whether a file is a whole database of ours, in a format that is known.
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

fn vacant(dir: &Path) -> Result<(), StoreError> {
    for entry in fs::read_dir(dir).map_err(file("list", dir))? {
        let name = entry.map_err(file("list", dir))?.file_name();
        if name != "lock" {
            return Err(StoreError::Occupied {
                path: dir.display().to_string(),
                found: name.to_string_lossy().into_owned(),
            });
        }
    }
    Ok(())
}

/// Cuts the copy off from the life that it comes from.
fn begin_anew(draft: &Path) -> Result<Restored, StoreError> {
    let mut conn = writable(draft, Synchronous::Full)?;
    change_hands(&mut conn)
        .and_then(|restored| {
            // Only the file itself is moved to its place: nothing may be left beside it.
            conn.pragma_update(None, "journal_mode", "DELETE")?;
            Ok(restored)
        })
        .map_err(database("give the copy a life of its own"))
}

/// Cuts a database that has lost commits off from the life in which they were made: what that gave
/// out is good for nothing, and its numbers up to `mark` are not given again.
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
    // The first start makes another incarnation, with keys of its own.
    tx.execute_batch(
        "DELETE FROM meta WHERE key IN ('incarnation', 'bad_ends', 'taking_up', 'mark')",
    )?;
    let open = tx.execute(&format!("UPDATE runs SET epoch = epoch + 1 WHERE {OPEN}"), [])?;
    // Whoever held an attempt cannot report any more: its run is looked at when the host starts.
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
