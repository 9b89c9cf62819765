//! The index `state_text`: full-text search over values.
//!
//! Each word is indexed with a prefix for its scope. So a search does not pay for the content of
//! other scopes, and a word's weight is that within its scope.

use rusqlite::{Connection, params};

use crate::store::{
    StateHit, StateSearch,
    find::{self, Word},
};

/// Indexes a value.
pub fn put(
    conn: &Connection,
    id: i64,
    is_new: bool,
    (scope, key): (&str, &str),
    value: &str,
) -> rusqlite::Result<()> {
    let sql = if is_new {
        "INSERT INTO state_text (rowid, key, text) VALUES (?1, ?2, ?3)"
    } else {
        "INSERT OR REPLACE INTO state_text (rowid, key, text) VALUES (?1, ?2, ?3)"
    };
    let mark = mark(scope);
    let (key, text) = (marked(&mark, key), marked(&mark, &find::text_of(value)));
    conn.prepare_cached(sql)?.execute(params![id, key, text]).map(drop)
}

/// Indexes all values into an empty index.
pub fn fill(conn: &Connection) -> rusqlite::Result<()> {
    let mut values = conn.prepare("SELECT id, scope, key, value FROM state")?;
    let mut rows = values.query([])?;
    while let Some(row) = rows.next()? {
        let (scope, key): (String, String) = (row.get(1)?, row.get(2)?);
        put(conn, row.get(0)?, true, (&scope, &key), row.get_ref(3)?.as_str()?)?;
    }
    Ok(())
}

/// Rebuilds the index. It is derived from the values, so it is rebuilt rather than repaired.
pub fn refill(conn: &Connection) -> rusqlite::Result<()> {
    let tx = conn.unchecked_transaction()?;
    tx.execute("INSERT INTO state_text (state_text) VALUES ('delete-all')", [])?;
    fill(&tx)?;
    tx.commit()
}

/// Returns the values that contain every word, the best first.
pub fn search(conn: &Connection, search: &StateSearch) -> rusqlite::Result<Vec<StateHit>> {
    let words = find::words(&search.query);
    if words.is_empty() || search.limit == 0 {
        return Ok(Vec::new());
    }
    // The index is read in order of rank, and values are read only as needed.
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

/// Returns the prefix for the words of a scope. It is short, because it is stored with every word.
/// Two scopes may share a prefix, so results are checked for their scope.
fn mark(scope: &str) -> String {
    blake3::hash(scope.as_bytes()).to_hex()[..10].to_owned()
}

/// Returns a text with the prefix on each word.
fn marked(mark: &str, text: &str) -> String {
    let mut marked = String::with_capacity(text.len() * 3);
    for word in find::tokens(text) {
        marked.push_str(mark);
        marked.push_str(&word);
        marked.push(' ');
    }
    marked
}

/// Returns the query for the index. Words contain only letters and digits.
fn matching(scope: &str, words: &[Word]) -> String {
    let mark = mark(scope);
    let mut query = String::new();
    for Word { text, open } in words {
        let and = if query.is_empty() { "" } else { " AND " };
        let star = if *open { " *" } else { "" };
        query.extend([and, "\"", &mark, text, "\"", star]);
    }
    query
}
