//! Commits the groups of one lane: one transaction each, in two round trips. The first locks the lane and reads what
//! the batches depend on, the second writes.
//!
//! | the database says | then |
//! |---|---|
//! | a conflict, a lock or a statement took too long | it was rolled back: the group again, a few times |
//! | something in it is refused | it was rolled back: each batch alone, and only the offender is refused |
//! | its disk or its connections are used up | it was rolled back: again, until it can write |
//! | it has not enough memory | it was rolled back: again, over a new connection |
//! | nothing, or the connection broke | nobody knows: a new connection, and the mark of the lane tells |
//! | the same again and again, but not for a mark without the group | each batch alone, and only the offender is refused |
//! | the lane has no row | another host has taken over: nothing more is written |

use std::{
    sync::{Arc, atomic::Ordering},
    thread,
    time::Duration,
};

use super::{
    checks::{Known, Reads},
    common::Common,
    failed::{Failed, Meaning},
    group::{Decided, Group},
    lane::Lane,
    owner, progress,
    session::{Call, Session},
    stats_fold::{self, EndedRuns, FOLDED},
    value::{get, uint},
    wire::Wire,
};
use crate::{
    clock::Stopwatch,
    fault,
    store::{
        Batch, StoreError, Write,
        results::{self, BatchResult, GroupResult},
    },
};

/// The number of times that a group is tried again at once.
const TRIES: u32 = 5;
/// The number of connections in a row that a group may break, or that have not enough memory for it,
/// while a mark alone can be committed: what it has may be too much for the server, or for the way to it.
const BREAKS: u32 = 5;
/// The pause before a group is tried again, or the database is called again.
const PAUSE: Duration = Duration::from_millis(50);
/// The maximum of such a pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// The work of a lane in messages.
const WRITE: &str = "write to the database";
/// The number of calls of a database that is away, after the store began to close.
const LAST_CALLS: u32 = 5;

/// The writing end of a lane.
pub struct Committer {
    wire: Wire,
    lane: Lane,
    session: Option<Session>,
    /// The number of the last group that is known to be committed.
    seq: i64,
    common: Arc<Common>,
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
    /// Creates a committer for a lane.
    ///
    /// # Errors
    /// Fails when the database cannot be reached.
    pub fn new(wire: Wire, lane: Lane, common: Arc<Common>) -> Result<Self, Failed> {
        let session = Some(wire.lane(&lane.name())?);
        Ok(Self { wire, lane, session, seq: 0, common })
    }

    /// Counts the ended runs that are not folded into the sums.
    ///
    /// # Errors
    /// Fails when the database cannot be reached.
    pub fn count_ended(&self) -> Result<(), Failed> {
        let Some(session) = &self.session else { return Err(Failed::Silent) };
        let row = session.one("SELECT count(*) FROM stats_new", &[])?;
        self.common.ended.add_stored(row.map_or(Ok(0), |row| uint(&row, 0))?);
        Ok(())
    }

    /// Commits a group and then sends each batch its result, in order.
    pub fn commit(&mut self, group: Vec<Batch>) {
        let watch = Stopwatch::start();
        let common = Arc::clone(&self.common);
        let result = {
            let _tables = common.tables.read();
            self.transact(&group.iter().collect::<Vec<_>>())
        };
        results::count(&common.commits, &group, &result, watch.micros());
        results::acknowledge(group, result, || {
            let _tables = common.tables.write();
            let written = self.write_anew();
            fault::point("store.rewritten");
            written.map_err(|error| error.into_error("write the tables of the database anew"))
        });
        self.fold();
    }

    /// Folds the ended runs into the sums, if there are enough of them. If that fails, the next group
    /// tries again.
    fn fold(&mut self) {
        let Some((count, last_ms)) = self.common.ended.take(FOLDED) else { return };
        let Some(session) = &self.session else {
            self.common.ended.add_stored(count);
            return;
        };
        let fold = || -> Result<(), Failed> {
            let _tables = self.common.tables.read();
            let found = session.begin(&[self.lane.lock()])?;
            if found.first().is_none_or(Vec::is_empty) {
                return Err(Failed::Store(StoreError::Fenced));
            }
            stats_fold::fold(session, last_ms)?;
            session.commit(&[])
        };
        if let Err(error) = fold() {
            tracing::debug!(reason = error.reason(), "ended runs were not added to the sums yet");
            self.common.ended.add_stored(count);
            if !session.roll_back(&error) {
                self.session = None;
            }
        }
    }

    /// Returns the result of each batch of a group that is now durable, or the error of the whole
    /// group. While the database cannot be reached, it waits.
    fn transact(&mut self, group: &[&Batch]) -> GroupResult {
        let (mut tries, mut breaks) = (0, 0);
        let mut pauses = 0;
        // The results of the batches, if the group turns out to be committed.
        let mut unknown: Option<Option<Decided>> = None;
        loop {
            if let Some(error) = self.common.lost() {
                return Err(error);
            }
            if self.session.is_none() {
                match self.reconnect(unknown.is_some()) {
                    Ok(was_committed) => {
                        let pending = unknown.take().flatten();
                        if was_committed && let Some(decided) = pending {
                            self.seq += 1;
                            breaks = 0;
                            // A commit whose answer was lost may be undone by a failover, until a later
                            // one was answered.
                            match self.confirm() {
                                Ok(()) => {
                                    self.common.wrote(self.lane);
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
                        // It was not committed, and cannot be any more: its connection was ended.
                        if breaks > 0
                            && let Err(error) = self.confirm()
                        {
                            // An outage, which the group waits for like all others.
                            breaks = 0;
                            self.session = None;
                            self.wait_for(error, &mut pauses)?;
                            continue;
                        }
                        if breaks >= BREAKS {
                            return self.one_by_one(group, unwritable());
                        }
                    }
                    Err(Failed::Store(error)) => {
                        self.common.lose(error.clone());
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
                    self.common.wrote(self.lane);
                    return Ok(verdicts);
                }
                Attempt::Unknown(error, decided) => {
                    self.session = None;
                    breaks += 1;
                    unknown = Some(decided);
                    self.wait_for(error, &mut pauses)?;
                }
                Attempt::Rolled(error) => match error.meaning() {
                    _ if matches!(error, Failed::Store(StoreError::Fenced)) => {
                        self.common.lose(StoreError::Fenced);
                        return Err(StoreError::Fenced);
                    }
                    Meaning::Again if tries < TRIES => {
                        tries += 1;
                        self.pause(tries);
                    }
                    Meaning::Waiting => self.wait_for(error, &mut pauses)?,
                    // The group may need more than there is, and would wait for ever.
                    Meaning::Heavy => {
                        self.session = None;
                        breaks += 1;
                        self.wait_for(error, &mut pauses)?;
                    }
                    Meaning::Again | Meaning::Refused | Meaning::Unknown => {
                        return self.one_by_one(group, error.into_error(WRITE));
                    }
                },
            }
        }
    }

    /// Commits each batch of a group that is refused as a whole. One that is alone is refused with
    /// `error`.
    fn one_by_one(&mut self, group: &[&Batch], error: StoreError) -> GroupResult {
        if let [_] = group {
            // A refusal is an answer too: what this lane waited for is over.
            self.common.wrote(self.lane);
            return Ok(vec![Err(error)]);
        }
        // What was committed stays so if the host is ended before the rest.
        let alone = |batch: &&Batch| self.transact(&[*batch])?.remove(0);
        Ok(group.iter().map(alone).collect())
    }

    /// Makes one transaction of a group.
    fn attempt(&mut self, group: &[&Batch]) -> Attempt {
        let Some(session) = &self.session else { return Attempt::Unknown(Failed::Silent, None) };
        let planned = match plan(session, self.lane, group, &self.common.ended) {
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
        calls.push(self.lane.mark(self.seq + 1));
        fault::point("store.commit");
        let watch = Stopwatch::start();
        match session.commit(&calls) {
            Ok(()) => {
                self.common.commits.sync.add(watch.micros());
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
        let name = self.lane.name();
        let session = self.wire.lane(&name)?;
        session.query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE datname = current_database() AND usename = current_user AND application_name = $1
               AND pid <> pg_backend_pid()",
            &[&name],
        )?;
        // Waits for the old transaction.
        let found = session.begin(&[self.lane.lock()])?;
        if found.first().is_none_or(Vec::is_empty) {
            return Err(Failed::Store(StoreError::Fenced));
        }
        let sql = "SELECT seq FROM marks WHERE node = $1 AND lane = $2";
        let row = session.one(sql, &[&self.lane.node, &self.lane.number])?;
        let seq: i64 = row.map_or(Ok(-1), |row| get(&row, 0))?;
        let went_back = seq < self.seq || (seq > self.seq && !is_unknown);
        if went_back {
            // Other nodes, and the next start, may have seen nothing of what is missing.
            progress::note_loss(&session)?;
        }
        session.batch("COMMIT")?;
        self.session = Some(session);
        if went_back {
            self.common.commits.lost.inc();
            return Err(Failed::Store(StoreError::Unfit {
                database: self.wire.address().to_string(),
                reason: "it went back: commits that were acknowledged are missing, as after a failover \
                         to a standby that was behind, or after a restore; restore a newer copy, or start \
                         the host again, which says how its runs go on from what is there"
                    .to_owned(),
            }));
        }
        if is_unknown {
            let found = if seq > self.seq { "committed" } else { "not_committed" };
            self.common.commits.unknown.of([found]).inc();
        }
        Ok(seq > self.seq)
    }

    /// Commits nothing but the mark of the last group.
    fn confirm(&mut self) -> Result<(), Failed> {
        let Some(session) = &self.session else { return Err(Failed::Silent) };
        let found = session.begin(&[self.lane.lock()])?;
        if found.first().is_none_or(Vec::is_empty) {
            // A commit that writes nothing waits for no standby.
            return Err(Failed::Silent);
        }
        session.commit(&[self.lane.mark(self.seq)])
    }

    /// Waits before the database is called again.
    ///
    /// # Errors
    /// Returns the error if the store is closing and the database was away for long.
    fn wait_for(&mut self, error: Failed, pauses: &mut u32) -> Result<(), StoreError> {
        *pauses += 1;
        let error = error.into_error(WRITE);
        if self.common.closing.load(Ordering::Acquire) && *pauses > LAST_CALLS {
            // What is still queued would wait as long.
            self.common.lose(error.clone());
            return Err(error);
        }
        self.common.waits(self.lane, &error);
        self.pause(*pauses);
        Ok(())
    }

    fn pause(&self, times: u32) {
        // Two writers that hindered each other should not meet again.
        let Lane { node, number } = self.lane;
        let odd = node.unsigned_abs() * 7_919 + u64::from(number.unsigned_abs()) * 3_571;
        let spread = Duration::from_micros(odd % 10_000);
        thread::park_timeout((PAUSE * times).min(LONGEST_PAUSE) + spread);
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

    /// Ends the lane. The last one gives the database up, so that the next host need not wait.
    ///
    /// # Errors
    /// Fails when the database cannot be reached. The next host waits for the end of the lease then.
    pub fn end(self) -> Result<(), StoreError> {
        if !self.common.end() {
            return Ok(());
        }
        fault::point("store.checkpoint");
        let released = match self.common.lost() {
            Some(_) => Ok(()),
            None => self.release(),
        };
        fault::point("store.checkpointed");
        released.map_err(|error| error.into_error("give the database up"))
    }

    /// Gives the database up; over a new connection if the one that is there broke while it was
    /// idle.
    fn release(&self) -> Result<(), Failed> {
        if let Some(session) = &self.session {
            match owner::release(session, self.lane.node) {
                // A call that was silent once may not take as long again.
                Err(error) if error.ends_connection() && !matches!(error, Failed::Silent) => {}
                result => return result,
            }
        }
        owner::release(&self.wire.lane(&self.lane.name())?, self.lane.node)
    }
}

/// The results of a group's batches, and the statements of those that are not refused.
type Planned = (Decided, Option<Vec<Call>>);

/// Begins the transaction of a group and plans it.
fn plan(
    session: &Session,
    lane: Lane,
    group: &[&Batch],
    ended: &EndedRuns,
) -> Result<Planned, Failed> {
    let mut calls = Vec::new();
    match group.iter().any(|batch| revokes(batch)) {
        true => calls.extend(lane.lock_all()),
        false => calls.push(lane.lock()),
    }
    let locks = calls.len();
    // Each statement has its own snapshot: what is read after the lock is what the last owner of the lock
    // has left.
    let mut reads = Reads::of(group);
    calls.extend(reads.take());
    let rows = session.begin(&calls)?;
    let (locked, rows) = rows.split_at_checked(locks).ok_or(Failed::Silent)?;
    let mut is_ours = false;
    for row in locked.iter().flatten() {
        is_ours |= get::<bool>(row, 0)?;
    }
    if !is_ours {
        return Err(Failed::Store(StoreError::Fenced));
    }
    let mut planned = Group::new(session, Known::read(&reads, rows)?, ended);
    let mut verdicts = Vec::with_capacity(group.len());
    for batch in group {
        verdicts.push(planned.add(batch)?);
    }
    Ok(planned.finish(verdicts))
}

/// Returns the refusal of a batch that breaks every connection, or needs more memory than there is.
fn unwritable() -> StoreError {
    let reason = format!("{BREAKS} connections in a row broke over it or had no memory for it");
    StoreError::Away { context: WRITE.to_owned(), reason }
}

fn rolled(session: &Session, error: Failed) -> Attempt {
    match session.roll_back(&error) {
        true => Attempt::Rolled(error),
        false => Attempt::Unknown(error, None),
    }
}

/// Returns true if nothing may be accepted with some token once a batch is committed, in no lane.
fn revokes(batch: &Batch) -> bool {
    batch.writes.iter().any(|write| match write {
        Write::RevokeToken { .. } => true,
        Write::PutToken(token) => token.revoked_ms.is_some(),
        _ => false,
    })
}
