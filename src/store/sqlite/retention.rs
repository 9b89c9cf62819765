//! Deletion of runs in bounded steps, and disk space.
//!
//! A long history is not deleted at once, and neither are many files. The transaction that deletes
//! their run records the rest in `meta`, and [`tidy`] clears it.

use rusqlite::{Connection, OptionalExtension};

use super::{
    artifacts, charges, evidence,
    header::{self, Deleted},
    journal, meta, outbox,
    portion::Portion,
    run_index, state, tasks,
    value::{int, uint},
};
use crate::{
    protocol::RunId,
    store::{Space, UNSTORED},
};

/// The number of rows of a history, and of files, that are deleted together with their run.
const AT_ONCE: usize = 2_048;
/// The prefix of the `meta` keys for what deleted runs have left, followed by the run's number. The
/// value is the last row of the history that is left, or empty if only files are left.
///
/// A release that knows no files among the rest removes such a key and leaves the files. They take
/// space, and nothing else.
const DEBRIS: &str = "debris:";

/// Deletes a run with everything that belongs to it, except the beginning of a long history and the
/// last of many files.
pub fn delete_run(conn: &Connection, run: u64) -> rusqlite::Result<()> {
    let cursor = match header::delete(conn, run)? {
        Some(Deleted { created_ms, cursor, tags }) => {
            run_index::forget(conn, run, created_ms, &tags)?;
            state::delete_of(conn, run, RunId::new(run, created_ms))?;
            journal::delete_marks(conn, run)?;
            Some(cursor)
        }
        // Deleted before, but maybe not all of it.
        None => meta::one(conn, &format!("{DEBRIS}{run}"))?.and_then(|rest| rest.parse().ok()),
    };
    meta::delete(conn, &format!("{UNSTORED}{run}"))?;
    charges::close(conn, run)?;
    tasks::close_all(conn, run)?;
    outbox::delete_of(conn, run)?;
    evidence::delete_of(conn, run)?;
    clear(conn, run, cursor, &mut Portion::new(AT_ONCE)).map(drop)
}

/// Clears at most `rows` rows that deleted runs have left, and releases at most `pages` free pages.
pub fn tidy(conn: &Connection, rows: usize, pages: u32) -> rusqlite::Result<()> {
    let mut portion = Portion::new(rows);
    while portion.has_row()
        && let Some((key, rest)) = debris(conn)?
    {
        match key[DEBRIS.len()..].parse::<u64>() {
            Ok(run) => {
                if clear(conn, run, rest.parse().ok(), &mut portion)? {
                    break;
                }
            }
            Err(_) => meta::delete(conn, &key)?,
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

/// Clears a portion of the history of a deleted run, from row `cursor` backwards, and then of its
/// files. Records what is left, and returns true if something is.
fn clear(
    conn: &Connection,
    run: u64,
    cursor: Option<u64>,
    portion: &mut Portion,
) -> rusqlite::Result<bool> {
    let cursor = match cursor {
        Some(cursor) => journal::delete(conn, run, cursor, portion)?,
        None => None,
    };
    let has_files = artifacts::delete_of(conn, run, portion)?;
    let key = format!("{DEBRIS}{run}");
    match cursor {
        Some(cursor) => meta::put(conn, &key, &cursor.to_string())?,
        None if has_files => meta::put(conn, &key, "")?,
        None => meta::delete(conn, &key)?,
    }
    Ok(cursor.is_some() || has_files)
}

fn debris(conn: &Connection) -> rusqlite::Result<Option<(String, String)>> {
    conn.prepare_cached(
        "SELECT key, value FROM meta WHERE key >= 'debris:' AND key < 'debris;' LIMIT 1",
    )?
    .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))
    .optional()
}
