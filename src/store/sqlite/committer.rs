//! One transaction for a group of batches: checks, headers, journal, everything else, verdicts.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicI32, Ordering},
    },
    thread,
    time::Duration,
};

use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::sync::watch;

use super::{
    error::{database, is_disk_failure, is_locked},
    header, idempotency, journal, state, tokens, write,
};
use crate::{
    fault,
    store::{Batch, Check, Health, StoreError, Write},
};

/// Pages in the log from which on it is written back into the database.
const LOG_PAGES: i32 = 1_000;
/// Stands for the pages of the log until a commit writes some.
const NOTHING_WRITTEN: i32 = -1;
/// How long one try waits for another process's lock.
const LOCK_TRY: Duration = Duration::from_secs(1);
/// How many tries are made before a batch is refused: two minutes of them.
const LOCK_TRIES: u32 = 120;

/// What writes: the one connection that can, and what it must remember between transactions.
pub struct Committer {
    conn: Connection,
    /// The ids of all tokens that were revoked durably.
    revoked: HashSet<String>,
    /// How it goes; told to whoever asks.
    health: watch::Sender<Health>,
    /// The pages that the log had after the last commit that wrote something.
    log: Arc<AtomicI32>,
    /// How often it was tried whether something can be written.
    probes: u64,
    /// Time added to each commit.
    delay: Duration,
}

/// What a batch's submitter hears.
type Verdict = Result<(), StoreError>;

/// Why a batch was not written.
enum Stop {
    /// The batch alone is refused, and has written nothing.
    Refused(StoreError),
    /// The transaction is lost.
    Failed(rusqlite::Error),
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        Self::Refused(error)
    }
}

impl From<rusqlite::Error> for Stop {
    fn from(error: rusqlite::Error) -> Self {
        Self::Failed(error)
    }
}

impl Committer {
    /// Writes through `conn`, `delay` slower than the disk.
    ///
    /// # Errors
    /// When the revoked tokens cannot be read.
    pub fn new(mut conn: Connection, delay: Duration) -> Result<Self, StoreError> {
        let revoked = tokens::revoked(&conn).map_err(database("read the revoked tokens"))?;
        let log = Arc::new(AtomicI32::new(0));
        let pages = Arc::clone(&log);
        // In place of SQLite's own checkpoints, whose failures nobody would hear of.
        conn.wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, n| {
            pages.store(n, Ordering::Relaxed);
            Ok(())
        }))
        .and_then(|()| conn.busy_timeout(LOCK_TRY))
        .map_err(database("configure the database"))?;
        Ok(Self { conn, revoked, health: watch::Sender::default(), log, probes: 0, delay })
    }

    /// How it goes, from now on.
    pub fn watch(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    /// Whether nothing can be written for now, and it is worth trying.
    pub fn is_waiting(&self) -> bool {
        matches!(*self.health.borrow(), Health::Waiting(_))
    }

    /// Tries whether something can be written.
    pub fn probe(&mut self) {
        // A row that stays the same would not be written.
        self.probes += 1;
        let value = format!("{}.{}", std::process::id(), self.probes);
        let write = Write::PutMeta { key: "probe".to_owned(), value };
        let ack = Box::new(|_| {});
        self.commit(vec![Batch { checks: Vec::new(), run: None, writes: vec![write], ack }]);
    }

    /// Commits a group and then tells each batch, in order, what became of it.
    pub fn commit(&mut self, group: Vec<Batch>) {
        match self.transact(&group) {
            Ok(verdicts) => {
                fault::point("store.committed");
                for (batch, verdict) in group.into_iter().zip(verdicts) {
                    (batch.ack)(verdict);
                }
                fault::point("store.acked");
                self.write_back();
            }
            Err(error) => {
                for batch in group {
                    (batch.ack)(Err(error.clone()));
                }
            }
        }
    }

    /// Moves what the log holds into the database once it is long, as far as readers let it.
    fn write_back(&mut self) {
        if self.log.load(Ordering::Relaxed) < LOG_PAGES {
            return;
        }
        if let Err(error) = self.conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())) {
            let is_final = is_disk_failure(&error);
            self.judge(is_final, database("write the log back into the database")(error));
        }
    }

    /// Notes a failure, and whether anything can follow it.
    fn judge(&mut self, is_final: bool, error: StoreError) -> StoreError {
        if is_final {
            tracing::error!(%error, "the disk failed: nothing is written until a restart");
            self.health.send_replace(Health::Lost(error.clone()));
        } else if matches!(error, StoreError::Full | StoreError::Locked) {
            if !self.is_waiting() {
                tracing::error!(%error, "nothing is written until that is over");
            }
            self.health.send_replace(Health::Waiting(error.clone()));
        }
        error
    }

    /// Moves what the log holds into the database and empties the log, as far as readers let it.
    /// After a disk failed this does nothing: the log is what the next start goes by.
    ///
    /// # Errors
    /// What the database says.
    pub fn checkpoint(&self) -> Result<(), StoreError> {
        if matches!(*self.health.borrow(), Health::Lost(_)) {
            return Ok(());
        }
        self.conn
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
            .map_err(database("write the log back into the database"))
    }

    /// The verdict on each batch of a group that is now durable, or why nothing of it is.
    fn transact(&mut self, group: &[Batch]) -> Result<Vec<Verdict>, StoreError> {
        if let Health::Lost(error) = &*self.health.borrow() {
            return Err(error.clone());
        }
        let before = self.log.swap(NOTHING_WRITTEN, Ordering::Relaxed);
        match self.write(group) {
            Ok((verdicts, revoked)) => {
                self.revoked.extend(revoked);
                // A group of refusals commits without writing, which says nothing of the disk.
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
                let is_final = is_disk_failure(&error);
                Err(self.judge(is_final, database("write to the database")(error)))
            }
        }
    }

    /// The writer's lock, as soon as no other process has it.
    fn begin(&self) -> rusqlite::Result<Transaction<'_>> {
        let mut tries = 0;
        loop {
            let tx = Transaction::new_unchecked(&self.conn, TransactionBehavior::Immediate);
            match tx {
                Err(error) if is_locked(&error) && tries < LOCK_TRIES => {
                    if tries == 0 {
                        tracing::warn!("another process has locked the database; waiting for it");
                        self.health.send_replace(Health::Waiting(StoreError::Locked));
                    }
                    tries += 1;
                }
                tx => return tx,
            }
        }
    }

    /// Writes a group, durably; answers with the verdicts, and the tokens that it revoked.
    fn write(&self, group: &[Batch]) -> rusqlite::Result<(Vec<Verdict>, HashSet<String>)> {
        let tx = self.begin()?;
        let mut revoked = HashSet::new();
        let mut verdicts = Vec::with_capacity(group.len());
        for batch in group {
            let is_revoked = |jti: &str| self.revoked.contains(jti) || revoked.contains(jti);
            match apply(&tx, batch, is_revoked) {
                Ok(()) => {
                    let ids = batch.writes.iter().filter_map(write::revokes);
                    revoked.extend(ids.map(str::to_owned));
                    verdicts.push(Ok(()));
                }
                Err(Stop::Refused(error)) => verdicts.push(Err(error)),
                Err(Stop::Failed(error)) => return Err(error),
            }
        }
        if !self.delay.is_zero() {
            thread::park_timeout(self.delay);
        }
        fault::point("store.commit");
        tx.commit()?;
        Ok((verdicts, revoked))
    }
}

/// Writes one batch. Whatever can refuse it comes before the first row that it writes.
fn apply(
    tx: &Transaction<'_>,
    batch: &Batch,
    is_revoked: impl Fn(&str) -> bool,
) -> Result<(), Stop> {
    for check in &batch.checks {
        match check {
            Check::TokenLive(jti) => {
                if is_revoked(jti) {
                    return Err(Stop::Refused(StoreError::Revoked { jti: jti.clone() }));
                }
            }
            Check::RunAt { run, cursor } => {
                if !header::is_at(tx, *run, *cursor)? {
                    return Err(Stop::Refused(StoreError::Moved { run: *run }));
                }
            }
            Check::KeyFree { principal, route, key } => {
                if !idempotency::is_free(tx, principal, route, key)? {
                    return Err(Stop::Refused(StoreError::KeyUsed { key: key.clone() }));
                }
            }
        }
    }
    let mut plans = Vec::new();
    for each in &batch.writes {
        if let Write::ChangeState(changes) = each {
            plans.push(state::plan::<Stop>(tx, changes)?);
        }
    }
    if let Some(run) = &batch.run {
        let num = run.header.num;
        if !header::write(tx, run)? {
            return Err(Stop::Refused(StoreError::Moved { run: num }));
        }
        for row in &run.entries {
            journal::append(tx, num, row)?;
        }
    }
    let mut plans = plans.into_iter();
    for each in &batch.writes {
        match each {
            Write::ChangeState(changes) => {
                if let Some(plan) = plans.next().flatten() {
                    state::carry_out(tx, changes, plan)?;
                }
            }
            each => write::apply(tx, each)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
