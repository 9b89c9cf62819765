//! Commits groups: one transaction each, in two round trips. The first locks the lane and reads what
//! the batches depend on, the second writes.
//!
//! | the database says | then |
//! |---|---|
//! | a conflict, a lock or a statement took too long | it was rolled back: the group again, a few times |
//! | something in it is refused | it was rolled back: each batch alone, and only the offender is refused |
//! | its disk, memory or connections are used up | it was rolled back: again, until it can write |
//! | nothing, or the connection broke | nobody knows: a new connection, and the mark of the lane tells |
//! | the lane has no row | another host has taken over: nothing more is written |

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::sync::watch;

use super::{
    checks::{self, Known},
    failed::{Failed, Meaning},
    group::{Decided, Group},
    owner::{self, lane_name},
    session::{Call, Session},
    value::{get, uint},
    wire::Wire,
};
use crate::{
    clock::Stopwatch,
    fault,
    metrics::Commits,
    store::{
        Batch, Health, StoreError,
        commit::{self, BatchResult, GroupResult},
    },
};

/// The number of times that a group is tried again at once.
const TRIES: u32 = 5;
/// The pause before a group is tried again, or the database is called again.
const PAUSE: Duration = Duration::from_millis(50);
/// The maximum of such a pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// The number of calls of a database that is away, after the store began to close.
const LAST_CALLS: u32 = 5;

/// The writing end of the database.
pub struct Committer {
    wire: Wire,
    node: i64,
    session: Option<Session>,
    /// The number of the last group that is known to be committed.
    seq: i64,
    /// The number of ended runs that are not folded into the sums.
    unfolded: u64,
    health: watch::Sender<Health>,
    commits: Arc<Commits>,
    closing: Arc<AtomicBool>,
}

/// The state of a group after one attempt.
enum Attempt {
    Done(Vec<BatchResult>),
    /// The group was rolled back.
    Rolled(Failed),
    /// The connection broke during the commit. If the group was committed, these are its results.
    Unknown(Failed, Option<Decided>),
}

impl Committer {
    /// Creates a committer for the lane of a host.
    ///
    /// # Errors
    /// Fails when the database cannot be reached.
    pub fn new(
        wire: Wire,
        node: i64,
        health: watch::Sender<Health>,
        closing: Arc<AtomicBool>,
    ) -> Result<Self, Failed> {
        let session = wire.writer(&lane_name(node))?;
        let unfolded = waiting(&session)?;
        let commits = Arc::default();
        let session = Some(session);
        Ok(Self { wire, node, session, seq: 0, unfolded, health, commits, closing })
    }

    /// Returns the counters of the commits.
    pub fn commits(&self) -> Arc<Commits> {
        Arc::clone(&self.commits)
    }

    /// Commits a group and then sends each batch its result, in order.
    pub fn commit(&mut self, group: Vec<Batch>) {
        let watch = Stopwatch::start();
        let all: Vec<&Batch> = group.iter().collect();
        let result = self.transact(&all);
        commit::count(&self.commits, &group, &result, watch.micros());
        commit::acknowledge(group, result, || {
            let written = self.write_anew();
            fault::point("store.rewritten");
            written.map_err(|error| error.into_error("write the tables of the database anew"))
        });
    }

    /// Returns the result of each batch of a group that is now durable, or the error of the whole
    /// group. While the database cannot be reached, it waits.
    fn transact(&mut self, group: &[&Batch]) -> GroupResult {
        let mut tries = 0;
        let mut pauses = 0;
        // The results of the batches, if the group turns out to be committed.
        let mut unknown: Option<Option<Decided>> = None;
        loop {
            if let Health::Lost(error) = &*self.health.borrow() {
                return Err(error.clone());
            }
            if self.session.is_none() {
                match self.reconnect(unknown.is_some()) {
                    Ok(was_committed) => {
                        let pending = unknown.take().flatten();
                        if was_committed && let Some(decided) = pending {
                            self.seq += 1;
                            // A commit whose answer was lost may be undone by a failover, until a later
                            // one was answered.
                            match self.confirm() {
                                Ok(()) => {
                                    self.well();
                                    return Ok(decided.told());
                                }
                                Err(error) => {
                                    self.seq -= 1;
                                    self.session = None;
                                    unknown = Some(Some(decided));
                                    self.wait_for(error, &mut pauses)?;
                                }
                            }
                            continue;
                        }
                    }
                    Err(Failed::Store(error)) => {
                        owner::lose(&self.health, error.clone());
                        return Err(error);
                    }
                    Err(error) => {
                        self.session = None;
                        self.wait_for(error, &mut pauses)?;
                        continue;
                    }
                }
            }
            match self.attempt(group) {
                Attempt::Done(verdicts) => {
                    self.well();
                    return Ok(verdicts);
                }
                Attempt::Unknown(error, decided) => {
                    self.session = None;
                    unknown = Some(decided);
                    self.wait_for(error, &mut pauses)?;
                }
                Attempt::Rolled(error) => match error.meaning() {
                    _ if matches!(error, Failed::Store(StoreError::Fenced)) => {
                        owner::lose(&self.health, StoreError::Fenced);
                        return Err(StoreError::Fenced);
                    }
                    Meaning::Again if tries < TRIES => {
                        tries += 1;
                        self.pause(tries);
                    }
                    Meaning::Waiting => self.wait_for(error, &mut pauses)?,
                    Meaning::Again | Meaning::Refused | Meaning::Unknown => {
                        if let [_] = group {
                            return Ok(vec![Err(error.into_error("write to the database"))]);
                        }
                        return group
                            .iter()
                            .map(|batch| Ok(self.transact(&[*batch])?.remove(0)))
                            .collect();
                    }
                },
            }
        }
    }

    /// Makes one transaction of a group.
    fn attempt(&mut self, group: &[&Batch]) -> Attempt {
        let Some(session) = &self.session else { return Attempt::Unknown(Failed::Silent, None) };
        let planned = match plan(session, self.node, group, &mut self.unfolded) {
            Ok(planned) => planned,
            Err(error) => return rolled(session, error),
        };
        let (decided, calls) = planned;
        let Some(mut calls) = calls else {
            return match session.batch("ROLLBACK") {
                Ok(()) => Attempt::Done(decided.told()),
                Err(error) => Attempt::Unknown(error, None),
            };
        };
        calls.push(
            Call::new("UPDATE marks SET seq = $2 WHERE node = $1 AND lane = 0")
                .with(self.node)
                .with(self.seq + 1),
        );
        fault::point("store.commit");
        let watch = Stopwatch::start();
        match session.commit(&calls) {
            Ok(()) => {
                self.commits.sync.add(watch.micros());
                self.seq += 1;
                Attempt::Done(decided.told())
            }
            Err(error) if error.ends_connection() => Attempt::Unknown(error, Some(decided)),
            Err(error) => rolled(session, error),
        }
    }

    /// Opens a new connection, ends what is left of the old one, and returns true if the group after the
    /// last known one was committed.
    fn reconnect(&mut self, is_unknown: bool) -> Result<bool, Failed> {
        let name = lane_name(self.node);
        let session = self.wire.writer(&name)?;
        session.query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE datname = current_database() AND usename = current_user AND application_name = $1
               AND pid <> pg_backend_pid()",
            &[&name],
        )?;
        // Waits for the old transaction.
        let found = session.begin(&[lock(self.node)])?;
        if found.first().is_none_or(Vec::is_empty) {
            return Err(Failed::Store(StoreError::Fenced));
        }
        let row =
            session.one("SELECT seq FROM marks WHERE node = $1 AND lane = 0", &[&self.node])?;
        session.batch("COMMIT")?;
        let seq: i64 = row.map_or(Ok(-1), |row| get(&row, 0))?;
        self.unfolded = waiting(&session)?;
        self.session = Some(session);
        if seq < self.seq || (seq > self.seq && !is_unknown) {
            return Err(Failed::Store(StoreError::Unfit {
                database: self.wire.address().to_string(),
                reason: "it went back: commits that were acknowledged are missing, as after a failover \
                         to a standby that was behind, or after a restore; start the host again to go \
                         on from what is there"
                    .to_owned(),
            }));
        }
        Ok(seq > self.seq)
    }

    /// Commits nothing but a mark.
    fn confirm(&mut self) -> Result<(), Failed> {
        let Some(session) = &self.session else { return Err(Failed::Silent) };
        session.begin(&[lock(self.node)])?;
        session.commit(&[Call::new("UPDATE marks SET seq = $2 WHERE node = $1 AND lane = 0")
            .with(self.node)
            .with(self.seq)])
    }

    /// Waits before the database is called again.
    ///
    /// # Errors
    /// Returns the error if the store is closing and the database was away for long.
    fn wait_for(&mut self, error: Failed, pauses: &mut u32) -> Result<(), StoreError> {
        *pauses += 1;
        let error = error.into_error("write to the database");
        if self.closing.load(Ordering::Acquire) && *pauses > LAST_CALLS {
            // What is still queued would wait as long.
            owner::lose(&self.health, error.clone());
            return Err(error);
        }
        self.health.send_if_modified(|health| match health {
            Health::Lost(_) => false,
            Health::Waiting(_) => {
                *health = Health::Waiting(error.clone());
                true
            }
            Health::Well => {
                tracing::error!(%error, "nothing is written until that is over");
                *health = Health::Waiting(error.clone());
                true
            }
        });
        self.pause(*pauses);
        Ok(())
    }

    fn pause(&self, times: u32) {
        // Two writers that hindered each other should not meet again.
        let spread = Duration::from_micros(self.node.unsigned_abs() * 7_919 % 10_000);
        thread::park_timeout((PAUSE * times).min(LONGEST_PAUSE) + spread);
    }

    fn well(&self) {
        self.health.send_if_modified(|health| match health {
            Health::Waiting(_) => {
                tracing::info!("the database can be written again");
                *health = Health::Well;
                true
            }
            Health::Well | Health::Lost(_) => false,
        });
    }

    /// Returns true if this process can no longer write.
    pub fn is_lost(&self) -> bool {
        matches!(*self.health.borrow(), Health::Lost(_))
    }

    /// Writes all tables with contents anew, so that their files hold nothing that was deleted.
    fn write_anew(&self) -> Result<(), Failed> {
        let session = self.wire.long()?;
        session.batch("SET lock_timeout = '60s'")?;
        let tables = session.query(
            "SELECT quote_ident(c.relname)::text FROM pg_class c
             WHERE c.relnamespace = 'moonswarm'::regnamespace AND c.relkind = 'r'
               AND c.relname NOT IN ('cluster', 'nodes', 'lanes', 'marks')
             ORDER BY c.relname",
            &[],
        )?;
        for row in &tables {
            session.batch(&format!("VACUUM (FULL) {}", get::<&str>(row, 0)?))?;
        }
        Ok(())
    }

    /// Gives the database up, so that the next host need not wait.
    ///
    /// # Errors
    /// Fails when the database cannot be reached. The next host waits for the end of the lease then.
    pub fn release(&self) -> Result<(), StoreError> {
        if self.is_lost() {
            return Ok(());
        }
        let released = match &self.session {
            Some(session) => owner::release(session, self.node),
            None => Err(Failed::Silent),
        };
        released.map_err(|error| error.into_error("give the database up"))
    }
}

/// Returns the number of ended runs that are not folded into the sums.
fn waiting(session: &Session) -> Result<u64, Failed> {
    let row = session.one("SELECT count(*) FROM stats_new", &[])?;
    row.map_or(Ok(0), |row| uint(&row, 0))
}

fn lock(node: i64) -> Call {
    Call::new("SELECT 1 FROM lanes WHERE node = $1 AND lane = 0 FOR UPDATE").with(node)
}

/// The results of a group's batches, and the statements of those that are not refused.
type Planned = (Decided, Option<Vec<Call>>);

/// Begins the transaction of a group and plans it.
fn plan(
    session: &Session,
    node: i64,
    group: &[&Batch],
    unfolded: &mut u64,
) -> Result<Planned, Failed> {
    // Each statement has its own snapshot: what is read after the lock is what the last owner of the lock
    // has left.
    let mut calls = vec![lock(node)];
    calls.extend(checks::reads(group));
    let rows = session.begin(&calls)?;
    if rows.first().is_none_or(Vec::is_empty) {
        return Err(Failed::Store(StoreError::Fenced));
    }
    let mut planned = Group::new(session, Known::read(&rows[1..])?, unfolded);
    let mut verdicts = Vec::with_capacity(group.len());
    for batch in group {
        verdicts.push(planned.add(batch)?);
    }
    Ok(planned.finish(verdicts))
}

fn rolled(session: &Session, error: Failed) -> Attempt {
    if error.ends_connection() {
        return Attempt::Unknown(error, None);
    }
    match session.batch("ROLLBACK") {
        Ok(()) => Attempt::Rolled(error),
        Err(_) => Attempt::Unknown(error, None),
    }
}
