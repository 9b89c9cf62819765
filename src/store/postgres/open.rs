//! Opening and closing a database.

use std::{
    fs::{self, DirBuilder, OpenOptions},
    io::Write as _,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
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
    owner::{self, Claim, Lease},
    pool::Pool,
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
/// The file that names a data directory to the database.
const HOME: &str = "node";

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
    lease: Lease,
    pub(super) pool: Pool,
    pub(super) wire: Wire,
    health: watch::Receiver<Health>,
    closing: Arc<AtomicBool>,
    numbers: Numbers,
    owner_died: bool,
    commits: Arc<Commits>,
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
        let (claim, (run, lsn)) = opened.map_err(|error| explained(error, &context))?;
        fault::point("store.opened");
        let owner_died = claim.owner_died || lock.owner_died();
        let (sender, health) = watch::channel(Health::Well);
        let closing = Arc::new(AtomicBool::new(false));
        let committer =
            Committer::new(wire.clone(), claim.node, sender.clone(), Arc::clone(&closing))
                .map_err(|error| error.into_error(&context))?;
        let commits = committer.commits();
        let lease = Lease::start(wire.clone(), claim.node, sender)?;
        let lock = lock.opened();
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
            lease,
            pool: Pool::new(wire.clone(), options.readers),
            wire,
            health,
            closing,
            numbers: Numbers::after(run, lsn),
            owner_died,
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
        self.lease.stop();
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
    let claim = owner::claim(&session, wire, home, name)?;
    let row = session.one(
        "SELECT greatest(high_run, (SELECT coalesce(max(num), 0) FROM runs)),
                greatest(high_lsn, (SELECT coalesce(max(lsn), 0) FROM journal)) FROM cluster",
        &[],
    )?;
    let Some(row) = row else { return Err(Failed::Silent) };
    Ok((claim, (uint(&row, 0)?, uint(&row, 1)?)))
}

/// Returns the error of a connection attempt, with advice for a refused login.
pub(super) fn explained(error: Failed, context: &str) -> StoreError {
    if error.is_refused_login() {
        let reason = format!("{}; check the user, its password and the name", error.reason());
        return StoreError::Database { context: context.to_owned(), reason };
    }
    if error.is_read_only() {
        let database = context.strip_prefix("open ").unwrap_or(context).to_owned();
        let reason = "it is read-only, or a standby; name the primary, or both: \
                      postgres://db1,db2/NAME"
            .to_owned();
        return StoreError::Unfit { database, reason };
    }
    error.into_error(context)
}

/// Returns the name by which the database knows a data directory: random, and made once.
pub(super) fn home(dir: &Path) -> Result<String, StoreError> {
    let path = dir.join(HOME);
    if let Ok(known) = fs::read_to_string(&path)
        && known.len() == 36
    {
        return Ok(known);
    }
    let fresh = uuid::Uuid::new_v4().to_string();
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&path)
        .and_then(|mut it| it.write_all(fresh.as_bytes()).and_then(|()| it.sync_all()))
        .map_err(file("write", &path))?;
    Ok(fresh)
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
