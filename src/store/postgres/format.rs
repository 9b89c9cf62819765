//! The requirements of a database, and its format.

use super::{address::DatabaseAddress, failed::Failed, session::Session, value::get};
use crate::store::StoreError;

/// The tables of a new database.
const SCHEMA: &str = include_str!("schema.sql");
/// The format that this program reads and writes.
pub const FORMAT: i32 = 11;
/// The migrations, each from the format before its number.
const MIGRATIONS: &[(i32, &str)] = &[(
    11,
    "ALTER TABLE nodes ADD COLUMN boot text NOT NULL DEFAULT '', ADD COLUMN url text NOT NULL DEFAULT '',
         ADD COLUMN peer_url text NOT NULL DEFAULT '', ADD COLUMN peer_key bytea;
     CREATE TABLE keys (name text PRIMARY KEY, sealed bytea NOT NULL, version bigint NOT NULL);",
)];
/// The oldest server that is supported.
const OLDEST_SERVER: i32 = 150_000;

/// Checks the server, and makes the tables if the database is new.
///
/// # Errors
/// Returns [`StoreError::Unfit`] for a server or a database that cannot be used, and
/// [`StoreError::Newer`].
pub fn prepare(session: &Session, address: &DatabaseAddress) -> Result<(), Failed> {
    check_server(session, address)?;
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

fn check_server(session: &Session, address: &DatabaseAddress) -> Result<(), Failed> {
    let row = session.one(
        "SELECT current_setting('server_version_num')::int, version(),
                pg_is_in_recovery() OR current_setting('default_transaction_read_only') = 'on',
                current_setting('fsync') = 'off' OR current_setting('full_page_writes') = 'off'",
        &[],
    )?;
    let Some(row) = row else { return Err(unfit(address, "it does not answer".to_owned())) };
    let version: i32 = get(&row, 0)?;
    let name: &str = get(&row, 1)?;
    if name.contains("Cockroach") || name.contains("-YB-") {
        let reason = "it is not PostgreSQL itself; its locks are not those that this needs";
        return Err(unfit(address, reason.to_owned()));
    }
    if version < OLDEST_SERVER {
        let reason = format!("it is PostgreSQL {}; 15 or newer is needed", version / 10_000);
        return Err(unfit(address, reason));
    }
    if get(&row, 2)? {
        let reason = "it is read-only, or a standby; name the primary";
        return Err(unfit(address, reason.to_owned()));
    }
    if get(&row, 3)? {
        tracing::warn!(
            database = %address,
            "the server runs with fsync or full_page_writes off: a crash of its machine loses what \
             was acknowledged, or all"
        );
    }
    Ok(())
}

/// Returns the format of a database; `None` for a new one.
fn found(session: &Session, address: &DatabaseAddress) -> Result<Option<i32>, Failed> {
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
    session.batch("BEGIN; CREATE SCHEMA moonswarm; SET LOCAL search_path = moonswarm;")?;
    session.batch(SCHEMA)?;
    let insert =
        format!("INSERT INTO cluster (format, oldest) VALUES ({FORMAT}, {FORMAT}); COMMIT");
    session.batch(&insert)
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

fn unfit(address: &DatabaseAddress, reason: String) -> Failed {
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
