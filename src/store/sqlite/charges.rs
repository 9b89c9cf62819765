//! The tables `charges` and `charged`: the charges of runs to tokens with quotas.

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::value::{int, uint};
use crate::store::{ChargeRow, ChargeSum};

/// Stores the total charge of a run.
pub fn put(conn: &Connection, row: &ChargeRow) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "INSERT INTO charges (run, jti, bytes, tokens, nano_usd) VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT (run) DO UPDATE SET bytes = excluded.bytes, tokens = excluded.tokens,
             nano_usd = excluded.nano_usd",
    )?
    .execute(params![int(row.run), row.jti, int(row.bytes), int(row.tokens), int(row.nano_usd)])
    .map(drop)
}

/// Returns the charge of a run.
pub fn one(conn: &Connection, run: u64) -> rusqlite::Result<Option<ChargeRow>> {
    conn.prepare_cached("SELECT run, jti, bytes, tokens, nano_usd FROM charges WHERE run = ?1")?
        .query_row([int(run)], read)
        .optional()
}

/// Returns the charges of the open runs, ordered by run number.
pub fn open(conn: &Connection) -> rusqlite::Result<Vec<ChargeRow>> {
    conn.prepare_cached(
        "SELECT c.run, c.jti, c.bytes, c.tokens, c.nano_usd FROM charges c
         JOIN runs r ON r.num = c.run
         WHERE r.status NOT IN ('completed', 'failed', 'canceled') ORDER BY c.run",
    )?
    .query_map([], read)?
    .collect()
}

/// Returns the sum for each token, with the number of runs created at or after a time.
pub fn sums(conn: &Connection, since_ms: u64) -> rusqlite::Result<Vec<ChargeSum>> {
    // `sum` over integers fails on overflow; `total` uses reals and does not.
    conn.prepare_cached(
        "SELECT jti, CAST(total(bytes) AS INTEGER), CAST(total(tokens) AS INTEGER),
                CAST(total(nano_usd) AS INTEGER), sum(started)
         FROM (SELECT c.jti, c.bytes, c.tokens, c.nano_usd, r.created_ms >= ?1 AS started
               FROM charges c JOIN runs r ON r.num = c.run
               UNION ALL
               SELECT jti, 0, tokens, nano_usd, 0 FROM charged)
         GROUP BY jti ORDER BY jti",
    )?
    .query_map([int(since_ms)], |row| {
        Ok(ChargeSum {
            jti: row.get(0)?,
            bytes: uint(row, 1)?,
            tokens: uint(row, 2)?,
            nano_usd: uint(row, 3)?,
            starts: uint(row, 4)?,
        })
    })?
    .collect()
}

/// Removes the charge of a deleted run. Its tokens and cost stay counted for the token.
pub fn close(conn: &Connection, run: u64) -> rusqlite::Result<()> {
    let row = conn
        .prepare_cached(
            "DELETE FROM charges WHERE run = ?1 RETURNING run, jti, bytes, tokens, nano_usd",
        )?
        .query_row([int(run)], read)
        .optional()?;
    let Some(ChargeRow { jti, tokens, nano_usd, .. }) = row else { return Ok(()) };
    conn.prepare_cached(
        "INSERT INTO charged (jti, tokens, nano_usd) VALUES (?1, ?2, ?3)
         ON CONFLICT (jti) DO UPDATE SET tokens = min(tokens + excluded.tokens, 1 << 60),
             nano_usd = min(nano_usd + excluded.nano_usd, 1 << 60)",
    )?
    .execute(params![jti, int(tokens), int(nano_usd)])
    .map(drop)
}

fn read(row: &Row<'_>) -> rusqlite::Result<ChargeRow> {
    Ok(ChargeRow {
        run: uint(row, 0)?,
        jti: row.get(1)?,
        bytes: uint(row, 2)?,
        tokens: uint(row, 3)?,
        nano_usd: uint(row, 4)?,
    })
}
