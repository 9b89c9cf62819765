//! A node of a cluster: it renews its lease, looks at the others, and takes the runs over when nobody
//! alive has them.
//!
//! One thread renews and looks. What it sees is advice: the claim looks again, in a transaction that only
//! one node makes at a time, and the lane of the former driver is what keeps that one from writing.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::{
    failed::Failed,
    owner::{self, Claim, lose},
    seat::Seat,
    session::{Call, Session},
    value::{damaged, get},
    wire::Wire,
};
use crate::{
    clock::boot_ms,
    store::{
        ClusterKey, ClusterView, Health, LeaseTimes, NodeRow, NodeState, PeerAddress, StoreError,
    },
};

/// The interval of looks at the other nodes.
const LOOK: Duration = Duration::from_millis(500);
/// The same while nobody drives.
const SOON: Duration = Duration::from_millis(100);
/// The maximum number of nodes that are looked at.
const MOST: i64 = 64;
/// The columns that a look reads.
const COLUMNS: &str = "node, name, version, state, url, boot, peer_url, peer_key,
    (extract(epoch FROM lease_until - clock_timestamp()) * 1000)::bigint,
    (extract(epoch FROM started_at) * 1000)::bigint, home";

/// What a node says of itself when it joins.
#[derive(Debug, Clone)]
pub struct Joining {
    /// Its name, for people.
    pub name: String,
    /// Its address for clients.
    pub url: String,
    /// Its address for nodes, and the fingerprint of its key.
    pub peer: PeerAddress,
}

/// A node of a cluster, from its joining to its end.
pub struct Member {
    seat: Arc<Seat>,
    node: i64,
    /// True if an earlier node of the same data directory died with the runs.
    follows_death: bool,
    pulse: Arc<Pulse>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What the thread of a node shares with it.
#[derive(Default)]
struct Pulse {
    stop: AtomicBool,
    /// True once the node has given its row up: it only looks from then on.
    retired: AtomicBool,
    /// The time until which the lease is trusted, by the clock of the machine since its boot.
    trusted_until_ms: AtomicU64,
    /// The begin of the renewals without a gap; 0 if the last one failed.
    unbroken_since_ms: AtomicU64,
    /// The health of the store, while the node drives.
    health: Mutex<Option<watch::Sender<Health>>>,
}

impl Member {
    /// Joins as a standby. Ends an earlier node of the same data directory, which is dead.
    ///
    /// # Errors
    /// Returns [`StoreError::Taken`] if a host without a cluster has the database. Fails when the database
    /// cannot be reached.
    pub fn join(seat: &Arc<Seat>, joining: &Joining) -> Result<Arc<Self>, StoreError> {
        let context = "join the cluster";
        let entered = enter(seat, joining).map_err(|error| error.into_error(context))?;
        let Entered { node, follows_death } = entered;
        let pulse = Arc::new(Pulse::default());
        let (of_thread, of_seat) = (Arc::clone(&pulse), Arc::clone(seat));
        let thread = thread::Builder::new()
            .name("store-node".to_owned())
            .spawn(move || beat(&of_seat, node, &of_thread))
            .map_err(|error| StoreError::Database {
                context: context.to_owned(),
                reason: error.to_string(),
            })?;
        let thread = Mutex::new(Some(thread));
        Ok(Arc::new(Self { seat: Arc::clone(seat), node, follows_death, pulse, thread }))
    }

    /// Returns the number of the node.
    pub fn node(&self) -> i64 {
        self.node
    }

    /// Returns the place of this process.
    pub fn seat(&self) -> &Arc<Seat> {
        &self.seat
    }

    /// Returns true while nobody else can have taken over, by this machine's own clock.
    pub fn is_trusted(&self) -> bool {
        boot_ms() < self.pulse.trusted_until_ms.load(Ordering::Acquire)
    }

    /// Returns true if it neither renews nor looks any more.
    pub fn is_stopped(&self) -> bool {
        self.pulse.stop.load(Ordering::Acquire)
    }

    /// Takes the runs over if nobody alive has them. Blocks.
    ///
    /// # Errors
    /// Fails when the database cannot be reached, or this node has been ended.
    pub fn claim(&self) -> Result<Option<Claim>, StoreError> {
        if !self.is_sure() && self.seat.view.borrow().nodes.iter().any(NodeRow::has_runs) {
            return Ok(None);
        }
        let wire = &self.seat.wire;
        let claim = || -> Result<Option<Claim>, Failed> {
            let session = wire.writer("moonswarm/claim")?;
            session.batch("SET lock_timeout = '8s'; BEGIN; SELECT 1 FROM cluster FOR UPDATE")?;
            let claim = self.take(&session)?;
            session.batch(if claim.is_some() { "COMMIT" } else { "ROLLBACK" })?;
            Ok(claim)
        };
        claim().map_err(|error| error.into_error("take the runs over"))
    }

    fn take(&self, session: &Session) -> Result<Option<Claim>, Failed> {
        let nodes = look(session, &self.seat.options.key)?;
        let me = nodes.iter().find(|it| it.row.node == self.node);
        if me.is_none_or(|it| it.row.state != NodeState::Standby || !it.row.is_alive()) {
            return Err(Failed::Store(StoreError::Fenced));
        }
        let (alive, dead): (Vec<_>, Vec<_>) =
            nodes.iter().filter(|it| it.row.node != self.node).partition(|it| it.row.is_alive());
        if alive.iter().any(|it| it.row.has_runs()) {
            return Ok(None);
        }
        let owner_died = dead.iter().any(|it| it.row.has_runs());
        if owner_died && !self.is_sure() {
            return Ok(None);
        }
        if !dead.is_empty() {
            let names: Vec<_> = dead.iter().map(|it| &it.row.name).collect();
            tracing::warn!(nodes = ?names, "these nodes no longer renew their leases; they are ended");
            owner::fence(session, &dead.iter().map(|it| it.row.node).collect::<Vec<_>>())?;
        }
        session.execute("UPDATE nodes SET state = 'up' WHERE node = $1", &[&self.node])?;
        owner::enter(session, self.node)?;
        Ok(Some(Claim { node: self.node, owner_died: owner_died || self.follows_death }))
    }

    /// Returns true if this node may end others whose leases have lapsed: it has renewed its own for a whole
    /// lease. After an outage of the database, or with another clock of it, everybody gets that time.
    fn is_sure(&self) -> bool {
        let whole_ms = u64::try_from(self.seat.options.times.whole_ms()).unwrap_or(u64::MAX);
        let since = self.pulse.unbroken_since_ms.load(Ordering::Acquire);
        since > 0 && boot_ms().saturating_sub(since) >= whole_ms
    }

    /// Tells `health` from now on when the lease cannot be renewed, or was lost.
    pub(super) fn watch_over(&self, health: watch::Sender<Health>) {
        *self.pulse.health.lock() = Some(health);
    }

    /// Ends the watch over the health and the renewals, because the node gives the runs up.
    pub(super) fn retire(&self) {
        self.pulse.retired.store(true, Ordering::Release);
        self.pulse.trusted_until_ms.store(0, Ordering::Release);
        *self.pulse.health.lock() = None;
    }

    /// Stops the node as if it had been ended: nothing is written from now on.
    pub fn give_up(&self) {
        self.pulse.trusted_until_ms.store(0, Ordering::Release);
        if let Some(health) = &*self.pulse.health.lock() {
            lose(health, StoreError::Fenced);
        }
    }

    /// Announces that this node hands over: the others look more often from then on. Blocks.
    ///
    /// # Errors
    /// Fails when the database cannot be reached.
    pub fn announce_end(&self) -> Result<(), StoreError> {
        let sql = "UPDATE nodes SET state = 'draining' WHERE node = $1 AND state = 'up'";
        let announced = self.seat.wire.renewer("moonswarm/leaving");
        let announced = announced.and_then(|session| session.execute(sql, &[&self.node]));
        announced.map(drop).map_err(|error| error.into_error("announce the end of this node"))
    }

    /// Ends a standby. A node that drives is ended by its store. Blocks.
    ///
    /// # Errors
    /// Fails when the database cannot be reached: the lease ends by itself then.
    pub fn leave(&self) -> Result<(), StoreError> {
        self.stop();
        let left = self.seat.wire.renewer("moonswarm/leaving").and_then(|session| {
            let sql = "UPDATE nodes SET state = 'gone' WHERE node = $1 AND state = 'standby'";
            session.execute(sql, &[&self.node])
        });
        left.map(drop).map_err(|error| error.into_error("leave the cluster"))
    }

    /// Stores a secret that the nodes share, if this node still has the runs. Blocks.
    ///
    /// # Errors
    /// Returns [`StoreError::Fenced`] if it has not. Fails when the database cannot be reached.
    pub fn put_secrets(&self, secrets: &[(&str, &[u8])]) -> Result<(), StoreError> {
        let put = || -> Result<(), Failed> {
            let session = self.seat.wire.writer("moonswarm/keys")?;
            let lock = "SELECT 1 FROM lanes WHERE node = $1 AND lane = 0 FOR UPDATE";
            let found = session.begin(&[Call::new(lock).with(self.node)])?;
            if found.first().is_none_or(Vec::is_empty) {
                return Err(Failed::Store(StoreError::Fenced));
            }
            let mut calls = Vec::new();
            for (name, plain) in secrets {
                let sealed = self.seat.options.key.seal(name, plain);
                let sealed =
                    sealed.ok_or_else(|| damaged("the system's randomness", "there is none"))?;
                let call = Call::new(
                    "INSERT INTO keys (name, sealed, version)
                     VALUES ($1, $2, 1 + (SELECT coalesce(max(version), 0) FROM keys))
                     ON CONFLICT (name) DO UPDATE
                         SET sealed = excluded.sealed, version = excluded.version",
                );
                calls.push(call.with((*name).to_owned()).with(sealed));
            }
            session.commit(&calls)
        };
        put().map_err(|error| error.into_error("store the keys of the cluster"))
    }

    /// Ends the renewals and the looks. Blocks until the last one is over.
    pub fn stop(&self) {
        self.pulse.stop.store(true, Ordering::Release);
        self.pulse.trusted_until_ms.store(0, Ordering::Release);
        if let Some(thread) = self.thread.lock().take() {
            thread.thread().unpark();
            if thread.thread().id() != thread::current().id() && thread.join().is_err() {
                tracing::error!("the thread of the node's lease panicked");
            }
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A row of the table of nodes.
struct Looked {
    row: NodeRow,
    home: String,
}

/// Reads the nodes that have not ended.
fn look(session: &Session, key: &ClusterKey) -> Result<Vec<Looked>, Failed> {
    let sql =
        format!("SELECT {COLUMNS} FROM nodes WHERE state <> 'gone' ORDER BY node LIMIT {MOST}");
    session.query(&sql, &[])?.iter().map(|row| looked(row, key)).collect()
}

fn looked(row: &tokio_postgres::Row, key: &ClusterKey) -> Result<Looked, Failed> {
    let (boot, at): (&str, &str) = (get(row, 5)?, get(row, 6)?);
    let sealed: Option<&[u8]> = get(row, 7)?;
    // A row that somebody without the key has written is no node to talk to.
    let opened = sealed.and_then(|sealed| key.open(&peer_name(boot, at), sealed));
    let fingerprint = opened.and_then(|it| <[u8; 32]>::try_from(it.as_slice()).ok());
    Ok(Looked {
        row: NodeRow {
            node: get(row, 0)?,
            name: get(row, 1)?,
            version: get(row, 2)?,
            state: NodeState::of(get(row, 3)?),
            url: get(row, 4)?,
            peer: fingerprint.map(|fingerprint| PeerAddress { at: at.to_owned(), fingerprint }),
            lease_ms: get(row, 8)?,
            started_ms: u64::try_from(get::<i64>(row, 9)?).unwrap_or_default(),
        },
        home: get(row, 10)?,
    })
}

/// Returns the name under which the fingerprint of a node is sealed: it counts for this start at this
/// address only.
fn peer_name(boot: &str, at: &str) -> String {
    format!("peer {boot} {at}")
}

/// A node that was entered.
struct Entered {
    node: i64,
    follows_death: bool,
}

/// Enters a standby.
fn enter(seat: &Seat, joining: &Joining) -> Result<Entered, Failed> {
    let session = seat.wire.writer("moonswarm/join")?;
    let key = &seat.options.key;
    session.batch("SET lock_timeout = '8s'; BEGIN; SELECT 1 FROM cluster FOR UPDATE")?;
    let nodes = look(&session, key)?;
    let own = || nodes.iter().filter(|it| it.home == seat.home);
    let follows_death = own().any(|it| it.row.has_runs());
    let own: Vec<i64> = own().map(|it| it.row.node).collect();
    let is_alone = |it: &&Looked| it.row.has_runs() && it.row.is_alive() && it.row.peer.is_none();
    if let Some(alone) = nodes.iter().filter(|it| it.home != seat.home).find(is_alone) {
        let (database, node) = (seat.wire.address().to_string(), alone.row.name.clone());
        return Err(Failed::Store(StoreError::Taken { database, node }));
    }
    if !own.is_empty() {
        owner::fence(&session, &own)?;
    }
    let boot = uuid::Uuid::new_v4().to_string();
    let sealed = key.seal(&peer_name(&boot, &joining.peer.at), &joining.peer.fingerprint);
    let sealed = sealed.ok_or_else(|| damaged("the system's randomness", "there is none"))?;
    let row = session.one(
        "INSERT INTO nodes (name, home, version, state, lease_until, boot, url, peer_url, peer_key)
         VALUES ($1, $2, $3, 'standby', clock_timestamp() + $8 * interval '1 ms', $4, $5, $6, $7)
         RETURNING node",
        &[
            &joining.name,
            &seat.home,
            &env!("CARGO_PKG_VERSION"),
            &boot,
            &joining.url,
            &joining.peer.at,
            &sealed,
            &ms(seat.options.times),
        ],
    )?;
    session.batch("COMMIT")?;
    let node = row.map_or(Err(Failed::Silent), |row| get(&row, 0))?;
    Ok(Entered { node, follows_death })
}

#[expect(clippy::cast_precision_loss, reason = "a lease has few milliseconds")]
fn ms(times: LeaseTimes) -> f64 {
    times.whole_ms() as f64
}

/// Renews and looks until the node stops or is ended.
fn beat(seat: &Seat, node: i64, pulse: &Pulse) {
    let times = seat.options.times;
    let renewal = u64::try_from(times.renewal().as_millis()).unwrap_or(u64::MAX);
    let trusted = u64::try_from(times.trusted().as_millis()).unwrap_or(u64::MAX);
    let mut session = None;
    let mut next_renewal = 0;
    while !pulse.stop.load(Ordering::Acquire) {
        let sent = boot_ms();
        let retired = pulse.retired.load(Ordering::Acquire);
        let renews = sent >= next_renewal && !retired;
        let mut pause = LOOK;
        match turn(seat, &mut session, node, renews) {
            Ok(view) => {
                if view.fenced && !retired {
                    seat.view.send_replace(view);
                    pulse.trusted_until_ms.store(0, Ordering::Release);
                    if let Some(health) = &*pulse.health.lock() {
                        lose(health, StoreError::Fenced);
                    }
                    return;
                }
                if renews {
                    let begun = pulse.unbroken_since_ms.load(Ordering::Acquire);
                    let was_in_time = sent < pulse.trusted_until_ms.load(Ordering::Acquire);
                    if begun == 0 || !was_in_time {
                        pulse.unbroken_since_ms.store(sent.max(1), Ordering::Release);
                    }
                    pulse.trusted_until_ms.store(sent + trusted, Ordering::Release);
                    next_renewal = sent + renewal;
                }
                if let Some(health) = &*pulse.health.lock() {
                    owner::well(health);
                }
                if view.driver().is_none() {
                    pause = SOON;
                }
                seat.view.send_replace(ClusterView { fenced: false, ..view });
            }
            Err(error) => {
                session = None;
                tracing::warn!(reason = error.reason(), "failed to renew the lease of this node");
                pulse.unbroken_since_ms.store(0, Ordering::Release);
                seat.view.send_modify(|view| view.reached = false);
                if let Some(health) = &*pulse.health.lock() {
                    owner::away(health, error);
                }
            }
        }
        if !pulse.stop.load(Ordering::Acquire) {
            thread::park_timeout(pause);
        }
    }
}

/// Renews, if it is time, and looks.
fn turn(
    seat: &Seat,
    session: &mut Option<Session>,
    node: i64,
    renews: bool,
) -> Result<ClusterView, Failed> {
    let wire: &Wire = &seat.wire;
    let session = match session {
        Some(session) => session,
        none => none.insert(wire.renewer(&format!("moonswarm/{node}/lease"))?),
    };
    if renews {
        session.execute(
            "UPDATE nodes SET lease_until = clock_timestamp() + $2 * interval '1 ms'
             WHERE node = $1 AND state <> 'gone'",
            &[&node, &ms(seat.options.times)],
        )?;
    }
    let nodes = look(session, &seat.options.key)?;
    let row = session.one("SELECT coalesce(max(version), 0) FROM keys", &[])?;
    let keys = row.map_or(Ok(0), |row| get(&row, 0))?;
    let me = nodes.iter().find(|it| it.row.node == node);
    Ok(ClusterView {
        me: node,
        reached: true,
        fenced: me.is_none(),
        keys,
        nodes: nodes.into_iter().map(|it| it.row).collect(),
    })
}
