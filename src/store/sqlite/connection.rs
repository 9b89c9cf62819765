//! Connections to a database file, and the creation of the file.

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

/// The name of the database within the data directory.
pub(super) const DATABASE: &str = "moonswarm.db";
/// The capacity of a connection's statement cache; larger than the number of statements.
const STATEMENTS: usize = 64;
/// The timeout of a statement for a lock held by a checkpoint, a recovery or another program.
const BUSY: Duration = Duration::from_secs(60);

/// The moment at which a commit counts as done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Synchronous {
    /// When it is on disk.
    Full,
    /// When the kernel has it. Survives a killed process, but not a power loss. For tests.
    Normal,
}

/// Creates an empty file that only its owner can read. SQLite gives its log the same mode.
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

/// Makes the directory entries of new files durable.
pub(super) fn sync(dir: &Path) -> Result<(), StoreError> {
    let sync = |path: &Path| File::open(path).and_then(|dir| dir.sync_all());
    sync(dir).map_err(file("sync", dir))?;
    match dir.canonicalize().as_deref().map(Path::parent) {
        Ok(Some(parent)) => sync(parent).map_err(file("sync", parent)),
        Ok(None) | Err(_) => Ok(()),
    }
}

/// Opens the connection that writes, and migrates the database to this program's format.
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
    // `auto_vacuum` affects only a file without tables, and must be set before the log exists.
    conn.execute_batch(&format!(
        "PRAGMA auto_vacuum = INCREMENTAL; PRAGMA journal_mode = WAL;
         PRAGMA synchronous = {synchronous}; PRAGMA temp_store = MEMORY;"
    ))
    .map_err(failed())?;
    format::migrate(&mut conn, found)?;
    Ok(conn)
}

/// Opens a connection that reads and writes.
pub(super) fn connect(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)
        .and_then(|conn| {
            conn.busy_timeout(BUSY)?;
            // Closing must not write: after a failed sync, only the log can be trusted.
            conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
            Ok(conn)
        })
        .map_err(database(format!("open {}", path.display())))?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(conn)
}

/// Opens a connection that reads.
pub(super) fn reader(path: &Path) -> Result<Connection, StoreError> {
    let conn = connect(path)?;
    conn.execute_batch("PRAGMA query_only = ON; PRAGMA temp_store = MEMORY;")
        .map_err(database(format!("configure {}", path.display())))?;
    Ok(conn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sqlite_is_built_with_the_flags_of_the_repository() {
        let conn = Connection::open_in_memory().unwrap();
        let sql = "SELECT sqlite_compileoption_used('DEFAULT_MEMSTATUS=0')";
        let is_used: bool = conn.query_row(sql, [], |row| row.get(0)).unwrap();
        assert!(is_used, "it was built without LIBSQLITE3_FLAGS of .cargo/config.toml");
    }
}
