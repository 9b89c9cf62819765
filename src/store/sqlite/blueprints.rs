//! The tables `blueprints` and `blueprint_names`: versions, and what each name stands for now.

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::value::{int, uint};
use crate::store::BlueprintRow;

/// Stores a version, if it is not there or not what was stored.
pub fn put(conn: &Connection, version: &BlueprintRow) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "INSERT INTO blueprints (hash, name, created_ms, bundle) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (hash) DO UPDATE SET bundle = excluded.bundle WHERE bundle <> excluded.bundle",
    )?
    .execute(params![version.hash, version.name, int(version.created_ms), version.bundle])
    .map(drop)
}

/// Lets a name stand for a version.
pub fn name(conn: &Connection, name: &str, hash: &str, at_ms: u64) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "INSERT OR REPLACE INTO blueprint_names (name, hash, at_ms) VALUES (?1, ?2, ?3)",
    )?
    .execute(params![name, hash, int(at_ms)])
    .map(drop)
}

/// A version by its whole hash.
pub fn one(conn: &Connection, hash: &str) -> rusqlite::Result<Option<BlueprintRow>> {
    conn.prepare_cached("SELECT hash, name, created_ms, bundle FROM blueprints WHERE hash = ?1")?
        .query_row([hash], read)
        .optional()
}

/// The hash that a name stands for.
pub fn named(conn: &Connection, name: &str) -> rusqlite::Result<Option<String>> {
    conn.prepare_cached("SELECT hash FROM blueprint_names WHERE name = ?1")?
        .query_row([name], |row| row.get(0))
        .optional()
}

/// The versions of a name whose hash begins with `prefix`, newest first.
pub fn versions(
    conn: &Connection,
    name: &str,
    prefix: &str,
) -> rusqlite::Result<Vec<BlueprintRow>> {
    conn.prepare_cached(
        "SELECT hash, name, created_ms, bundle FROM blueprints
         WHERE name = ?1 AND substr(hash, 1, length(?2)) = ?2
         ORDER BY created_ms DESC, rowid DESC",
    )?
    .query_map([name, prefix], read)?
    .collect()
}

/// Names with their hash and when it was set, sorted.
pub fn names(conn: &Connection) -> rusqlite::Result<Vec<(String, String, u64)>> {
    conn.prepare_cached("SELECT name, hash, at_ms FROM blueprint_names ORDER BY name")?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, uint(row, 2)?)))?
        .collect()
}

fn read(row: &Row<'_>) -> rusqlite::Result<BlueprintRow> {
    Ok(BlueprintRow {
        hash: row.get(0)?,
        name: row.get(1)?,
        created_ms: uint(row, 2)?,
        bundle: row.get(3)?,
    })
}
