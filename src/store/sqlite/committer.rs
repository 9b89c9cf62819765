//! One transaction for a group of batches: checks, headers, journal, everything else, verdicts.

use std::{collections::HashSet, thread, time::Duration};

use rusqlite::{Connection, Transaction, TransactionBehavior};

use super::{
    error::{database, is_disk_failure},
    header, idempotency, journal, tokens, write,
};
use crate::store::{Batch, Check, StoreError};

/// What writes: the one connection that can, and what it must remember between transactions.
pub struct Committer {
    conn: Connection,
    /// The ids of all tokens that were revoked durably.
    revoked: HashSet<String>,
    /// Why nothing is written any more.
    broken: Option<StoreError>,
    /// Time added to each commit.
    delay: Duration,
}

/// Why a batch was not written.
enum Stop {
    /// The batch alone is refused, and has written nothing.
    Refused(StoreError),
    /// The transaction is lost.
    Failed(rusqlite::Error),
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
    pub fn new(conn: Connection, delay: Duration) -> Result<Self, StoreError> {
        let revoked = tokens::revoked(&conn).map_err(database("read the revoked tokens"))?;
        Ok(Self { conn, revoked, broken: None, delay })
    }

    /// Commits a group and then tells each batch, in order, what became of it.
    pub fn commit(&mut self, group: Vec<Batch>) {
        match self.transact(&group) {
            Ok(verdicts) => {
                for (batch, verdict) in group.into_iter().zip(verdicts) {
                    (batch.ack)(verdict);
                }
            }
            Err(error) => {
                for batch in group {
                    (batch.ack)(Err(error.clone()));
                }
            }
        }
    }

    /// Moves what the log holds into the database and empties the log, as far as readers let it.
    ///
    /// # Errors
    /// What the database says.
    pub fn checkpoint(&self) -> Result<(), StoreError> {
        self.conn
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
            .map_err(database("write the log back into the database"))
    }

    /// The verdict on each batch of a group that is now durable, or why nothing of it is.
    fn transact(&mut self, group: &[Batch]) -> Result<Vec<Result<(), StoreError>>, StoreError> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let context = || database("write to the database");
        let tx = self
            .conn
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(context())?;
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
                Err(Stop::Failed(error)) => return Err(context()(error)),
            }
        }
        if !self.delay.is_zero() {
            thread::park_timeout(self.delay);
        }
        if let Err(error) = tx.commit() {
            let is_final = is_disk_failure(&error);
            let error = context()(error);
            if is_final {
                tracing::error!(%error, "a commit failed on the disk: nothing is written until a restart");
                self.broken = Some(error.clone());
            }
            return Err(error);
        }
        self.revoked.extend(revoked);
        Ok(verdicts)
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
            Check::KeyFree { principal, route, key } => {
                if !idempotency::is_free(tx, principal, route, key)? {
                    return Err(Stop::Refused(StoreError::KeyUsed { key: key.clone() }));
                }
            }
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
    for each in &batch.writes {
        write::apply(tx, each)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
