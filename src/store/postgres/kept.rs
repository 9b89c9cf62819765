//! The tables `kept`, `audit`, `idempotency`, `evidence` and `meta`: values of middleware layers, the
//! audit log, stored responses, refused reports, and values of the host itself.

use tokio_postgres::Row;

use super::{
    failed::Failed,
    place,
    session::Session,
    value::{in_row, int, json, limit, text, uint, uint_or_null},
};
use crate::store::{AuditRow, EvidenceRow, Expiring, IdempotencyRow, KeptRow, UNSTORED};

/// Returns a value of a layer and its expiry.
pub fn one(db: &Session, layer: &str, key: &str) -> Result<Option<(String, Option<u64>)>, Failed> {
    let sql = "SELECT value, expires_ms FROM kept WHERE place = $1";
    let row = db.one(sql, &[&place::of(&[layer, key]).as_slice()])?;
    let Some(row) = row else { return Ok(None) };
    let what = || format!("what layer {layer} keeps under {key:?}");
    Ok(Some((json(&row, 0).map_err(in_row(what))?, uint_or_null(&row, 1)?)))
}

/// Returns the values of a layer under keys after another, sorted by key.
pub fn of(
    db: &Session,
    (layer, after): (&str, &str),
    at_most: usize,
) -> Result<Vec<KeptRow>, Failed> {
    let rows = db.query(OF_LAYER, &[&layer.as_bytes(), &after.as_bytes(), &limit(at_most)])?;
    let read = |row: &Row| {
        Ok(KeptRow { key: text(row, 0)?, value: json(row, 1)?, expires_ms: uint_or_null(row, 2)? })
    };
    let what = || format!("a value that layer {layer} keeps");
    rows.iter().map(|row| read(row).map_err(in_row(what))).collect()
}

pub(super) const OF_LAYER: &str = "
    SELECT key, value, expires_ms FROM kept
    WHERE substring(layer from 1 for 1024) = substring($1::bytea from 1 for 1024)
      AND (octet_length($1) < 1024 OR layer = $1) AND key > $2
      AND substring(key from 1 for 1024) >= substring($2::bytea from 1 for 1024)
    ORDER BY substring(key from 1 for 1024), key LIMIT $3";

/// Returns the lines of the audit log with numbers over `after`, in order.
pub fn lines(db: &Session, after: u64, at_most: usize) -> Result<Vec<AuditRow>, Failed> {
    let sql = "SELECT seq, at, line, hash FROM audit WHERE seq > $1 ORDER BY seq LIMIT $2";
    db.query(sql, &[&int(after), &limit(at_most)])?.iter().map(line).collect()
}

/// Returns the last line of the audit log.
pub fn last_line(db: &Session) -> Result<Option<AuditRow>, Failed> {
    let sql = "SELECT seq, at, line, hash FROM audit ORDER BY seq DESC LIMIT 1";
    db.one(sql, &[])?.as_ref().map(line).transpose()
}

fn line(row: &Row) -> Result<AuditRow, Failed> {
    let whole = || {
        Ok(AuditRow {
            seq: uint(row, 0)?,
            at: text(row, 1)?,
            line: text(row, 2)?,
            hash: text(row, 3)?,
        })
    };
    whole().map_err(in_row(|| "a line of the audit log".to_owned()))
}

/// Returns the response stored under an idempotency key.
pub fn answer(
    db: &Session,
    principal: &str,
    route: &str,
    key: &str,
) -> Result<Option<IdempotencyRow>, Failed> {
    let sql = "SELECT created_ms, body, answer FROM idempotency WHERE place = $1";
    let row = db.one(sql, &[&place::of(&[principal, route, key]).as_slice()])?;
    let Some(row) = row else { return Ok(None) };
    let whole = || {
        Ok(IdempotencyRow {
            principal: principal.to_owned(),
            route: route.to_owned(),
            key: key.to_owned(),
            created_ms: uint(&row, 0)?,
            body: text(&row, 1)?,
            answer: text(&row, 2)?,
        })
    };
    whole().map(Some).map_err(in_row(|| format!("the answer for key {key:?}")))
}

/// Returns the last refused reports of a run or of one step of it, oldest first.
pub fn evidence(
    db: &Session,
    run: u64,
    step: Option<u32>,
    most: usize,
) -> Result<Vec<EvidenceRow>, Failed> {
    let sql = "
        SELECT run, step, attempt, at_ms, code, body FROM evidence
        WHERE run = $1 AND ($2::bigint IS NULL OR step = $2)
        ORDER BY id DESC LIMIT $3";
    let read = |row: &Row| {
        Ok(EvidenceRow {
            run: uint(row, 0)?,
            step: uint(row, 1)?,
            attempt: uint(row, 2)?,
            at_ms: uint(row, 3)?,
            code: text(row, 4)?,
            body: text(row, 5)?,
        })
    };
    let what = || format!("a refused report of run {run}");
    let rows = db.query(sql, &[&int(run), &step.map(i64::from), &limit(most)])?;
    rows.iter().rev().map(|row| read(row).map_err(in_row(what))).collect()
}

/// Returns a value of the host.
pub fn meta(db: &Session, key: &str) -> Result<Option<String>, Failed> {
    let row = db.one("SELECT value FROM meta WHERE key = $1", &[&key.as_bytes()])?;
    row.map(|row| text(&row, 0)).transpose()
}

/// Returns true if there are records from before a time.
pub fn has_expired(db: &Session, what: Expiring, before_ms: u64) -> Result<bool, Failed> {
    let sql = match what {
        Expiring::Answers => "SELECT 1 FROM idempotency WHERE created_ms < $1 LIMIT 1",
        Expiring::Kept => "SELECT 1 FROM kept WHERE expires_ms < $1 LIMIT 1",
        Expiring::Sessions => "SELECT 1 FROM sessions WHERE closed_ms < $1 LIMIT 1",
    };
    db.exists(sql, &[&int(before_ms)])
}

/// Returns the runs that are to be deleted after they end.
pub fn unstored(db: &Session) -> Result<Vec<u64>, Failed> {
    let sql = "SELECT key FROM meta WHERE key >= 'unstored:' AND key < 'unstored;' LIMIT 1000";
    let mut runs = Vec::new();
    for row in db.query(sql, &[])? {
        runs.extend(text(&row, 0)?[UNSTORED.len()..].parse::<u64>().ok());
    }
    Ok(runs)
}
