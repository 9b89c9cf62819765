//! The tables `charges` and `charged`: the charges of runs to tokens with quotas.

use tokio_postgres::Row;

use super::{
    failed::Failed,
    session::Session,
    value::{in_row, int, text, uint},
};
use crate::store::{ChargeRow, ChargeSum};

/// Returns the charge of a run.
pub fn one(db: &Session, run: u64) -> Result<Option<ChargeRow>, Failed> {
    let sql = "SELECT run, jti, bytes, tokens, nano_usd FROM charges WHERE run = $1";
    db.one(sql, &[&int(run)])?.as_ref().map(read).transpose()
}

/// Returns the charges of the open runs, ordered by run number.
pub fn open(db: &Session) -> Result<Vec<ChargeRow>, Failed> {
    let sql = "
        SELECT c.run, c.jti, c.bytes, c.tokens, c.nano_usd FROM charges c
        JOIN runs r ON r.num = c.run WHERE r.status < 5 ORDER BY c.run";
    db.query(sql, &[])?.iter().map(read).collect()
}

/// Returns the sum for each token, with the number of runs created at or after a time.
pub fn sums(db: &Session, since_ms: u64) -> Result<Vec<ChargeSum>, Failed> {
    let read = |row: &Row| {
        Ok(ChargeSum {
            jti: text(row, 0)?,
            bytes: uint(row, 1)?,
            tokens: uint(row, 2)?,
            nano_usd: uint(row, 3)?,
            starts: uint(row, 4)?,
        })
    };
    let what = || "a sum of charges".to_owned();
    let rows = db.query(SUMS, &[&int(since_ms)])?;
    rows.iter().map(|row| read(row).map_err(in_row(what))).collect()
}

/// A sum of numbers of 64 bits has more bits, and is bounded before it is read.
const SUMS: &str = "
    SELECT jti, least(sum(bytes), 9223372036854775807)::bigint,
           least(sum(tokens), 9223372036854775807)::bigint,
           least(sum(nano_usd), 9223372036854775807)::bigint, sum(started)::bigint
    FROM (SELECT c.jti, c.bytes, c.tokens, c.nano_usd,
                 CASE WHEN r.created_ms >= $1 THEN 1 ELSE 0 END AS started
          FROM charges c JOIN runs r ON r.num = c.run
          UNION ALL
          SELECT jti, 0, tokens, nano_usd, 0 FROM charged) AS counted
    GROUP BY jti ORDER BY jti";

fn read(row: &Row) -> Result<ChargeRow, Failed> {
    let whole = || {
        Ok(ChargeRow {
            run: uint(row, 0)?,
            jti: text(row, 1)?,
            bytes: uint(row, 2)?,
            tokens: uint(row, 3)?,
            nano_usd: uint(row, 4)?,
        })
    };
    whole().map_err(in_row(|| "the charge of a run".to_owned()))
}
