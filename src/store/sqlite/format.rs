//! The format of the database file: application id, version and migrations.

use std::path::Path;

use rusqlite::{Connection, TransactionBehavior};

use super::error::database;
use crate::{fault, store::StoreError};

/// `moon` in ASCII; identifies the file as a moonswarm database.
const APPLICATION_ID: i32 = 0x6d6f_6f6e;
/// The `auto_vacuum` mode in which free pages can be released a few at a time.
const INCREMENTAL: u32 = 2;

/// The migration from one format to the next. All migrations that a file needs run together.
struct Migration {
    /// Preparation that cannot run inside a transaction. It may run again after a crash, so it must
    /// first check whether it is needed.
    prepare: Option<fn(&Connection) -> rusqlite::Result<()>>,
    /// The change. Commits together with the number of the newest format.
    sql: &'static str,
    /// The part of the change that SQL cannot express, in the same transaction.
    fill: Option<fn(&Connection) -> rusqlite::Result<()>>,
}

impl Migration {
    const fn of(sql: &'static str) -> Self {
        Self { prepare: None, sql, fill: None }
    }
}

/// The migrations in order. Their count is the newest format.
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
    Migration {
        fill: Some(super::stats::fill),
        ..Migration::of(include_str!("migrations/0009_stats.sql"))
    },
    Migration {
        fill: Some(super::run_index::fill),
        ..Migration::of(include_str!("migrations/0010_runs.sql"))
    },
];

/// Returns the newest format that this program knows.
pub fn known() -> u32 {
    u32::try_from(MIGRATIONS.len()).expect("there are few migrations")
}

/// Reads the format of the file behind `conn` without changing it.
///
/// # Errors
/// Returns [`StoreError::Newer`]. Fails when the file is not a moonswarm database.
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
        let remedy = "use the release that wrote it".to_owned();
        let path = path.display().to_string();
        return Err(StoreError::Newer { path, found, known: known(), remedy });
    }
    Ok(found)
}

/// Sets the layout of an empty file. Has no effect on any other file.
///
/// # Errors
/// Returns the database's error.
pub fn lay_out(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch("PRAGMA auto_vacuum = INCREMENTAL")
}

/// Estimates the extra disk space for migrating a file of `size` bytes to the newest format.
/// Rewritten pages also take space in the log.
pub fn growth(from: u32, size: u64) -> u64 {
    match from {
        // The whole file is rewritten.
        0 | 1 => size.saturating_mul(2),
        from if from < known() => size / 2,
        _ => 0,
    }
}

/// Migrates the file from format `found` to the newest one, as a whole or not at all. The start
/// after an interrupted migration repeats it.
///
/// # Errors
/// Returns the database's error.
pub fn migrate(conn: &mut Connection, found: u32) -> Result<(), StoreError> {
    migrate_to(conn, found, known())
}

/// Migrates the file to a given format.
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

/// Fills the columns of format 8 that SQL cannot compute.
fn sums(conn: &Connection) -> rusqlite::Result<()> {
    super::journal::fill(conn)?;
    super::header::seal_format_8(conn)
}

/// Rewrites a file in which free pages cannot be released, so that they can.
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
