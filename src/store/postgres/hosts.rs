//! The hosts and nodes that have a database, as it knows them: those that have not ended, and their end.

use super::{failed::Failed, session::Session, value::get};

/// Another host in the table.
pub struct Other {
    /// The number of its start.
    pub node: i64,
    /// Its name, for people.
    pub name: String,
    /// Names its data directory.
    pub home: String,
    /// True if its lease has ended.
    pub lapsed: bool,
    /// The end of its lease, as text.
    pub lease: String,
}

/// Returns the name of a living host that has another data directory than `home`.
///
/// # Errors
/// Returns the error of the database.
pub fn living(session: &Session, home: &str) -> Result<Option<String>, Failed> {
    let alive = others(session)?.into_iter().find(|it| !it.lapsed && it.home != home);
    Ok(alive.map(|it| it.name))
}

/// Returns the hosts that have not ended.
///
/// # Errors
/// Returns the error of the database.
pub fn others(session: &Session) -> Result<Vec<Other>, Failed> {
    let rows = session.query(
        "SELECT node, name, home, lease_until < clock_timestamp() - interval '1 second',
                lease_until::text
         FROM nodes WHERE state <> 'gone' ORDER BY node",
        &[],
    )?;
    let other = |row| {
        Ok(Other {
            node: get(row, 0)?,
            name: get(row, 1)?,
            home: get(row, 2)?,
            lapsed: get(row, 3)?,
            lease: get(row, 4)?,
        })
    };
    rows.iter().map(other).collect()
}

/// Ends nodes, within a transaction: what they have not committed yet, they never will.
pub fn fence(session: &Session, nodes: &[i64]) -> Result<(), Failed> {
    // Spares the wait for what they left open.
    session.query(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
         WHERE datname = current_database() AND usename = current_user
           AND pid <> pg_backend_pid() AND application_name IN (
               SELECT 'moonswarm/' || node || '/' || lane FROM lanes WHERE node = ANY($1))",
        &[&nodes],
    )?;
    session.execute("DELETE FROM lanes WHERE node = ANY($1)", &[&nodes])?;
    session.execute("UPDATE nodes SET state = 'gone' WHERE node = ANY($1)", &[&nodes])?;
    Ok(())
}
