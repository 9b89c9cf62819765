//! The table `blobs`: bytes by hash.

use rusqlite::{Connection, OptionalExtension, params, types::Value};

use super::error::Unreadable;
use crate::store::{StoreError, rows::is_blob};

/// Stores bytes. Bytes that are already stored under the hash are replaced only if they differ,
/// which means that they are damaged.
pub fn put(conn: &Connection, hash: &str, data: &[u8]) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "INSERT INTO blobs (hash, data) VALUES (?1, ?2) ON CONFLICT (hash)
         DO UPDATE SET data = excluded.data WHERE data <> excluded.data",
    )?
    .execute(params![hash, data])
    .map(drop)
}

/// Returns stored bytes, after verifying their hash.
pub fn one(conn: &Connection, hash: &str) -> rusqlite::Result<Option<Vec<u8>>> {
    let data: Option<Vec<u8>> = conn
        .prepare_cached("SELECT data FROM blobs WHERE hash = ?1")?
        .query_row([hash], |row| row.get(0))
        .optional()?;
    match data.as_ref().map(|data| is_blob(hash, data)) {
        Some(Err(StoreError::Damaged { what, reason })) => Err(Unreadable { what, reason }.into()),
        _ => Ok(data),
    }
}

/// Deletes a blob if no artifact refers to it any more.
pub fn delete_unused(conn: &Connection, hash: &Value) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "DELETE FROM blobs WHERE hash = ?1
         AND NOT EXISTS (SELECT 1 FROM artifacts WHERE artifacts.hash = ?1)",
    )?
    .execute(params![hash])
    .map(drop)
}
