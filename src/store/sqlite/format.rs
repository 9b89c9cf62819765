//! The format of the database file: whose it is, its version, and the way from older versions.

use std::path::Path;

use rusqlite::{Connection, TransactionBehavior};

use super::error::database;
use crate::store::StoreError;

/// `moon` in ASCII; marks the file as ours.
const APPLICATION_ID: i32 = 0x6d6f_6f6e;

/// The step from each format to the next; the newest format is their number.
const MIGRATIONS: &[&str] = &[include_str!("migrations/0001_initial.sql")];

/// The newest format that this program knows.
fn known() -> u32 {
    u32::try_from(MIGRATIONS.len()).expect("there are few migrations")
}

/// Reads the format of the file behind `conn` without changing it.
///
/// # Errors
/// [`StoreError::Newer`], and when the file is no database of ours.
pub fn check(conn: &Connection, path: &Path) -> Result<u32, StoreError> {
    let context = format!("open {}", path.display());
    let (owner, found, tables): (i32, u32, u32) = conn
        .query_row(
            "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema)
             FROM pragma_application_id, pragma_user_version",
            [],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
        )
        .map_err(database(context.clone()))?;
    let is_fresh = owner == 0 && found == 0 && tables == 0;
    if owner != APPLICATION_ID && !is_fresh {
        let reason = "it is not a database of moonswarm".to_owned();
        return Err(StoreError::Database { context, reason });
    }
    if found > known() {
        return Err(StoreError::Newer { path: path.display().to_string(), found, known: known() });
    }
    Ok(found)
}

/// Brings the file from format `found` to the newest, all or nothing.
///
/// # Errors
/// What the database says.
pub fn migrate(conn: &mut Connection, found: u32) -> Result<(), StoreError> {
    if found == known() {
        return Ok(());
    }
    run(conn, found).map_err(database(format!("migrate the database from format {found}")))
}

fn run(conn: &mut Connection, found: u32) -> rusqlite::Result<()> {
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for sql in &MIGRATIONS[found as usize..] {
        tx.execute_batch(sql)?;
    }
    tx.pragma_update(None, "application_id", APPLICATION_ID)?;
    tx.pragma_update(None, "user_version", known())?;
    tx.commit()
}
