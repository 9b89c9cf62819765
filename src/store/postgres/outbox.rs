//! The table `outbox`: signals and cancels between runs, and changes for stores of somebody else's,
//! that have not been delivered.

use tokio_postgres::Row;

use super::{
    codes,
    failed::Failed,
    session::Session,
    value::{in_row, int, json, limit, number, sound, text, uint},
};
use crate::store::{Errand, OutboxRow, StoreError};

/// Returns all messages, oldest first.
pub fn list(db: &Session) -> Result<Vec<OutboxRow>, Failed> {
    let sql = "SELECT run, step, target, name, payload, kind FROM outbox ORDER BY id";
    sound(db.query(sql, &[])?.iter().map(read))
}

/// Returns the changes of a scope, of a run, or of all, oldest first.
pub fn changes(
    db: &Session,
    scope: Option<&str>,
    run: Option<u64>,
    at_most: usize,
) -> Result<Vec<OutboxRow>, Failed> {
    let sql = "
        SELECT run, step, target, name, payload, kind FROM outbox
        WHERE kind = $1 AND ($2::bytea IS NULL OR name = $2) AND ($3::bigint IS NULL OR run = $3)
        ORDER BY id LIMIT $4";
    let params = (scope.map(str::as_bytes), run.map(int), limit(at_most));
    let rows = db.query(sql, &[&codes::CHANGE, &params.0, &params.1, &params.2])?;
    sound(rows.iter().map(read))
}

fn read(row: &Row) -> Result<OutboxRow, Failed> {
    let run = || uint::<u64>(row, 0).unwrap_or_default();
    fields(row).map_err(in_row(|| format!("the errand of run {}", run())))
}

fn fields(row: &Row) -> Result<OutboxRow, Failed> {
    let errand = match i16::try_from(number(row, 5)?) {
        Ok(codes::SIGNAL) => Errand::Signal { name: text(row, 3)?, payload: json(row, 4)? },
        Ok(codes::CANCEL) => Errand::Cancel { by: text(row, 3)?, reason: text(row, 4)? },
        Ok(codes::CHANGE) => Errand::Change { scope: text(row, 3)?, payload: json(row, 4)? },
        Ok(_) | Err(_) => {
            let what = format!("the errand of run {}", uint::<u64>(row, 0)?);
            let reason = "its kind is unknown".to_owned();
            return Err(StoreError::Damaged { what, reason }.into());
        }
    };
    Ok(OutboxRow { run: uint(row, 0)?, step: uint(row, 1)?, to: uint(row, 2)?, errand })
}
