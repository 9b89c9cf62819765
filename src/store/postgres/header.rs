//! The table `runs`: the header of each run.

use tokio_postgres::Row;

use super::{
    codes,
    failed::Failed,
    session::Session,
    value::{
        from_bits, get, in_row, int, json_or_null, limit, text, text_or_null, uint, uint_or_null,
        word,
    },
};
use crate::{
    protocol::Tags,
    store::{Header, Partition, Retired},
};

/// The columns, in the order of [`read`].
macro_rules! columns {
    () => {
        "num, cursor, seq, steps, steps_done, updated_ms, created_ms, status, wake_at_ms, epoch, \
         parent_run, parent_step, ended_ms, progress, blueprint, hash, principal, status_text, \
         error, waiting_on, nonce, bytes, tags, used"
    };
}
pub(super) use columns;

/// Returns a run's header.
pub fn one(db: &Session, run: u64) -> Result<Option<Header>, Failed> {
    let row = db.one(concat!("SELECT ", columns!(), " FROM runs WHERE num = $1"), &[&int(run)])?;
    row.as_ref().map(read).transpose()
}

/// Runs of some partitions that are due: (run, wake_at_ms), soonest first.
pub fn due(
    db: &Session,
    parts: &[Partition],
    until_ms: u64,
    at_most: usize,
) -> Result<Vec<(u64, u64)>, Failed> {
    let parts: Vec<i64> = parts.iter().map(|part| part.number().into()).collect();
    let rows = db.query(DUE, &[&int(until_ms), &parts, &limit(at_most)])?;
    rows.iter().map(|row| Ok((uint(row, 0)?, uint(row, 1)?))).collect()
}

pub(super) const DUE: &str = "
    SELECT num, wake_at_ms FROM runs
    WHERE wake_at_ms IS NOT NULL AND wake_at_ms <= $1 AND (num & 255) = ANY ($2)
    ORDER BY wake_at_ms, num LIMIT $3";

/// Returns the open runs that `run` called, oldest first.
pub fn children(db: &Session, run: u64) -> Result<Vec<Header>, Failed> {
    db.query(CHILDREN, &[&int(run)])?.iter().map(read).collect()
}

pub(super) const CHILDREN: &str =
    concat!("SELECT ", columns!(), " FROM runs WHERE parent_run = $1 AND status < 5 ORDER BY num");

/// Returns the open runs that were created before nonces existed: (run, epoch).
pub fn without_nonce(db: &Session) -> Result<Vec<(u64, u32)>, Failed> {
    let rows = db.query(WITHOUT_NONCE, &[])?;
    rows.iter().map(|row| Ok((uint(row, 0)?, uint(row, 1)?))).collect()
}

pub(super) const WITHOUT_NONCE: &str =
    "SELECT num, epoch FROM runs WHERE nonce = 0 AND status < 5 ORDER BY num";

/// Returns the number of ended runs.
pub fn ended(db: &Session) -> Result<u64, Failed> {
    // No index has the completed ones: all are counted in one, and the open ones in another.
    let sql = "SELECT (SELECT count(*) FROM runs) - (SELECT count(*) FROM runs WHERE status < 5)";
    let row = db.one(sql, &[])?;
    row.map_or(Ok(0), |row| uint(&row, 0))
}

/// Returns ended runs with numbers over `after` that nothing open depends on, oldest first.
pub fn retired(db: &Session, after: u64, at_most: usize) -> Result<Vec<Retired>, Failed> {
    let rows = db.query(RETIRED, &[&int(after), &limit(at_most)])?;
    let read = |row: &Row| {
        Ok(Retired { num: uint(row, 0)?, created_ms: uint(row, 1)?, ended_ms: uint(row, 2)? })
    };
    rows.iter().map(read).collect()
}

pub(super) const RETIRED: &str = "
    SELECT r.num, r.created_ms, coalesce(r.ended_ms, r.updated_ms) FROM runs r
    WHERE r.num > $1 AND r.status >= 5
      AND NOT EXISTS (SELECT 1 FROM runs p WHERE p.num = r.parent_run AND p.status < 5)
      AND NOT EXISTS (SELECT 1 FROM runs c WHERE c.parent_run = r.num AND c.status < 5)
      AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.run = r.num)
    ORDER BY r.num LIMIT $2";

/// Reads a header.
pub(super) fn read(row: &Row) -> Result<Header, Failed> {
    let what = || {
        let num: u64 = uint(row, 0).unwrap_or_default();
        format!("the header of run {num}")
    };
    fields(row).map_err(in_row(what))
}

fn fields(row: &Row) -> Result<Header, Failed> {
    Ok(Header {
        num: uint(row, 0)?,
        cursor: uint(row, 1)?,
        seq: uint(row, 2)?,
        steps: uint(row, 3)?,
        steps_done: uint(row, 4)?,
        updated_ms: uint(row, 5)?,
        created_ms: uint(row, 6)?,
        status: word(row, 7, codes::status_of)?,
        wake_at_ms: uint_or_null(row, 8)?,
        epoch: uint(row, 9)?,
        parent: uint_or_null(row, 10)?.zip(uint_or_null(row, 11)?),
        ended_ms: uint_or_null(row, 12)?,
        progress: get(row, 13)?,
        blueprint: text(row, 14)?,
        hash: text(row, 15)?,
        principal: text(row, 16)?,
        status_text: text_or_null(row, 17)?,
        error: json_or_null(row, 18)?,
        waiting_on: json_or_null(row, 19)?,
        nonce: from_bits(row, 20)?,
        bytes: uint(row, 21)?,
        tags: tags(row, 22)?,
        used: json_or_null(row, 23)?,
    })
}

fn tags(row: &Row, column: usize) -> Result<Tags, Failed> {
    let text = json_or_null(row, column)?;
    Ok(text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default())
}
