//! The reason why a call of the database failed, and its meaning.

use std::{error::Error as _, io};

use tokio_postgres::error::SqlState;

use crate::store::StoreError;

/// The reason why a call failed.
#[derive(Debug)]
pub enum Failed {
    /// The store refuses, or a row cannot be read.
    Store(StoreError),
    /// The database said no, or the connection broke.
    Database(tokio_postgres::Error),
    /// No answer in time. The connection must not be used again.
    Silent,
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<tokio_postgres::Error> for Failed {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error)
    }
}

/// The meaning of a failure for a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// The transaction was rolled back for certain, and may succeed if it is repeated.
    Again,
    /// The transaction was rolled back for certain, because of its content.
    Refused,
    /// The database cannot write at the moment.
    Waiting,
    /// The transaction was rolled back for certain. The database has not enough memory for it, or for
    /// anything at the moment.
    Heavy,
    /// The connection is gone, and nobody knows whether the transaction was committed.
    Unknown,
}

/// Returns true for a failure of the connection, and not of a value that could not be converted.
fn is_of_connection(error: &tokio_postgres::Error) -> bool {
    let is_io = error.source().is_some_and(|source| source.is::<io::Error>());
    // The library has no other way to tell its errors apart.
    let told = error.to_string();
    error.is_closed()
        || is_io
        || told.starts_with("error communicating")
        || told.starts_with("error connecting")
        || told.starts_with("unexpected message")
        || told.starts_with("error performing TLS")
        || told.starts_with("timeout")
}

impl Failed {
    /// Returns the error of an open, which says more about a refused login.
    pub fn explained(self, context: &str) -> StoreError {
        if self.is_refused_login() {
            let reason = format!("{}; check the user, its password and the name", self.reason());
            return StoreError::Database { context: context.to_owned(), reason };
        }
        if self.is_read_only() {
            let database = context.strip_prefix("open ").unwrap_or(context).to_owned();
            let reason = "it is read-only, or a standby; name the primary, or both: \
                          postgres://db1,db2/NAME"
                .to_owned();
            return StoreError::Unfit { database, reason };
        }
        self.into_error(context)
    }

    /// Returns the meaning for a transaction.
    pub fn meaning(&self) -> Meaning {
        let error = match self {
            Self::Store(_) => return Meaning::Refused,
            Self::Silent => return Meaning::Unknown,
            Self::Database(error) => error,
        };
        let Some(code) = error.code() else {
            return if is_of_connection(error) { Meaning::Unknown } else { Meaning::Refused };
        };
        match code.code() {
            // The last two: a row that was not there, or was there, is no longer as it was read.
            "40001" | "40P01" | "55P03" | "57014" | "22012" | "23505" => Meaning::Again,
            "53100" | "53300" => Meaning::Waiting,
            "53200" => Meaning::Heavy,
            "25006" | "25P03" | "25P04" => Meaning::Unknown,
            code if code.starts_with("57P") || code.starts_with("08") => Meaning::Unknown,
            _ => Meaning::Refused,
        }
    }

    /// Returns true if the connection can no longer be used.
    pub fn ends_connection(&self) -> bool {
        match self {
            Self::Store(_) => false,
            Self::Silent => true,
            Self::Database(_) => self.meaning() == Meaning::Unknown,
        }
    }

    /// Returns true if the server has refused to begin a session.
    pub fn is_refused_login(&self) -> bool {
        let Self::Database(error) = self else { return false };
        let code = error.code();
        code == Some(&SqlState::INVALID_PASSWORD)
            || code == Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION)
            || code == Some(&SqlState::UNDEFINED_DATABASE)
            || code == Some(&SqlState::INSUFFICIENT_PRIVILEGE)
    }

    /// Returns true if a connection was not made because the server takes no writes.
    pub fn is_read_only(&self) -> bool {
        let Self::Database(error) = self else { return false };
        // The library has no code for it.
        error.source().is_some_and(|it| it.to_string().contains("does not allow writes"))
    }

    /// Returns the error for a caller. `context` says what failed.
    pub fn into_error(self, context: &str) -> StoreError {
        match self {
            Self::Store(error) => error,
            Self::Silent => StoreError::Away {
                context: context.to_owned(),
                reason: "the database did not answer in time".to_owned(),
            },
            Self::Database(_) if self.ends_connection() => {
                StoreError::Away { context: context.to_owned(), reason: self.reason() }
            }
            Self::Database(ref error) => {
                let (context, reason) = (context.to_owned(), self.reason());
                match error.code().map(SqlState::code) {
                    Some("53100") => StoreError::Full,
                    Some("53300") => StoreError::Busy,
                    // It had no time, no memory, or somebody else has the rows: later it may succeed.
                    Some("40001" | "40P01" | "53200" | "55P03" | "57014") => {
                        StoreError::Away { context, reason }
                    }
                    _ => StoreError::Database { context, reason },
                }
            }
        }
    }

    /// Returns the message of the database, without any value of a row: details of an error may
    /// name some.
    pub fn reason(&self) -> String {
        match self {
            Self::Store(error) => error.to_string(),
            Self::Silent => "the database did not answer in time".to_owned(),
            Self::Database(error) => match error.as_db_error() {
                Some(told) => format!("{} ({})", told.message(), told.code().code()),
                None => match error.source() {
                    Some(source) => format!("{error}: {source}"),
                    None => error.to_string(),
                },
            },
        }
    }
}
