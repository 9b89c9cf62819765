//! The scopes of the table `state`.

use super::{
    failed::Failed,
    session::Session,
    state::of_scope,
    value::{int, text, uint},
};
use crate::store::{MOST_COUNTED, ScopeFilter, ScopeRow};

/// The number of bytes of a scope that the index has.
const INDEXED: usize = 1_024;

/// Returns a page of scopes, sorted. Each is found by one seek in the index, whatever it has. Call it
/// within a snapshot.
pub fn page(db: &Session, filter: &ScopeFilter) -> Result<Vec<ScopeRow>, Failed> {
    let mut found = Vec::new();
    let after = filter.after.as_deref().filter(|after| *after >= filter.prefix.as_str());
    let mut scope = match after {
        Some(after) => next(db, after)?,
        None => first(db, &filter.prefix)?,
    };
    while let Some(at) = scope.filter(|it| it.starts_with(&filter.prefix)) {
        let row = measured(db, &at, filter.now_ms)?;
        found.extend((row.keys > 0).then_some(row));
        if found.len() >= filter.limit {
            break;
        }
        scope = next(db, &at)?;
    }
    Ok(found)
}

/// Returns the first scope that is not before a text.
fn first(db: &Session, from: &str) -> Result<Option<String>, Failed> {
    if from.len() >= INDEXED
        && let Some(scope) = one(db, WITHIN, from)?
    {
        return Ok(Some(scope));
    }
    let sql = if from.len() < INDEXED { FROM } else { AFTER };
    one(db, sql, from)?.map_or(Ok(None), |scope| least(db, scope))
}

/// Returns the scope after another.
fn next(db: &Session, scope: &str) -> Result<Option<String>, Failed> {
    if scope.len() >= INDEXED
        && let Some(scope) = one(db, LATER_WITHIN, scope)?
    {
        return Ok(Some(scope));
    }
    one(db, AFTER, scope)?.map_or(Ok(None), |scope| least(db, scope))
}

/// Returns the first scope that looks like this one to the index: itself, unless it is long.
fn least(db: &Session, scope: String) -> Result<Option<String>, Failed> {
    if scope.len() < INDEXED { Ok(Some(scope)) } else { one(db, LEAST, &scope) }
}

fn one(db: &Session, sql: &str, scope: &str) -> Result<Option<String>, Failed> {
    db.one(sql, &[&scope.as_bytes()])?.map(|row| text(&row, 0)).transpose()
}

pub(super) const FROM: &str = "
    SELECT scope FROM state
    WHERE substring(scope from 1 for 1024) >= substring($1::bytea from 1 for 1024)
    ORDER BY substring(scope from 1 for 1024) LIMIT 1";
pub(super) const AFTER: &str = "
    SELECT scope FROM state
    WHERE substring(scope from 1 for 1024) > substring($1::bytea from 1 for 1024)
    ORDER BY substring(scope from 1 for 1024) LIMIT 1";
const LEAST: &str = "
    SELECT scope FROM state
    WHERE substring(scope from 1 for 1024) = substring($1::bytea from 1 for 1024)
    ORDER BY scope LIMIT 1";
const WITHIN: &str = "
    SELECT scope FROM state
    WHERE substring(scope from 1 for 1024) = substring($1::bytea from 1 for 1024) AND scope >= $1
    ORDER BY scope LIMIT 1";
const LATER_WITHIN: &str = "
    SELECT scope FROM state
    WHERE substring(scope from 1 for 1024) = substring($1::bytea from 1 for 1024) AND scope > $1
    ORDER BY scope LIMIT 1";

fn measured(db: &Session, scope: &str, now_ms: u64) -> Result<ScopeRow, Failed> {
    // One key more than is counted shows that there are more.
    let sql = concat!(
        "SELECT count(*), count(*) FILTER (WHERE n <= $3::bigint), \
                coalesce(sum(bytes) FILTER (WHERE n <= $3::bigint), 0)::bigint FROM (
             SELECT row_number() OVER (ORDER BY substring(key from 1 for 1024), key) AS n,
                    octet_length(key)::bigint + octet_length(value) AS bytes
             FROM state WHERE ",
        of_scope!(),
        " AND (expires_ms IS NULL OR expires_ms > $2)
             ORDER BY substring(key from 1 for 1024), key LIMIT $3::bigint + 1
         ) counted"
    );
    let row = db.one(sql, &[&scope.as_bytes(), &int(now_ms), &int(MOST_COUNTED)])?;
    let Some(row) = row else {
        return Ok(ScopeRow { scope: scope.to_owned(), keys: 0, bytes: 0, more: false });
    };
    let all: u64 = uint(&row, 0)?;
    let (keys, bytes) = (uint(&row, 1)?, uint(&row, 2)?);
    Ok(ScopeRow { scope: scope.to_owned(), keys, bytes, more: all > keys })
}
