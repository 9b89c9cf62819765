//! Opening and closing a database.

use std::{
    fs::{self, DirBuilder},
    os::unix::fs::DirBuilderExt as _,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use tokio::sync::watch;

use super::{
    address::DatabaseAddress,
    check,
    committer::Committer,
    failed::Failed,
    format,
    member::Member,
    owner::{self, Claim, Lease},
    pool::Pool,
    seat::{HOME, home},
    server,
    session::Session,
    space, traces,
    value::uint,
    wire::Wire,
};
use crate::{
    fault,
    metrics::Commits,
    store::{
        Batch, ErasureTarget, Health, Migrated, Numbers, Space, Store, StoreError, Tell, TracedRun,
        Traces, TracesInCopy, Upkeep, Writer,
        fair::Weight,
        lock::{Lock, file},
        queue::{Next, Queue},
    },
};

/// The maximum size of a group.
const GROUP: Weight = Weight { rows: 512, bytes: 2 << 20 };

/// The settings of a database.
#[derive(Debug, Clone)]
pub struct PostgresOptions {
    /// The address.
    pub address: DatabaseAddress,
    /// The name of this host, for people.
    pub name: String,
    /// The maximum number of concurrent reads.
    pub readers: usize,
}

impl PostgresOptions {
    /// Returns the defaults for an address.
    pub fn new(address: DatabaseAddress) -> Self {
        let named = fs::read_to_string("/proc/sys/kernel/hostname").ok();
        let named = named.or_else(|| std::env::var("HOSTNAME").ok());
        let machine = named.as_deref().map_or("a machine", str::trim);
        let name = format!("{machine} (pid {})", std::process::id());
        Self { address, name, readers: 8 }
    }
}

/// A PostgreSQL database that this process owns, with the data directory that has its keys.
pub struct Postgres {
    queue: Queue,
    renewal: Renewal,
    pub(super) pool: Pool,
    pub(super) wire: Wire,
    health: watch::Receiver<Health>,
    closing: Arc<AtomicBool>,
    numbers: Numbers,
    owner_died: bool,
    commits: Arc<Commits>,
}

/// Who renews the lease.
enum Renewal {
    /// A host without a cluster.
    Own(Lease),
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
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(file("create", dir))?;
        let lock = Lock::take(dir)?;
        let home = home(dir)?;
        fault::point("store.locked");
        let context = format!("open {}", options.address);
        let wire = Wire::new(options.address.clone())?;
        let opened = start(&wire, &home, &options.name);
        let (claim, high) = opened.map_err(|error| error.explained(&context))?;
        let claim = Claim { owner_died: claim.owner_died || lock.owner_died(), ..claim };
        fault::point("store.opened");
        let taken = Taken { wire, claim, high, readers: options.readers };
        Self::start(taken, Some(lock), |wire, health| {
            Lease::start(wire, claim.node, health).map(Renewal::Own)
        })
    }

    /// Takes the runs over if nobody alive has them, for a node that stands by. Blocks.
    ///
    /// # Errors
    /// Returns [`StoreError::Fenced`] for a node that was ended. Fails when the database cannot be reached.
    pub fn take_over(member: &Arc<Member>) -> Result<Option<Arc<Self>>, StoreError> {
        let Some(claim) = member.claim()? else { return Ok(None) };
        let (wire, readers) = (member.seat().wire.clone(), member.seat().options.readers);
        let high = wire.reader().and_then(|session| high(&session));
        let high = high.map_err(|error| error.into_error("take the runs over"))?;
        let taken = Taken { wire, claim, high, readers };
        let store = Self::start(taken, None, |_, health| {
            member.watch_over(health);
            Ok(Renewal::OfNode(Arc::clone(member)))
        });
        store.map(Some)
    }

    fn start(
        taken: Taken,
        lock: Option<Lock>,
        renew: impl FnOnce(Wire, watch::Sender<Health>) -> Result<Renewal, StoreError>,
    ) -> Result<Arc<Self>, StoreError> {
        let Taken { wire, claim, high: (run, lsn), readers } = taken;
        let (sender, health) = watch::channel(Health::Well);
        let closing = Arc::new(AtomicBool::new(false));
        let committer =
            Committer::new(wire.clone(), claim.node, sender.clone(), Arc::clone(&closing));
        let committer = committer.map_err(|error| error.into_error("open the database"))?;
        let commits = committer.commits();
        let renewal = renew(wire.clone(), sender)?;
        let lock = lock.map(Lock::opened);
        Ok(Arc::new(Self {
            queue: Queue::start(move |waiting| {
                let mut committer = committer;
                loop {
                    match waiting.next(None, GROUP) {
                        Next::Commit(group) => committer.commit(group),
                        Next::Idle => {}
                        Next::End => break,
                    }
                }
                fault::point("store.checkpoint");
                let result = committer.release();
                fault::point("store.checkpointed");
                drop(committer);
                drop(lock);
                result
            })?,
            renewal,
            pool: Pool::new(wire.clone(), readers),
            wire,
            health,
            closing,
            numbers: Numbers::after(run, lsn),
            owner_died: claim.owner_died,
            commits,
        }))
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
        self.closing.store(true, Ordering::Release);
        match &self.renewal {
            Renewal::Own(lease) => lease.stop(),
            Renewal::OfNode(member) => member.retire(),
        }
        let result = self.queue.close();
        self.pool.close();
        result
    }
}

impl Postgres {
    /// Calls `work` with a connection for what takes long, in one snapshot of the database.
    fn at_length<T>(
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

/// Checks the database, takes it over, and returns the largest numbers of a run and of a row.
fn start(wire: &Wire, home: &str, name: &str) -> Result<(Claim, (u64, u64)), Failed> {
    let session = wire.starter()?;
    server::check(&session, wire)?;
    format::prepare(&session, wire.address())?;
    if session.exists("SELECT 1 FROM keys", &[])? {
        return Err(Failed::Store(StoreError::Unfit {
            database: wire.address().to_string(),
            reason: "it belongs to a cluster; start this node with the key of the others: --cluster-key \
                     FILE"
                .to_owned(),
        }));
    }
    let claim = owner::claim(&session, wire, home, name)?;
    Ok((claim, high(&session)?))
}

/// Returns the largest numbers of a run and of a row.
fn high(session: &Session) -> Result<(u64, u64), Failed> {
    let row = session.one(
        "SELECT greatest(high_run, (SELECT coalesce(max(num), 0) FROM runs)),
                greatest(high_lsn, (SELECT coalesce(max(lsn), 0) FROM journal)) FROM cluster",
        &[],
    )?;
    let Some(row) = row else { return Err(Failed::Silent) };
    Ok((uint(&row, 0)?, uint(&row, 1)?))
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
        self.queue.submit(batch);
    }

    async fn room(&self) {
        self.queue.room().await;
    }

    fn commits(&self) -> Option<&Commits> {
        Some(&self.commits)
    }

    fn numbers(&self) -> &Numbers {
        &self.numbers
    }

    fn health(&self) -> Health {
        self.health.borrow().clone()
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
        self.owner_died
    }

    fn migrated(&self) -> Option<Migrated> {
        None
    }

    async fn lost(&self) -> StoreError {
        Health::lost(self.health.clone()).await
    }

    fn close(&self) -> Result<(), StoreError> {
        Self::close(self)
    }
}
