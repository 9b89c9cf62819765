//! Ownership of a database: one living host, which renews a lease, and whose writers lock a row that
//! ends with them.
//!
//! The lease decides who may end another host, by the clock of the database. What keeps an ended host
//! from writing is its row in `lanes`: every transaction locks it first, and whoever takes over deletes
//! it, which waits for the transaction that has it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::{
    failed::Failed,
    session::{Call, Session},
    value::get,
    wire::Wire,
};
use crate::store::{Health, StoreError};

/// The interval of renewals.
const RENEWAL: Duration = Duration::from_secs(3);
/// The interval of looks at the lease of another host, at a start.
const LOOK: Duration = Duration::from_millis(250);
/// The number of looks after which a host whose lease neither ends nor is renewed counts as alive.
const LOOKS: u32 = 60;
/// The renewal in messages.
const RENEW: &str = "renew the lease of the database";
/// The number of rows of ended hosts that are kept, for people.
const ENDED: i64 = 100;

/// Returns the name that a writing connection of a host has at the server.
pub fn lane_name(node: i64) -> String {
    format!("moonswarm/{node}/0")
}

/// A host that owns the database.
#[derive(Debug, Clone, Copy)]
pub struct Claim {
    /// The number of this start.
    pub node: i64,
    /// True if the host before did not end in an orderly way.
    pub owner_died: bool,
}

/// Another host in the table.
struct Other {
    node: i64,
    name: String,
    home: String,
    lapsed: bool,
    lease: String,
}

/// Takes the database over, if no other host is alive. `home` names the data directory, whose lock this
/// process has: a host of the same directory is dead.
///
/// # Errors
/// Returns [`StoreError::Taken`] if another host renews its lease.
pub fn claim(session: &Session, wire: &Wire, home: &str, name: &str) -> Result<Claim, Failed> {
    let mut seen: Option<(i64, String)> = None;
    for look in 0.. {
        session.batch("SET lock_timeout = '20s'; BEGIN; SELECT 1 FROM cluster FOR UPDATE")?;
        let others = others(session)?;
        let alive = others.iter().find(|it| !it.lapsed && it.home != home);
        let Some(alive) = alive else {
            let claim = take(session, home, name, &others)?;
            session.batch("COMMIT")?;
            return Ok(claim);
        };
        session.batch("ROLLBACK")?;
        let renewed =
            seen.as_ref().is_some_and(|(node, lease)| *node == alive.node && *lease != alive.lease);
        if renewed || look >= LOOKS {
            let database = wire.address().to_string();
            return Err(Failed::Store(StoreError::Taken { database, node: alive.name.clone() }));
        }
        if look == 0 {
            tracing::info!(
                host = alive.name,
                "another host had this database; waiting to see whether it is alive"
            );
        }
        seen.get_or_insert((alive.node, alive.lease.clone()));
        thread::park_timeout(LOOK);
    }
    Err(Failed::Silent)
}

/// Returns the name of a living host that has another data directory than `home`.
///
/// # Errors
/// Returns the error of the database.
pub fn living(session: &Session, home: &str) -> Result<Option<String>, Failed> {
    let alive = others(session)?.into_iter().find(|it| !it.lapsed && it.home != home);
    Ok(alive.map(|it| it.name))
}

fn others(session: &Session) -> Result<Vec<Other>, Failed> {
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

/// Ends the dead and enters this host.
fn take(session: &Session, home: &str, name: &str, dead: &[Other]) -> Result<Claim, Failed> {
    let nodes: Vec<i64> = dead.iter().map(|it| it.node).collect();
    if !nodes.is_empty() {
        tracing::warn!(
            hosts = ?dead.iter().map(|it| &it.name).collect::<Vec<_>>(),
            "the host before did not end in an orderly way; taking its database over"
        );
        fence(session, &nodes)?;
    }
    let row = session.one(
        "INSERT INTO nodes (name, home, version, state, lease_until)
         VALUES ($1, $2, $3, 'up', clock_timestamp() + interval '10 seconds') RETURNING node",
        &[&name, &home, &env!("CARGO_PKG_VERSION")],
    )?;
    let Some(row) = row else { return Err(Failed::Silent) };
    let node: i64 = get(&row, 0)?;
    enter(session, node)?;
    Ok(Claim { node, owner_died: !nodes.is_empty() })
}

/// Ends nodes, within a transaction: what they have not committed yet, they never will.
pub fn fence(session: &Session, nodes: &[i64]) -> Result<(), Failed> {
    let names: Vec<String> = nodes.iter().map(|node| lane_name(*node)).collect();
    // Spares the wait for what they left open.
    session.query(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
         WHERE datname = current_database() AND usename = current_user
           AND pid <> pg_backend_pid() AND application_name = ANY($1)",
        &[&names],
    )?;
    session.execute("DELETE FROM lanes WHERE node = ANY($1)", &[&nodes])?;
    session.execute("UPDATE nodes SET state = 'gone' WHERE node = ANY($1)", &[&nodes])?;
    Ok(())
}

/// Gives a node its lane, within a transaction, and forgets nodes that ended long ago.
pub fn enter(session: &Session, node: i64) -> Result<(), Failed> {
    session.all(&[
        Call::new("INSERT INTO lanes (node, lane) VALUES ($1, 0)").with(node),
        Call::new("INSERT INTO marks (node, lane, seq) VALUES ($1, 0, 0)").with(node),
        Call::new("DELETE FROM marks WHERE node < $1").with(node),
        Call::new("DELETE FROM nodes WHERE state = 'gone' AND node < $1").with(node - ENDED),
    ])?;
    Ok(())
}

/// Renews the lease on a thread of its own, until it is dropped.
pub struct Lease {
    stop: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Lease {
    /// Starts the thread. If the lease was lost, it says so in `health`.
    ///
    /// # Errors
    /// Fails when the system cannot create a thread.
    pub fn start(wire: Wire, node: i64, health: watch::Sender<Health>) -> Result<Self, StoreError> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("store-lease".to_owned())
            .spawn(move || {
                let mut session = None;
                while !stopped.load(Ordering::Acquire) {
                    match renew(&wire, &mut session, node) {
                        Ok(true) => well(&health),
                        Ok(false) => {
                            lose(&health, StoreError::Fenced);
                            break;
                        }
                        Err(error) => {
                            session = None;
                            tracing::warn!(reason = error.reason(), "failed to {RENEW}");
                            away(&health, error);
                        }
                    }
                    thread::park_timeout(RENEWAL);
                }
            })
            .map_err(|error| StoreError::Database {
                context: "start the thread of the database's lease".to_owned(),
                reason: error.to_string(),
            })?;
        Ok(Self { stop, thread: Mutex::new(Some(thread)) })
    }

    /// Ends the thread.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.lock().take() {
            thread.thread().unpark();
            if thread.thread().id() != thread::current().id() && thread.join().is_err() {
                tracing::error!("the thread of the database's lease panicked");
            }
        }
    }
}

/// Sets the health to lost, for good.
pub fn lose(health: &watch::Sender<Health>, error: StoreError) {
    health.send_if_modified(|health| {
        if matches!(health, Health::Lost(_)) {
            return false;
        }
        tracing::error!(%error, "nothing is written until a restart");
        *health = Health::Lost(error);
        true
    });
}

/// Sets the health to waiting, if it was well.
pub fn away(health: &watch::Sender<Health>, error: Failed) {
    health.send_if_modified(|health| {
        let is_news = matches!(health, Health::Well);
        if is_news {
            let (context, reason) = (RENEW.to_owned(), error.reason());
            *health = Health::Waiting(StoreError::Away { context, reason });
        }
        is_news
    });
}

/// Sets the health to well, if only a renewal had failed.
pub fn well(health: &watch::Sender<Health>) {
    health.send_if_modified(|health| {
        let waits = matches!(
            health,
            Health::Waiting(StoreError::Away { context, .. }) if context == RENEW
        );
        if waits {
            *health = Health::Well;
        }
        waits
    });
}

fn renew(wire: &Wire, session: &mut Option<Session>, node: i64) -> Result<bool, Failed> {
    let session = match session {
        Some(session) => session,
        none => none.insert(wire.renewer(&format!("moonswarm/{node}/lease"))?),
    };
    let renewed = session.execute(
        "UPDATE nodes SET lease_until = clock_timestamp() + interval '10 seconds'
         WHERE node = $1 AND state = 'up'",
        &[&node],
    )?;
    Ok(renewed == 1)
}

/// Gives the database up: the next host need not wait.
pub fn release(session: &Session, node: i64) -> Result<(), Failed> {
    session.commit_all(&[
        Call::new("DELETE FROM lanes WHERE node = $1").with(node),
        Call::new("UPDATE nodes SET state = 'gone' WHERE node = $1").with(node),
    ])
}
