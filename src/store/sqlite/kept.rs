//! The tables `kept` and `audit`: values of middleware layers, and the audit log.

use rusqlite::{Connection, OptionalExtension, params};

use super::value::{int, json, limit, uint, uint_or_null};
use crate::store::{AuditRow, KeptRow};

/// Stores a value.
pub fn put(
    conn: &Connection,
    (layer, key): (&str, &str),
    value: &str,
    expires_ms: Option<u64>,
) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "INSERT INTO kept (layer, key, expires_ms, value) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (layer, key) DO UPDATE SET
             expires_ms = excluded.expires_ms, value = excluded.value",
    )?
    .execute(params![layer, key, expires_ms.map(int), value])
    .map(drop)
}

/// Removes a value.
pub fn remove(conn: &Connection, layer: &str, key: &str) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM kept WHERE layer = ?1 AND key = ?2")?
        .execute([layer, key])
        .map(drop)
}

/// Removes values that expired before `before_ms`.
pub fn expire(conn: &Connection, before_ms: u64, rows: usize) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "DELETE FROM kept WHERE (layer, key) IN (
             SELECT layer, key FROM kept WHERE expires_ms < ?1 ORDER BY expires_ms LIMIT ?2)",
    )?
    .execute(params![int(before_ms), limit(rows)])
    .map(drop)
}

/// Returns true if there are values that expired before `before_ms`.
pub fn has_expired(conn: &Connection, before_ms: u64) -> rusqlite::Result<bool> {
    conn.prepare_cached("SELECT 1 FROM kept WHERE expires_ms < ?1 LIMIT 1")?
        .exists([int(before_ms)])
}

/// Returns a value and its expiry.
pub fn one(
    conn: &Connection,
    layer: &str,
    key: &str,
) -> rusqlite::Result<Option<(String, Option<u64>)>> {
    conn.prepare_cached("SELECT value, expires_ms FROM kept WHERE layer = ?1 AND key = ?2")?
        .query_row([layer, key], |row| {
            let expires: Option<i64> = row.get(1)?;
            let value = json(row, 0, || format!("what layer {layer} keeps under {key:?}"))?;
            Ok((value, expires.map(|at| u64::try_from(at).unwrap_or(0))))
        })
        .optional()
}

/// Returns the values of a layer under keys after another, sorted by key.
pub fn of(
    conn: &Connection,
    (layer, after): (&str, &str),
    limit: usize,
) -> rusqlite::Result<Vec<KeptRow>> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    conn.prepare_cached(
        "SELECT key, value, expires_ms FROM kept WHERE layer = ?1 AND key > ?2 ORDER BY key LIMIT ?3",
    )?
    .query_map(params![layer, after, limit], |row| {
        let value = json(row, 1, || format!("a value that layer {layer} keeps"))?;
        Ok(KeptRow { key: row.get(0)?, value, expires_ms: uint_or_null(row, 2)? })
    })?
    .collect()
}

/// Appends a line to the audit log.
pub fn add_line(conn: &Connection, row: &AuditRow) -> rusqlite::Result<()> {
    conn.prepare_cached("INSERT INTO audit (seq, at, line, hash) VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![int(row.seq), row.at, row.line, row.hash])
        .map(drop)
}

/// Returns the lines with numbers over `after`, in order.
pub fn lines(conn: &Connection, after: u64, limit: usize) -> rusqlite::Result<Vec<AuditRow>> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    conn.prepare_cached(
        "SELECT seq, at, line, hash FROM audit WHERE seq > ?1 ORDER BY seq LIMIT ?2",
    )?
    .query_map(params![int(after), limit], line)?
    .collect()
}

/// Returns the last line.
pub fn last_line(conn: &Connection) -> rusqlite::Result<Option<AuditRow>> {
    conn.prepare_cached("SELECT seq, at, line, hash FROM audit ORDER BY seq DESC LIMIT 1")?
        .query_row([], line)
        .optional()
}

fn line(row: &rusqlite::Row<'_>) -> rusqlite::Result<AuditRow> {
    Ok(AuditRow { seq: uint(row, 0)?, at: row.get(1)?, line: row.get(2)?, hash: row.get(3)? })
}
