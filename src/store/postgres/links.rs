//! The table `state_links`: links between keys.

use tokio_postgres::Row;

use super::{
    failed::Failed,
    session::Session,
    state::of_scope,
    value::{in_row, limit, text, text_or_null},
};
use crate::protocol::MemoryLink;

/// Returns the links from a key, sorted by target, of one relation or of any.
pub fn from(
    db: &Session,
    scope: &str,
    key: &str,
    relation: Option<&str>,
    most: usize,
) -> Result<Vec<MemoryLink>, Failed> {
    let params = (scope.as_bytes(), key.as_bytes(), relation.map(str::as_bytes), limit(most));
    let rows = db.query(FROM, &[&params.0, &params.1, &params.2, &params.3])?;
    let what = || format!("a link of {scope}");
    rows.iter().map(|row| read(row).map_err(in_row(what))).collect()
}

pub(super) const FROM: &str = concat!(
    "SELECT from_key, to_key, relation, metadata FROM state_links WHERE ",
    of_scope!(),
    " AND substring(from_key from 1 for 1024) = substring($2::bytea from 1 for 1024)
      AND from_key = $2 AND ($3::bytea IS NULL OR relation = $3)
    ORDER BY to_key, relation LIMIT $4"
);

/// Returns all links of a scope, sorted by source and target.
pub fn of_scope(db: &Session, scope: &str) -> Result<Vec<MemoryLink>, Failed> {
    let sql = concat!(
        "SELECT from_key, to_key, relation, metadata FROM state_links WHERE ",
        of_scope!(),
        " ORDER BY from_key, to_key, relation"
    );
    let what = || format!("a link of {scope}");
    db.query(sql, &[&scope.as_bytes()])?.iter().map(|row| read(row).map_err(in_row(what))).collect()
}

fn read(row: &Row) -> Result<MemoryLink, Failed> {
    let mut link = MemoryLink::new(text(row, 0)?, text(row, 1)?, text(row, 2)?);
    let metadata = text_or_null(row, 3)?;
    link.metadata = metadata.and_then(|text| serde_json::from_str(&text).ok());
    Ok(link)
}
