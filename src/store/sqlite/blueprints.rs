//! The tables `blueprints` and `blueprint_names`: versions, and the current version of each name.

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::value::{int, uint};
use crate::store::{BlueprintRow, VersionRow};

/// The length from which on a prefix is that of few hashes.
const LONG: usize = 4;

/// Stores a version, if it is not stored yet or is damaged. A given publisher replaces the stored
/// one.
pub fn put(conn: &Connection, version: &BlueprintRow) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "INSERT INTO blueprints (hash, name, created_ms, bundle, publisher)
         VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT (hash) DO UPDATE SET bundle = excluded.bundle,
             publisher = coalesce(excluded.publisher, publisher)
         WHERE bundle <> excluded.bundle OR excluded.publisher IS NOT NULL",
    )?
    .execute(params![
        version.hash,
        version.name,
        int(version.created_ms),
        version.bundle,
        version.publisher,
    ])
    .map(drop)
}

/// Makes a name refer to a version.
pub fn name(conn: &Connection, name: &str, hash: &str, at_ms: u64) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "INSERT OR REPLACE INTO blueprint_names (name, hash, at_ms) VALUES (?1, ?2, ?3)",
    )?
    .execute(params![name, hash, int(at_ms)])
    .map(drop)
}

/// Lets a name stand for nothing, if it stands for this version.
pub fn unname(conn: &Connection, name: &str, hash: &str) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM blueprint_names WHERE name = ?1 AND hash = ?2")?
        .execute(params![name, hash])
        .map(drop)
}

/// Deletes the versions of a name that no run has, and the name.
pub fn delete(conn: &Connection, name: &str) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM blueprint_names WHERE name = ?1")?.execute([name])?;
    conn.prepare_cached(
        "DELETE FROM blueprints WHERE name = ?1
         AND hash NOT IN (SELECT hash FROM runs WHERE blueprint = ?1)",
    )?
    .execute([name])
    .map(drop)
}

/// Erases a version that came with runs: no name stands for it, and no run has it any more.
pub fn erase(conn: &Connection, name: &str, hash: &str) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "DELETE FROM blueprints WHERE hash = ?2 AND publisher IS NULL
         AND hash NOT IN (SELECT hash FROM blueprint_names)
         AND NOT EXISTS (SELECT 1 FROM runs WHERE blueprint = ?1 AND hash = ?2)",
    )?
    .execute([name, hash])
    .map(drop)
}

/// Returns a version by its full hash.
pub fn one(conn: &Connection, hash: &str) -> rusqlite::Result<Option<BlueprintRow>> {
    conn.prepare_cached(
        "SELECT hash, name, created_ms, bundle, publisher FROM blueprints WHERE hash = ?1",
    )?
    .query_row([hash], read)
    .optional()
}

/// Returns the hash that a name refers to.
pub fn named(conn: &Connection, name: &str) -> rusqlite::Result<Option<String>> {
    conn.prepare_cached("SELECT hash FROM blueprint_names WHERE name = ?1")?
        .query_row([name], |row| row.get(0))
        .optional()
}

/// Returns the hash of the newest version of a name that has a publisher.
///
/// The publisher is stored behind the bundle. A test for null needs neither of them, so a bundle
/// stays unread.
pub fn last(conn: &Connection, name: &str) -> rusqlite::Result<Option<String>> {
    conn.prepare_cached(
        "SELECT hash FROM blueprints WHERE name = ?1 AND publisher IS NOT NULL
         ORDER BY created_ms DESC, rowid DESC LIMIT 1",
    )?
    .query_row([name], |row| row.get(0))
    .optional()
}

/// Returns the first hash of a name's versions whose hash starts with `prefix`, and the number of
/// these versions; only of those with a publisher if `published`. As [`last`], without the bundles.
pub fn like(
    conn: &Connection,
    name: &str,
    prefix: &str,
    published: bool,
) -> rusqlite::Result<Option<(String, u64)>> {
    // With a short prefix, only the versions of the name are looked at. With a long one, only the
    // hashes that have it: the plus keeps SQLite from the index of names.
    let column = if prefix.len() < LONG { "name" } else { "+name" };
    let sql = format!(
        "SELECT min(hash), count(*) FROM blueprints
         WHERE {column} = ?1 AND hash >= ?2 AND hash < ?3 AND substr(hash, 1, length(?2)) = ?2
         AND (NOT ?4 OR publisher IS NOT NULL)"
    );
    let end = format!("{prefix}{}", char::MAX);
    conn.prepare_cached(&sql)?.query_row(params![name, prefix, end, published], |row| {
        let first: Option<String> = row.get(0)?;
        let count = uint(row, 1)?;
        Ok(first.map(|hash| (hash, count)))
    })
}

/// Returns versions without their bundles, newest first, after one of them.
pub fn list(
    conn: &Connection,
    name: &str,
    after: Option<(u64, &str)>,
    limit: usize,
) -> rusqlite::Result<Vec<VersionRow>> {
    let (at, hash) = after.map_or((i64::MAX, ""), |(at_ms, hash)| (int(at_ms), hash));
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    conn.prepare_cached(
        "SELECT hash, created_ms, publisher IS NOT NULL FROM blueprints
         WHERE name = ?1 AND (created_ms, hash) < (?2, ?3)
         ORDER BY created_ms DESC, hash DESC LIMIT ?4",
    )?
    .query_map(params![name, at, hash, limit], |row| {
        Ok(VersionRow { hash: row.get(0)?, created_ms: uint(row, 1)?, published: row.get(2)? })
    })?
    .collect()
}

/// Returns names with their hash and the time it was set, sorted by name.
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
        publisher: row.get(4)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sqlite::format;

    #[test]
    fn versions_of_an_older_release_were_published_if_a_name_stands_for_them() {
        let mut conn = Connection::open_in_memory().unwrap();
        conn.execute_batch(include_str!("migrations/0001_initial.sql")).unwrap();
        for hash in ["named", "posted"] {
            let insert = "INSERT INTO blueprints (hash, name, created_ms, bundle)
                          VALUES (?1, 'x', 1, x'00')";
            conn.execute(insert, [hash]).unwrap();
        }
        name(&conn, "x", "named", 1).unwrap();
        format::migrate(&mut conn, 1).unwrap();
        let publisher = |hash: &str| one(&conn, hash).unwrap().unwrap().publisher;
        let grant: crate::token::Grant =
            serde_json::from_str(&publisher("named").unwrap()).unwrap();
        assert_eq!(grant, crate::token::Grant::everything());
        assert_eq!(publisher("posted"), None);
    }
}
