//! The table `state`: values by scope and key.
//!
//! A row is found by its place, a hash over scope and key. Lists use an index over the first 1,024
//! bytes of both, and compare the whole.

use tokio_postgres::Row;

use super::{
    failed::Failed,
    place,
    session::Session,
    value::{after_prefix, in_row, int, json, limit, text, text_or_null, uint, uint_or_null},
};
use crate::store::{StateFilter, StateKey, StateRow};

/// The columns, in the order of [`read`].
macro_rules! columns {
    () => {
        "scope, key, revision, updated_ms, expires_ms, hints, value"
    };
}
pub(super) use columns;

/// The condition that a row is of the scope `$1`. A scope that the index has as a whole is not
/// compared again, so that the planner does not count the condition twice.
macro_rules! of_scope {
    () => {
        "substring(scope from 1 for 1024) = substring($1::bytea from 1 for 1024) \
         AND (octet_length($1) < 1024 OR scope = $1)"
    };
}
pub(super) use of_scope;

/// The order of keys, as an index has it.
macro_rules! by_key {
    () => {
        "substring(key from 1 for 1024), key"
    };
}

/// Returns the total bytes of all keys and values of a scope, without reading them.
pub fn bytes(db: &Session, scope: &str) -> Result<u64, Failed> {
    let sql = concat!(
        "SELECT coalesce(sum(octet_length(key)::bigint + octet_length(value)), 0)::bigint \
         FROM state WHERE ",
        of_scope!()
    );
    db.one(sql, &[&scope.as_bytes()])?.map_or(Ok(0), |row| uint(&row, 0))
}

/// Returns one value, even if it has expired.
pub fn one(db: &Session, scope: &str, key: &str) -> Result<Option<StateRow>, Failed> {
    let sql = concat!("SELECT ", columns!(), " FROM state WHERE place = $1");
    let row = db.one(sql, &[&place::of(&[scope, key]).as_slice()])?;
    row.as_ref().map(read).transpose()
}

/// Returns all values of a scope, sorted by key.
pub fn list(db: &Session, scope: &str) -> Result<Vec<StateRow>, Failed> {
    db.query(LIST, &[&scope.as_bytes()])?.iter().map(read).collect()
}

pub(super) const LIST: &str =
    concat!("SELECT ", columns!(), " FROM state WHERE ", of_scope!(), " ORDER BY ", by_key!());

/// Returns a page of the keys of a scope, sorted. The values, which may be large, are not read.
pub fn page(db: &Session, filter: &StateFilter) -> Result<Vec<StateKey>, Failed> {
    // One lower bound, so that the keys before the page are not read.
    let after = filter.after.as_deref().filter(|after| *after >= filter.prefix.as_str());
    let from = after.unwrap_or(&filter.prefix);
    let to = after_prefix(&filter.prefix);
    let (scope, from, now_ms) = (filter.scope.as_bytes(), from.as_bytes(), int(filter.now_ms));
    let with_from = after.is_none();
    let rows = db.query(PAGE, &[&scope, &from, &to, &with_from, &now_ms, &limit(filter.limit)])?;
    rows.iter().map(|row| listed(row, &filter.scope)).collect()
}

fn listed(row: &Row, scope: &str) -> Result<StateKey, Failed> {
    let read = || -> Result<StateKey, Failed> {
        Ok(StateKey {
            key: text(row, 0)?,
            revision: uint(row, 1)?,
            updated_ms: uint(row, 2)?,
            expires_ms: uint_or_null(row, 3)?,
        })
    };
    read().map_err(in_row(|| {
        let key = text(row, 0).unwrap_or_else(|_| "?".to_owned());
        format!("state {key:?} of {scope}")
    }))
}

pub(super) const PAGE: &str = concat!(
    "SELECT key, revision, updated_ms, expires_ms FROM state WHERE ",
    of_scope!(),
    " AND substring(key from 1 for 1024) >= substring($2::bytea from 1 for 1024)
      AND substring(key from 1 for 1024) <= substring($3::bytea from 1 for 1024)
      AND (key > $2 OR key = $2 AND $4) AND key < $3
      AND (expires_ms IS NULL OR expires_ms > $5)
    ORDER BY ",
    by_key!(),
    " LIMIT $6"
);

/// Returns true if an expired value is still stored.
pub fn has_expired(db: &Session, now_ms: u64) -> Result<bool, Failed> {
    let sql = "SELECT 1 FROM state WHERE expires_ms IS NOT NULL AND expires_ms <= $1 LIMIT 1";
    db.exists(sql, &[&int(now_ms)])
}

/// Reads a value.
pub fn read(row: &Row) -> Result<StateRow, Failed> {
    let name = |column| text(row, column).unwrap_or_else(|_| "?".to_owned());
    fields(row).map_err(in_row(|| format!("state {:?} of {}", name(1), name(0))))
}

fn fields(row: &Row) -> Result<StateRow, Failed> {
    let hints = text_or_null(row, 5)?;
    Ok(StateRow {
        scope: text(row, 0)?,
        key: text(row, 1)?,
        revision: uint(row, 2)?,
        updated_ms: uint(row, 3)?,
        expires_ms: uint_or_null(row, 4)?,
        // Hints are advisory: unreadable hints count as absent.
        hints: hints.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default(),
        value: json(row, 6)?,
    })
}
