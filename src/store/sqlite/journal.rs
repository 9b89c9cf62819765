//! The table `journal`: rows of histories, each with a pointer to the row before it. The table
//! `journal_marks` has the row of every 256th entry, and of each entry that starts a history after
//! another, so that a part of a long history can be found.

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{
    error::database,
    portion::Portion,
    value::{int, uint, uint_or_null},
};
use crate::{
    journal::Entry,
    store::{FeedRow, JournalRow, PageMark, StoreError, page::Pages},
};

/// Every entry whose number is divisible by this has a mark.
const MARKED: u32 = 256;
/// The number of bytes that suffice to read an entry's number.
const HEAD: i64 = 8;

/// Inserts rows, each with its run.
pub fn append<'a>(
    conn: &Connection,
    rows: impl IntoIterator<Item = (u64, &'a JournalRow)>,
) -> rusqlite::Result<()> {
    let mut insert = conn.prepare_cached(
        "INSERT INTO journal (lsn, run, prev_lsn, entry, continues) VALUES (?1, ?2, ?3, ?4, ?5)",
    )?;
    for (run, row) in rows {
        let (lsn, before) = (int(row.lsn), row.before.map(int));
        let (prev, continues) = if row.begins { (None, before) } else { (before, None) };
        insert.execute(params![lsn, int(run), prev, row.bytes, continues])?;
        if row.seq.is_multiple_of(MARKED) || continues.is_some() {
            mark(conn, run, row.seq, lsn, continues.is_some())?;
        }
    }
    Ok(())
}

fn mark(conn: &Connection, run: u64, seq: u32, lsn: i64, begins: bool) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "INSERT OR REPLACE INTO journal_marks (run, seq, lsn, begins) VALUES (?1, ?2, ?3, ?4)",
    )?
    .execute(params![int(run), seq, lsn, begins])
    .map(drop)
}

/// Returns the number of the first entry of a run's current history.
pub fn start(conn: &Connection, run: u64) -> rusqlite::Result<u32> {
    let found = conn
        .prepare_cached(
            "SELECT seq FROM journal_marks WHERE run = ?1 AND begins = 1 ORDER BY seq DESC LIMIT 1",
        )?
        .query_row([int(run)], |row| row.get(0))
        .optional()?;
    Ok(found.unwrap_or(1))
}

/// Returns the entries of a run with numbers over `after` and up to `upto`, oldest first, from one
/// snapshot of the database. Reads only these rows and those up to the next mark.
pub fn window(
    conn: &Connection,
    run: u64,
    after: u32,
    upto: u32,
) -> Result<Vec<Entry>, StoreError> {
    let failed = |error| database(format!("read the journal of run {run}"))(error);
    let tx = conn.unchecked_transaction().map_err(failed)?;
    let Some(end) = end(&tx, run).map_err(failed)? else { return Ok(Vec::new()) };
    let upto = upto.min(end.1);
    if upto <= after {
        return Ok(Vec::new());
    }
    let mark = tx
        .prepare_cached(
            "SELECT lsn, seq FROM journal_marks WHERE run = ?1 AND seq >= ?2 ORDER BY seq LIMIT 1",
        )
        .and_then(|mut it| {
            it.query_row(params![int(run), upto], |row| Ok((uint(row, 0)?, row.get(1)?))).optional()
        })
        .map_err(failed)?;
    let from_mark = mark.map(|mark| histories(&tx, run, Some(mark), after, Reach::All));
    let mut entries = match from_mark {
        Some(Ok(entries)) => entries,
        // The mark itself may be damaged.
        Some(Err(_)) | None => histories(&tx, run, Some(end), after, Reach::All)?,
    };
    entries.truncate((upto - after) as usize);
    Ok(entries)
}

/// Fills the columns that older formats had only inside the entries: the history that a history
/// continues, and the marks.
pub fn fill(conn: &Connection) -> rusqlite::Result<()> {
    let mut rows = conn.prepare("SELECT lsn, run, substr(entry, 1, ?1) FROM journal")?;
    let mut rows = rows.query([HEAD])?;
    while let Some(row) = rows.next()? {
        // An unreadable row stays as it is. Reading it reports the damage.
        let seq = row.get_ref(2)?.as_blob().ok().and_then(Entry::seq_of).unwrap_or_default();
        if seq > 0 && seq.is_multiple_of(MARKED) {
            mark(conn, uint(row, 1)?, seq, row.get(0)?, false)?;
        }
    }
    let mut rows = conn.prepare("SELECT lsn, entry, run FROM journal WHERE prev_lsn IS NULL")?;
    let mut rows = rows.query([])?;
    let mut continues = conn.prepare("UPDATE journal SET continues = ?2 WHERE lsn = ?1")?;
    while let Some(row) = rows.next()? {
        let Ok(bytes) = row.get_ref(1)?.as_blob() else { continue };
        if let Some((before, seq)) = Entry::row_before(bytes).zip(Entry::seq_of(bytes)) {
            let lsn = row.get(0)?;
            continues.execute(params![lsn, int(before)])?;
            mark(conn, uint(row, 2)?, seq, lsn, true)?;
        }
    }
    Ok(())
}

/// The start of a read.
#[derive(Clone, Copy)]
pub enum Reach {
    /// The start of the current history.
    Current,
    /// The start of the run's first history.
    All,
}

/// The rows of one history from row ?1 back to its start. SQLite finds each row only when it is
/// fetched, so a reader that stops early pays only for the rows it fetched. One statement per row
/// is slower.
const WALK: &str = "
    WITH RECURSIVE walk (run, prev_lsn, entry, continues) AS (
        SELECT run, prev_lsn, entry, continues FROM journal WHERE lsn = ?1
        UNION ALL
        SELECT j.run, j.prev_lsn, j.entry, j.continues
        FROM walk JOIN journal j ON j.lsn = walk.prev_lsn
    )
    SELECT run, prev_lsn, entry, continues FROM walk";

/// Returns entries of all runs by their rows' numbers, from one snapshot of the database.
pub fn feed(
    conn: &Connection,
    (after, upto): (u64, u64),
    rows: usize,
    bytes: usize,
) -> Result<Vec<FeedRow>, StoreError> {
    let context = "read the events of all runs";
    let failed = || database(context);
    let limit = i64::try_from(rows).unwrap_or(i64::MAX);
    let mut read = conn
        .prepare_cached(
            "SELECT lsn, run, entry FROM journal WHERE lsn > ?1 AND lsn <= ?2 ORDER BY lsn LIMIT ?3",
        )
        .map_err(failed())?;
    let mut found = read.query(params![int(after), int(upto), limit]).map_err(failed())?;
    let (mut feed, mut size) = (Vec::new(), 0);
    while let Some(row) = found.next().map_err(failed())? {
        let (lsn, run) = (uint(row, 0).map_err(failed())?, uint(row, 1).map_err(failed())?);
        let stored = row.get_ref(2).map_err(failed())?;
        let stored = stored.as_blob().map_err(|error| failed()(error.into()))?;
        let entry = Entry::decode(run, stored).map_err(|error| StoreError::Damaged {
            what: format!("row {lsn}"),
            reason: error.to_string(),
        })?;
        size += stored.len();
        feed.push(FeedRow { lsn, run, entry, bytes: stored.len() });
        if size >= bytes {
            break;
        }
    }
    Ok(feed)
}

/// Returns the total bytes of the entries of a run's current history, without reading the entries.
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

/// Returns the entries of a run with numbers over `after_seq`, oldest first, from one snapshot of
/// the database.
pub fn entries(
    conn: &Connection,
    run: u64,
    after_seq: u32,
    reach: Reach,
) -> Result<Vec<Entry>, StoreError> {
    let failed = |error| database(format!("read the journal of run {run}"))(error);
    let tx = conn.unchecked_transaction().map_err(failed)?;
    entries_at(&tx, run, after_seq, reach)
}

/// The same within a transaction.
pub fn entries_at(
    conn: &Connection,
    run: u64,
    after_seq: u32,
    reach: Reach,
) -> Result<Vec<Entry>, StoreError> {
    let failed = |error| database(format!("read the journal of run {run}"))(error);
    let end = end(conn, run).map_err(failed)?;
    let last = end.filter(|(_, seq)| *seq > after_seq);
    histories(conn, run, last, after_seq, reach)
}

/// Returns the entries from `last` (a row and its number) back to the one after `after_seq`, oldest
/// first.
fn histories(
    conn: &Connection,
    run: u64,
    last: Option<(u64, u32)>,
    after_seq: u32,
    reach: Reach,
) -> Result<Vec<Entry>, StoreError> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut next = last;
    while let Some(last) = next {
        let before = history(conn, run, last, after_seq, &mut entries)?;
        next = match reach {
            Reach::Current => None,
            Reach::All => before,
        };
        let oldest = entries.last().map_or(0, |entry| entry.seq);
        if next.is_none() && matches!(reach, Reach::All) && oldest > after_seq.saturating_add(1) {
            return Err(damaged(run, last.0, format!("nothing leads to entry {}", oldest - 1)));
        }
    }
    entries.reverse();
    Ok(entries)
}

/// The sizes of the rows of one history from row ?1 back to its start. SQLite returns the length of
/// an entry without reading it.
const SIZES: &str = "
    WITH RECURSIVE walk (lsn, run, prev_lsn, size) AS (
        SELECT lsn, run, prev_lsn, length(entry) FROM journal WHERE lsn = ?1
        UNION ALL
        SELECT j.lsn, j.run, j.prev_lsn, length(j.entry)
        FROM walk JOIN journal j ON j.lsn = walk.prev_lsn
    )
    SELECT lsn, run, size FROM walk";

/// Returns the page marks of the entries with numbers over `after_seq`, from one snapshot of the
/// database.
pub fn pages(conn: &Connection, run: u64, after_seq: u32) -> Result<Vec<PageMark>, StoreError> {
    let failed = |error| database(format!("read the journal of run {run}"))(error);
    let tx = conn.unchecked_transaction().map_err(failed)?;
    let Some((cursor, seq)) = end(&tx, run).map_err(failed)? else { return Ok(Vec::new()) };
    let mut pages = Pages::default();
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
            pages.add(lsn, seq, bytes);
            seq -= 1;
        }
        drop(rows);
        let Some(oldest) = oldest else { return Err(damaged(run, last, "it is not there")) };
        if seq > after_seq {
            // The first row of this history has the end of the previous one.
            let before = before(&tx, run, oldest).map_err(failed)?;
            next = before.and_then(|(_, before)| before);
        }
    }
    Ok(pages.finish())
}

/// Returns the entries of a page; empty if the run was deleted.
pub fn page(conn: &Connection, run: u64, page: &PageMark) -> Result<Vec<Entry>, StoreError> {
    let failed = |error| database(format!("read the journal of run {run}"))(error);
    let tx = conn.unchecked_transaction().map_err(failed)?;
    let last = end(&tx, run).map_err(failed)?.map(|_| (page.last, page.upto));
    histories(&tx, run, last, page.after, Reach::All)
}

/// Returns the row and the number of a run's last entry.
fn end(conn: &Connection, run: u64) -> rusqlite::Result<Option<(u64, u32)>> {
    conn.prepare_cached("SELECT cursor, seq FROM runs WHERE num = ?1")?
        .query_row([int(run)], |row| Ok((uint(row, 0)?, row.get(1)?)))
        .optional()
}

/// Collects the history that ends at `last` (a row and its number), newest entry first. Returns the
/// end of the previous history, if that also has entries over `after_seq`.
pub fn history(
    conn: &Connection,
    run: u64,
    last: (u64, u32),
    after_seq: u32,
    entries: &mut Vec<Entry>,
) -> Result<Option<(u64, u32)>, StoreError> {
    let failed = |error| database(format!("read the journal of run {run}"))(error);
    let mut statement = conn.prepare_cached(WALK).map_err(failed)?;
    let (mut expected, mut seq) = last;
    let mut rows = statement.query([int(expected)]).map_err(failed)?;
    loop {
        let Some(row) = rows.next().map_err(failed)? else {
            return Err(damaged(run, expected, "it is not there"));
        };
        let (entry, prev, continues) = read(row, run, expected)?;
        // The checksum proves that the row is intact. The number proves that it is the requested
        // one.
        if entry.seq != seq {
            let reason = format!("it holds entry {}, not {seq}", entry.seq);
            return Err(damaged(run, expected, reason));
        }
        let before = prev.or(continues);
        if before.is_some_and(|before| before >= expected) {
            return Err(damaged(run, expected, "it points forwards"));
        }
        if seq > after_seq {
            entries.push(entry);
        }
        if seq <= after_seq.saturating_add(1) {
            return Ok(None);
        }
        seq -= 1;
        let Some(prev) = prev else { return Ok(before.map(|before| (before, seq))) };
        expected = prev;
    }
}

/// Deletes a portion of the rows of a run from row `cursor` backwards, through all its histories.
/// Returns the row at which to continue.
///
/// An unreadable row ends the walk. The rows before it stay, unreachable.
pub fn delete(
    conn: &Connection,
    run: u64,
    cursor: u64,
    portion: &mut Portion,
) -> rusqlite::Result<Option<u64>> {
    let mut delete = conn.prepare_cached("DELETE FROM journal WHERE lsn = ?1")?;
    let mut next = Some(cursor);
    while portion.has_row()
        && let Some(lsn) = next
    {
        let (bytes, before) = before(conn, run, lsn)?.unwrap_or_default();
        delete.execute([int(lsn)])?;
        portion.take_row(bytes);
        next = before;
    }
    Ok(next)
}

/// Deletes the marks of a run.
pub fn delete_marks(conn: &Connection, run: u64) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM journal_marks WHERE run = ?1")?.execute([int(run)]).map(drop)
}

/// Returns the total bytes of all entries of a run whose last row is `cursor`.
pub fn bytes(conn: &Connection, run: u64, cursor: u64) -> rusqlite::Result<u64> {
    let (mut sum, mut next) = (0, Some(cursor));
    while let Some(lsn) = next {
        let Some((bytes, before)) = before(conn, run, lsn)? else { break };
        sum += bytes;
        next = before;
    }
    Ok(sum)
}

/// Returns the size of a row, and the previous row in this history or the one before.
fn before(conn: &Connection, run: u64, lsn: u64) -> rusqlite::Result<Option<(u64, Option<u64>)>> {
    let mut read = conn.prepare_cached(
        "SELECT coalesce(prev_lsn, continues), length(entry) FROM journal
                             WHERE lsn = ?1 AND run = ?2",
    )?;
    let found = read
        .query_row(params![int(lsn), int(run)], |row| Ok((uint(row, 1)?, uint_or_null(row, 0)?)))
        .optional()?;
    Ok(found.map(|(bytes, prev)| (bytes, prev.filter(|&prev| prev < lsn))))
}

/// An entry, the previous row in its history, and the row that its history continues.
type Read = (Entry, Option<u64>, Option<u64>);

fn read(row: &Row<'_>, run: u64, lsn: u64) -> Result<Read, StoreError> {
    let columns = || {
        let bytes = row.get_ref(2)?.as_blob()?;
        Ok((uint(row, 0)?, uint_or_null(row, 1)?, bytes, uint_or_null(row, 3)?))
    };
    let (owner, prev, bytes, continues) =
        columns().map_err(|error: rusqlite::Error| damaged(run, lsn, error))?;
    if owner != run {
        return Err(damaged(run, lsn, "it belongs to another run"));
    }
    let entry = Entry::decode(run, bytes).map_err(|error| damaged(run, lsn, error))?;
    Ok((entry, prev, continues))
}

fn damaged(run: u64, lsn: u64, reason: impl ToString) -> StoreError {
    StoreError::Damaged {
        what: format!("row {lsn} of the journal of run {run}"),
        reason: reason.to_string(),
    }
}
