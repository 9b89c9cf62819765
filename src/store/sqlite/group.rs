//! The transaction of a group of batches: which are refused, and what the others write.

use rusqlite::Connection;

use super::{
    error::{database, is_of_a_row},
    header::HeaderWriter,
    idempotency, journal, meta, run_index, state,
    tasks::TaskWriter,
    write,
};
use crate::store::{Batch, Check, JournalRow, StoreError, Write};

/// A transaction with the write lock. Dropped without a commit, it is rolled back.
pub struct Group<'c, 'b> {
    conn: &'c Connection,
    headers: HeaderWriter<'c>,
    tasks: TaskWriter<'c>,
    /// The rows of the journal that are not inserted yet, each with its run.
    rows: Vec<(u64, &'b JournalRow)>,
}

/// The reason why a batch was not written.
pub enum BatchFailure {
    /// Only this batch is refused. It has written nothing.
    Refused(StoreError),
    /// The transaction failed.
    Failed(rusqlite::Error),
}

impl From<StoreError> for BatchFailure {
    fn from(error: StoreError) -> Self {
        Self::Refused(error)
    }
}

impl From<rusqlite::Error> for BatchFailure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Failed(error)
    }
}

impl<'c, 'b> Group<'c, 'b> {
    /// Begins the transaction.
    ///
    /// # Errors
    /// Also fails when another process has the lock.
    pub fn begin(conn: &'c Connection) -> rusqlite::Result<Self> {
        conn.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        let (headers, tasks) = (HeaderWriter::new(conn), TaskWriter::new(conn));
        Ok(Self { conn, headers, tasks, rows: Vec::new() })
    }

    /// Writes one batch, but for its rows of the journal. All checks that can refuse it come before
    /// its first write.
    pub fn apply(
        &mut self,
        batch: &'b Batch,
        is_revoked: impl Fn(&str) -> bool,
    ) -> Result<(), BatchFailure> {
        for check in &batch.checks {
            self.check(check, &is_revoked)?;
        }
        let mut plans = Vec::new();
        for each in &batch.writes {
            if let Write::ChangeState(changes) = each {
                plans.push(state::plan::<BatchFailure>(self.conn, changes).map_err(of_a_row)?);
            }
        }
        if let Some(run) = &batch.run {
            let num = run.header.num;
            if !self.headers.write(run)? {
                return Err(BatchFailure::Refused(StoreError::Moved { run: num }));
            }
            run_index::keep(self.conn, run)?;
            self.rows.extend(run.entries.iter().map(|row| (num, row)));
        }
        let mut plans = plans.into_iter();
        for each in &batch.writes {
            if let Write::ChangeState(changes) = each {
                if let Some(plan) = plans.next().flatten() {
                    state::carry_out(self.conn, changes, plan)?;
                }
                continue;
            }
            if write::needs_rows(each) {
                self.insert_rows()?;
            }
            write::apply(self.conn, &mut self.tasks, each)?;
        }
        Ok(())
    }

    fn check(
        &mut self,
        check: &Check,
        is_revoked: impl Fn(&str) -> bool,
    ) -> Result<(), BatchFailure> {
        match check {
            Check::TokenLive(jti) => {
                if is_revoked(jti) {
                    return Err(BatchFailure::Refused(StoreError::Revoked { jti: jti.clone() }));
                }
            }
            Check::RunAt { run, cursor } => {
                if !self.headers.is_at(*run, *cursor)? {
                    return Err(BatchFailure::Refused(StoreError::Moved { run: *run }));
                }
            }
            Check::MetaIs { key, value } => {
                if meta::one(self.conn, key)? != *value {
                    return Err(BatchFailure::Refused(StoreError::Changed { key: key.clone() }));
                }
            }
            Check::KeyFree { principal, route, key } => {
                if !idempotency::is_free(self.conn, principal, route, key)? {
                    return Err(BatchFailure::Refused(StoreError::KeyUsed { key: key.clone() }));
                }
            }
        }
        Ok(())
    }

    /// Inserts the rows of the journal of all batches so far. In the order of their numbers they go
    /// to the end of the table one after the other, whatever the runs.
    pub fn insert_rows(&mut self) -> rusqlite::Result<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        self.rows.sort_unstable_by_key(|(_, row)| row.lsn);
        journal::append(self.conn, self.rows.drain(..))
    }

    /// Commits what was written and inserted.
    ///
    /// # Errors
    /// Nothing is committed then.
    pub fn commit(self) -> rusqlite::Result<()> {
        self.conn.prepare_cached("COMMIT")?.execute([]).map(drop)
    }
}

impl Drop for Group<'_, '_> {
    fn drop(&mut self) {
        // SQLite itself rolls back after some errors.
        if !self.conn.is_autocommit()
            && let Err(error) = self.conn.execute_batch("ROLLBACK")
        {
            tracing::warn!(%error, "could not roll a transaction back");
        }
    }
}

/// Converts an unreadable row to a refusal of the batch that needs it. Other batches of the group
/// are not affected.
fn of_a_row(stop: BatchFailure) -> BatchFailure {
    match stop {
        BatchFailure::Failed(error) if is_of_a_row(&error) => {
            BatchFailure::Refused(database("read what is to be changed")(error))
        }
        stop => stop,
    }
}
