//! The table `state`: values by scope and key.

use rusqlite::{Connection, params};

use super::value::{int, uint};
use crate::store::StateRow;

/// Writes a value and counts its revision up.
pub fn put(
    conn: &Connection,
    (scope, key): (&str, &str),
    value: &str,
    at_ms: u64,
) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "INSERT INTO state (scope, key, revision, updated_ms, value) VALUES (?1, ?2, 1, ?3, ?4)
         ON CONFLICT (scope, key) DO UPDATE SET
             revision = revision + 1, updated_ms = excluded.updated_ms, value = excluded.value",
    )?
    .execute(params![scope, key, int(at_ms), value])
    .map(drop)
}

/// Removes a value.
pub fn delete(conn: &Connection, scope: &str, key: &str) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM state WHERE scope = ?1 AND key = ?2")?
        .execute([scope, key])
        .map(drop)
}

/// Every value of a scope, sorted by key.
pub fn list(conn: &Connection, scope: &str) -> rusqlite::Result<Vec<StateRow>> {
    conn.prepare_cached(
        "SELECT scope, key, revision, updated_ms, value FROM state WHERE scope = ?1 ORDER BY key",
    )?
    .query_map([scope], |row| {
        Ok(StateRow {
            scope: row.get(0)?,
            key: row.get(1)?,
            revision: uint(row, 2)?,
            updated_ms: uint(row, 3)?,
            value: row.get(4)?,
        })
    })?
    .collect()
}

/// Removes every value of a scope.
pub fn delete_of(conn: &Connection, scope: &str) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM state WHERE scope = ?1")?.execute([scope]).map(drop)
}
