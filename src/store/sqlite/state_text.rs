//! The index `state_text`: which values have which words.

use rusqlite::{Connection, params};

use crate::store::{
    StateHit, StateSearch,
    find::{self, Word},
};

/// Lets a value be found.
pub fn put(
    conn: &Connection,
    id: i64,
    is_new: bool,
    (scope, key): (&str, &str),
    value: &str,
) -> rusqlite::Result<()> {
    let sql = if is_new {
        "INSERT INTO state_text (rowid, scope, key, text) VALUES (?1, ?2, ?3, ?4)"
    } else {
        "INSERT OR REPLACE INTO state_text (rowid, scope, key, text) VALUES (?1, ?2, ?3, ?4)"
    };
    conn.prepare_cached(sql)?.execute(params![id, mark(scope), key, find::text_of(value)]).map(drop)
}

/// The values that have every word, the best first.
pub fn search(conn: &Connection, search: &StateSearch) -> rusqlite::Result<Vec<StateHit>> {
    let words = find::words(&search.query);
    if words.is_empty() || search.limit == 0 {
        return Ok(Vec::new());
    }
    // The index is read in the order of the rank, and the values only as far as they are asked
    // for.
    let mut statement = conn.prepare_cached(
        "SELECT s.key, s.value, s.expires_ms, s.hints, -f.rank
         FROM state_text f CROSS JOIN state s ON s.id = f.rowid
         WHERE f.state_text MATCH ?1 AND s.scope = ?2
         ORDER BY f.rank",
    )?;
    let mut rows = statement.query(params![matching(&search.scope, &words), search.scope])?;
    let mut found = Vec::new();
    while found.len() < search.limit
        && let Some(row) = rows.next()?
    {
        let key: String = row.get(0)?;
        let expires_ms = super::value::uint_or_null(row, 2)?;
        let hints: Option<String> = row.get(3)?;
        let hints = hints.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        let score = row.get::<_, f64>(4)?.max(0.0);
        if !key.starts_with(&search.prefix)
            || expires_ms.is_some_and(|at| at <= search.now_ms)
            || !find::fits(&search.options, score, &hints)
        {
            continue;
        }
        let text = find::text_of(row.get_ref(1)?.as_str()?);
        found.push(StateHit { key, score, snippet: find::snippet(&text, &words) });
    }
    Ok(found)
}

/// The word that stands for a scope.
fn mark(scope: &str) -> String {
    use std::fmt::Write as _;
    scope.bytes().fold(String::with_capacity(2 * scope.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The words as the index is asked for them; they are letters and digits alone.
fn matching(scope: &str, words: &[Word]) -> String {
    let mut query = format!("scope : \"{}\"", mark(scope));
    for Word { text, open } in words {
        query.push_str(" AND {key text} : \"");
        query.push_str(text);
        query.push_str(if *open { "\" *" } else { "\"" });
    }
    query
}
