//! The conversion of errors of SQLite and the file system to store errors.

use rusqlite::{Error, ErrorCode, ffi};

use crate::store::StoreError;
pub use crate::store::lock::file;

/// Converts the error of a statement. `context` describes the operation.
pub fn database(context: impl Into<String>) -> impl FnOnce(Error) -> StoreError {
    move |error| match (error.sqlite_error_code(), &error) {
        _ if is_full(&error) => StoreError::Full,
        (Some(ErrorCode::DatabaseBusy), _) => StoreError::Locked,
        (None, Error::FromSqlConversionFailure(_, _, source)) if source.is::<Unreadable>() => {
            let Unreadable { what, reason } =
                source.downcast_ref().expect("it was looked at just now");
            StoreError::Damaged { what: what.clone(), reason: reason.clone() }
        }
        (Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase), _)
        | (
            None,
            Error::FromSqlConversionFailure(..)
            | Error::IntegralValueOutOfRange(..)
            | Error::InvalidColumnType(..),
        ) => StoreError::Damaged {
            what: "the database".to_owned(),
            reason: format!("{}: {error}", context.into()),
        },
        _ => StoreError::Database { context: context.into(), reason: error.to_string() },
    }
}

/// A damaged part of a row, carried inside a [`rusqlite::Error`].
#[derive(Debug, thiserror::Error)]
#[error("{what}: {reason}")]
pub struct Unreadable {
    /// The row, or the part of it.
    pub what: String,
    /// The reason.
    pub reason: String,
}

impl From<Unreadable> for Error {
    fn from(it: Unreadable) -> Self {
        Self::FromSqlConversionFailure(0, rusqlite::types::Type::Text, Box::new(it))
    }
}

/// Adds the name of the row to an error in its columns. Other errors are unchanged.
pub fn in_row(what: impl FnOnce() -> String) -> impl FnOnce(Error) -> Error {
    move |error| match &error {
        Error::FromSqlConversionFailure(_, _, source) if source.is::<Unreadable>() => error,
        Error::FromSqlConversionFailure(..)
        | Error::IntegralValueOutOfRange(..)
        | Error::InvalidColumnType(..) => {
            Unreadable { what: what(), reason: error.to_string() }.into()
        }
        _ => error,
    }
}

/// Returns true if only a row is damaged. Then only requests for that row fail.
pub fn is_of_a_row(error: &Error) -> bool {
    error.sqlite_error_code().is_none()
        && matches!(
            error,
            Error::FromSqlConversionFailure(..)
                | Error::IntegralValueOutOfRange(..)
                | Error::InvalidColumnType(..)
        )
}

/// Returns true if a failed commit leaves the content of the disk uncertain, or reveals corruption.
///
/// After a failed sync, the kernel may drop the dirty pages and report success for the next sync.
/// And one malformed page suggests more of them. Nothing that follows in the same process can be
/// trusted.
pub fn is_lost(error: &Error) -> bool {
    match error.sqlite_error_code() {
        Some(ErrorCode::SystemIoFailure) => !is_full(error),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => true,
        _ => false,
    }
}

/// Returns true if another process has the lock.
pub fn is_locked(error: &Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
}

/// Returns true if the disk is full. The shared-memory index of the log reports this in its own
/// way.
fn is_full(error: &Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DiskFull)
        || error
            .sqlite_error()
            .is_some_and(|error| error.extended_code == ffi::SQLITE_IOERR_SHMSIZE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(code: i32) -> Error {
        Error::SqliteFailure(ffi::Error::new(code), None)
    }

    #[test]
    fn an_io_error_and_a_malformed_database_lose_the_store_and_a_full_disk_does_not() {
        for code in [
            ffi::SQLITE_IOERR,
            ffi::SQLITE_IOERR_FSYNC,
            ffi::SQLITE_IOERR_WRITE,
            ffi::SQLITE_CORRUPT,
            ffi::SQLITE_CORRUPT_VTAB,
            ffi::SQLITE_NOTADB,
        ] {
            assert!(is_lost(&failure(code)), "{code}");
        }
        for code in [ffi::SQLITE_FULL, ffi::SQLITE_IOERR_SHMSIZE, ffi::SQLITE_BUSY] {
            assert!(!is_lost(&failure(code)), "{code}");
        }
    }

    #[test]
    fn a_row_that_cannot_be_read_is_named() {
        let conversion = || Error::IntegralValueOutOfRange(0, -1);
        let error = in_row(|| "token t".to_owned())(conversion());
        assert!(is_of_a_row(&error) && is_of_a_row(&conversion()));
        // The innermost name wins.
        let error = database("read tokens")(in_row(|| "any".to_owned())(error));
        assert!(matches!(&error, StoreError::Damaged { what, .. } if what == "token t"), "{error}");
        assert!(!is_of_a_row(&failure(ffi::SQLITE_CORRUPT)));
    }

    #[test]
    fn a_full_disk_and_a_damaged_file_are_told_apart() {
        assert!(matches!(database("x")(failure(ffi::SQLITE_FULL)), StoreError::Full));
        let damaged = database("x")(failure(ffi::SQLITE_CORRUPT));
        assert!(matches!(damaged, StoreError::Damaged { .. }));
        let busy = database("x")(failure(ffi::SQLITE_BUSY));
        assert!(matches!(busy, StoreError::Locked));
    }
}
