//! The format of the database file: whose it is, its version, and the way from older versions.

use std::path::Path;

use rusqlite::{Connection, TransactionBehavior};

use super::error::database;
use crate::{fault, store::StoreError};

/// `moon` in ASCII; marks the file as ours.
const APPLICATION_ID: i32 = 0x6d6f_6f6e;
/// What SQLite calls a file whose free pages can be given back a few at a time.
const INCREMENTAL: u32 = 2;

/// The step from one format to the next. Those that a file needs are made together.
struct Migration {
    /// What must be so before, and cannot be done within a transaction. A host that was killed in
    /// it does it again, so it looks first whether it is needed.
    prepare: Option<fn(&Connection) -> rusqlite::Result<()>>,
    /// The change, which commits together with the number of the newest format.
    sql: &'static str,
    /// What of the change SQL cannot say, in the same transaction.
    fill: Option<fn(&Connection) -> rusqlite::Result<()>>,
}

impl Migration {
    const fn of(sql: &'static str) -> Self {
        Self { prepare: None, sql, fill: None }
    }
}

/// The step from each format to the next; the newest format is their number.
const MIGRATIONS: &[Migration] = &[
    Migration::of(include_str!("migrations/0001_initial.sql")),
    Migration {
        prepare: Some(make_reclaimable),
        ..Migration::of(include_str!("migrations/0002_reclaim.sql"))
    },
    Migration::of(include_str!("migrations/0003_sessions.sql")),
    Migration::of(include_str!("migrations/0004_state.sql")),
    Migration::of(include_str!("migrations/0005_layers.sql")),
    Migration {
        fill: Some(super::state_text::fill),
        ..Migration::of(include_str!("migrations/0006_scoped_words.sql"))
    },
    Migration::of(include_str!("migrations/0007_trust.sql")),
    Migration { fill: Some(sums), ..Migration::of(include_str!("migrations/0008_sums.sql")) },
];

/// The newest format that this program knows.
pub fn known() -> u32 {
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

/// Lays out a file that is still empty; on any other this changes nothing.
///
/// # Errors
/// What the database says.
pub fn lay_out(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch("PRAGMA auto_vacuum = INCREMENTAL")
}

/// The room that bringing a file of `size` bytes from a format to the newest takes, about: pages that
/// are written anew stand in the log as well.
pub fn growth(from: u32, size: u64) -> u64 {
    match from {
        // The whole file is written anew.
        0 | 1 => size.saturating_mul(2),
        from if from < known() => size / 2,
        _ => 0,
    }
}

/// Brings the file from format `found` to the newest, all of it or nothing; a start after one that
/// was interrupted does it again.
///
/// # Errors
/// What the database says.
pub fn migrate(conn: &mut Connection, found: u32) -> Result<(), StoreError> {
    migrate_to(conn, found, known())
}

/// The same, to a format that need not be the newest.
pub(super) fn migrate_to(conn: &mut Connection, found: u32, to: u32) -> Result<(), StoreError> {
    let steps = &MIGRATIONS[..to as usize];
    let Some(steps) = steps.get(found as usize..).filter(|steps| !steps.is_empty()) else {
        return Ok(());
    };
    run(conn, steps, to)
        .map_err(database(format!("migrate the database from format {found} to {to}")))?;
    if found > 0 {
        tracing::info!(from = found, to, "migrated the database");
    }
    Ok(())
}

fn run(conn: &mut Connection, steps: &[Migration], to: u32) -> rusqlite::Result<()> {
    for prepare in steps.iter().filter_map(|step| step.prepare) {
        prepare(conn)?;
    }
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for step in steps {
        tx.execute_batch(step.sql)?;
        if let Some(fill) = step.fill {
            fill(&tx)?;
        }
    }
    tx.pragma_update(None, "application_id", APPLICATION_ID)?;
    tx.pragma_update(None, "user_version", to)?;
    fault::point("store.migrate");
    tx.commit()?;
    fault::point("store.migrated");
    Ok(())
}

/// What SQL cannot say of format 8.
fn sums(conn: &Connection) -> rusqlite::Result<()> {
    super::journal::fill(conn)?;
    super::header::seal(conn, "1")
}

/// Writes a file anew that cannot give free pages back, so that it can.
fn make_reclaimable(conn: &Connection) -> rusqlite::Result<()> {
    let mode: u32 = conn.pragma_query_value(None, "auto_vacuum", |row| row.get(0))?;
    if mode == INCREMENTAL {
        return Ok(());
    }
    tracing::info!("writing the database anew, once; this needs room for a second copy of it");
    fault::point("store.rewrite");
    conn.execute_batch("PRAGMA auto_vacuum = INCREMENTAL; VACUUM;")?;
    fault::point("store.rewritten");
    Ok(())
}
