//! The table `artifacts`: the files of runs. Their bytes are blobs.

use rusqlite::{Connection, OptionalExtension, params, types::Value};

use super::{
    blobs,
    portion::Portion,
    value::{int, uint},
};
use crate::store::ArtifactRow;

/// Inserts or replaces a file.
pub fn put(conn: &Connection, file: &ArtifactRow) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "INSERT OR REPLACE INTO artifacts
             (run, n, name, hash, size, created_ms, step, attempt, published)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
    )?
    .execute(params![
        int(file.run),
        file.n,
        file.name,
        file.hash,
        int(file.size),
        int(file.created_ms),
        file.step,
        file.attempt,
        file.published,
    ])
    .map(drop)
}

/// Publishes the files of an attempt.
pub fn publish(conn: &Connection, run: u64, step: u32, attempt: u32) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "UPDATE artifacts SET published = 1 WHERE run = ?1 AND step = ?2 AND attempt = ?3",
    )?
    .execute(params![int(run), step, attempt])
    .map(drop)
}

/// Returns the files of a run, in order.
pub fn list(conn: &Connection, run: u64) -> rusqlite::Result<Vec<ArtifactRow>> {
    conn.prepare_cached(
        "SELECT run, n, name, hash, size, created_ms, step, attempt, published
         FROM artifacts WHERE run = ?1 ORDER BY n",
    )?
    .query_map([int(run)], |row| {
        Ok(ArtifactRow {
            run: uint(row, 0)?,
            n: row.get(1)?,
            name: row.get(2)?,
            hash: row.get(3)?,
            size: uint(row, 4)?,
            created_ms: uint(row, 5)?,
            step: row.get(6)?,
            attempt: row.get(7)?,
            published: row.get(8)?,
        })
    })?
    .collect()
}

/// Deletes a portion of the files of a run, with the blobs that no other file has. Returns true if
/// files are left.
pub fn delete_of(conn: &Connection, run: u64, portion: &mut Portion) -> rusqlite::Result<bool> {
    let mut first = conn
        .prepare_cached("SELECT n, hash, size FROM artifacts WHERE run = ?1 ORDER BY n LIMIT 1")?;
    let mut delete = conn.prepare_cached("DELETE FROM artifacts WHERE run = ?1 AND n = ?2")?;
    loop {
        // The columns are taken as they are: a damaged row must not keep its run from going.
        let file: Option<(Value, Value, Value)> = first
            .query_row([int(run)], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
            .optional()?;
        let Some((n, hash, size)) = file else { return Ok(false) };
        if !portion.has_file() {
            return Ok(true);
        }
        delete.execute(params![int(run), n])?;
        blobs::delete_unused(conn, &hash)?;
        let bytes = match size {
            Value::Integer(bytes) => u64::try_from(bytes).unwrap_or_default(),
            Value::Null | Value::Real(_) | Value::Text(_) | Value::Blob(_) => 0,
        };
        portion.take_file(bytes);
    }
}
