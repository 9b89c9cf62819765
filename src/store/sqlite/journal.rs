//! The table `journal`: rows of histories, each pointing at the row before it.

use rusqlite::{Connection, OptionalExtension, params};

use super::{
    error::database,
    value::{int, uint, uint_or_null},
};
use crate::{
    journal::{Entry, Fact},
    store::{JournalRow, StoreError},
};

/// Appends the row of a run.
pub fn append(conn: &Connection, run: u64, row: &JournalRow) -> rusqlite::Result<()> {
    conn.prepare_cached("INSERT INTO journal (lsn, run, prev_lsn, entry) VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![int(row.lsn), int(run), row.prev.map(int), row.bytes])
        .map(drop)
}

/// How far back a read goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// To the beginning of the current history.
    Current,
    /// To the beginning of the run's first history.
    All,
}

/// The entries of a run with a number over `after_seq`, oldest first.
///
/// Walks back from the cursor with one statement a row, which stops where the caller has read
/// before; the walk sees one state of the database.
pub fn entries(
    conn: &Connection,
    run: u64,
    after_seq: u32,
    reach: Reach,
) -> Result<Vec<Entry>, StoreError> {
    let context = || database(format!("read the journal of run {run}"));
    let tx = conn.unchecked_transaction().map_err(context())?;
    let cursor = tx
        .prepare_cached("SELECT cursor, seq FROM runs WHERE num = ?1")
        .and_then(|mut statement| {
            statement.query_row([int(run)], |row| Ok((uint(row, 0)?, row.get(1)?))).optional()
        })
        .map_err(context())?;
    let Some((cursor, seq)) = cursor.filter(|&(_, seq): &(u64, u32)| seq > after_seq) else {
        return Ok(Vec::new());
    };
    let mut entries = Vec::with_capacity((seq - after_seq).min(1024) as usize);
    let mut next = Some(cursor);
    while let Some(lsn) = next {
        let (entry, prev) = entry(&tx, run, lsn)?;
        let seq = entry.seq;
        next = prev.or_else(|| continued(&entry, reach));
        if next.is_some_and(|before| before >= lsn) {
            return Err(damaged(run, lsn, "it points forwards"));
        }
        if seq > after_seq {
            entries.push(entry);
        }
        if seq <= after_seq.saturating_add(1) {
            break;
        }
    }
    entries.reverse();
    Ok(entries)
}

/// Deletes every row of every history of a run that ends at `cursor`.
///
/// A row that cannot be read ends the walk: what lies before it stays, unreachable.
pub fn delete(conn: &Connection, run: u64, cursor: u64) -> rusqlite::Result<()> {
    let mut read =
        conn.prepare_cached("SELECT prev_lsn, entry FROM journal WHERE lsn = ?1 AND run = ?2")?;
    let mut delete = conn.prepare_cached("DELETE FROM journal WHERE lsn = ?1")?;
    let mut next = Some(cursor);
    while let Some(lsn) = next {
        next = read
            .query_row(params![int(lsn), int(run)], |row| match uint_or_null(row, 0)? {
                Some(prev) => Ok(Some(prev)),
                None => {
                    let entry = Entry::decode(row.get_ref(1)?.as_blob()?);
                    Ok(entry.ok().and_then(|entry| continued(&entry, Reach::All)))
                }
            })
            .optional()?
            .flatten()
            .filter(|&before| before < lsn);
        delete.execute([int(lsn)])?;
    }
    Ok(())
}

fn continued(entry: &Entry, reach: Reach) -> Option<u64> {
    match (reach, &entry.fact) {
        (Reach::All, Fact::RunStarted(started)) => started.continues,
        _ => None,
    }
}

fn entry(conn: &Connection, run: u64, lsn: u64) -> Result<(Entry, Option<u64>), StoreError> {
    let context = || database(format!("read row {lsn} of the journal of run {run}"));
    let mut statement = conn
        .prepare_cached("SELECT run, prev_lsn, entry FROM journal WHERE lsn = ?1")
        .map_err(context())?;
    let mut rows = statement.query([int(lsn)]).map_err(context())?;
    let Some(row) = rows.next().map_err(context())? else {
        return Err(damaged(run, lsn, "it is not there"));
    };
    if uint(row, 0).map_err(context())? != run {
        return Err(damaged(run, lsn, "it belongs to another run"));
    }
    let prev = uint_or_null(row, 1).map_err(context())?;
    let bytes = row.get_ref(2).map_err(context())?.as_blob();
    let bytes = bytes.map_err(|error| damaged(run, lsn, error))?;
    let entry = Entry::decode(bytes).map_err(|error| damaged(run, lsn, error))?;
    Ok((entry, prev))
}

fn damaged(run: u64, lsn: u64, reason: impl ToString) -> StoreError {
    StoreError::Damaged {
        what: format!("row {lsn} of the journal of run {run}"),
        reason: reason.to_string(),
    }
}
