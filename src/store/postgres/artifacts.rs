//! The table `artifacts`: the files of runs. Their bytes are blobs.

use tokio_postgres::Row;

use super::{
    failed::Failed,
    session::Session,
    value::{get, in_row, int, text, uint},
};
use crate::store::ArtifactRow;

/// Returns the files of a run, in order.
pub fn list(db: &Session, run: u64) -> Result<Vec<ArtifactRow>, Failed> {
    let sql = "
        SELECT run, n, name, hash, size, created_ms, step, attempt, published
        FROM artifacts WHERE run = $1 ORDER BY n";
    let what = || format!("a file of run {run}");
    let rows = db.query(sql, &[&int(run)])?;
    rows.iter().map(|row| read(row).map_err(in_row(what))).collect()
}

fn read(row: &Row) -> Result<ArtifactRow, Failed> {
    Ok(ArtifactRow {
        run: uint(row, 0)?,
        n: uint(row, 1)?,
        name: text(row, 2)?,
        hash: text(row, 3)?,
        size: uint(row, 4)?,
        created_ms: uint(row, 5)?,
        step: uint(row, 6)?,
        attempt: uint(row, 7)?,
        published: get(row, 8)?,
    })
}
