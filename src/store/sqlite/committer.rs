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
    error::{database, is_locked, is_lost, is_of_a_row},
    header, idempotency, journal,
    mark::{self, Mark, MarkFile},
    meta,
    place::Place,
    state, tokens, write,
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
    /// Where the files are to be found.
    place: Place,
    /// How far the database has come, for the next start.
    mark: MarkFile,
    /// Whether the next commit is to count the mark up.
    mark_is_due: bool,
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
    /// Writes through `conn`, `delay` slower than the disk, as long as the files stay in their
    /// `place`.
    ///
    /// # Errors
    /// When the revoked tokens cannot be read.
    pub fn new(
        mut conn: Connection,
        place: Place,
        mark: MarkFile,
        delay: Duration,
    ) -> Result<Self, StoreError> {
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
        let health = watch::Sender::default();
        Ok(Self { conn, revoked, health, place, mark, mark_is_due: true, log, probes: 0, delay })
    }

    /// How it goes, from now on.
    pub fn watch(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    /// Whether nothing can be written for now, and it is worth trying.
    pub fn is_waiting(&self) -> bool {
        matches!(*self.health.borrow(), Health::Waiting(_))
    }

    /// Whether nothing is written any more.
    pub fn is_lost(&self) -> bool {
        matches!(*self.health.borrow(), Health::Lost(_))
    }

    /// Looks whether the files are still where they are looked for.
    pub fn look(&self) {
        if let Err(error) = self.place.check() {
            self.lose(&error);
        }
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
        self.mark_is_due = true;
        if let Err(error) = self.conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())) {
            let is_final = is_lost(&error);
            self.judge(is_final, database("write the log back into the database")(error));
        }
    }

    /// Nothing is written for now.
    fn wait_for(&self, error: StoreError) {
        if !self.is_lost() {
            self.health.send_replace(Health::Waiting(error));
        }
    }

    /// Nothing is written any more.
    fn lose(&self, error: &StoreError) {
        tracing::error!(%error, "nothing is written until a restart");
        self.health.send_replace(Health::Lost(error.clone()));
    }

    /// Notes a failure, and whether anything can follow it.
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

    /// Moves what the log holds into the database and empties the log, as far as readers let it.
    /// After a disk failed this does nothing: the log is what the next start goes by.
    ///
    /// # Errors
    /// What the database says.
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

    /// The verdict on each batch of a group that is now durable, or why nothing of it is.
    fn transact(&mut self, group: &[Batch]) -> Result<Vec<Verdict>, StoreError> {
        if let Health::Lost(error) = &*self.health.borrow() {
            return Err(error.clone());
        }
        let before = self.log.swap(NOTHING_WRITTEN, Ordering::Relaxed);
        match self.write(group) {
            Ok((verdicts, revoked)) => {
                // Nobody is told of a commit into files that nobody will find.
                if let Err(error) = self.place.check() {
                    self.lose(&error);
                    return Err(error);
                }
                if std::mem::take(&mut self.mark_is_due) {
                    self.put_mark();
                }
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
                let is_final = is_lost(&error);
                Err(self.judge(is_final, database("write to the database")(error)))
            }
        }
    }

    /// Says beside the database how far it has come; the commit before has counted it up.
    fn put_mark(&mut self) {
        match Mark::of(&self.conn) {
            Ok(found) => self.mark.put(Mark { open: true, ..found }),
            Err(error) => tracing::warn!(%error, "could not read how far the database has come"),
        }
    }

    /// The writer's lock, as soon as no other process has it.
    fn begin(&self) -> rusqlite::Result<Transaction<'_>> {
        let mut tries = 0;
        loop {
            let tx = Transaction::new_unchecked(&self.conn, TransactionBehavior::Immediate);
            match tx {
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
        if self.mark_is_due {
            meta::put(&tx, mark::KEY, &(self.mark.mark().number + 1).to_string())?;
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
            Check::MetaIs { key, value } => {
                if meta::one(tx, key)? != *value {
                    return Err(Stop::Refused(StoreError::Changed { key: key.clone() }));
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
            plans.push(state::plan::<Stop>(tx, changes).map_err(of_a_row)?);
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

/// A row that cannot be read refuses the batch that needs it, and no other of its group.
fn of_a_row(stop: Stop) -> Stop {
    match stop {
        Stop::Failed(error) if is_of_a_row(&error) => {
            Stop::Refused(database("read what is to be changed")(error))
        }
        stop => stop,
    }
}

#[cfg(test)]
mod tests;
