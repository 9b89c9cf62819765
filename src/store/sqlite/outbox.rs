//! The table `outbox`: signals between runs that have not arrived.

use rusqlite::{Connection, params};

use super::value::{int, uint};
use crate::store::OutboxRow;

/// Keeps a signal; a repetition of the same step changes nothing.
pub fn put(conn: &Connection, signal: &OutboxRow) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "INSERT INTO outbox (run, step, target, name, payload) VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT (run, step) DO NOTHING",
    )?
    .execute(params![int(signal.run), signal.step, int(signal.to), signal.name, signal.payload])
    .map(drop)
}

/// Removes a signal that arrived.
pub fn delete(conn: &Connection, run: u64, step: u32) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM outbox WHERE run = ?1 AND step = ?2")?
        .execute(params![int(run), step])
        .map(drop)
}

/// Removes what a run sent.
pub fn delete_of(conn: &Connection, run: u64) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM outbox WHERE run = ?1")?.execute([int(run)]).map(drop)
}

/// Every signal, oldest first.
pub fn list(conn: &Connection) -> rusqlite::Result<Vec<OutboxRow>> {
    conn.prepare_cached("SELECT run, step, target, name, payload FROM outbox ORDER BY id")?
        .query_map([], |row| {
            Ok(OutboxRow {
                run: uint(row, 0)?,
                step: row.get(1)?,
                to: uint(row, 2)?,
                name: row.get(3)?,
                payload: row.get(4)?,
            })
        })?
        .collect()
}
