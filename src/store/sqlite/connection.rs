//! Connections to a database file, and the file itself.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    time::Duration,
};

use rusqlite::{Connection, OpenFlags, config::DbConfig};

use super::{
    error::{database, file},
    format,
};
use crate::store::StoreError;

/// The database's name within the data directory.
pub(super) const DATABASE: &str = "moonswarm.db";
/// Prepared statements that a connection keeps: more than there are.
const STATEMENTS: usize = 64;
/// How long a statement waits for a lock, which a checkpoint, a recovery or another program takes.
const BUSY: Duration = Duration::from_secs(60);

/// When a commit counts as done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Synchronous {
    /// When it is on the disk.
    Full,
    /// When the kernel has it: survives a killed process, not a power loss. For tests.
    Normal,
}

/// Creates an empty file that only its owner reads; SQLite gives its log the same mode.
pub(super) fn create(path: &Path) -> Result<(), StoreError> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map(drop)
        .map_err(file("create", path))
}

/// Makes the names of new files durable.
pub(super) fn sync(dir: &Path) -> Result<(), StoreError> {
    let sync = |path: &Path| File::open(path).and_then(|dir| dir.sync_all());
    sync(dir).map_err(file("sync", dir))?;
    match dir.canonicalize().as_deref().map(Path::parent) {
        Ok(Some(parent)) => sync(parent).map_err(file("sync", parent)),
        Ok(None) | Err(_) => Ok(()),
    }
}

/// The connection that writes, with the database in this program's format.
pub(super) fn writable(path: &Path, synchronous: Synchronous) -> Result<Connection, StoreError> {
    let mut conn = connect(path)?;
    let found = format::check(&conn, path)?;
    let failed = || database(format!("configure {}", path.display()));
    if found == 0 {
        format::lay_out(&conn).map_err(failed())?;
    }
    let synchronous = match synchronous {
        Synchronous::Full => "FULL",
        Synchronous::Normal => "NORMAL",
    };
    // Only a file without tables takes up the first of these; it has to come before the log.
    conn.execute_batch(&format!(
        "PRAGMA auto_vacuum = INCREMENTAL; PRAGMA journal_mode = WAL;
         PRAGMA synchronous = {synchronous}; PRAGMA temp_store = MEMORY;"
    ))
    .map_err(failed())?;
    format::migrate(&mut conn, found)?;
    Ok(conn)
}

/// A connection that reads and writes.
pub(super) fn connect(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)
        .and_then(|conn| {
            conn.busy_timeout(BUSY)?;
            // Closing must not write: after a failed sync the log is all that can be trusted.
            conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
            Ok(conn)
        })
        .map_err(database(format!("open {}", path.display())))?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(conn)
}

/// A connection that reads.
pub(super) fn reader(path: &Path) -> Result<Connection, StoreError> {
    let conn = connect(path)?;
    conn.execute_batch("PRAGMA query_only = ON; PRAGMA temp_store = MEMORY;")
        .map_err(database(format!("configure {}", path.display())))?;
    Ok(conn)
}
