//! Opening and closing a data directory.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use tokio::sync::watch;

use super::{
    backup, check,
    committer::Committer,
    connection::{DATABASE, Synchronous, connect, create, reader, sync, writable},
    erase,
    error::database,
    format, idempotency, kept,
    mark::{Mark, MarkFile},
    place::StorePath,
    pool::Pool,
    restore, retention, sessions, tokens, upgrade, writer,
};
use crate::{
    fault,
    metrics::Commits,
    store::{
        Batch, ErasureTarget, Expiring, Health, Migrated, Numbers, Space, Store, StoreError, Tell,
        TracedRun, Traces, TracesInCopy, Upkeep, Writer,
        lock::{self, Lock, make_private_dir},
        queue::Queue,
    },
};

/// The names of the log and its index.
const LOG: [&str; 2] = ["moonswarm.db-wal", "moonswarm.db-shm"];

/// The settings of a database.
#[derive(Debug, Clone)]
pub struct Options {
    /// The moment at which a commit counts as done.
    pub synchronous: Synchronous,
    /// The maximum number of concurrent reads.
    pub readers: usize,
    /// A delay added to each commit, which simulates a slower disk in benchmarks.
    pub commit_delay: Duration,
    /// True to open a database whose log is missing, without the commits in it.
    pub accept_loss: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            synchronous: Synchronous::Full,
            readers: 4,
            commit_delay: Duration::ZERO,
            accept_loss: false,
        }
    }
}

/// A data directory that this process owns.
pub struct Sqlite {
    queue: Queue,
    pub(super) pool: Pool,
    health: watch::Receiver<Health>,
    pub(super) path: PathBuf,
    numbers: Numbers,
    owner_died: bool,
    migrated: Option<Migrated>,
    commits: Arc<Commits>,
}

impl Sqlite {
    /// Takes ownership of `dir` and opens its database. Creates both if they do not exist, and
    /// migrates the database to this program's format.
    ///
    /// # Errors
    /// Returns [`StoreError::Owned`], [`StoreError::Newer`], [`StoreError::LogMissing`],
    /// [`StoreError::NoRoom`] for a migration, or [`StoreError::Damaged`] for a database that its
    /// last owner gave up and that is not intact. Fails on errors of the file system or the
    /// database.
    pub fn open(dir: &Path, options: &Options) -> Result<Arc<Self>, StoreError> {
        Self::take(dir, options).map_err(check::advised)
    }

    /// Returns true if a directory has a database.
    pub fn is_in(dir: &Path) -> bool {
        dir.join(DATABASE).exists()
    }

    fn take(dir: &Path, options: &Options) -> Result<Arc<Self>, StoreError> {
        make_private_dir(dir)?;
        let lock = Lock::take(dir)?;
        let owner_died = lock.owner_died();
        fault::point("store.locked");
        let path = dir.join(DATABASE);
        let mut mark = MarkFile::open(dir, options.synchronous == Synchronous::Full)?;
        if let Some(reason) = &mark.mark().suspect {
            tracing::warn!(reason, "its last owner gave the database up; checking it");
            check::quick(&path)?;
            tracing::warn!("the database is whole; going on");
        }
        let has_log = fs::metadata(dir.join(LOG[0])).is_ok_and(|log| log.len() > 0);
        create(&path)?;
        fault::point("store.created");
        // Checked before anything is written: a refused start changes nothing.
        let (format, mut found) = come_to(&path)?;
        let has_lost = mark.mark().is_ahead_of(&found);
        if has_lost && mark.mark().open && !has_log && !options.accept_loss {
            return Err(StoreError::LogMissing { path: path.display().to_string() });
        }
        let migrated = migration(dir, format)?;
        let mut conn = writable(&path, options.synchronous)?;
        sync(dir)?;
        fault::point("store.opened");
        if has_lost {
            tracing::warn!(
                known = ?mark.mark(),
                ?found,
                "the database has lost commits: its files were rolled back, or its log was removed; \
                 handles from before are void, and open runs go on from what is there"
            );
            restore::begin_after(&mut conn, mark.mark())?;
            found = Mark::of(&conn)?;
        }
        if mark.mark().suspect.is_some() {
            super::state_text::refill(&conn).map_err(database("index the state anew"))?;
            super::run_index::refill(&conn).map_err(database("index the runs anew"))?;
        }
        mark.begin(&found);
        let readers =
            (0..options.readers.max(1)).map(|_| reader(&path)).collect::<Result<_, _>>()?;
        let place = StorePath::of(dir, &[lock::NAME, DATABASE, LOG[0], LOG[1]]);
        let committer = Committer::new(conn, place, mark, options.commit_delay)?;
        let health = committer.watch();
        let commits = committer.commits();
        Ok(Arc::new(Self {
            health,
            queue: writer::start(committer, lock.opened())?,
            pool: Pool::new(readers),
            path,
            numbers: Numbers::after(found.run, found.lsn),
            owner_died,
            migrated,
            commits,
        }))
    }

    /// Commits the queued batches, closes the database and releases the data directory. Later calls
    /// fail with [`StoreError::Closed`]. Closing again has no effect.
    ///
    /// # Errors
    /// Fails when the final checkpoint fails. No data is lost.
    pub fn close(&self) -> Result<(), StoreError> {
        let result = self.queue.close();
        self.pool.close();
        result
    }
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::warn!(%error, "the database was not closed cleanly");
        }
    }
}

#[async_trait]
impl Writer for Sqlite {
    fn submit(&self, batch: Batch) {
        self.queue.submit(batch);
    }

    fn submit_all(&self, batches: Vec<Batch>) {
        self.queue.submit_all(batches);
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

impl Store for Sqlite {
    fn upkeep(&self) -> &dyn Upkeep {
        self
    }
}

#[async_trait]
impl Upkeep for Sqlite {
    fn space(&self) -> Result<Space, StoreError> {
        retention::space(&*self.pool.lend()?).map_err(database("measure the database"))
    }

    fn has_expired(&self, what: Expiring, before_ms: u64) -> Result<bool, StoreError> {
        let conn = self.pool.lend()?;
        let found = match what {
            Expiring::Answers => idempotency::has_expired(&conn, before_ms),
            Expiring::Kept => kept::has_expired(&conn, before_ms),
            Expiring::Sessions => sessions::has_old(&conn, before_ms),
        };
        found.map_err(database("look for what has expired"))
    }

    fn expired_tokens(&self, before_ms: u64, most: usize) -> Result<Vec<String>, StoreError> {
        let found = tokens::expired(&*self.pool.lend()?, before_ms, most);
        found.map_err(database("look for expired tokens"))
    }

    fn check(&self, tell: Tell<'_>) -> Result<(), StoreError> {
        // Uses a separate connection, because this takes long and the readers are needed meanwhile.
        drop(self.pool.lend()?);
        check::everything(&reader(&self.path)?, tell)
    }

    fn backup(&self, to: &Path) -> Result<u64, StoreError> {
        // Uses a separate connection, because this takes long and the readers are needed meanwhile.
        drop(self.pool.lend()?);
        backup::copy(&self.path, to)
    }

    fn traces(&self, target: &ErasureTarget) -> Result<Traces, StoreError> {
        // Uses a separate connection, because this takes long and the readers are needed meanwhile.
        drop(self.pool.lend()?);
        let conn = reader(&self.path)?;
        erase::traces(&conn, target).map_err(database("look for what is to be erased"))
    }

    fn copies(
        &self,
        target: &ErasureTarget,
        runs: &[TracedRun],
    ) -> Result<Vec<TracesInCopy>, StoreError> {
        erase::copies(self.path.parent().unwrap_or(Path::new(".")), target, runs)
    }

    fn clock_ahead_ms(&self) -> Result<Option<i64>, StoreError> {
        Ok(None)
    }

    fn owner_died(&self) -> bool {
        self.owner_died
    }

    fn migrated(&self) -> Option<Migrated> {
        self.migrated.clone()
    }

    async fn lost(&self) -> StoreError {
        Health::lost(self.health.clone()).await
    }

    fn close(&self) -> Result<(), StoreError> {
        Self::close(self)
    }
}

/// Returns a database's format and progress before its migration.
fn come_to(path: &Path) -> Result<(u32, Mark), StoreError> {
    let conn = connect(path)?;
    match format::check(&conn, path)? {
        0 => Ok((0, Mark::default())),
        format => Ok((format, Mark::of(&conn)?)),
    }
}

/// Makes a copy of a database before its migration.
fn migration(dir: &Path, from: u32) -> Result<Option<Migrated>, StoreError> {
    let to = format::known();
    if from == 0 || from == to {
        return Ok(None);
    }
    let backup = upgrade::keep(dir, from)?;
    tracing::info!(from, to, backup = %backup.display(), "a copy from before the migration is kept");
    Ok(Some(Migrated { from, to, backup }))
}
