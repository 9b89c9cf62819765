//! The demands on a server, checked at each start and by the doctor.

use super::{
    address::DatabaseAddress,
    failed::Failed,
    format::unfit,
    session::Session,
    standbys::Standbys,
    value::{get, uint},
    wire::Wire,
};
use crate::{clock::Clock, store::Durability};

/// The oldest server that is supported.
const OLDEST: i32 = 150_000;
/// The largest difference between the clocks, in milliseconds: leases are of the database's clock,
/// and deadlines of this machine's.
const SKEW_MS: i64 = 5_000;

/// The version and the settings of a server.
#[derive(Debug, Clone)]
pub struct Server {
    /// The version of the server as a number: 150004 is 15.4.
    pub version: i32,
    /// The name and version of the server, for people.
    pub name: String,
    /// True for a standby.
    pub is_standby: bool,
    /// True if transactions are read-only unless they ask for more.
    pub is_read_only: bool,
    /// True if it syncs and writes whole pages.
    pub is_durable: bool,
    /// `server_encoding`.
    pub encoding: String,
}

impl Server {
    /// Asks the server.
    ///
    /// # Errors
    /// Returns the error of the database.
    pub fn of(session: &Session) -> Result<Self, Failed> {
        let row = session.one(
            "SELECT current_setting('server_version_num')::int, version(), pg_is_in_recovery(),
                    current_setting('default_transaction_read_only') = 'on',
                    current_setting('fsync') <> 'off' AND current_setting('full_page_writes') <> 'off',
                    current_setting('server_encoding')",
            &[],
        )?;
        let Some(row) = row else { return Err(Failed::Silent) };
        Ok(Self {
            version: get(&row, 0)?,
            name: get(&row, 1)?,
            is_standby: get(&row, 2)?,
            is_read_only: get(&row, 3)?,
            is_durable: get(&row, 4)?,
            encoding: get(&row, 5)?,
        })
    }

    /// Returns the reason why it cannot be used, with a remedy.
    pub fn refusal(&self) -> Option<String> {
        if self.name.contains("Cockroach") || self.name.contains("-YB-") {
            return Some(
                "it is not PostgreSQL itself; its locks are not those that this needs".into(),
            );
        }
        if self.version < OLDEST {
            return Some(format!(
                "it is PostgreSQL {}; 15 or newer is needed",
                self.version / 10_000
            ));
        }
        if self.is_standby {
            return Some(
                "it is a standby; name the primary, or both: postgres://db1,db2/NAME".into(),
            );
        }
        if self.is_read_only {
            let reason = "it is read-only (default_transaction_read_only); switch that off, or name \
                          another";
            return Some(reason.into());
        }
        None
    }
}

/// Checks the server and the way to it.
///
/// # Errors
/// Returns `StoreError::Unfit` with a remedy.
pub fn check(session: &Session, wire: &Wire, durability: Durability) -> Result<(), Failed> {
    let address = wire.address();
    let server = is_fit(session, address)?;
    if !server.is_durable {
        tracing::warn!(
            database = %address,
            "the server runs with fsync or full_page_writes off: a crash of its machine loses what \
             was acknowledged, or all"
        );
    }
    if is_shared(session, wire)? {
        let reason = "connections to it are shared by a pooler in transaction mode, which gives each \
                      transaction another one; name the server itself, or switch the pooler to \
                      session mode";
        return Err(unfit(address, reason.to_owned()));
    }
    if let Some(reason) = Standbys::of(session)?.refusal(durability) {
        return Err(unfit(address, reason));
    }
    let skew_ms = skew(session, &Clock::system())?;
    match skew_ms.abs() > SKEW_MS {
        false => Ok(()),
        true => Err(unfit(address, skewed(skew_ms))),
    }
}

/// Checks the server alone.
///
/// # Errors
/// Returns `StoreError::Unfit` with a remedy.
pub fn is_fit(session: &Session, address: &DatabaseAddress) -> Result<Server, Failed> {
    let server = match Server::of(session) {
        // A pooler in transaction mode loses prepared statements.
        Err(Failed::Database(error)) if is_forgotten(&error) => {
            return Err(unfit(
                address,
                "it forgets prepared statements: is a pooler in transaction \
                mode in front? Name the server itself"
                    .to_owned(),
            ));
        }
        server => server?,
    };
    match server.refusal() {
        None => Ok(server),
        Some(reason) => Err(unfit(address, reason)),
    }
}

/// Returns true if a pooler gives the connection of the server to other clients between transactions.
///
/// # Errors
/// Returns the error of the database.
pub fn is_shared(session: &Session, wire: &Wire) -> Result<bool, Failed> {
    const WHICH: &str = "SELECT pg_backend_pid()";
    let which = |session: &Session| match session.one(WHICH, &[])? {
        Some(row) => get::<i32>(&row, 0),
        None => Err(Failed::Silent),
    };
    let before = which(session)?;
    // Whoever is in a transaction has a connection for itself: the last one that was used is first.
    let other = wire.starter()?;
    other.batch("BEGIN")?;
    let others = which(&other)?;
    let after = match which(session) {
        // The statement was prepared in another connection.
        Err(Failed::Database(error)) if is_forgotten(&error) => return Ok(true),
        after => after?,
    };
    other.batch("ROLLBACK")?;
    Ok(others == before || before != after)
}

/// Returns true if a prepared statement is not known any more.
fn is_forgotten(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|it| it.code() == "26000")
}

/// Returns how far the database's clock is ahead of this machine's, in milliseconds; 0 if the way to
/// it takes longer than that.
///
/// # Errors
/// Returns the error of the database.
pub fn skew(session: &Session, clock: &Clock) -> Result<i64, Failed> {
    const NOW: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";
    // Once before, so that the statement is prepared.
    session.one(NOW, &[])?;
    let sent = clock.now_ms();
    let row = session.one(NOW, &[])?;
    let received = clock.now_ms();
    let Some(row) = row else { return Err(Failed::Silent) };
    Ok(ahead(sent, uint(&row, 0)?, received))
}

/// Returns how far the database's clock is ahead, as far as the time of the way allows to say.
pub fn ahead(sent: u64, database: u64, received: u64) -> i64 {
    let signed = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
    match (database > received, database < sent) {
        (true, _) => signed(database - received),
        (_, true) => -signed(sent - database),
        _ => 0,
    }
}

/// Returns the reason for a refusal of clocks that differ.
fn skewed(ms: i64) -> String {
    let (seconds, way) = (ms.abs() / 1_000, if ms > 0 { "behind" } else { "ahead of" });
    format!(
        "the clock of this machine is {seconds} s {way} the clock of the database; at most 5 s are \
         allowed: synchronize both (`timedatectl` shows whether they are)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> Server {
        Server {
            version: 150_004,
            name: "PostgreSQL 15.4 on x86_64".into(),
            is_standby: false,
            is_read_only: false,
            is_durable: true,
            encoding: "UTF8".into(),
        }
    }

    #[test]
    fn servers_that_cannot_be_used_are_refused_with_a_remedy() {
        assert_eq!(server().refusal(), None);
        let refused = |server: Server| server.refusal().unwrap();
        assert!(
            refused(Server { version: 140_011, ..server() }).contains("PostgreSQL 14; 15 or newer")
        );
        let name = "CockroachDB CCL v23.1 (x86_64)".to_owned();
        assert!(refused(Server { name, ..server() }).contains("not PostgreSQL itself"));
        let name = "PostgreSQL 15.2-YB-2.25.0.0-b0 on x86_64".to_owned();
        assert!(refused(Server { name, ..server() }).contains("not PostgreSQL itself"));
        assert!(refused(Server { is_standby: true, ..server() }).contains("name the primary"));
        assert!(refused(Server { is_read_only: true, ..server() }).contains("read-only"));
    }

    #[test]
    fn the_time_of_the_way_is_no_difference_of_the_clocks() {
        assert_eq!(ahead(100, 150, 200), 0);
        assert_eq!(ahead(100, 100, 100), 0);
        assert_eq!(ahead(100, 7_200, 200), 7_000);
        assert_eq!(ahead(9_000, 1_000, 9_500), -8_000);
        assert!(skewed(7_000).contains("7 s behind") && skewed(-9_000).contains("9 s ahead"));
    }
}
