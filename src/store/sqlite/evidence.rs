//! The table `evidence`: refused reports.

use rusqlite::{Connection, params};

use super::value::{int, limit, uint};
use crate::store::{EvidenceRow, rows::MOST_EVIDENCE};

/// Stores a refused report, unless there are enough of its attempt.
pub fn put(conn: &Connection, row: &EvidenceRow) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "INSERT INTO evidence (run, step, attempt, at_ms, code, body)
         SELECT ?1, ?2, ?3, ?4, ?5, ?6
         WHERE (SELECT count(*) FROM evidence WHERE run = ?1 AND step = ?2 AND attempt = ?3) < ?7",
    )?
    .execute(params![
        int(row.run),
        row.step,
        row.attempt,
        int(row.at_ms),
        row.code,
        row.body,
        limit(MOST_EVIDENCE),
    ])
    .map(drop)
}

/// Returns the last refused reports of a run or of one step of it, oldest first.
pub fn list(
    conn: &Connection,
    run: u64,
    step: Option<u32>,
    most: usize,
) -> rusqlite::Result<Vec<EvidenceRow>> {
    let mut select = conn.prepare_cached(
        "SELECT run, step, attempt, at_ms, code, body FROM evidence
         WHERE run = ?1 AND (?2 IS NULL OR step = ?2)
         ORDER BY id DESC LIMIT ?3",
    )?;
    let rows = select.query_map(params![int(run), step, limit(most)], |row| {
        Ok(EvidenceRow {
            run: uint(row, 0)?,
            step: row.get(1)?,
            attempt: row.get(2)?,
            at_ms: uint(row, 3)?,
            code: row.get(4)?,
            body: row.get(5)?,
        })
    })?;
    let mut found = rows.collect::<rusqlite::Result<Vec<_>>>()?;
    found.reverse();
    Ok(found)
}

/// Deletes the refused reports of a run.
pub fn delete_of(conn: &Connection, run: u64) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM evidence WHERE run = ?1")?.execute([int(run)]).map(drop)
}
