//! The table `journal`: the entries of all histories of each run, by run and number.
//!
//! The numbers of a run's entries have no gaps, so a history is one range of rows. A partial index
//! has the entries that begin a history.

use std::fmt::Display;

use tokio_postgres::Row;

use super::{
    failed::Failed,
    session::Session,
    value::{self, bytes, int, limit, uint},
};
use crate::{
    journal::Entry,
    store::{FeedRow, PageMark, page::Pages},
};

/// The start of a read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// The start of the current history.
    Current,
    /// The start of the run's first history.
    All,
}

/// The number of rows of which the sizes are read at a time.
const SIZES: usize = 4_096;

/// Returns the number of the first entry of a run's current history; 1 if there is none.
pub fn start(db: &Session, run: u64) -> Result<u32, Failed> {
    db.one(START, &[&int(run)])?.map_or(Ok(1), |row| uint(&row, 0))
}

pub(super) const START: &str = "
    SELECT seq FROM journal WHERE run = $1 AND begins
      AND EXISTS (SELECT 1 FROM runs WHERE num = $1)
    ORDER BY seq DESC LIMIT 1";

/// Returns the numbers of the entries that begin a history of a run, in order.
pub fn starts(db: &Session, run: u64) -> Result<Vec<u32>, Failed> {
    let sql = "SELECT seq FROM journal WHERE run = $1 AND begins ORDER BY seq";
    db.query(sql, &[&int(run)])?.iter().map(|row| uint(row, 0)).collect()
}

/// Returns the entries of a run with numbers over `after_seq`, oldest first.
pub fn entries(db: &Session, run: u64, after_seq: u32, reach: Reach) -> Result<Vec<Entry>, Failed> {
    let sql = match reach {
        Reach::Current => CURRENT,
        Reach::All => ALL,
    };
    range(run, db.query(sql, &[&int(run), &i64::from(after_seq), &i64::MAX])?)
}

/// Returns the entries of all histories of a run with numbers over `after` and up to `upto`, oldest
/// first.
pub fn window(db: &Session, run: u64, after: u32, upto: u32) -> Result<Vec<Entry>, Failed> {
    if upto <= after {
        return Ok(Vec::new());
    }
    let params: [i64; 3] = [int(run), after.into(), upto.into()];
    range(run, db.query(ALL, &[&params[0], &params[1], &params[2]])?)
}

/// The entries of a run within two numbers, and a row with the numbers that the first and the last one
/// must have: one statement, and so one snapshot, shows whether all are there. They are put in order
/// here, where they are moved by their addresses, and not by the server, which would copy them.
macro_rules! range {
    ($first:literal) => {
        concat!(
            "WITH h AS MATERIALIZED (
                 SELECT least(seq, $3::bigint) AS last, ",
            $first,
            " AS first FROM runs WHERE num = $1
             )
             SELECT 0::bigint, NULL::bytea, first, last FROM h
             UNION ALL
             SELECT seq, entry, NULL, NULL FROM journal
             WHERE run = $1 AND seq >= (SELECT first FROM h) AND seq <= (SELECT last FROM h)"
        )
    };
}

pub(super) const ALL: &str = range!("$2::bigint + 1");

pub(super) const CURRENT: &str = range!(
    "greatest($2::bigint + 1, coalesce((
         SELECT b.seq FROM journal b WHERE b.run = $1 AND b.begins ORDER BY b.seq DESC LIMIT 1
     ), 1))"
);

/// Decodes a range of entries, and checks that none is missing.
fn range(run: u64, mut rows: Vec<Row>) -> Result<Vec<Entry>, Failed> {
    // The row with the numbers is number 0.
    rows.sort_by_key(|row| row.try_get::<_, i64>(0).unwrap_or_default());
    let mut rows = rows.into_iter();
    let Some(bounds) = rows.next() else { return Ok(Vec::new()) };
    let (mut expected, last): (u64, u64) = (uint(&bounds, 2)?, uint(&bounds, 3)?);
    let mut entries = Vec::with_capacity(rows.len());
    for row in rows {
        let seq: u64 = uint(&row, 0)?;
        if seq != expected {
            break;
        }
        entries.push(decode(run, seq, bytes(&row, 1)?)?);
        expected += 1;
    }
    match expected > last {
        true => Ok(entries),
        false => Err(missing(run, expected)),
    }
}

fn decode(run: u64, seq: u64, stored: &[u8]) -> Result<Entry, Failed> {
    let entry = Entry::decode(run, stored).map_err(|error| damaged(run, seq, error))?;
    // The checksum proves that the row is intact. The number proves that it is the requested one.
    match u64::from(entry.seq) == seq {
        true => Ok(entry),
        false => Err(damaged(run, seq, format!("it holds entry {}", entry.seq))),
    }
}

/// Returns entries of all runs by their rows' numbers.
pub fn feed(
    db: &Session,
    (after, upto): (u64, u64),
    rows: usize,
    most: usize,
) -> Result<Vec<FeedRow>, Failed> {
    let (after, upto, rows, most) = (int(after), int(upto), limit(rows), limit(most));
    let found = db.query(FEED, &[&after, &upto, &rows, &most])?;
    let read = |row: Row| {
        let (lsn, run, seq) = (uint(&row, 0)?, uint(&row, 1)?, uint(&row, 2)?);
        let stored = bytes(&row, 3)?;
        Ok(FeedRow { lsn, run, entry: decode(run, seq, stored)?, bytes: stored.len() })
    };
    found.into_iter().map(read).collect()
}

/// Entries after the first are left out when those before them have enough bytes.
pub(super) const FEED: &str = "
    SELECT lsn, run, seq, entry
    FROM (
        SELECT lsn, run, seq, entry,
               sum(octet_length(entry)) OVER (ORDER BY lsn) - octet_length(entry) AS before
        FROM (
            SELECT lsn, run, seq, entry FROM journal
            WHERE lsn > $1 AND lsn <= $2 ORDER BY lsn LIMIT $3
        ) f
    ) f
    WHERE before < $4::bigint OR before = 0 ORDER BY lsn";

/// Returns the total bytes of the entries of a run's current history, without reading the entries.
pub fn history_bytes(db: &Session, run: u64) -> Result<u64, Failed> {
    let sql = "
        SELECT coalesce(sum(octet_length(entry)), 0)::bigint FROM journal
        WHERE run = $1 AND seq >= coalesce((
            SELECT b.seq FROM journal b WHERE b.run = $1 AND b.begins ORDER BY b.seq DESC LIMIT 1
        ), 1) AND EXISTS (SELECT 1 FROM runs WHERE num = $1)";
    db.one(sql, &[&int(run)])?.map_or(Ok(0), |row| uint(&row, 0))
}

/// Returns the total bytes of a run's entries and files.
pub fn run_bytes(db: &Session, run: u64) -> Result<u64, Failed> {
    let sql = "
        SELECT ((SELECT coalesce(sum(octet_length(entry)), 0) FROM journal WHERE run = $1)
              + (SELECT coalesce(sum(size), 0) FROM artifacts WHERE run = $1))::bigint
        FROM runs WHERE num = $1";
    db.one(sql, &[&int(run)])?.map_or(Ok(0), |row| uint(&row, 0))
}

/// Returns the page marks of the entries with numbers over `after_seq`.
pub fn pages(db: &Session, run: u64, after_seq: u32) -> Result<Vec<PageMark>, Failed> {
    let sql = "SELECT seq FROM runs WHERE num = $1";
    let Some(row) = db.one(sql, &[&int(run)])? else { return Ok(Vec::new()) };
    let mut pages = Pages::default();
    let mut seq: u32 = uint(&row, 0)?;
    while seq > after_seq {
        let params: [i64; 4] = [int(run), after_seq.into(), seq.into(), limit(SIZES)];
        let rows = db.query(SIZES_OF, &[&params[0], &params[1], &params[2], &params[3]])?;
        if rows.is_empty() {
            return gone(db, run, seq.into());
        }
        for row in rows {
            let (found, lsn): (u32, u64) = (uint(&row, 0)?, uint(&row, 1)?);
            if found != seq {
                return gone(db, run, seq.into());
            }
            let bytes: usize = uint::<u64>(&row, 2)?.try_into().unwrap_or(usize::MAX);
            pages.add(lsn, seq, bytes);
            seq -= 1;
        }
    }
    Ok(pages.finish())
}

/// The sizes of the rows of a run up to a number, the newest first.
pub(super) const SIZES_OF: &str = "
    SELECT seq, lsn, octet_length(entry) FROM journal
    WHERE run = $1 AND seq > $2 AND seq <= $3 ORDER BY seq DESC LIMIT $4";

/// A row is missing: either the run was deleted meanwhile, or its journal is damaged.
fn gone<T: Default>(db: &Session, run: u64, seq: u64) -> Result<T, Failed> {
    match db.one("SELECT 1 FROM runs WHERE num = $1", &[&int(run)])? {
        None => Ok(T::default()),
        Some(_) => Err(missing(run, seq)),
    }
}

/// Returns the entries of a page; empty if the run was deleted.
pub fn page(db: &Session, run: u64, page: &PageMark) -> Result<Vec<Entry>, Failed> {
    window(db, run, page.after, page.upto)
}

fn missing(run: u64, seq: u64) -> Failed {
    damaged(run, seq, "it is not there")
}

fn damaged(run: u64, seq: u64, reason: impl Display) -> Failed {
    value::damaged(format!("entry {seq} of the journal of run {run}"), reason)
}
