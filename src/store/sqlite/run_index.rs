//! The indexes of runs beside their headers: tags, and the words of ended runs.

use rusqlite::{Connection, params};

use super::{header, value::int};
use crate::{
    protocol::Tags,
    store::{Header, RunWrite, find, run_filter},
};

/// Keeps the indexes in step with the write of a header.
pub(super) fn keep(conn: &Connection, write: &RunWrite) -> rusqlite::Result<()> {
    let (header, is_new) = (&write.header, write.expected.is_none());
    if is_new {
        put_tags(conn, header)?;
    }
    if header.ended_ms.is_some() && (is_new || write.whole) {
        put_text(conn, header)?;
    }
    Ok(())
}

/// Removes a deleted run.
pub(super) fn forget(
    conn: &Connection,
    run: u64,
    created_ms: u64,
    tags: &Tags,
) -> rusqlite::Result<()> {
    for (name, value) in tags.iter() {
        conn.prepare_cached(
            "DELETE FROM run_tags WHERE name = ?1 AND value = ?2 AND created_ms = ?3 AND run = ?4",
        )?
        .execute(params![name, value, int(created_ms), int(run)])?;
    }
    conn.prepare_cached("DELETE FROM run_text WHERE rowid = ?1")?.execute([int(run)]).map(drop)
}

/// Indexes the words of all ended runs into an empty index.
pub(super) fn fill(conn: &Connection) -> rusqlite::Result<()> {
    let mut statement = conn.prepare(concat!(
        "SELECT ",
        header::columns!(),
        " FROM runs WHERE ended_ms IS NOT NULL AND (error IS NOT NULL OR status_text IS NOT NULL)"
    ))?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        // A damaged header is reported when it is read by itself.
        if let Ok(header) = header::read(row) {
            put_text(conn, &header)?;
        }
    }
    Ok(())
}

/// Rebuilds the index of words. It is derived from the headers, so it is rebuilt rather than
/// repaired.
pub(super) fn refill(conn: &Connection) -> rusqlite::Result<()> {
    let tx = conn.unchecked_transaction()?;
    tx.execute("INSERT INTO run_text (run_text) VALUES ('delete-all')", [])?;
    fill(&tx)?;
    tx.commit()
}

/// Returns the query for words in the index. Words contain only letters and digits.
pub(super) fn matching(words: &[find::Word]) -> String {
    let mut query = String::new();
    for word in words {
        let and = if query.is_empty() { "" } else { " AND " };
        let star = if word.open { " *" } else { "" };
        query.extend([and, "\"", &word.text, "\"", star]);
    }
    query
}

fn put_tags(conn: &Connection, header: &Header) -> rusqlite::Result<()> {
    for (name, value) in header.tags.iter() {
        conn.prepare_cached(
            "INSERT OR REPLACE INTO run_tags (name, value, created_ms, run) VALUES (?1, ?2, ?3, ?4)",
        )?
        .execute(params![name, value, int(header.created_ms), int(header.num)])?;
    }
    Ok(())
}

fn put_text(conn: &Connection, header: &Header) -> rusqlite::Result<()> {
    let Some(text) = run_filter::text_of(header) else { return Ok(()) };
    let words: Vec<String> = find::tokens(&text).collect();
    conn.prepare_cached("INSERT OR REPLACE INTO run_text (rowid, text) VALUES (?1, ?2)")?
        .execute(params![int(header.num), words.join(" ")])
        .map(drop)
}
