//! The table `outbox`: signals and cancels between runs, and changes for stores of somebody else's,
//! that have not been delivered.
//!
//! The column `cancels` is 0 for a signal, 1 for a cancel, 2 for a change.

use rusqlite::{Connection, Row, params};

use super::{
    error::in_row,
    value::{int, json, limit, sound, uint},
};
use crate::store::{Errand, OutboxRow};

/// The kind of a change.
const CHANGE: u8 = 2;

/// Stores a message. A repetition for the same step has no effect.
pub fn put(conn: &Connection, row: &OutboxRow) -> rusqlite::Result<()> {
    // A cancel has the sender's id in the column `name`, and its reason in `payload`; a change has
    // its scope there.
    let (cancels, name, payload) = match &row.errand {
        Errand::Signal { name, payload } => (0, name.as_str(), payload),
        Errand::Cancel { by, reason } => (1, by.as_str(), reason),
        Errand::Change { scope, payload } => (CHANGE, scope.as_str(), payload),
    };
    conn.prepare_cached(
        "INSERT INTO outbox (run, step, target, name, payload, cancels)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (run, step) DO NOTHING",
    )?
    .execute(params![int(row.run), row.step, int(row.to), name, payload, cancels])
    .map(drop)
}

/// Removes a delivered message.
pub fn delete(conn: &Connection, run: u64, step: u32) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM outbox WHERE run = ?1 AND step = ?2")?
        .execute(params![int(run), step])
        .map(drop)
}

/// Removes the messages of a run.
pub fn delete_of(conn: &Connection, run: u64) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM outbox WHERE run = ?1")?.execute([int(run)]).map(drop)
}

/// Returns all messages, oldest first.
pub fn list(conn: &Connection) -> rusqlite::Result<Vec<OutboxRow>> {
    sound(
        conn.prepare_cached(
            "SELECT run, step, target, name, payload, cancels FROM outbox ORDER BY id",
        )?
        .query_map([], whole)?,
    )
}

/// Returns the changes of a scope, of a run, or of all, oldest first.
pub fn changes(
    conn: &Connection,
    scope: Option<&str>,
    run: Option<u64>,
    at_most: usize,
) -> rusqlite::Result<Vec<OutboxRow>> {
    sound(
        conn.prepare_cached(
            "SELECT run, step, target, name, payload, cancels FROM outbox
             WHERE cancels = ?1 AND (?2 IS NULL OR name = ?2) AND (?3 IS NULL OR run = ?3)
             ORDER BY id LIMIT ?4",
        )?
        .query_map(params![CHANGE, scope, run.map(int), limit(at_most)], whole)?,
    )
}

fn whole(row: &Row<'_>) -> rusqlite::Result<OutboxRow> {
    let what = || format!("the errand of run {}", row.get(0).unwrap_or(0));
    read(row, &what).map_err(in_row(what))
}

fn read(row: &Row<'_>, what: &impl Fn() -> String) -> rusqlite::Result<OutboxRow> {
    let errand = match row.get(5)? {
        0_u8 => Errand::Signal { name: row.get(3)?, payload: json(row, 4, what)? },
        CHANGE => Errand::Change { scope: row.get(3)?, payload: json(row, 4, what)? },
        _ => Errand::Cancel { by: row.get(3)?, reason: row.get(4)? },
    };
    Ok(OutboxRow { run: uint(row, 0)?, step: row.get(1)?, to: uint(row, 2)?, errand })
}
