//! Conversions of values for SQLite, which has no unsigned integers and no enums.

use rusqlite::{
    Row,
    types::{FromSqlError, Type},
};
use serde::de::IgnoredAny;

use super::error::{Unreadable, in_row, is_of_a_row};

/// Converts an unsigned number to a stored one.
///
/// A number that is too large is stored as the largest possible one. Only a time can be so large,
/// and it then still means "never".
pub fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Reads a number that cannot be negative.
pub fn uint(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    let value: i64 = row.get(column)?;
    u64::try_from(value).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(column, value))
}

/// Reads a number that cannot be negative, or null.
pub fn uint_or_null(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<u64>> {
    let Some(value) = row.get::<_, Option<i64>>(column)? else { return Ok(None) };
    match u64::try_from(value) {
        Ok(value) => Ok(Some(value)),
        Err(_) => Err(rusqlite::Error::IntegralValueOutOfRange(column, value)),
    }
}

/// Converts a number that uses all its bits to a stored one.
pub fn bits(value: u64) -> i64 {
    value.cast_signed()
}

/// Reads a number that uses all its bits.
pub fn from_bits(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    row.get(column).map(i64::cast_unsigned)
}

/// Reads a word and parses it.
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

/// Reads a JSON document. `what` names it in the error.
pub fn json(row: &Row<'_>, column: usize, what: impl Fn() -> String) -> rusqlite::Result<String> {
    let text: String = row.get(column).map_err(in_row(&what))?;
    checked(text, what)
}

/// Reads a JSON document, or null.
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

/// Returns the readable rows of a list. A damaged row is logged and skipped, so that it does not
/// hide the others. Reading it individually fails.
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

/// Converts a limit for SQLite.
pub fn limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
