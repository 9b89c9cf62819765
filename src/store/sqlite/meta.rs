//! The table `meta`: what the host keeps about itself.

use rusqlite::{Connection, OptionalExtension};

/// Keeps a value.
pub fn put(conn: &Connection, key: &str, value: &str) -> rusqlite::Result<()> {
    conn.prepare_cached("INSERT OR REPLACE INTO meta (key, value) VALUES (?1, ?2)")?
        .execute([key, value])
        .map(drop)
}

/// A value.
pub fn one(conn: &Connection, key: &str) -> rusqlite::Result<Option<String>> {
    conn.prepare_cached("SELECT value FROM meta WHERE key = ?1")?
        .query_row([key], |row| row.get(0))
        .optional()
}

/// Forgets a value.
pub fn delete(conn: &Connection, key: &str) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM meta WHERE key = ?1")?.execute([key]).map(drop)
}
