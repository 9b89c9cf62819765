//! The format of a database.

use super::{address::DatabaseAddress, failed::Failed, session::Session, value::get};
use crate::store::StoreError;

/// The tables of a new database.
const SCHEMA: &str = include_str!("schema.sql");
/// The format that this program reads and writes. The embedded store has numbers of its own.
pub const FORMAT: i32 = 11;
/// The migrations, each from the format before its number.
const MIGRATIONS: &[(i32, &str)] = &[(
    11,
    "ALTER TABLE nodes ADD COLUMN boot text NOT NULL DEFAULT '', ADD COLUMN url text NOT NULL DEFAULT '',
         ADD COLUMN peer_url text NOT NULL DEFAULT '', ADD COLUMN peer_key bytea;
     CREATE TABLE keys (name text PRIMARY KEY, sealed bytea NOT NULL, version bigint NOT NULL);",
)];
/// The number in place of the format of a database whose runs go on in a data directory.
pub const MOVED: i32 = -1;

/// Makes the tables if the database is new.
///
/// # Errors
/// Returns [`StoreError::Unfit`] for a database that cannot be used, and [`StoreError::Newer`].
pub fn prepare(session: &Session, address: &DatabaseAddress) -> Result<(), Failed> {
    loop {
        match found(session, address)? {
            Some(format) if format == FORMAT => return Ok(()),
            Some(format) if format > FORMAT => {
                let number = |format| u32::try_from(format).unwrap_or_default();
                return Err(Failed::Store(StoreError::Newer {
                    path: address.to_string(),
                    found: number(format),
                    known: number(FORMAT),
                }));
            }
            Some(format) if MIGRATIONS.iter().any(|(to, _)| *to == format + 1) => migrate(session)?,
            Some(MOVED) => {
                let reason = "its runs were copied into a data directory, and go on there; to use this \
                              database again, remove what is left with DROP SCHEMA moonswarm CASCADE";
                return Err(unfit(address, reason.to_owned()));
            }
            Some(format) => {
                let reason = format!("its format {format} is of no release");
                return Err(unfit(address, reason));
            }
            None => {
                // Another host that starts at the same time may be first: its schema is there then.
                if let Err(error) = create(session) {
                    session.batch("ROLLBACK")?;
                    if found(session, address)?.is_none() {
                        return Err(error);
                    }
                }
            }
        }
    }
}

/// Returns the format of a database; `None` for a new one.
///
/// # Errors
/// Returns [`StoreError::Unfit`] for a schema that is not of this program.
pub fn found(session: &Session, address: &DatabaseAddress) -> Result<Option<i32>, Failed> {
    let row = session.one(
        "SELECT to_regnamespace('moonswarm') IS NOT NULL, to_regclass('moonswarm.cluster') IS NOT NULL",
        &[],
    )?;
    let Some(row) = row else { return Ok(None) };
    match (get(&row, 0)?, get(&row, 1)?) {
        (_, true) => {
            let row = session.one("SELECT format, oldest FROM moonswarm.cluster", &[])?;
            let Some(row) = row else {
                let reason = "its schema \"moonswarm\" has an empty table cluster";
                return Err(unfit(address, reason.to_owned()));
            };
            let (format, oldest): (i32, i32) = (get(&row, 0)?, get(&row, 1)?);
            Ok(Some(if oldest <= FORMAT { FORMAT.min(format).max(oldest) } else { format }))
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
    session.batch("BEGIN")?;
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
    session.batch(&format!("INSERT INTO cluster (format, oldest) VALUES ({FORMAT}, {FORMAT})"))
}

/// Applies the migrations that are missing, in one transaction. Another host may be faster: then nothing is
/// left to do.
fn migrate(session: &Session) -> Result<(), Failed> {
    session.batch("BEGIN; SET LOCAL lock_timeout = '20s'")?;
    let migrated = || {
        let row = session.one("SELECT format FROM cluster FOR UPDATE", &[])?;
        let mut format: i32 = row.map_or(Err(Failed::Silent), |row| get(&row, 0))?;
        for (to, sql) in MIGRATIONS {
            if *to > format {
                session.batch(sql)?;
                format = *to;
            }
        }
        session.execute("UPDATE cluster SET format = $1, oldest = $1", &[&format])?;
        session.batch("COMMIT")
    };
    let result = migrated();
    if result.is_err() && !session.is_closed() {
        session.batch("ROLLBACK")?;
    }
    result
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
        assert_eq!(MIGRATIONS.last().map(|(to, _)| *to), Some(FORMAT));
        assert!(MIGRATIONS.windows(2).all(|it| it[0].0 + 1 == it[1].0));
        assert!(SCHEMA.contains(&format!("format {FORMAT},")));
    }
}
