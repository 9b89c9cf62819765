//! The table `idempotency`: responses that are sent again for repeated requests.

use rusqlite::{Connection, OptionalExtension, params};

use super::value::{int, limit, uint};
use crate::store::IdempotencyRow;

/// Stores a response.
pub fn put(conn: &Connection, row: &IdempotencyRow) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "INSERT OR REPLACE INTO idempotency (principal, route, key, created_ms, body, answer)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?
    .execute(params![row.principal, row.route, row.key, int(row.created_ms), row.body, row.answer,])
    .map(drop)
}

/// Returns true if a key is unused.
pub fn is_free(
    conn: &Connection,
    principal: &str,
    route: &str,
    key: &str,
) -> rusqlite::Result<bool> {
    conn.prepare_cached(
        "SELECT 1 FROM idempotency WHERE principal = ?1 AND route = ?2 AND key = ?3",
    )?
    .exists([principal, route, key])
    .map(|used| !used)
}

/// Returns the response stored under a key.
pub fn one(
    conn: &Connection,
    principal: &str,
    route: &str,
    key: &str,
) -> rusqlite::Result<Option<IdempotencyRow>> {
    conn.prepare_cached(
        "SELECT principal, route, key, created_ms, body, answer FROM idempotency
         WHERE principal = ?1 AND route = ?2 AND key = ?3",
    )?
    .query_row([principal, route, key], |row| {
        Ok(IdempotencyRow {
            principal: row.get(0)?,
            route: row.get(1)?,
            key: row.get(2)?,
            created_ms: uint(row, 3)?,
            body: row.get(4)?,
            answer: row.get(5)?,
        })
    })
    .optional()
}

/// Removes the response stored under a key (principal, route, key), if it was stored before a time.
pub fn forget(
    conn: &Connection,
    [principal, route, key]: [&str; 3],
    before_ms: u64,
) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "DELETE FROM idempotency
         WHERE principal = ?1 AND route = ?2 AND key = ?3 AND created_ms < ?4",
    )?
    .execute(params![principal, route, key, int(before_ms)])
    .map(drop)
}

/// Removes responses stored before a time.
pub fn expire(conn: &Connection, before_ms: u64, rows: usize) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "DELETE FROM idempotency WHERE (principal, route, key) IN (
             SELECT principal, route, key FROM idempotency WHERE created_ms < ?1
             ORDER BY created_ms LIMIT ?2)",
    )?
    .execute(params![int(before_ms), limit(rows)])
    .map(drop)
}

/// Returns true if there are responses from before a time.
pub fn has_expired(conn: &Connection, before_ms: u64) -> rusqlite::Result<bool> {
    conn.prepare_cached("SELECT 1 FROM idempotency WHERE created_ms < ?1 LIMIT 1")?
        .exists([int(before_ms)])
}
