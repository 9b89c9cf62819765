//! Deletion of runs in bounded steps, and disk space.
//!
//! A long history is not deleted at once. The transaction that deletes its run records the rest in
//! `meta`, and [`tidy`] clears it.

use rusqlite::{Connection, OptionalExtension};

use super::{
    artifacts, blobs, charges, evidence,
    header::{self, Deleted},
    journal, meta, outbox, run_index, state, tasks,
    value::{int, uint},
};
use crate::{
    protocol::RunId,
    store::{Space, UNSTORED},
};

/// The number of rows of a history that are deleted together with its run.
const AT_ONCE: usize = 2_048;
/// The prefix of the `meta` keys for remaining histories, followed by the run's number.
const DEBRIS: &str = "debris:";

/// Deletes a run with everything that belongs to it, except the beginning of a long history.
pub fn delete_run(conn: &Connection, run: u64) -> rusqlite::Result<()> {
    if let Some(Deleted { created_ms, cursor, tags }) = header::delete(conn, run)? {
        run_index::forget(conn, run, created_ms, &tags)?;
        state::delete_of(conn, run, RunId::new(run, created_ms))?;
        journal::delete_marks(conn, run)?;
        clear(conn, run, cursor, AT_ONCE)?;
    }
    meta::delete(conn, &format!("{UNSTORED}{run}"))?;
    charges::close(conn, run)?;
    tasks::close_all(conn, run)?;
    blobs::delete_of(conn, run)?;
    artifacts::delete_of(conn, run)?;
    outbox::delete_of(conn, run)?;
    evidence::delete_of(conn, run)
}

/// Clears at most `rows` rows of one remaining history, and releases at most `pages` free pages.
pub fn tidy(conn: &Connection, rows: usize, pages: u32) -> rusqlite::Result<()> {
    if rows > 0
        && let Some((key, cursor)) = debris(conn)?
        && let Ok(run) = key[DEBRIS.len()..].parse()
    {
        meta::delete(conn, &key)?;
        if let Ok(cursor) = cursor.parse() {
            clear(conn, run, cursor, rows)?;
        }
    }
    if pages > 0 {
        // Each returned row stands for one released page.
        let mut vacuum = conn.prepare(&format!("PRAGMA incremental_vacuum({pages})"))?;
        let mut rows = vacuum.query([])?;
        while rows.next()?.is_some() {}
    }
    Ok(())
}

/// Returns the disk space of the database.
pub fn space(conn: &Connection) -> rusqlite::Result<Space> {
    let (page, pages, free) = conn.query_row(
        "SELECT page_size, page_count, freelist_count
         FROM pragma_page_size, pragma_page_count, pragma_freelist_count",
        [],
        |row| Ok((uint(row, 0)?, uint(row, 1)?, uint(row, 2)?)),
    )?;
    Ok(Space {
        used: pages.saturating_sub(free) * page,
        free: free * page,
        debris: debris(conn)?.is_some(),
    })
}

/// Returns the total bytes of a run's entries and files.
pub fn run_bytes(conn: &Connection, run: u64) -> rusqlite::Result<u64> {
    let Some(header) = header::one(conn, run)? else { return Ok(0) };
    let files = conn
        .prepare_cached("SELECT coalesce(sum(size), 0) FROM artifacts WHERE run = ?1")?
        .query_row([int(run)], |row| uint(row, 0))?;
    Ok(journal::bytes(conn, run, header.cursor)? + files)
}

fn clear(conn: &Connection, run: u64, cursor: u64, rows: usize) -> rusqlite::Result<()> {
    match journal::delete(conn, run, cursor, rows)? {
        Some(left) => meta::put(conn, &format!("{DEBRIS}{run}"), &left.to_string()),
        None => Ok(()),
    }
}

fn debris(conn: &Connection) -> rusqlite::Result<Option<(String, String)>> {
    conn.prepare_cached(
        "SELECT key, value FROM meta WHERE key >= 'debris:' AND key < 'debris;' LIMIT 1",
    )?
    .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))
    .optional()
}
