//! The format of a database, and which releases work on it.
//!
//! | column of `cluster` | meaning |
//! |---|---|
//! | `format` | the format of the tables; a newer release changes them at its first start |
//! | `oldest` | releases of an older format than this are refused |
//! | `feature` | what releases of older formats cannot read is written up to this format only |
//!
//! A release writes what the one before cannot read only where `feature` has come to its format, which is when
//! no node of the older release is left: until then, the older release can take over.

use super::{address::DatabaseAddress, failed::Failed, hosts, session::Session, value::get};
use crate::{fault, store::StoreError};

/// The tables of a new database.
const SCHEMA: &str = include_str!("schema.sql");
/// The newest format of this release. A release that writes what the one before cannot read has a new number,
/// also if no table changes. The embedded store has numbers of its own.
const NEWEST: i32 = 12;
/// The first format with `feature`. Before it, there is no upgrade to be ended.
pub const FIRST_WITH_FEATURES: i32 = 12;

/// A change of the tables.
#[derive(Debug, Clone, Copy)]
struct Migration {
    /// The format that it makes of the one before.
    to: i32,
    /// The format of the oldest release that works on the changed tables.
    oldest: i32,
    sql: &'static str,
}

/// The migrations, each from the format before its number.
const MIGRATIONS: &[Migration] = &[
    Migration {
        to: 11,
        oldest: 11,
        sql: "ALTER TABLE nodes ADD COLUMN boot text NOT NULL DEFAULT '',
                  ADD COLUMN url text NOT NULL DEFAULT '', ADD COLUMN peer_url text NOT NULL DEFAULT '',
                  ADD COLUMN peer_key bytea;
              CREATE TABLE keys (name text PRIMARY KEY, sealed bytea NOT NULL, version bigint NOT NULL);",
    },
    Migration {
        to: NEWEST,
        oldest: 11,
        sql: "ALTER TABLE cluster ADD COLUMN feature integer NOT NULL DEFAULT 11,
                  ADD COLUMN held boolean NOT NULL DEFAULT false,
                  ADD COLUMN release text NOT NULL DEFAULT '';
              ALTER TABLE nodes ADD COLUMN format integer NOT NULL DEFAULT 11, ADD COLUMN clock_ms bigint;",
    },
];
/// The number in place of the format of a database whose runs go on in a data directory.
pub const MOVED: i32 = -1;

/// Returns the newest format that this program reads and writes.
pub fn known() -> i32 {
    NEWEST + i32::from(fault::next_release().is_some())
}

/// Returns the release of this program, as other nodes see it.
pub fn release() -> String {
    let version = env!("CARGO_PKG_VERSION");
    match fault::next_release() {
        None => version.to_owned(),
        Some(_) => format!("{version}-next"),
    }
}

/// Returns true if this program changes tables of a format to its own.
pub fn can_migrate(format: i32) -> bool {
    migrations().any(|it| it.to == format + 1)
}

fn migrations() -> impl Iterator<Item = Migration> {
    let next = fault::next_release().map(|breaks| Migration {
        to: NEWEST + 1,
        oldest: NEWEST + i32::from(breaks),
        sql: "CREATE TABLE of_the_next_release (one integer)",
    });
    MIGRATIONS.iter().copied().chain(next)
}

/// The format of a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The format of its tables.
    pub format: i32,
    /// The format of the oldest release that works on it.
    pub oldest: i32,
    /// The format up to which the nodes write what older releases cannot read.
    pub feature: i32,
    /// True if an administrator keeps `feature` from being raised.
    pub held: bool,
    /// The release that raised `feature` or `oldest` last; empty if none did.
    pub release: String,
}

impl Found {
    /// Returns the refusal of this program, if the database is of a newer release.
    pub fn refusal(&self, address: &DatabaseAddress) -> Option<StoreError> {
        refusal(self.oldest, &self.release, address)
    }
}

/// Locks the row that everybody locks who enters, takes the runs over or ends others, and checks that the
/// database is not of a newer release. For the beginning of a transaction.
///
/// # Errors
/// Returns [`StoreError::Newer`]. Fails when the row stays locked.
pub fn lock(session: &Session, address: &DatabaseAddress) -> Result<(), Failed> {
    let row = session.one("SELECT oldest, release FROM cluster FOR UPDATE", &[])?;
    let Some(row) = row else { return Err(Failed::Silent) };
    match refusal(get(&row, 0)?, get(&row, 1)?, address) {
        None => Ok(()),
        Some(error) => Err(Failed::Store(error)),
    }
}

/// Returns the refusal of this program by a database that only works with releases of the format `oldest`.
pub fn refusal(oldest: i32, release: &str, address: &DatabaseAddress) -> Option<StoreError> {
    let number = |format| u32::try_from(format).unwrap_or_default();
    (oldest > known()).then(|| StoreError::Newer {
        path: address.to_string(),
        found: number(oldest),
        known: number(known()),
        remedy: match release {
            "" => "use the release that wrote it".to_owned(),
            release => format!("use release {release} or a newer one"),
        },
    })
}

/// Makes the tables if the database is new, and applies the migrations that are missing. `home` names the data
/// directory of this process.
///
/// # Errors
/// Returns [`StoreError::Unfit`] for a database that cannot be used, and [`StoreError::Newer`].
pub fn prepare(session: &Session, address: &DatabaseAddress, home: &str) -> Result<(), Failed> {
    loop {
        let Some(found) = found(session, address)? else {
            // Another host that starts at the same time may be first: its schema is there then.
            if let Err(error) = create(session) {
                let is_there = session.roll_back(&error)
                    && matches!(self::found(session, address), Ok(Some(_)));
                if !is_there {
                    return Err(error);
                }
            }
            continue;
        };
        if found.format == MOVED {
            let reason = "its runs were copied into a data directory, and go on there; to use this \
                          database again, remove what is left with DROP SCHEMA moonswarm CASCADE";
            return Err(unfit(address, reason.to_owned()));
        }
        if let Some(error) = found.refusal(address) {
            return Err(Failed::Store(error));
        }
        if found.format >= known() {
            return Ok(());
        }
        if !can_migrate(found.format) {
            return Err(unfit(address, format!("its format {} is of no release", found.format)));
        }
        migrate(session, address, home)?;
    }
}

/// Returns the format of a database; `None` for a new one.
///
/// # Errors
/// Returns [`StoreError::Unfit`] for a schema that is not of this program.
pub fn found(session: &Session, address: &DatabaseAddress) -> Result<Option<Found>, Failed> {
    let row = session.one(
        "SELECT to_regnamespace('moonswarm') IS NOT NULL, to_regclass('moonswarm.cluster') IS NOT NULL",
        &[],
    )?;
    let Some(row) = row else { return Ok(None) };
    match (get(&row, 0)?, get(&row, 1)?) {
        (_, true) => {
            // Columns that a format does not have are empty.
            let row = session.one(
                "SELECT format, oldest, coalesce((to_jsonb(c) ->> 'feature')::int, format),
                        coalesce((to_jsonb(c) ->> 'held')::boolean, false),
                        coalesce(to_jsonb(c) ->> 'release', '')
                 FROM moonswarm.cluster c",
                &[],
            )?;
            let Some(row) = row else {
                let reason = "its schema \"moonswarm\" has an empty table cluster";
                return Err(unfit(address, reason.to_owned()));
            };
            Ok(Some(Found {
                format: get(&row, 0)?,
                oldest: get(&row, 1)?,
                feature: get(&row, 2)?,
                held: get(&row, 3)?,
                release: get(&row, 4)?,
            }))
        }
        (true, false) => {
            let reason =
                "its schema \"moonswarm\" belongs to something else; name another database";
            Err(unfit(address, reason.to_owned()))
        }
        (false, false) => Ok(None),
    }
}

fn create(session: &Session) -> Result<(), Failed> {
    // Another host that makes them at the same time may take longer than a lock of a commit.
    session.batch("BEGIN; SET LOCAL lock_timeout = '20s'")?;
    lay_out(session)?;
    session.batch("COMMIT")
}

/// Makes the tables, within a transaction.
///
/// # Errors
/// Returns the error of the database.
pub fn lay_out(session: &Session) -> Result<(), Failed> {
    session.batch("CREATE SCHEMA moonswarm; SET LOCAL search_path = moonswarm;")?;
    session.batch(SCHEMA)?;
    let first = format!(
        "INSERT INTO cluster (format, oldest, feature) VALUES ({NEWEST}, {NEWEST}, {NEWEST})"
    );
    session.batch(&first)
}

/// Applies the migrations that are missing, in one transaction. Another host may be faster: then nothing is
/// left to do. Hosts of an older release go on, unless a change is not for them: then they must have ended.
fn migrate(session: &Session, address: &DatabaseAddress, home: &str) -> Result<(), Failed> {
    session.batch("BEGIN; SET LOCAL lock_timeout = '20s'")?;
    let migrated = || {
        let row = session.one("SELECT format FROM cluster FOR UPDATE", &[])?;
        let format: i32 = row.map_or(Err(Failed::Silent), |row| get(&row, 0))?;
        let needed: Vec<_> = migrations().filter(|it| it.to > format).collect();
        let Some(newest) = needed.last() else { return session.batch("COMMIT") };
        let oldest = needed.iter().map(|it| it.oldest).max().unwrap_or(format);
        if oldest > format
            && let Some(living) = hosts::living(session, home)?
        {
            let reason = format!(
                "the host {living} runs an older release, which cannot work on the format of this one \
                 ({}): stop all hosts of older releases first",
                newest.to
            );
            return Err(unfit(address, reason));
        }
        for it in &needed {
            session.batch(it.sql)?;
        }
        session.execute(
            "UPDATE cluster SET format = $1, oldest = greatest(oldest, $2)",
            &[&newest.to, &oldest],
        )?;
        if oldest > format {
            session.execute("UPDATE cluster SET release = $1", &[&release()])?;
        }
        session.batch("COMMIT")
    };
    migrated().inspect_err(|error| {
        session.roll_back(error);
    })
}

/// Returns the error for a database that cannot be used.
pub fn unfit(address: &DatabaseAddress, reason: String) -> Failed {
    Failed::Store(StoreError::Unfit { database: address.to_string(), reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_migrations_end_at_the_format_of_this_program() {
        assert_eq!(MIGRATIONS.last().map(|it| it.to), Some(NEWEST));
        assert!(MIGRATIONS.windows(2).all(|it| it[0].to + 1 == it[1].to));
        assert!(MIGRATIONS.iter().all(|it| it.oldest <= it.to));
        assert!(SCHEMA.contains(&format!("format {NEWEST},")));
    }
}
