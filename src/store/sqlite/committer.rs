//! The committer: one transaction for a group of batches.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicI32, Ordering},
    },
    thread,
    time::Duration,
};

use rusqlite::Connection;
use tokio::sync::watch;

use super::{
    erase,
    error::{database, is_locked, is_lost, is_of_a_row},
    group::{BatchFailure, Group},
    mark::{self, Mark, MarkFile},
    meta,
    place::StorePath,
    tokens, write,
};
use crate::{
    clock::Stopwatch,
    fault,
    metrics::Commits,
    store::{
        Batch, Health, StoreError, Write,
        results::{self, BatchResult, GroupResult},
    },
};

/// The number of pages in the log from which on a checkpoint is made: 4 MB. The mark is written then,
/// so a database that was exchanged for an older one goes unnoticed for no more than that.
const LOG_PAGES: i32 = 1_000;
/// The value of `log` until a commit has written pages.
const NOTHING_WRITTEN: i32 = -1;
/// The timeout of one attempt to get the lock from another process.
const LOCK_TRY: Duration = Duration::from_secs(1);
/// The number of attempts before a batch is refused; two minutes in total.
const LOCK_TRIES: u32 = 120;

/// The results of the batches of a group that is durable, and the tokens that were revoked.
type Written = (Vec<BatchResult>, HashSet<String>);

/// The reason why a group was rolled back.
enum Stopped {
    /// The batch at this place needs a row that cannot be read.
    At(usize, rusqlite::Error),
    /// The transaction failed.
    Failed(rusqlite::Error),
}

impl From<rusqlite::Error> for Stopped {
    fn from(error: rusqlite::Error) -> Self {
        Self::Failed(error)
    }
}

/// The only connection that writes, and the state it keeps between transactions.
pub struct Committer {
    conn: Connection,
    /// The ids of all tokens that were revoked durably.
    revoked: HashSet<String>,
    /// The health, for all watchers.
    health: watch::Sender<Health>,
    /// The expected location of the files.
    place: StorePath,
    /// The mark file, which records how far the database has come for the next start.
    mark: MarkFile,
    /// True if the next commit must increment the mark.
    mark_is_due: bool,
    /// The pages in the log after the last commit that wrote something.
    log: Arc<AtomicI32>,
    /// The number of probes so far.
    probes: u64,
    /// A delay added to each commit.
    delay: Duration,
    /// The counters of the commits.
    commits: Arc<Commits>,
}

impl Committer {
    /// Creates a committer that writes through `conn` as long as the files stay at their `place`.
    /// `delay` is added to each commit.
    ///
    /// # Errors
    /// Fails when the revoked tokens cannot be read.
    pub fn new(
        mut conn: Connection,
        place: StorePath,
        mark: MarkFile,
        delay: Duration,
    ) -> Result<Self, StoreError> {
        let revoked = tokens::revoked(&conn).map_err(database("read the revoked tokens"))?;
        let log = Arc::new(AtomicI32::new(0));
        let pages = Arc::clone(&log);
        // Replaces SQLite's automatic checkpoints, whose errors would go unnoticed.
        conn.wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, n| {
            pages.store(n, Ordering::Relaxed);
            Ok(())
        }))
        .and_then(|()| conn.busy_timeout(LOCK_TRY))
        .map_err(database("configure the database"))?;
        let health = watch::Sender::default();
        let commits = Arc::default();
        let (mark_is_due, probes) = (true, 0);
        Ok(Self { conn, revoked, health, place, mark, mark_is_due, log, probes, delay, commits })
    }

    /// Returns the counters of the commits.
    pub fn commits(&self) -> Arc<Commits> {
        Arc::clone(&self.commits)
    }

    /// Returns a receiver for the health.
    pub fn watch(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    /// Returns true if writes fail for now and should be retried.
    pub fn is_waiting(&self) -> bool {
        matches!(*self.health.borrow(), Health::Waiting(_))
    }

    /// Returns true if this process can no longer write.
    pub fn is_lost(&self) -> bool {
        matches!(*self.health.borrow(), Health::Lost(_))
    }

    /// Checks that the files are still at their place.
    pub fn look(&self) {
        if let Err(error) = self.place.check() {
            self.lose(&error);
        }
    }

    /// Tests whether a write succeeds.
    pub fn probe(&mut self) {
        // The value must change. Otherwise SQLite writes nothing.
        self.probes += 1;
        let value = format!("{}.{}", std::process::id(), self.probes);
        let write = Write::PutMeta { key: "probe".to_owned(), value };
        let ack = Box::new(|_| {});
        self.commit(vec![Batch { checks: Vec::new(), run: None, writes: vec![write], ack }]);
    }

    /// Commits a group and then sends each batch its result, in order.
    pub fn commit(&mut self, group: Vec<Batch>) {
        let watch = Stopwatch::start();
        let result = self.transact(&group);
        results::count(&self.commits, &group, &result, watch.micros());
        let is_committed = result.is_ok();
        results::acknowledge(group, result, || self.write_anew());
        if is_committed {
            self.write_back();
        }
    }

    /// Makes a checkpoint if the log is long, as far as readers permit.
    fn write_back(&mut self) {
        if self.log.load(Ordering::Relaxed) < LOG_PAGES {
            return;
        }
        self.mark_is_due = true;
        let written = self
            .conn
            .prepare_cached("PRAGMA wal_checkpoint(PASSIVE)")
            .and_then(|mut checkpoint| checkpoint.query_row([], |_| Ok(())));
        if let Err(error) = written {
            let is_final = is_lost(&error);
            self.judge(is_final, database("write the log back into the database")(error));
        }
    }

    /// Writes the database anew and empties its log.
    fn write_anew(&mut self) -> BatchResult {
        let written = erase::rewrite(&self.conn).and_then(|()| {
            fault::point("store.rewritten");
            self.mark_is_due = true;
            // Every try waits a second for a reader of the log.
            let mut is_busy = true;
            for _ in 0..LOCK_TRIES {
                is_busy =
                    self.conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
                if !is_busy {
                    break;
                }
            }
            Ok(is_busy)
        });
        match written {
            Ok(false) => Ok(()),
            Ok(true) => Err(StoreError::Database {
                context: "empty the log of the database".to_owned(),
                reason: "something reads it all the time; try again".to_owned(),
            }),
            Err(error) => {
                let is_final = is_lost(&error);
                Err(self.judge(is_final, database("write the database anew")(error)))
            }
        }
    }

    /// Sets the health to waiting, unless the store is lost.
    fn wait_for(&self, error: StoreError) {
        if !self.is_lost() {
            self.health.send_replace(Health::Waiting(error));
        }
    }

    /// Sets the health to lost.
    fn lose(&self, error: &StoreError) {
        tracing::error!(%error, "nothing is written until a restart");
        self.health.send_replace(Health::Lost(error.clone()));
    }

    /// Records a failure in the health. Final failures lose the store.
    fn judge(&mut self, is_final: bool, error: StoreError) -> StoreError {
        if is_final {
            self.lose(&error);
            self.mark.suspect(&error.to_string());
        } else if matches!(error, StoreError::Full | StoreError::Locked) {
            if !self.is_waiting() {
                tracing::error!(%error, "nothing is written until that is over");
            }
            self.wait_for(error.clone());
        }
        error
    }

    /// Makes a checkpoint and truncates the log, as far as readers permit. Does nothing after a
    /// disk failure: the next start must recover from the log.
    ///
    /// # Errors
    /// Returns the database's error.
    pub fn checkpoint(&mut self) -> Result<(), StoreError> {
        if self.is_lost() {
            return Ok(());
        }
        let is_busy: bool = self
            .conn
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))
            .map_err(database("write the log back into the database"))?;
        if !is_busy && !self.mark_is_due {
            let found = Mark::of(&self.conn)?;
            self.mark.put(Mark { open: false, ..found });
        } else if !is_busy {
            self.mark.close();
        }
        Ok(())
    }

    /// Returns the result of each batch of a group that is now durable, or the error of the whole
    /// group.
    fn transact(&mut self, group: &[Batch]) -> GroupResult {
        if let Health::Lost(error) = &*self.health.borrow() {
            return Err(error.clone());
        }
        let before = self.log.swap(NOTHING_WRITTEN, Ordering::Relaxed);
        match self.write(group) {
            Ok((verdicts, revoked)) => {
                // A commit into files that cannot be found again must not be acknowledged.
                if let Err(error) = self.place.check() {
                    self.lose(&error);
                    return Err(error);
                }
                if std::mem::take(&mut self.mark_is_due) {
                    self.put_mark();
                }
                self.revoked.extend(revoked);
                // A group in which all batches are refused writes nothing, so it proves nothing
                // about the disk.
                let wrote = self.log.load(Ordering::Relaxed) != NOTHING_WRITTEN;
                if !wrote {
                    self.log.store(before, Ordering::Relaxed);
                } else if self.is_waiting() {
                    tracing::info!("the database can be written again");
                    self.health.send_replace(Health::Well);
                }
                Ok(verdicts)
            }
            Err(error) => {
                let is_final = is_lost(&error);
                Err(self.judge(is_final, database("write to the database")(error)))
            }
        }
    }

    /// Writes the mark file. The commit before has incremented the number.
    fn put_mark(&mut self) {
        match Mark::of(&self.conn) {
            Ok(found) => self.mark.put(Mark { open: true, ..found }),
            Err(error) => tracing::warn!(%error, "could not read how far the database has come"),
        }
    }

    /// Begins a transaction with the write lock. Retries while another process has the lock.
    fn begin<'b>(&self) -> rusqlite::Result<Group<'_, 'b>> {
        let mut tries = 0;
        loop {
            match Group::begin(&self.conn) {
                Err(error) if is_locked(&error) && tries < LOCK_TRIES && !self.is_lost() => {
                    self.look();
                    if tries == 0 {
                        tracing::warn!("another process has locked the database; waiting for it");
                        self.wait_for(StoreError::Locked);
                    }
                    tries += 1;
                }
                tx => return tx,
            }
        }
    }

    /// Writes a group durably. A batch that needs a row which cannot be read is refused alone, and
    /// the others are written anew.
    fn write(&self, group: &[Batch]) -> rusqlite::Result<Written> {
        let mut refused = BTreeMap::new();
        loop {
            match self.write_without(group, &refused) {
                Ok(written) => return Ok(written),
                Err(Stopped::Failed(error)) => return Err(error),
                Err(Stopped::At(place, error)) => {
                    refused.insert(place, database("write to the database")(error));
                }
            }
        }
    }

    /// Writes a group durably, without the batches at the places that are `refused`.
    fn write_without(
        &self,
        group: &[Batch],
        refused: &BTreeMap<usize, StoreError>,
    ) -> Result<Written, Stopped> {
        let mut tx = self.begin()?;
        let mut revoked = HashSet::new();
        let mut verdicts = Vec::with_capacity(group.len());
        for (place, batch) in group.iter().enumerate() {
            if let Some(error) = refused.get(&place) {
                verdicts.push(Err(error.clone()));
                continue;
            }
            let is_revoked = |jti: &str| self.revoked.contains(jti) || revoked.contains(jti);
            match tx.apply(batch, is_revoked) {
                Ok(()) => {
                    let ids = batch.writes.iter().filter_map(write::revokes);
                    revoked.extend(ids.map(str::to_owned));
                    verdicts.push(Ok(()));
                }
                Err(BatchFailure::Refused(error)) => verdicts.push(Err(error)),
                Err(BatchFailure::Failed(error)) if is_of_a_row(&error) => {
                    return Err(Stopped::At(place, error));
                }
                Err(BatchFailure::Failed(error)) => return Err(Stopped::Failed(error)),
            }
        }
        tx.insert_rows()?;
        if self.mark_is_due {
            meta::put(&self.conn, mark::KEY, &(self.mark.mark().number + 1).to_string())?;
        }
        if !self.delay.is_zero() {
            thread::park_timeout(self.delay);
        }
        fault::point("store.commit");
        let watch = Stopwatch::start();
        tx.commit()?;
        self.commits.sync.add(watch.micros());
        Ok((verdicts, revoked))
    }
}

#[cfg(test)]
mod tests;
