//! Opening and closing a database.

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use async_trait::async_trait;
use tokio::sync::watch;

use super::{
    address::DatabaseAddress,
    check,
    common::Common,
    failed::Failed,
    format, kept,
    lane::Lane,
    member::Member,
    owner::{self, Claim, Newcomer, keep_lease},
    pool::Pool,
    progress::{ProgressFile, high},
    repeated::Repeated,
    seat::{HOME, SeatOptions, own},
    server,
    session::Session,
    space,
    standbys::StandbyWatch,
    tokens, traces,
    wire::Wire,
    writers::{self, Writers},
};
use crate::{
    clock::Clock,
    fault,
    metrics::Commits,
    store::{
        Batch, Durability, ErasureTarget, Expiring, Health, Migrated, Numbers, Relay, Space, Store,
        StoreError, Tell, TracedRun, Traces, TracesInCopy, Upkeep, Writer, lock::Lock,
    },
};

/// The number of connections that commit transitions of runs, by default.
const WRITERS: usize = 4;

/// The settings of a database.
#[derive(Debug, Clone)]
pub struct PostgresOptions {
    /// The address.
    pub address: DatabaseAddress,
    /// The name of this host, for people.
    pub name: String,
    /// The maximum number of concurrent reads.
    pub readers: usize,
    /// The number of connections that commit transitions of runs, at most 16. With more than one, another
    /// one commits what belongs to no run.
    pub writers: usize,
    /// What a failover may lose.
    pub durability: Durability,
}

impl PostgresOptions {
    /// Returns the defaults for an address.
    pub fn new(address: DatabaseAddress) -> Self {
        let named = fs::read_to_string("/proc/sys/kernel/hostname").ok();
        let named = named.or_else(|| std::env::var("HOSTNAME").ok());
        let machine = named.as_deref().map_or("a machine", str::trim);
        let name = format!("{machine} (pid {})", std::process::id());
        let writers = address.writers.unwrap_or_else(|| match address.is_local {
            // Each group has a price, and a database on the same machine pays it with the same cores.
            true => (thread::available_parallelism().map_or(1, usize::from) / 2).clamp(1, WRITERS),
            false => WRITERS,
        });
        Self { address, name, readers: 8, writers, durability: Durability::default() }
    }
}

/// A PostgreSQL database that this process owns, with the data directory that has its keys; or one that it
/// reads, while another node commits what it writes.
pub struct Postgres {
    way: Way,
    pub(super) pool: Pool,
    pub(super) wire: Wire,
}

/// The way of batches into the database.
enum Way {
    /// This process owns the database.
    Owned(Box<Owned>),
    /// Another node owns it, and commits what the relay sends.
    Relayed(Arc<Relay>, Durability),
}

/// The part of a store that only the owner of the database has.
struct Owned {
    writers: Writers,
    renewal: Renewal,
    health: watch::Receiver<Health>,
    closing: Arc<AtomicBool>,
    numbers: Numbers,
    owner_died: bool,
    commits: Arc<Commits>,
    standbys: StandbyWatch,
    progress: Arc<ProgressFile>,
}

/// The part of the process that renews the lease.
enum Renewal {
    /// A host without a cluster.
    Own(Repeated),
    /// The node that opened the store.
    OfNode(Arc<Member>),
}

/// A database that was taken over.
struct Taken {
    wire: Wire,
    claim: Claim,
    /// The largest numbers of a run and of a row.
    high: (u64, u64),
    readers: usize,
    writers: usize,
    durability: Durability,
    progress: Arc<ProgressFile>,
}

impl Postgres {
    /// Takes ownership of the data directory `dir` and of the database. Makes the tables in an empty
    /// database.
    ///
    /// # Errors
    /// Returns [`StoreError::Owned`] for the directory, [`StoreError::Taken`] for the database,
    /// [`StoreError::Unfit`] or [`StoreError::Newer`] for one that cannot be used, and
    /// [`StoreError::Away`] for one that cannot be reached.
    pub fn open(dir: &Path, options: &PostgresOptions) -> Result<Arc<Self>, StoreError> {
        let (lock, home) = own(dir)?;
        let context = format!("open {}", options.address);
        let wire = Wire::new(options.address.clone())?;
        let progress = Arc::new(ProgressFile::open(dir)?);
        let opened = start(&wire, &home, options, &progress);
        let (claim, high) = opened.map_err(|error| error.explained(&context))?;
        let claim = Claim { owner_died: claim.owner_died || lock.owner_died(), ..claim };
        fault::point("store.opened");
        let PostgresOptions { readers, writers, durability, .. } = *options;
        let noted = Arc::clone(&progress);
        let taken = Taken { wire, claim, high, readers, writers, durability, progress };
        Self::start(taken, Some(lock), |wire, health| {
            keep_lease(wire, claim.node, health, noted).map(Renewal::Own)
        })
    }

    /// Takes the runs over if nobody alive has them, for a node that stands by. Blocks.
    ///
    /// # Errors
    /// Returns [`StoreError::Fenced`] for a node that was ended. Fails when the database cannot be reached.
    pub fn take_over(member: &Arc<Member>) -> Result<Option<Arc<Self>>, StoreError> {
        let Some(claim) = member.claim()? else { return Ok(None) };
        let (wire, options) = (member.seat().wire.clone(), &member.seat().options);
        let SeatOptions { readers, writers, durability, .. } = *options;
        let high = wire.reader().and_then(|session| high(&session));
        let high = high.map_err(|error| error.into_error("take the runs over"))?;
        let progress = Arc::clone(&member.seat().progress);
        let taken = Taken { wire, claim, high, readers, writers, durability, progress };
        let store = Self::start(taken, None, |_, health| {
            member.watch_over(health);
            Ok(Renewal::OfNode(Arc::clone(member)))
        });
        store.map(Some)
    }

    /// Opens the database for a node that helps the one that drives: it reads by itself, and `relay` sends
    /// what it writes to that node. The first read connects. To close the store leaves `member` as it is.
    ///
    /// # Errors
    /// Returns [`StoreError::Closed`] for a member that was stopped.
    pub fn reading(member: &Arc<Member>, relay: Arc<Relay>) -> Result<Arc<Self>, StoreError> {
        if member.is_stopped() {
            return Err(StoreError::Closed);
        }
        let (wire, options) = (member.seat().wire.clone(), &member.seat().options);
        let pool = Pool::new(wire.clone(), options.readers);
        let way = Way::Relayed(relay, options.durability);
        Ok(Arc::new(Self { way, pool, wire }))
    }

    fn start(
        taken: Taken,
        lock: Option<Lock>,
        renew: impl FnOnce(Wire, watch::Sender<Health>) -> Result<Renewal, StoreError>,
    ) -> Result<Arc<Self>, StoreError> {
        let Taken { wire, claim, high: (run, lsn), readers, writers, durability, progress } = taken;
        let (sender, health) = watch::channel(Health::Well);
        let closing = Arc::new(AtomicBool::new(false));
        let lanes: Vec<Lane> = Lane::all(claim.node, writers).collect();
        let lock = lock.map(Lock::opened);
        let common = Common::new(lanes.len(), sender.clone(), Arc::clone(&closing), lock);
        let commits = Arc::clone(&common.commits);
        if claim.has_lost {
            commits.lost.inc();
        }
        let lanes = writers::connect(&wire, &lanes, &common)?;
        let renewal = renew(wire.clone(), sender)?;
        let standbys = StandbyWatch::start(wire.clone(), durability)?;
        let writers = Writers::start(lanes)?;
        let owned = Owned {
            writers,
            renewal,
            health,
            closing,
            numbers: Numbers::after(run, lsn),
            owner_died: claim.owner_died,
            commits,
            standbys,
            progress,
        };
        let (way, pool) = (Way::Owned(Box::new(owned)), Pool::new(wire.clone(), readers));
        Ok(Arc::new(Self { way, pool, wire }))
    }

    /// Returns true if a data directory belongs to a host whose runs are in a PostgreSQL database.
    pub fn has(dir: &Path) -> bool {
        dir.join(HOME).exists()
    }

    /// Commits the queued batches, gives the database up and releases the data directory. Later calls
    /// fail with [`StoreError::Closed`]. Closing again has no effect.
    ///
    /// # Errors
    /// Fails when the database cannot be reached. What was acknowledged is there.
    pub fn close(&self) -> Result<(), StoreError> {
        let result = match &self.way {
            Way::Owned(owned) => owned.close(&self.pool),
            Way::Relayed(relay, _) => {
                relay.close();
                Ok(())
            }
        };
        self.pool.close();
        result
    }

    /// Calls `work` with a connection for what takes long, in one snapshot of the database.
    pub(super) fn at_length<T>(
        &self,
        context: &str,
        work: impl FnOnce(&Session) -> Result<T, Failed>,
    ) -> Result<T, StoreError> {
        self.pool.is_open()?;
        let read = || {
            let session = self.wire.long()?;
            session.batch("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")?;
            work(&session)
        };
        read().map_err(|error| error.into_error(context))
    }
}

impl Owned {
    fn close(&self, pool: &Pool) -> Result<(), StoreError> {
        self.closing.store(true, Ordering::Release);
        match &self.renewal {
            Renewal::Own(lease) => lease.stop(),
            Renewal::OfNode(member) => member.retire(),
        }
        let result = self.writers.close();
        let noted = pool.read("note its progress", |session| {
            self.progress.note(session);
            Ok(())
        });
        if let Err(error) = noted {
            tracing::debug!(%error, "the last commits are not noted in the data directory");
        }
        result
    }
}

/// Checks the database, takes it over, and returns the largest numbers of a run and of a row.
fn start(
    wire: &Wire,
    home: &str,
    options: &PostgresOptions,
    progress: &ProgressFile,
) -> Result<(Claim, (u64, u64)), Failed> {
    let session = wire.starter()?;
    server::check(&session, wire, options.durability)?;
    format::prepare(&session, wire.address(), home)?;
    if session.exists("SELECT 1 FROM keys", &[])? {
        return Err(Failed::Store(StoreError::Unfit {
            database: wire.address().to_string(),
            reason: "it belongs to a cluster; start this node with the key of the others: --cluster-key \
                     FILE"
                .to_owned(),
        }));
    }
    progress.check(&session, wire, options.durability)?;
    let (name, writers) = (options.name.as_str(), options.writers);
    let claim = owner::claim(&session, wire, &Newcomer { home, name, writers })?;
    session.batch("BEGIN")?;
    let has_lost = progress.settle(&session, wire, options.durability)?;
    session.batch("COMMIT")?;
    Ok((Claim { has_lost, ..claim }, high(&session)?))
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::warn!(%error, "the database was not closed cleanly");
        }
    }
}

#[async_trait]
impl Writer for Postgres {
    fn submit(&self, batch: Batch) {
        match &self.way {
            Way::Owned(owned) => owned.writers.submit(batch),
            Way::Relayed(relay, _) => relay.submit(batch),
        }
    }

    fn submit_all(&self, batches: Vec<Batch>) {
        match &self.way {
            Way::Owned(owned) => owned.writers.submit_all(batches),
            Way::Relayed(relay, _) => relay.submit_all(batches),
        }
    }

    async fn room(&self) {
        match &self.way {
            Way::Owned(owned) => owned.writers.room().await,
            Way::Relayed(relay, _) => relay.room().await,
        }
    }

    fn commits(&self) -> Option<&Commits> {
        match &self.way {
            Way::Owned(owned) => Some(&owned.commits),
            Way::Relayed(relay, _) => relay.commits(),
        }
    }

    fn numbers(&self) -> &Numbers {
        match &self.way {
            Way::Owned(owned) => &owned.numbers,
            Way::Relayed(relay, _) => relay.numbers(),
        }
    }

    fn health(&self) -> Health {
        match &self.way {
            Way::Owned(owned) => owned.health.borrow().clone(),
            Way::Relayed(relay, _) => relay.health(),
        }
    }
}

impl Store for Postgres {
    fn upkeep(&self) -> &dyn Upkeep {
        self
    }
}

#[async_trait]
impl Upkeep for Postgres {
    fn space(&self) -> Result<Space, StoreError> {
        self.pool.read("measure the database", space::space)
    }

    fn retained_bytes(&self, limit: u64) -> Result<u64, StoreError> {
        match self.space()?.used {
            used if used <= limit => Ok(used),
            // A file of the server keeps its size when rows are deleted: by it, every run would be
            // too many.
            _ => self.at_length("sum up what runs have", space::of_runs),
        }
    }

    fn has_expired(&self, what: Expiring, before_ms: u64) -> Result<bool, StoreError> {
        self.pool.read("look for what has expired", |db| kept::has_expired(db, what, before_ms))
    }

    fn expired_tokens(&self, before_ms: u64, most: usize) -> Result<Vec<String>, StoreError> {
        self.pool.read("look for expired tokens", |db| tokens::expired(db, before_ms, most))
    }

    fn check(&self, tell: Tell<'_>) -> Result<(), StoreError> {
        self.at_length("check the database", |session| check::everything(session, tell))
    }

    fn backup(&self, _to: &Path) -> Result<u64, StoreError> {
        Err(StoreError::Unfit {
            database: self.wire.address().to_string(),
            reason:
                "a copy of it is made with PostgreSQL's own tools, like pg_basebackup or pg_dump; \
                     keep the data directory's keys with it"
                    .to_owned(),
        })
    }

    fn traces(&self, target: &ErasureTarget) -> Result<Traces, StoreError> {
        self.at_length("look for what is to be erased", |session| traces::traces(session, target))
    }

    fn copies(
        &self,
        _target: &ErasureTarget,
        _runs: &[TracedRun],
    ) -> Result<Vec<TracesInCopy>, StoreError> {
        // Backups of the server, its log and its standbys are not known here.
        Ok(Vec::new())
    }

    fn owner_died(&self) -> bool {
        match &self.way {
            Way::Owned(owned) => owned.owner_died,
            Way::Relayed(..) => false,
        }
    }

    fn clock_ahead_ms(&self) -> Result<Option<i64>, StoreError> {
        let compared = self.pool.read("read the clock of the database", |session| {
            server::skew(session, &Clock::system())
        });
        compared.map(Some)
    }

    fn migrated(&self) -> Option<Migrated> {
        None
    }

    fn durability(&self) -> Option<Durability> {
        Some(match &self.way {
            Way::Owned(owned) => owned.standbys.durability(),
            Way::Relayed(_, durability) => *durability,
        })
    }

    async fn lost(&self) -> StoreError {
        let health = match &self.way {
            Way::Owned(owned) => owned.health.clone(),
            Way::Relayed(relay, _) => relay.watch(),
        };
        Health::lost(health).await
    }

    fn close(&self) -> Result<(), StoreError> {
        Self::close(self)
    }
}
