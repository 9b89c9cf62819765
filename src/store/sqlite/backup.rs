//! Backup: a copy of the database while it is in use.
//!
//! The copy is consistent: it is read in one transaction beside the writer, and written without
//! free pages. The writer continues meanwhile; only its log cannot be truncated before the end.

use std::{fs::File, path::Path};

use rusqlite::{Connection, OpenFlags};

use super::{
    connection::create,
    error::{database, file},
};
use crate::store::StoreError;

/// Copies the database at `from` into the new file `to`, synced, and returns its size in bytes.
///
/// # Errors
/// Fails when `to` exists, and on errors of the file system or the database.
pub fn copy(from: &Path, to: &Path) -> Result<u64, StoreError> {
    let context = || format!("copy the database into {}", to.display());
    if to.exists() {
        return Err(StoreError::Database { context: context(), reason: "it exists".to_owned() });
    }
    // Created here for its mode (readable only by its owner). SQLite treats an empty file as a new
    // database.
    create(to)?;
    let written = write(from, to, context);
    if written.is_err() {
        // An incomplete copy is useless. The error below gives the reason.
        let _ = std::fs::remove_file(to);
    }
    written
}

fn write(from: &Path, to: &Path, context: impl Fn() -> String) -> Result<u64, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(from, flags)
        .map_err(database(format!("open {}", from.display())))?;
    let name = to.to_str().ok_or_else(|| StoreError::Database {
        context: context(),
        reason: "its name is not UTF-8".to_owned(),
    })?;
    let mode: i64 = conn
        .pragma_query_value(None, "auto_vacuum", |row| row.get(0))
        .map_err(database(context()))?;
    if mode == 0 {
        // Sets the layout of the copy. The database itself does not change.
        conn.execute_batch("PRAGMA auto_vacuum = INCREMENTAL;").map_err(database(context()))?;
    }
    conn.execute("VACUUM INTO ?1", [name]).map_err(database(context()))?;
    let copy = File::open(to).map_err(file("open", to))?;
    copy.sync_all().map_err(file("sync", to))?;
    Ok(copy.metadata().map_err(file("read", to))?.len())
}
