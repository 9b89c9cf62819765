//! The table `state_links`: links between keys.

use rusqlite::{Connection, Row, params};

use super::value::limit;
use crate::protocol::MemoryLink;

/// Inserts or replaces a link (from, relation, to).
pub fn put(
    conn: &Connection,
    scope: &str,
    (from, relation, to): (&str, &str, &str),
    metadata: Option<&str>,
) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "INSERT OR REPLACE INTO state_links (scope, from_key, relation, to_key, metadata)
         VALUES (?1, ?2, ?3, ?4, ?5)",
    )?
    .execute(params![scope, from, relation, to, metadata])
    .map(drop)
}

/// Removes a link (from, relation, to).
pub fn delete(
    conn: &Connection,
    scope: &str,
    (from, relation, to): (&str, &str, &str),
) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "DELETE FROM state_links
         WHERE scope = ?1 AND from_key = ?2 AND relation = ?3 AND to_key = ?4",
    )?
    .execute([scope, from, relation, to])
    .map(drop)
}

/// Returns the links from a key, sorted by target, of one relation or of any.
pub fn from(
    conn: &Connection,
    scope: &str,
    key: &str,
    relation: Option<&str>,
    most: usize,
) -> rusqlite::Result<Vec<MemoryLink>> {
    conn.prepare_cached(
        "SELECT to_key, relation, metadata FROM state_links
         WHERE scope = ?1 AND from_key = ?2 AND (?3 IS NULL OR relation = ?3)
         ORDER BY to_key, relation LIMIT ?4",
    )?
    .query_map(params![scope, key, relation, limit(most)], |row| read(key.to_owned(), row))?
    .collect()
}

/// Returns all links of a scope, sorted by source and target.
pub fn of_scope(conn: &Connection, scope: &str) -> rusqlite::Result<Vec<MemoryLink>> {
    conn.prepare_cached(
        "SELECT to_key, relation, metadata, from_key FROM state_links
         WHERE scope = ?1 ORDER BY from_key, to_key, relation",
    )?
    .query_map([scope], |row| read(row.get(3)?, row))?
    .collect()
}

fn read(from: String, row: &Row<'_>) -> rusqlite::Result<MemoryLink> {
    let metadata: Option<String> = row.get(2)?;
    let mut link = MemoryLink::new(from, row.get::<_, String>(0)?, row.get::<_, String>(1)?);
    link.metadata = metadata.and_then(|text| serde_json::from_str(&text).ok());
    Ok(link)
}
