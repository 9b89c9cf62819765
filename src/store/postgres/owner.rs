//! Ownership of a database: one living host, which renews a lease, and whose writers lock a row that
//! ends with them.
//!
//! The lease decides who may end another host, by the clock of the database. What keeps an ended host
//! from writing is its row in `lanes`: every transaction locks it first, and whoever takes over deletes
//! it, which waits for the transaction that has it.

use std::{sync::Arc, thread, time::Duration};

use tokio::sync::watch;

use super::{
    failed::Failed,
    format,
    hosts::{Other, fence, others},
    lane::Lane,
    progress::ProgressFile,
    repeated::Repeated,
    session::{Call, Session},
    upgrade,
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

/// A host that owns the database.
#[derive(Debug, Clone, Copy)]
pub struct Claim {
    /// The number of this start.
    pub node: i64,
    /// True if the host before did not end in an orderly way.
    pub owner_died: bool,
    /// True if the database has lost commits that were acknowledged.
    pub has_lost: bool,
}

/// A host that wants the database.
pub struct Newcomer<'a> {
    /// Names its data directory, whose lock this process has: a host of the same directory is dead.
    pub home: &'a str,
    /// Its name, for people.
    pub name: &'a str,
    /// The number of its lanes for runs.
    pub writers: usize,
}

/// Takes the database over, if no other host is alive.
///
/// # Errors
/// Returns [`StoreError::Taken`] if another host renews its lease.
pub fn claim(session: &Session, wire: &Wire, host: &Newcomer<'_>) -> Result<Claim, Failed> {
    let mut seen: Option<(i64, String)> = None;
    for look in 0.. {
        session.batch("SET lock_timeout = '20s'; BEGIN")?;
        format::lock(session, wire.address())?;
        let others = others(session)?;
        let alive = others.iter().find(|it| !it.lapsed && it.home != host.home);
        let Some(alive) = alive else {
            let claim = take(session, host, &others)?;
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

/// Ends the dead and enters this host.
fn take(session: &Session, host: &Newcomer<'_>, dead: &[Other]) -> Result<Claim, Failed> {
    let nodes: Vec<i64> = dead.iter().map(|it| it.node).collect();
    if !nodes.is_empty() {
        tracing::warn!(
            hosts = ?dead.iter().map(|it| &it.name).collect::<Vec<_>>(),
            "the host before did not end in an orderly way; taking its database over"
        );
        fence(session, &nodes)?;
    }
    let row = session.one(
        "INSERT INTO nodes (name, home, version, format, state, lease_until)
         VALUES ($1, $2, $3, $4, 'up', clock_timestamp() + interval '10 seconds') RETURNING node",
        &[&host.name, &host.home, &format::release(), &format::known()],
    )?;
    let Some(row) = row else { return Err(Failed::Silent) };
    let node: i64 = get(&row, 0)?;
    enter(session, node, host.writers)?;
    Ok(Claim { node, owner_died: !nodes.is_empty(), has_lost: false })
}

/// Gives a node its lanes, within a transaction, and forgets nodes that ended long before.
pub fn enter(session: &Session, node: i64, for_runs: usize) -> Result<(), Failed> {
    let lanes: Vec<i16> = Lane::all(node, for_runs).map(|lane| lane.number).collect();
    session.all(&[
        Call::new("INSERT INTO lanes (node, lane) SELECT $1, unnest($2::smallint[])")
            .with(node)
            .with(lanes.clone()),
        Call::new("INSERT INTO marks (node, lane, seq) SELECT $1, unnest($2::smallint[]), 0")
            .with(node)
            .with(lanes),
        Call::new("DELETE FROM marks WHERE node < $1").with(node),
    ])?;
    forget_ended(session, node)
}

/// Forgets nodes that ended long before a node.
pub fn forget_ended(session: &Session, node: i64) -> Result<(), Failed> {
    let sql = "DELETE FROM nodes WHERE state = 'gone' AND node < $1";
    session.execute(sql, &[&(node - ENDED)]).map(drop)
}

/// Starts the thread that renews the lease, and notes the progress of the database. If the lease was
/// lost, it says so in `health`.
///
/// # Errors
/// Fails when the system cannot create a thread.
pub fn keep_lease(
    wire: Wire,
    node: i64,
    health: watch::Sender<Health>,
    progress: Arc<ProgressFile>,
) -> Result<Repeated, StoreError> {
    Repeated::start("store-lease", move |rounds| {
        let mut session = None;
        let mut is_raised = false;
        while rounds.go_on() {
            match renew(&wire, &mut session, node) {
                Ok(true) => {
                    well(&health);
                    if let Some(known) = &session {
                        progress.note(known);
                    }
                    if !is_raised && let Some(known) = &session {
                        is_raised = upgrade::raise(known, node).unwrap_or_else(|error| {
                            let reason = error.reason();
                            tracing::debug!(reason, "failed to raise the format");
                            session = None;
                            false
                        });
                    }
                }
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
            rounds.pause(RENEWAL);
        }
    })
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
