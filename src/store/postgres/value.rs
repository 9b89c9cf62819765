//! Conversions of values for PostgreSQL, whose `text` refuses U+0000 and which has no unsigned
//! integers: texts are stored as their bytes, which also sort as Rust compares them.

use std::fmt::Display;

use serde::de::IgnoredAny;
use tokio_postgres::{
    Row,
    types::{FromSql, Type},
};

use super::failed::Failed;
use crate::store::StoreError;

/// The name of a row until [`in_row`] gives it a better one.
pub const A_ROW: &str = "a row";

/// Returns the error of a damaged row.
pub fn damaged(what: impl Into<String>, reason: impl Display) -> Failed {
    Failed::Store(StoreError::Damaged { what: what.into(), reason: reason.to_string() })
}

/// Adds the name of the row to an error in its columns. Other errors are unchanged.
pub fn in_row(what: impl FnOnce() -> String) -> impl FnOnce(Failed) -> Failed {
    move |error| match error {
        Failed::Store(StoreError::Damaged { what: of, reason }) if of == A_ROW => {
            damaged(what(), reason)
        }
        other => other,
    }
}

/// Converts an unsigned number to a stored one.
///
/// A number that is too large is stored as the largest possible one. Only a time can be so large,
/// and it then still means "never".
pub fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Converts a number that uses all its bits to a stored one.
pub fn bits(value: u64) -> i64 {
    value.cast_signed()
}

/// Converts a limit.
pub fn limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// Returns the first bytes after all texts that begin with `prefix`. No text contains the byte 0xFF.
pub fn after_prefix(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    match end.last_mut() {
        Some(last) => *last += 1,
        None => end.push(0xFF),
    }
    end
}

/// Reads a column.
pub fn get<'r, T: FromSql<'r>>(row: &'r Row, column: usize) -> Result<T, Failed> {
    row.try_get(column).map_err(|error| unreadable(row, column, error))
}

fn unreadable(row: &Row, column: usize, reason: impl Display) -> Failed {
    let name = row.columns().get(column).map_or("a column", |it| it.name());
    damaged(A_ROW, format!("{name}: {reason}"))
}

/// Reads a number of any width.
pub fn number(row: &Row, column: usize) -> Result<i64, Failed> {
    number_or_null(row, column)?.ok_or_else(|| unreadable(row, column, "it is null"))
}

/// Reads a number of any width, or null.
pub fn number_or_null(row: &Row, column: usize) -> Result<Option<i64>, Failed> {
    match row.columns().get(column).map(|it| it.type_()) {
        Some(&Type::INT2) => Ok(get::<Option<i16>>(row, column)?.map(i64::from)),
        Some(&Type::INT4) => Ok(get::<Option<i32>>(row, column)?.map(i64::from)),
        _ => get(row, column),
    }
}

/// Reads a number that fits an unsigned type.
pub fn uint<T: TryFrom<i64>>(row: &Row, column: usize) -> Result<T, Failed> {
    fitting(row, column, number(row, column)?)
}

/// Reads a number that fits an unsigned type, or null.
pub fn uint_or_null<T: TryFrom<i64>>(row: &Row, column: usize) -> Result<Option<T>, Failed> {
    number_or_null(row, column)?.map(|value| fitting(row, column, value)).transpose()
}

fn fitting<T: TryFrom<i64>>(row: &Row, column: usize, value: i64) -> Result<T, Failed> {
    T::try_from(value).map_err(|_| unreadable(row, column, format!("{value} is out of range")))
}

/// Reads a number that uses all its bits.
pub fn from_bits(row: &Row, column: usize) -> Result<u64, Failed> {
    number(row, column).map(i64::cast_unsigned)
}

/// Reads a number that stands for a word.
pub fn word<T>(
    row: &Row,
    column: usize,
    parse: impl FnOnce(i64) -> Option<T>,
) -> Result<T, Failed> {
    let code = number(row, column)?;
    parse(code).ok_or_else(|| unreadable(row, column, format!("unknown number {code}")))
}

/// Reads bytes without copying them.
pub fn bytes(row: &Row, column: usize) -> Result<&[u8], Failed> {
    get(row, column)
}

/// Reads a text.
pub fn text(row: &Row, column: usize) -> Result<String, Failed> {
    text_or_null(row, column)?.ok_or_else(|| unreadable(row, column, "it is null"))
}

/// Reads a text, or null.
pub fn text_or_null(row: &Row, column: usize) -> Result<Option<String>, Failed> {
    let Some(bytes) = get::<Option<&[u8]>>(row, column)? else { return Ok(None) };
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(Some(text.to_owned())),
        Err(error) => Err(unreadable(row, column, error)),
    }
}

/// Reads a JSON document.
pub fn json(row: &Row, column: usize) -> Result<String, Failed> {
    checked(row, column, text(row, column)?)
}

/// Reads a JSON document, or null.
pub fn json_or_null(row: &Row, column: usize) -> Result<Option<String>, Failed> {
    text_or_null(row, column)?.map(|text| checked(row, column, text)).transpose()
}

fn checked(row: &Row, column: usize, text: String) -> Result<String, Failed> {
    match serde_json::from_str::<IgnoredAny>(&text) {
        Ok(_) => Ok(text),
        Err(error) => Err(unreadable(row, column, format!("it is no JSON: {error}"))),
    }
}

/// Returns the readable rows of a list. A damaged row is logged and skipped, so that it does not
/// hide the others. Reading it individually fails.
pub fn sound<T>(rows: impl Iterator<Item = Result<T, Failed>>) -> Result<Vec<T>, Failed> {
    let sound = rows.filter(|row| match row {
        Err(Failed::Store(error @ StoreError::Damaged { .. })) => {
            tracing::error!(%error, "a damaged row is left out; `moonswarm doctor --deep` lists all");
            false
        }
        Ok(_) | Err(_) => true,
    });
    sound.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix_is_after_everything_that_begins_with_it_and_nothing_else() {
        for prefix in ["", "a", "a/", "é", "\u{7f}", "\u{10ffff}"] {
            let end = after_prefix(prefix);
            for rest in ["", "\0", "z", "\u{10ffff}\u{10ffff}"] {
                assert!(format!("{prefix}{rest}").as_bytes() < end.as_slice(), "{prefix:?}");
            }
        }
        assert!("b".as_bytes() >= after_prefix("a").as_slice());
        assert!("a0".as_bytes() >= after_prefix("a/").as_slice());
    }

    #[test]
    fn a_row_that_cannot_be_read_has_the_first_name_that_it_was_given() {
        let named = in_row(|| "token t".to_owned())(damaged(A_ROW, "x"));
        let named = in_row(|| "any".to_owned())(named);
        let Failed::Store(StoreError::Damaged { what, .. }) = named else { panic!("{named:?}") };
        assert_eq!(what, "token t");
    }
}
