//! The table `sessions`: open and closed sessions.

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::value::{int, limit, uint, uint_or_null};
use crate::store::SessionRow;

/// The columns, in the order of [`read`].
macro_rules! columns {
    () => {
        "id, operator, principal, jti, until_ms, created_ms, expires_ms, direct, last_seq, \
         acked_seq, closed_ms, reason"
    };
}

/// Stores a session.
pub fn put(conn: &Connection, row: &SessionRow) -> rusqlite::Result<()> {
    conn.prepare_cached(concat!(
        "INSERT OR REPLACE INTO sessions (",
        columns!(),
        ") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)"
    ))?
    .execute(params![
        row.id,
        row.operator,
        row.principal,
        row.jti,
        int(row.until_ms),
        int(row.created_ms),
        int(row.expires_ms),
        row.direct,
        int(row.last_seq),
        int(row.acked_seq),
        row.closed_ms.map(int),
        row.reason,
    ])
    .map(drop)
}

/// Extends the lifetime of a session.
pub fn extend(conn: &Connection, id: &str, expires_ms: u64) -> rusqlite::Result<()> {
    conn.prepare_cached("UPDATE sessions SET expires_ms = max(expires_ms, ?2) WHERE id = ?1")?
        .execute(params![id, int(expires_ms)])
        .map(drop)
}

/// Closes a session. Only the first call has an effect.
pub fn close(conn: &Connection, id: &str, at_ms: u64, reason: &str) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "UPDATE sessions SET closed_ms = ?2, reason = ?3 WHERE id = ?1 AND closed_ms IS NULL",
    )?
    .execute(params![id, int(at_ms), reason])?;
    conn.prepare_cached("DELETE FROM frames WHERE session = ?1")?.execute([id]).map(drop)
}

/// Removes sessions that were closed before a time.
pub fn forget(conn: &Connection, before_ms: u64, rows: usize) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "DELETE FROM sessions WHERE id IN (
             SELECT id FROM sessions WHERE closed_ms < ?1 ORDER BY closed_ms LIMIT ?2)",
    )?
    .execute(params![int(before_ms), limit(rows)])
    .map(drop)
}

/// Returns true if there are sessions that were closed before a time.
pub fn has_old(conn: &Connection, before_ms: u64) -> rusqlite::Result<bool> {
    conn.prepare_cached("SELECT 1 FROM sessions WHERE closed_ms < ?1 LIMIT 1")?
        .exists([int(before_ms)])
}

/// Sets the number of a session's last frame. Never decreases it.
pub fn count(conn: &Connection, id: &str, last_seq: u64) -> rusqlite::Result<()> {
    conn.prepare_cached("UPDATE sessions SET last_seq = max(last_seq, ?2) WHERE id = ?1")?
        .execute(params![id, int(last_seq)])
        .map(drop)
}

/// Sets the number of the last acknowledged frame. Never decreases it.
pub fn acknowledge(conn: &Connection, id: &str, seq: u64) -> rusqlite::Result<()> {
    conn.prepare_cached("UPDATE sessions SET acked_seq = max(acked_seq, ?2) WHERE id = ?1")?
        .execute(params![id, int(seq)])
        .map(drop)
}

/// Returns the open sessions, oldest first.
pub fn open(conn: &Connection) -> rusqlite::Result<Vec<SessionRow>> {
    conn.prepare(concat!(
        "SELECT ",
        columns!(),
        " FROM sessions WHERE closed_ms IS NULL ORDER BY created_ms, id"
    ))?
    .query_map([], read)?
    .collect()
}

/// Returns one session.
pub fn one(conn: &Connection, id: &str) -> rusqlite::Result<Option<SessionRow>> {
    conn.prepare_cached(concat!("SELECT ", columns!(), " FROM sessions WHERE id = ?1"))?
        .query_row([id], read)
        .optional()
}

fn read(row: &Row<'_>) -> rusqlite::Result<SessionRow> {
    Ok(SessionRow {
        id: row.get(0)?,
        operator: row.get(1)?,
        principal: row.get(2)?,
        jti: row.get(3)?,
        until_ms: uint(row, 4)?,
        created_ms: uint(row, 5)?,
        expires_ms: uint(row, 6)?,
        direct: row.get(7)?,
        last_seq: uint(row, 8)?,
        acked_seq: uint(row, 9)?,
        closed_ms: uint_or_null(row, 10)?,
        reason: row.get(11)?,
    })
}
