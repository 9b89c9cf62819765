//! Preparation of a migration: a check of the disk space, and a copy of the database to go back to.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rusqlite::{Connection, OpenFlags};

use super::{
    backup,
    connection::{DATABASE, sync},
    error::{database, file},
    format,
    mark::Mark,
};
use crate::{
    fault,
    store::{StoreError, Survey},
};

/// The minimum disk space in bytes, however small the database is.
const LEAST: u64 = 1 << 20;

/// Returns the requirements of migrating the database of `dir`. The database may be in use.
///
/// # Errors
/// Returns [`StoreError::Newer`]. Fails on errors of the file system or the database.
pub fn survey(dir: &Path) -> Result<Survey, StoreError> {
    let path = dir.join(DATABASE);
    let conn = open(&path)?;
    survey_of(&conn, &path)
}

/// Ensures that a copy of the current database in `dir` (in format `from`) exists, and returns its
/// path. On failure nothing has changed.
///
/// # Errors
/// Returns [`StoreError::NoRoom`]. Fails on errors of the file system or the database.
pub fn keep(dir: &Path, from: u32) -> Result<PathBuf, StoreError> {
    let path = dir.join(DATABASE);
    let conn = open(&path)?;
    let Survey { needs, free, .. } = survey_of(&conn, &path)?;
    let no_room =
        || StoreError::NoRoom { path: path.display().to_string(), format: from, needs, free };
    if free < needs {
        return Err(no_room());
    }
    let now = Mark::of(&conn)?;
    drop(conn);
    let mut number = 1;
    let kept = loop {
        let name = match number {
            1 => format!("backup-format-{from}.db"),
            more => format!("backup-format-{from}-{more}.db"),
        };
        let kept = dir.join(name);
        if !kept.exists() {
            break kept;
        }
        // A previous start made the copy and was then killed.
        if is_of(&kept, from, &now) {
            return Ok(kept);
        }
        number += 1;
    };
    let draft = kept.with_extension("part");
    if draft.exists() {
        fs::remove_file(&draft).map_err(file("remove", &draft))?;
    }
    backup::copy(&path, &draft).map_err(|error| match error {
        StoreError::Full => no_room(),
        error => error,
    })?;
    fs::rename(&draft, &kept).map_err(file("rename", &draft))?;
    sync(dir)?;
    fault::point("store.backed_up");
    Ok(kept)
}

fn open(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Connection::open_with_flags(path, flags).map_err(database(format!("open {}", path.display())))
}

fn survey_of(conn: &Connection, path: &Path) -> Result<Survey, StoreError> {
    let format = format::check(conn, path)?;
    let size = conn
        .query_row(
            "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size",
            [],
            |row| row.get::<_, i64>(0),
        )
        .map_err(database(format!("measure {}", path.display())))?;
    let size = u64::try_from(size).unwrap_or_default();
    let dir = path.parent().unwrap_or(Path::new("."));
    let stat = rustix::fs::statvfs(dir).map_err(|error| file("measure", dir)(error.into()))?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    Ok(Survey { format, size, needs: LEAST + size + format::growth(format, size), free })
}

/// Returns true if a file is a copy of a database in this format with the progress `now`.
fn is_of(kept: &Path, from: u32, now: &Mark) -> bool {
    let Ok(conn) = open(kept) else { return false };
    format::check(&conn, kept).is_ok_and(|found| found == from)
        && Mark::of(&conn).is_ok_and(|found| found == *now)
}
