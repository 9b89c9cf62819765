//! Values as SQLite keeps them: it has no unsigned integers and no enums.

use rusqlite::{
    Row,
    types::{FromSqlError, Type},
};
use serde::de::IgnoredAny;

use super::error::{Unreadable, in_row, is_of_a_row};

/// An unsigned number as a stored one.
///
/// What does not fit is stored as the largest that does: only a time can be so large, and it then
/// still means "never".
pub fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// A stored number that cannot be negative.
pub fn uint(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    let value: i64 = row.get(column)?;
    u64::try_from(value).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(column, value))
}

/// A stored number that cannot be negative, or nothing.
pub fn uint_or_null(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<u64>> {
    let Some(value) = row.get::<_, Option<i64>>(column)? else { return Ok(None) };
    match u64::try_from(value) {
        Ok(value) => Ok(Some(value)),
        Err(_) => Err(rusqlite::Error::IntegralValueOutOfRange(column, value)),
    }
}

/// A number of which every bit counts, as a stored one.
pub fn bits(value: u64) -> i64 {
    value.cast_signed()
}

/// A stored number of which every bit counts.
pub fn from_bits(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    row.get(column).map(i64::cast_unsigned)
}

/// A stored word, as what it stands for.
pub fn word<T>(
    row: &Row<'_>,
    column: usize,
    parse: impl FnOnce(&str) -> Option<T>,
) -> rusqlite::Result<T> {
    let text = row.get_ref(column)?.as_str()?;
    parse(text).ok_or_else(|| {
        let source = FromSqlError::Other(format!("unknown word {text:?}").into());
        rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(source))
    })
}

/// A stored JSON document; `what` names it where it is none.
pub fn json(row: &Row<'_>, column: usize, what: impl Fn() -> String) -> rusqlite::Result<String> {
    let text: String = row.get(column).map_err(in_row(&what))?;
    checked(text, what)
}

/// A stored JSON document, or nothing.
pub fn json_or_null(
    row: &Row<'_>,
    column: usize,
    what: impl Fn() -> String,
) -> rusqlite::Result<Option<String>> {
    let text: Option<String> = row.get(column).map_err(in_row(&what))?;
    text.map(|text| checked(text, what)).transpose()
}

fn checked(text: String, what: impl Fn() -> String) -> rusqlite::Result<String> {
    match serde_json::from_str::<IgnoredAny>(&text) {
        Ok(_) => Ok(text),
        Err(error) => {
            Err(Unreadable { what: what(), reason: format!("it is no JSON: {error}") }.into())
        }
    }
}

/// The rows of a list that can be read: one that is damaged is logged and left out, so that it does
/// not take the others with it. Who asks for it by itself is refused.
pub fn sound<T>(rows: impl Iterator<Item = rusqlite::Result<T>>) -> rusqlite::Result<Vec<T>> {
    let sound = rows.filter(|row| match row {
        Err(error) if is_of_a_row(error) => {
            tracing::error!(%error, "a damaged row is left out; `moonswarm doctor --deep` lists all");
            false
        }
        Ok(_) | Err(_) => true,
    });
    sound.collect()
}

/// A limit as SQLite wants it.
pub fn limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
