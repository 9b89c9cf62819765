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
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::{
    failed::Failed,
    format, hosts,
    owner::{self, Claim, lose},
    repeated::{Repeated, Rounds},
    seat::Seat,
    server::ahead,
    session::{Call, Session},
    upgrade,
    value::{damaged, get, uint},
    wire::Wire,
};
use crate::{
    clock::{Clock, boot_ms},
    store::{
        ClusterKey, ClusterView, Durability, Health, LeaseTimes, NodeRow, NodeState, PeerAddress,
        StoreError,
    },
};

/// The interval of looks at the other nodes.
const LOOK: Duration = Duration::from_millis(500);
/// The same while nobody drives.
const SOON: Duration = Duration::from_millis(100);
/// The maximum number of nodes that are looked at: the one that looks, those that have the runs, and the
/// standbys that renewed last.
const MOST: i64 = 64;
/// Ends standbys that died long ago.
const FORGET: &str = "UPDATE nodes SET state = 'gone'
    WHERE state = 'standby' AND lease_until < clock_timestamp() - interval '10 minutes'";
/// The columns that a look reads.
const COLUMNS: &str = "node, name, version, state, url, boot, peer_url, peer_key,
    (extract(epoch FROM lease_until - clock_timestamp()) * 1000)::bigint,
    (extract(epoch FROM started_at) * 1000)::bigint, home, format, clock_ms";

/// The description of a node that joins.
#[derive(Debug, Clone)]
pub struct Joining {
    /// The name of the node, for people.
    pub name: String,
    /// The address of the node for clients.
    pub url: String,
    /// The address of the node for other nodes, and the fingerprint of its key.
    pub peer: PeerAddress,
}

/// A node of a cluster, from its joining to its end.
pub struct Member {
    seat: Arc<Seat>,
    node: i64,
    /// True if an earlier node of the same data directory died with the runs.
    follows_death: bool,
    pulse: Arc<Pulse>,
    thread: Repeated,
}

/// The state that a node shares with its thread.
#[derive(Default)]
struct Pulse {
    /// True once the node has given its row up: it only looks from then on.
    retired: AtomicBool,
    /// The time until which the lease is trusted, by the clock of the machine since its boot.
    trusted_until_ms: AtomicU64,
    /// The time since when nobody alive has the runs, by the same clock; 0 if somebody has them.
    vacant_since_ms: AtomicU64,
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
        let thread = Repeated::start("store-node", move |rounds| {
            beat(&of_seat, node, &of_thread, rounds);
        })?;
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
        self.thread.is_stopped()
    }

    /// Takes the runs over if nobody alive has them. Blocks.
    ///
    /// # Errors
    /// Fails when the database cannot be reached, or this node has been ended.
    pub fn claim(&self) -> Result<Option<Claim>, StoreError> {
        if !self.is_sure() && self.seat.view.borrow().nodes.iter().any(NodeRow::has_runs) {
            return Ok(None);
        }
        if self.leaves_it_to_newer() {
            return Ok(None);
        }
        let wire = &self.seat.wire;
        let claim = || -> Result<Option<Claim>, Failed> {
            let mut session = wire.writer("moonswarm/claim")?;
            let Seat { progress, options, .. } = &*self.seat;
            if options.durability == Durability::Asynchronous && progress.is_ahead(&session)? {
                // To begin anew takes long in a large database.
                session = wire.long_writer("moonswarm/claim")?;
            }
            session.batch("SET lock_timeout = '8s'; BEGIN")?;
            format::lock(&session, wire.address())?;
            let claim = self.take(&session)?;
            session.batch(if claim.is_some() { "COMMIT" } else { "ROLLBACK" })?;
            Ok(claim)
        };
        claim().map_err(|error| error.into_error("take the runs over"))
    }

    fn take(&self, session: &Session) -> Result<Option<Claim>, Failed> {
        let nodes = look(session, Some(self.node), Some(&self.seat.options.key))?;
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
            hosts::fence(session, &dead.iter().map(|it| it.row.node).collect::<Vec<_>>())?;
        }
        let Seat { progress, wire, options, .. } = &*self.seat;
        let has_lost = progress.settle(session, wire, options.durability)?;
        session.execute("UPDATE nodes SET state = 'up' WHERE node = $1", &[&self.node])?;
        owner::enter(session, self.node, self.seat.options.writers)?;
        let owner_died = owner_died || self.follows_death;
        Ok(Some(Claim { node: self.node, owner_died, has_lost }))
    }

    /// Returns true if a node of a newer release stands by and has not had a whole lease to take over: runs
    /// should not go back to an older one.
    fn leaves_it_to_newer(&self) -> bool {
        let view = self.seat.view.borrow();
        let mine = (format::known(), version(&format::release()));
        let is_newer = |it: &NodeRow| (it.format, version(&it.version)) > mine;
        let whole_ms = u64::try_from(self.seat.options.times.whole_ms()).unwrap_or(u64::MAX);
        let since = self.pulse.vacant_since_ms.load(Ordering::Acquire);
        view.others().any(is_newer) && boot_ms().saturating_sub(since) < whole_ms
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
        self.pulse.trusted_until_ms.store(0, Ordering::Release);
        self.thread.stop();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A row of the table of nodes.
pub(super) struct Looked {
    pub(super) row: NodeRow,
    home: String,
}

/// Reads the nodes that have not ended, `me` among them.
pub(super) fn look(
    session: &Session,
    me: Option<i64>,
    key: Option<&ClusterKey>,
) -> Result<Vec<Looked>, Failed> {
    let sql = format!(
        "SELECT {COLUMNS} FROM nodes WHERE state <> 'gone'
         ORDER BY (node = $1) DESC, (state <> 'standby') DESC, lease_until DESC, node LIMIT {MOST}"
    );
    let rows = session.query(&sql, &[&me.unwrap_or_default()])?;
    let nodes = rows.iter().map(|row| looked(row, key));
    let mut nodes = nodes.collect::<Result<Vec<_>, _>>()?;
    nodes.sort_by_key(|it| it.row.node);
    Ok(nodes)
}

fn looked(row: &tokio_postgres::Row, key: Option<&ClusterKey>) -> Result<Looked, Failed> {
    let (boot, at): (&str, &str) = (get(row, 5)?, get(row, 6)?);
    let sealed: Option<&[u8]> = get(row, 7)?;
    // A row that somebody without the key has written is no node to talk to.
    let opened = sealed.zip(key).and_then(|(sealed, key)| key.open(&peer_name(boot, at), sealed));
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
            format: get(row, 11)?,
            clock_ms: get(row, 12)?,
        },
        home: get(row, 10)?,
    })
}

/// Returns the name under which the fingerprint of a node is sealed: it counts for this start at this
/// address only.
fn peer_name(boot: &str, at: &str) -> String {
    format!("peer {boot} {at}")
}

/// Returns the numbers of a release, for a comparison.
fn version(release: &str) -> Vec<u64> {
    let numbers = release.split(|it: char| !it.is_ascii_digit());
    numbers.filter_map(|it| it.parse().ok()).take(3).collect()
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
    session.batch("SET lock_timeout = '8s'; BEGIN")?;
    format::lock(&session, seat.wire.address())?;
    session.execute(FORGET, &[])?;
    let nodes = look(&session, None, Some(key))?;
    let follows_death = nodes.iter().any(|it| it.home == seat.home && it.row.has_runs());
    let sql = "SELECT node FROM nodes WHERE state <> 'gone' AND home = $1";
    let own = session.query(sql, &[&seat.home])?;
    let own = own.iter().map(|row| get(row, 0)).collect::<Result<Vec<i64>, _>>()?;
    let is_alone = |it: &&Looked| it.row.has_runs() && it.row.is_alive() && it.row.peer.is_none();
    if let Some(alone) = nodes.iter().filter(|it| it.home != seat.home).find(is_alone) {
        let (database, node) = (seat.wire.address().to_string(), alone.row.name.clone());
        return Err(Failed::Store(StoreError::Taken { database, node }));
    }
    if !own.is_empty() {
        hosts::fence(&session, &own)?;
    }
    let boot = uuid::Uuid::new_v4().to_string();
    let sealed = key.seal(&peer_name(&boot, &joining.peer.at), &joining.peer.fingerprint);
    let sealed = sealed.ok_or_else(|| damaged("the system's randomness", "there is none"))?;
    let row = session.one(
        "INSERT INTO nodes (name, home, version, state, lease_until, boot, url, peer_url, peer_key, format)
         VALUES ($1, $2, $3, 'standby', clock_timestamp() + $8 * interval '1 ms', $4, $5, $6, $7, $9)
         RETURNING node",
        &[
            &joining.name,
            &seat.home,
            &format::release(),
            &boot,
            &joining.url,
            &joining.peer.at,
            &sealed,
            &ms(seat.options.times),
            &format::known(),
        ],
    )?;
    let node = row.map_or(Err(Failed::Silent), |row| get(&row, 0))?;
    owner::forget_ended(&session, node)?;
    session.batch("COMMIT")?;
    Ok(Entered { node, follows_death })
}

#[expect(clippy::cast_precision_loss, reason = "a lease has few milliseconds")]
fn ms(times: LeaseTimes) -> f64 {
    times.whole_ms() as f64
}

/// Renews and looks until the node stops or is ended.
fn beat(seat: &Seat, node: i64, pulse: &Pulse, rounds: &Rounds) {
    let times = seat.options.times;
    let renewal = u64::try_from(times.renewal().as_millis()).unwrap_or(u64::MAX);
    let trusted = u64::try_from(times.trusted().as_millis()).unwrap_or(u64::MAX);
    let mut session = None;
    let mut next_renewal = 0;
    let mut clock_ms = None;
    while rounds.go_on() {
        let sent = boot_ms();
        let retired = pulse.retired.load(Ordering::Acquire);
        let renews = sent >= next_renewal && !retired;
        let mut pause = LOOK;
        match turn(seat, &mut session, node, renews, &mut clock_ms) {
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
                let was_vacant = pulse.vacant_since_ms.load(Ordering::Acquire);
                let vacant = match (view.is_vacant(), was_vacant) {
                    (false, _) => 0,
                    (true, 0) => sent.max(1),
                    (true, since) => since,
                };
                pulse.vacant_since_ms.store(vacant, Ordering::Release);
                let trusted_until_ms = pulse.trusted_until_ms.load(Ordering::Acquire);
                let view = ClusterView { fenced: false, trusted_until_ms, ..view };
                seat.view.send_replace(view);
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
        rounds.pause(pause);
    }
}

/// Renews, if it is time, and looks.
fn turn(
    seat: &Seat,
    session: &mut Option<Session>,
    node: i64,
    renews: bool,
    clock_ms: &mut Option<i64>,
) -> Result<ClusterView, Failed> {
    let wire: &Wire = &seat.wire;
    if session.is_none() {
        *session = Some(wire.renewer(&format!("moonswarm/{node}/lease"))?);
    }
    let Some(known) = session.as_ref() else { return Err(Failed::Silent) };
    if renews {
        let clock = Clock::system();
        let sent = clock.now_ms();
        let renewed = known.one(
            "UPDATE nodes SET lease_until = clock_timestamp() + $2 * interval '1 ms', clock_ms = $3
             WHERE node = $1 AND state <> 'gone'
             RETURNING (extract(epoch FROM clock_timestamp()) * 1000)::bigint",
            &[&node, &ms(seat.options.times), &*clock_ms],
        )?;
        let received = clock.now_ms();
        *clock_ms = match renewed {
            // A clock that was set meanwhile says nothing.
            Some(row) if received >= sent => Some(ahead(sent, uint(&row, 0)?, received)),
            _ => None,
        };
        seat.progress.note(known);
    }
    let nodes = look(known, Some(node), Some(&seat.options.key))?;
    let row = known.one(
        "SELECT (SELECT coalesce(max(version), 0) FROM keys), oldest, release, feature FROM cluster",
        &[],
    )?;
    let Some(row) = row else { return Err(Failed::Silent) };
    let refusal = format::refusal(get(&row, 1)?, get(&row, 2)?, wire.address());
    let (keys, feature): (i64, i32) = (get(&row, 0)?, get(&row, 3)?);
    let me = nodes.iter().find(|it| it.row.node == node);
    if renews
        && feature < format::known()
        && me.is_some_and(|it| it.row.state == NodeState::Up)
        && let Err(error) = upgrade::raise(known, node)
    {
        tracing::debug!(reason = error.reason(), "failed to raise the format");
        *session = None;
    }
    Ok(ClusterView {
        refusal,
        me: node,
        reached: true,
        fenced: me.is_none(),
        keys,
        trusted_until_ms: 0,
        nodes: nodes.into_iter().map(|it| it.row).collect(),
    })
}
