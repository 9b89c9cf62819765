//! The table `meta`: values of the host itself.

use rusqlite::{Connection, OptionalExtension};

use crate::store::UNSTORED;

/// Stores a value.
pub fn put(conn: &Connection, key: &str, value: &str) -> rusqlite::Result<()> {
    conn.prepare_cached("INSERT OR REPLACE INTO meta (key, value) VALUES (?1, ?2)")?
        .execute([key, value])
        .map(drop)
}

/// Returns a value.
pub fn one(conn: &Connection, key: &str) -> rusqlite::Result<Option<String>> {
    conn.prepare_cached("SELECT value FROM meta WHERE key = ?1")?
        .query_row([key], |row| row.get(0))
        .optional()
}

/// Returns the runs that are to be deleted after they end.
pub fn unstored(conn: &Connection) -> rusqlite::Result<Vec<u64>> {
    let mut keys = conn.prepare_cached(
        "SELECT key FROM meta WHERE key >= 'unstored:' AND key < 'unstored;' LIMIT 1000",
    )?;
    let keys = keys.query_map([], |row| row.get::<_, String>(0))?;
    let runs = keys.map(|key| key.map(|key| key[UNSTORED.len()..].parse().ok()));
    runs.filter_map(Result::transpose).collect()
}

/// Removes a value.
pub fn delete(conn: &Connection, key: &str) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM meta WHERE key = ?1")?.execute([key]).map(drop)
}
