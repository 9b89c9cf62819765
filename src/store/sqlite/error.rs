//! What SQLite and the file system say, as the store's errors.

use std::{io, path::Path};

use rusqlite::{Error, ErrorCode, ffi};

use crate::store::StoreError;

/// The error of a statement; `context` says what was tried.
pub fn database(context: impl Into<String>) -> impl FnOnce(Error) -> StoreError {
    move |error| match (error.sqlite_error_code(), &error) {
        _ if is_full(&error) => StoreError::Full,
        (Some(ErrorCode::DatabaseBusy), _) => StoreError::Locked,
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

/// The error of a file operation on `path`.
pub fn file(verb: &str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    move |error| match error.kind() {
        io::ErrorKind::StorageFull => StoreError::Full,
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
            StoreError::Database {
                context: format!("{verb} {}", path.display()),
                reason: format!(
                    "{error}; make it writable for this user, or name another directory with --data"
                ),
            }
        }
        _ => StoreError::Database {
            context: format!("{verb} {}", path.display()),
            reason: error.to_string(),
        },
    }
}

/// Whether a failed commit leaves open what is on the disk.
///
/// After a failed sync the kernel may have dropped the pages and call the next sync a success, so
/// nothing that follows in the same process can be trusted.
pub fn is_disk_failure(error: &Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::SystemIoFailure) && !is_full(error)
}

/// Whether another process has the lock.
pub fn is_locked(error: &Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
}

/// Whether there was no room. The index of the log is a file too, and says so in its own way.
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
    fn every_io_error_is_a_disk_failure_and_a_full_disk_is_not() {
        for code in [ffi::SQLITE_IOERR, ffi::SQLITE_IOERR_FSYNC, ffi::SQLITE_IOERR_WRITE] {
            assert!(is_disk_failure(&failure(code)), "{code}");
        }
        for code in [ffi::SQLITE_FULL, ffi::SQLITE_IOERR_SHMSIZE] {
            assert!(!is_disk_failure(&failure(code)), "{code}");
        }
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
