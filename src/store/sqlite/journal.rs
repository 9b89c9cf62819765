//! The table `journal`: rows of histories, each pointing at the row before it.

use std::collections::VecDeque;

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{
    error::database,
    value::{int, uint, uint_or_null},
};
use crate::{
    journal::{Entry, Fact},
    store::{JournalRow, PAGES, PageMark, StoreError},
};

/// Appends the row of a run.
pub fn append(conn: &Connection, run: u64, row: &JournalRow) -> rusqlite::Result<()> {
    conn.prepare_cached("INSERT INTO journal (lsn, run, prev_lsn, entry) VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![int(row.lsn), int(run), row.prev.map(int), row.bytes])
        .map(drop)
}

/// How far back a read goes.
#[derive(Clone, Copy)]
pub enum Reach {
    /// To the beginning of the current history.
    Current,
    /// To the beginning of the run's first history.
    All,
}

/// The rows of one history from row ?1 back to its beginning. SQLite finds each row only when it is
/// asked for it, so a reader that stops early pays for what it read; one statement a row is slower.
const WALK: &str = "
    WITH RECURSIVE walk (run, prev_lsn, entry) AS (
        SELECT run, prev_lsn, entry FROM journal WHERE lsn = ?1
        UNION ALL
        SELECT j.run, j.prev_lsn, j.entry FROM walk JOIN journal j ON j.lsn = walk.prev_lsn
    )
    SELECT run, prev_lsn, entry FROM walk";

/// The bytes of the entries of a run's current history; none of them is read.
pub fn history_bytes(conn: &Connection, run: u64) -> rusqlite::Result<u64> {
    conn.prepare_cached(
        "WITH RECURSIVE walk (prev_lsn, bytes) AS (
             SELECT prev_lsn, length(entry) FROM journal
                 WHERE lsn = (SELECT cursor FROM runs WHERE num = ?1)
             UNION ALL
             SELECT j.prev_lsn, length(j.entry) FROM walk JOIN journal j ON j.lsn = walk.prev_lsn
         )
         SELECT coalesce(sum(bytes), 0) FROM walk",
    )?
    .query_row([int(run)], |row| uint(row, 0))
}

/// The entries of a run with a number over `after_seq`, oldest first, in one state of the database.
pub fn entries(
    conn: &Connection,
    run: u64,
    after_seq: u32,
    reach: Reach,
) -> Result<Vec<Entry>, StoreError> {
    let failed = |error| database(format!("read the journal of run {run}"))(error);
    let tx = conn.unchecked_transaction().map_err(failed)?;
    let end = end(&tx, run).map_err(failed)?;
    let last = end.and_then(|(cursor, seq)| (seq > after_seq).then_some(cursor));
    histories(&tx, run, last, after_seq, reach)
}

/// The entries from row `last` back, oldest first.
fn histories(
    conn: &Connection,
    run: u64,
    last: Option<u64>,
    after_seq: u32,
    reach: Reach,
) -> Result<Vec<Entry>, StoreError> {
    let mut entries = Vec::new();
    let mut next = last;
    while let Some(last) = next {
        let before = history(conn, run, last, after_seq, &mut entries)?;
        next = match reach {
            Reach::Current => None,
            Reach::All => before,
        };
    }
    entries.reverse();
    Ok(entries)
}

/// The sizes of the rows of one history from row ?1 back to its beginning. SQLite says the length
/// of an entry without reading it.
const SIZES: &str = "
    WITH RECURSIVE walk (lsn, run, prev_lsn, size) AS (
        SELECT lsn, run, prev_lsn, length(entry) FROM journal WHERE lsn = ?1
        UNION ALL
        SELECT j.lsn, j.run, j.prev_lsn, length(j.entry)
        FROM walk JOIN journal j ON j.lsn = walk.prev_lsn
    )
    SELECT lsn, run, size FROM walk";

/// Where the pages lie of the entries with a number over `after_seq`, in one state of the database.
pub fn pages(conn: &Connection, run: u64, after_seq: u32) -> Result<Vec<PageMark>, StoreError> {
    let failed = |error| database(format!("read the journal of run {run}"))(error);
    let tx = conn.unchecked_transaction().map_err(failed)?;
    let Some((cursor, seq)) = end(&tx, run).map_err(failed)? else { return Ok(Vec::new()) };
    let mut pages: VecDeque<PageMark> = VecDeque::new();
    let mut statement = tx.prepare_cached(SIZES).map_err(failed)?;
    let (mut next, mut seq) = (Some(cursor), seq);
    while let Some(last) = next.take().filter(|_| seq > after_seq) {
        let mut oldest = None;
        let mut rows = statement.query([int(last)]).map_err(failed)?;
        while seq > after_seq
            && let Some(row) = rows.next().map_err(failed)?
        {
            let columns = || Ok((uint(row, 0)?, uint(row, 1)?, uint(row, 2)?));
            let (lsn, owner, bytes) = columns().map_err(failed)?;
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            if owner != run || oldest.is_some_and(|newer| newer <= lsn) {
                return Err(damaged(run, lsn, "it is not of this history"));
            }
            oldest = Some(lsn);
            if !pages.back_mut().is_some_and(|page| page.take(bytes)) {
                let mut page = PageMark::ending(lsn, seq);
                page.take(bytes);
                pages.push_back(page);
                if pages.len() > PAGES {
                    pages.pop_front();
                }
            }
            seq -= 1;
        }
        drop(rows);
        let Some(oldest) = oldest else { return Err(damaged(run, last, "it is not there")) };
        if seq > after_seq {
            // The first row of this history says where the one before it ended.
            let before = before(&tx, run, oldest).map_err(failed)?;
            next = before.and_then(|(_, before)| before);
        }
    }
    Ok(pages.into_iter().rev().collect())
}

/// The entries of a page; none once the run is deleted.
pub fn page(conn: &Connection, run: u64, page: &PageMark) -> Result<Vec<Entry>, StoreError> {
    let failed = |error| database(format!("read the journal of run {run}"))(error);
    let tx = conn.unchecked_transaction().map_err(failed)?;
    let last = end(&tx, run).map_err(failed)?.map(|_| page.last);
    histories(&tx, run, last, page.after, Reach::All)
}

/// The row and the number of a run's last entry.
fn end(conn: &Connection, run: u64) -> rusqlite::Result<Option<(u64, u32)>> {
    conn.prepare_cached("SELECT cursor, seq FROM runs WHERE num = ?1")?
        .query_row([int(run)], |row| Ok((uint(row, 0)?, row.get(1)?)))
        .optional()
}

/// Collects one history that ends at row `last`, newest entry first, and says at which row the
/// history before it ended, if that has entries over `after_seq` too.
pub fn history(
    conn: &Connection,
    run: u64,
    last: u64,
    after_seq: u32,
    entries: &mut Vec<Entry>,
) -> Result<Option<u64>, StoreError> {
    let failed = |error| database(format!("read the journal of run {run}"))(error);
    let mut statement = conn.prepare_cached(WALK).map_err(failed)?;
    let mut rows = statement.query([int(last)]).map_err(failed)?;
    let mut expected = last;
    loop {
        let Some(row) = rows.next().map_err(failed)? else {
            return Err(damaged(run, expected, "it is not there"));
        };
        let (entry, prev) = read(row, run, expected)?;
        let before = prev.or_else(|| continued(&entry));
        if before.is_some_and(|before| before >= expected) {
            return Err(damaged(run, expected, "it points forwards"));
        }
        let seq = entry.seq;
        if seq > after_seq {
            entries.push(entry);
        }
        if seq <= after_seq.saturating_add(1) {
            return Ok(None);
        }
        let Some(prev) = prev else { return Ok(before) };
        expected = prev;
    }
}

/// Deletes the rows of a run from row `cursor` backwards, through all its histories, at most
/// `most`; says at which row to go on.
///
/// A row that cannot be read ends the walk: what lies before it stays, unreachable.
pub fn delete(
    conn: &Connection,
    run: u64,
    cursor: u64,
    most: usize,
) -> rusqlite::Result<Option<u64>> {
    let mut delete = conn.prepare_cached("DELETE FROM journal WHERE lsn = ?1")?;
    let mut next = Some(cursor);
    for _ in 0..most {
        let Some(lsn) = next else { break };
        next = before(conn, run, lsn)?.map(|(_, before)| before).unwrap_or_default();
        delete.execute([int(lsn)])?;
    }
    Ok(next)
}

/// The bytes of all entries of a run whose last row is `cursor`.
pub fn bytes(conn: &Connection, run: u64, cursor: u64) -> rusqlite::Result<u64> {
    let (mut sum, mut next) = (0, Some(cursor));
    while let Some(lsn) = next {
        let Some((bytes, before)) = before(conn, run, lsn)? else { break };
        sum += bytes;
        next = before;
    }
    Ok(sum)
}

/// The size of a row, and the row before it in this history or the one before.
fn before(conn: &Connection, run: u64, lsn: u64) -> rusqlite::Result<Option<(u64, Option<u64>)>> {
    let mut read =
        conn.prepare_cached("SELECT prev_lsn, entry FROM journal WHERE lsn = ?1 AND run = ?2")?;
    let found = read
        .query_row(params![int(lsn), int(run)], |row| {
            let entry = row.get_ref(1)?.as_blob()?;
            let prev = match uint_or_null(row, 0)? {
                Some(prev) => Some(prev),
                None => Entry::decode(entry).ok().and_then(|entry| continued(&entry)),
            };
            Ok((entry.len() as u64, prev))
        })
        .optional()?;
    Ok(found.map(|(bytes, prev)| (bytes, prev.filter(|&prev| prev < lsn))))
}

fn continued(entry: &Entry) -> Option<u64> {
    if let Fact::RunStarted(started) = &entry.fact { started.continues } else { None }
}

fn read(row: &Row<'_>, run: u64, lsn: u64) -> Result<(Entry, Option<u64>), StoreError> {
    let columns = || Ok((uint(row, 0)?, uint_or_null(row, 1)?, row.get_ref(2)?.as_blob()?));
    let (owner, prev, bytes) =
        columns().map_err(|error: rusqlite::Error| damaged(run, lsn, error))?;
    if owner != run {
        return Err(damaged(run, lsn, "it belongs to another run"));
    }
    let entry = Entry::decode(bytes).map_err(|error| damaged(run, lsn, error))?;
    Ok((entry, prev))
}

fn damaged(run: u64, lsn: u64, reason: impl ToString) -> StoreError {
    StoreError::Damaged {
        what: format!("row {lsn} of the journal of run {run}"),
        reason: reason.to_string(),
    }
}
