//! The tables `sessions` and `frames`: open and closed sessions, and what they have not
//! acknowledged.

use tokio_postgres::Row;

use super::{
    failed::Failed,
    session::Session,
    value::{from_bits, get, in_row, json, sound, text, text_or_null, uint, uint_or_null},
};
use crate::store::{FrameRow, SessionRow};

/// The columns, in the order of [`read`].
macro_rules! columns {
    () => {
        "id, operator, principal, jti, until_ms, created_ms, expires_ms, direct, last_seq, \
         acked_seq, closed_ms, reason"
    };
}

/// Returns the open sessions, oldest first.
pub fn open(db: &Session) -> Result<Vec<SessionRow>, Failed> {
    let sql = concat!(
        "SELECT ",
        columns!(),
        " FROM sessions WHERE closed_ms IS NULL ORDER BY created_ms, id"
    );
    db.query(sql, &[])?.iter().map(read).collect()
}

/// Returns one session.
pub fn one(db: &Session, id: &str) -> Result<Option<SessionRow>, Failed> {
    let sql = concat!("SELECT ", columns!(), " FROM sessions WHERE id = $1");
    db.one(sql, &[&id.as_bytes()])?.as_ref().map(read).transpose()
}

/// Returns all frames, by session and in order.
pub fn frames(db: &Session) -> Result<Vec<FrameRow>, Failed> {
    let sql = "
        SELECT session, seq, method, run, step, attempt, epoch, timeout_ms, params, scheduled_ms,
               nonce
        FROM frames ORDER BY session, seq";
    let what = || "a frame of a session".to_owned();
    sound(db.query(sql, &[])?.iter().map(|row| frame(row).map_err(in_row(what))))
}

fn frame(row: &Row) -> Result<FrameRow, Failed> {
    Ok(FrameRow {
        session: text(row, 0)?,
        seq: uint(row, 1)?,
        method: text(row, 2)?,
        run: uint(row, 3)?,
        step: uint(row, 4)?,
        attempt: uint(row, 5)?,
        epoch: uint(row, 6)?,
        timeout_ms: uint_or_null(row, 7)?,
        params: json(row, 8)?,
        scheduled_ms: uint(row, 9)?,
        nonce: from_bits(row, 10)?,
    })
}

fn read(row: &Row) -> Result<SessionRow, Failed> {
    let whole = || {
        Ok(SessionRow {
            id: text(row, 0)?,
            operator: text(row, 1)?,
            principal: text(row, 2)?,
            jti: text(row, 3)?,
            until_ms: uint(row, 4)?,
            created_ms: uint(row, 5)?,
            expires_ms: uint(row, 6)?,
            direct: get(row, 7)?,
            last_seq: uint(row, 8)?,
            acked_seq: uint(row, 9)?,
            closed_ms: uint_or_null(row, 10)?,
            reason: text_or_null(row, 11)?,
        })
    };
    whole().map_err(in_row(|| format!("session {}", text(row, 0).unwrap_or_default())))
}
