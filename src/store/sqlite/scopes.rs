//! The scopes of the table `state`.

use rusqlite::{Connection, OptionalExtension, params};

use super::value::{int, uint};
use crate::store::{MOST_COUNTED, ScopeFilter, ScopeRow};

/// Returns a page of scopes, sorted. Each is found by one seek in the index, whatever it has.
pub fn page(conn: &Connection, filter: &ScopeFilter) -> rusqlite::Result<Vec<ScopeRow>> {
    let mut next =
        conn.prepare_cached("SELECT scope FROM state WHERE scope > ?1 ORDER BY scope LIMIT 1")?;
    let mut first =
        conn.prepare_cached("SELECT scope FROM state WHERE scope >= ?1 ORDER BY scope LIMIT 1")?;
    let mut found = Vec::new();
    let after = filter.after.clone().filter(|after| *after >= filter.prefix);
    let mut scope: Option<String> = match after {
        Some(after) => next.query_row([after], |row| row.get(0)).optional()?,
        None => first.query_row([&filter.prefix], |row| row.get(0)).optional()?,
    };
    while let Some(at) = scope.filter(|it| it.starts_with(&filter.prefix)) {
        let row = measured(conn, &at, filter.now_ms)?;
        scope = next.query_row([&at], |row| row.get(0)).optional()?;
        found.extend((row.keys > 0).then_some(row));
        if found.len() == filter.limit {
            break;
        }
    }
    Ok(found)
}

fn measured(conn: &Connection, scope: &str, now_ms: u64) -> rusqlite::Result<ScopeRow> {
    let (keys, bytes) = conn
        .prepare_cached(
            "SELECT count(*), coalesce(sum(n), 0) FROM (
                 SELECT octet_length(key) + octet_length(value) AS n FROM state
                 WHERE scope = ?1 AND (expires_ms IS NULL OR expires_ms > ?2)
                 ORDER BY key LIMIT ?3)",
        )?
        .query_row(params![scope, int(now_ms), int(MOST_COUNTED)], |row| {
            Ok((uint(row, 0)?, uint(row, 1)?))
        })?;
    let more = keys == MOST_COUNTED
        && conn
            .prepare_cached(
                "SELECT 1 FROM state WHERE scope = ?1 AND (expires_ms IS NULL OR expires_ms > ?2)
                 ORDER BY key LIMIT 1 OFFSET ?3",
            )?
            .exists(params![scope, int(now_ms), int(MOST_COUNTED)])?;
    Ok(ScopeRow { scope: scope.to_owned(), keys, bytes, more })
}
