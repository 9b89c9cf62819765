//! Values as SQLite keeps them: it has no unsigned integers and no enums.

use rusqlite::{
    Row,
    types::{FromSqlError, Type},
};

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

/// A limit as SQLite wants it.
pub fn limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
