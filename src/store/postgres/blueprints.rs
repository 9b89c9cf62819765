//! The tables `blueprints` and `blueprint_names`: versions, and the current version of each name.

use tokio_postgres::Row;

use super::{
    failed::Failed,
    session::Session,
    value::{after_prefix, bytes, get, in_row, int, limit, text, text_or_null, uint},
};
use crate::store::{BlueprintRow, VersionRow};

/// Returns a version by its full hash.
pub fn one(db: &Session, hash: &str) -> Result<Option<BlueprintRow>, Failed> {
    let sql = "SELECT hash, name, created_ms, bundle, publisher FROM blueprints WHERE hash = $1";
    let row = db.one(sql, &[&hash.as_bytes()])?;
    row.as_ref().map(read).transpose()
}

/// Returns the hash that a name refers to.
pub fn named(db: &Session, name: &str) -> Result<Option<String>, Failed> {
    let row = db.one("SELECT hash FROM blueprint_names WHERE name = $1", &[&name.as_bytes()])?;
    row.map(|row| text(&row, 0)).transpose()
}

/// Returns the hash of the newest version of a name that has a publisher.
pub fn last(db: &Session, name: &str) -> Result<Option<String>, Failed> {
    let sql = "
        SELECT hash FROM blueprints WHERE name = $1 AND publisher IS NOT NULL
        ORDER BY created_ms DESC, id DESC LIMIT 1";
    let row = db.one(sql, &[&name.as_bytes()])?;
    row.map(|row| text(&row, 0)).transpose()
}

/// Returns the first hash of a name's versions whose hash starts with `prefix`, and the number of
/// these versions; only of those with a publisher if `published`.
pub fn like(
    db: &Session,
    name: &str,
    prefix: &str,
    published: bool,
) -> Result<Option<(String, u64)>, Failed> {
    // The number is that of all rows, not of the one that the limit leaves.
    let sql = "
        SELECT hash, count(*) OVER () FROM blueprints
        WHERE name = $1 AND hash >= $2 AND hash < $3 AND (NOT $4 OR publisher IS NOT NULL)
        ORDER BY hash LIMIT 1";
    let (name, from, to) = (name.as_bytes(), prefix.as_bytes(), after_prefix(prefix));
    let row = db.one(sql, &[&name, &from, &to, &published])?;
    row.map(|row| Ok((text(&row, 0)?, uint(&row, 1)?))).transpose()
}

/// Returns versions without their bundles, newest first, after one of them.
pub fn list(
    db: &Session,
    name: &str,
    after: Option<(u64, &str)>,
    at_most: usize,
) -> Result<Vec<VersionRow>, Failed> {
    let (at, hash) = after.map_or((i64::MAX, ""), |(at_ms, hash)| (int(at_ms), hash));
    let params = (name.as_bytes(), hash.as_bytes(), limit(at_most));
    let rows = db.query(LIST, &[&params.0, &at, &params.1, &params.2])?;
    let read = |row: &Row| {
        Ok(VersionRow { hash: text(row, 0)?, created_ms: uint(row, 1)?, published: get(row, 2)? })
    };
    rows.iter().map(read).collect()
}

pub(super) const LIST: &str = "
    SELECT hash, created_ms, publisher IS NOT NULL FROM blueprints
    WHERE name = $1 AND (created_ms, hash) < ($2, $3)
    ORDER BY created_ms DESC, hash DESC LIMIT $4";

/// Returns names with their hash and the time it was set, sorted by name.
pub fn names(db: &Session) -> Result<Vec<(String, String, u64)>, Failed> {
    let rows = db.query("SELECT name, hash, at_ms FROM blueprint_names ORDER BY name", &[])?;
    rows.iter().map(|row| Ok((text(row, 0)?, text(row, 1)?, uint(row, 2)?))).collect()
}

fn read(row: &Row) -> Result<BlueprintRow, Failed> {
    let whole = || {
        Ok(BlueprintRow {
            hash: text(row, 0)?,
            name: text(row, 1)?,
            created_ms: uint(row, 2)?,
            bundle: bytes(row, 3)?.to_vec(),
            publisher: text_or_null(row, 4)?,
        })
    };
    whole().map_err(in_row(|| format!("blueprint {}", text(row, 0).unwrap_or_default())))
}
