//! The table `frames`: unacknowledged frames of sessions.

use rusqlite::{Connection, Row, params};

use super::value::{bits, from_bits, int, json, sound, uint, uint_or_null};
use crate::store::FrameRow;

/// Stores a frame.
pub fn put(conn: &Connection, frame: &FrameRow) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "INSERT INTO frames (session, seq, method, run, step, attempt, epoch, timeout_ms, params,
             scheduled_ms, nonce)
         SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11
         WHERE EXISTS (SELECT 1 FROM sessions WHERE id = ?1 AND closed_ms IS NULL)",
    )?
    .execute(params![
        frame.session,
        int(frame.seq),
        frame.method,
        int(frame.run),
        frame.step,
        frame.attempt,
        frame.epoch,
        frame.timeout_ms.map(int),
        frame.params,
        int(frame.scheduled_ms),
        bits(frame.nonce),
    ])
    .map(drop)
}

/// Removes the frames up to a number.
pub fn acknowledge(conn: &Connection, session: &str, seq: u64) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM frames WHERE session = ?1 AND seq <= ?2")?
        .execute(params![session, int(seq)])
        .map(drop)
}

/// Returns all frames, by session and in order.
pub fn list(conn: &Connection) -> rusqlite::Result<Vec<FrameRow>> {
    let mut frames = conn.prepare(
        "SELECT session, seq, method, run, step, attempt, epoch, timeout_ms, params,
             scheduled_ms, nonce
         FROM frames ORDER BY session, seq",
    )?;
    sound(frames.query_map([], read)?)
}

fn read(row: &Row<'_>) -> rusqlite::Result<FrameRow> {
    Ok(FrameRow {
        session: row.get(0)?,
        seq: uint(row, 1)?,
        method: row.get(2)?,
        run: uint(row, 3)?,
        step: row.get(4)?,
        attempt: row.get(5)?,
        epoch: row.get(6)?,
        timeout_ms: uint_or_null(row, 7)?,
        params: json(row, 8, || "a frame of a session".to_owned())?,
        scheduled_ms: uint(row, 9)?,
        nonce: from_bits(row, 10)?,
    })
}
