//! The disk space of the tables.

use super::{
    failed::Failed,
    session::Session,
    value::{get, uint},
};
use crate::store::Space;

/// Returns the disk space of all tables with their indexes. Free space inside of them is known to the
/// database alone.
pub fn space(db: &Session) -> Result<Space, Failed> {
    let sql = "
        SELECT (SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class
                WHERE relnamespace = 'moonswarm'::regnamespace AND relkind = 'r'),
               EXISTS (SELECT 1 FROM meta WHERE key >= 'debris:' AND key < 'debris;')";
    let Some(row) = db.one(sql, &[])? else { return Ok(Space::default()) };
    Ok(Space { used: uint(&row, 0)?, free: 0, debris: get(&row, 1)? })
}

/// Returns the bytes that all runs together have: of their histories, own state and files. Reads
/// every header.
pub fn of_runs(db: &Session) -> Result<u64, Failed> {
    let row = db.one("SELECT coalesce(sum(bytes), 0)::bigint FROM runs", &[])?;
    row.map_or(Ok(0), |row| uint(&row, 0))
}
