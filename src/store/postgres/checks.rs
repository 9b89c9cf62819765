//! The conditions of a group: read at once, at the beginning of its transaction, and judged batch by
//! batch. Each batch sees the effects of those before it.
//!
//! The lock of the lane is held meanwhile, and nobody else writes, so what was read stays true.

use std::collections::{BTreeMap, BTreeSet};

use tokio_postgres::Row;

use super::{
    failed::Failed,
    place,
    session::Call,
    value::{bytes, int, text, uint},
};
use crate::store::{Batch, Check, StoreError, Trace, UNSTORED, Write};

/// The stored values that the batches of a group depend on.
#[derive(Default)]
pub struct Known {
    /// The last row of each run, if it is stored.
    cursors: BTreeMap<u64, u64>,
    revoked: BTreeSet<String>,
    /// The keys of used idempotency keys, with the times of their answers.
    used: BTreeMap<Vec<u8>, u64>,
    meta: BTreeMap<String, String>,
}

/// Returns the statements that read what the batches of a group depend on, in the order of
/// [`Known::read`].
pub fn reads(group: &[&Batch]) -> Vec<Call> {
    let (mut runs, mut tokens) = (BTreeSet::new(), BTreeSet::new());
    let (mut places, mut keys) = (BTreeSet::new(), BTreeSet::new());
    for batch in group {
        runs.extend(batch.run.as_ref().map(|run| int(run.header.num)));
        for check in &batch.checks {
            match check {
                Check::TokenLive(jti) => drop(tokens.insert(jti.as_bytes().to_vec())),
                Check::RunAt { run, .. } => drop(runs.insert(int(*run))),
                Check::MetaIs { key, .. } => drop(keys.insert(key.as_bytes().to_vec())),
                Check::KeyFree { principal, route, key } => {
                    places.insert(place::of(&[principal, route, key]).to_vec());
                }
            }
        }
    }
    vec![
        Call::new("SELECT num, cursor FROM runs WHERE num = ANY($1)")
            .with(runs.into_iter().collect::<Vec<i64>>()),
        Call::new("SELECT jti FROM revocations WHERE jti = ANY($1)")
            .with(tokens.into_iter().collect::<Vec<_>>()),
        Call::new("SELECT place, created_ms FROM idempotency WHERE place = ANY($1)")
            .with(places.into_iter().collect::<Vec<_>>()),
        Call::new("SELECT key, value FROM meta WHERE key = ANY($1)")
            .with(keys.into_iter().collect::<Vec<_>>()),
    ]
}

impl Known {
    /// Creates it from the rows of [`reads`].
    pub fn read(rows: &[Vec<Row>]) -> Result<Self, Failed> {
        let mut known = Self::default();
        let [runs, tokens, places, keys] = rows else { return Ok(known) };
        for row in runs {
            known.cursors.insert(uint(row, 0)?, uint(row, 1)?);
        }
        for row in tokens {
            known.revoked.insert(text(row, 0)?);
        }
        for row in places {
            known.used.insert(bytes(row, 0)?.to_vec(), uint(row, 1)?);
        }
        for row in keys {
            known.meta.insert(text(row, 0)?, text(row, 1)?);
        }
        Ok(known)
    }

    /// Refuses a batch whose conditions do not hold.
    ///
    /// # Errors
    /// Returns the reason.
    pub fn judge(&self, batch: &Batch) -> Result<(), StoreError> {
        for check in &batch.checks {
            match check {
                Check::TokenLive(jti) if self.revoked.contains(jti) => {
                    return Err(StoreError::Revoked { jti: jti.clone() });
                }
                Check::RunAt { run, cursor } if self.cursors.get(run) != Some(cursor) => {
                    return Err(StoreError::Moved { run: *run });
                }
                Check::MetaIs { key, value } if self.meta.get(key) != value.as_ref() => {
                    return Err(StoreError::Changed { key: key.clone() });
                }
                Check::KeyFree { principal, route, key }
                    if self.used.contains_key(place::of(&[principal, route, key]).as_slice()) =>
                {
                    return Err(StoreError::KeyUsed { key: key.clone() });
                }
                Check::TokenLive(_)
                | Check::RunAt { .. }
                | Check::MetaIs { .. }
                | Check::KeyFree { .. } => {}
            }
        }
        match &batch.run {
            Some(run) if self.cursors.get(&run.header.num).copied() != run.expected => {
                Err(StoreError::Moved { run: run.header.num })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Takes the effects of a batch that will be written.
    pub fn accept(&mut self, batch: &Batch) {
        if let Some(run) = &batch.run {
            self.cursors.insert(run.header.num, run.header.cursor);
        }
        for write in &batch.writes {
            match write {
                Write::PutMeta { key, value } => {
                    self.meta.insert(key.clone(), value.clone());
                }
                Write::RevokeToken { jti, .. } => drop(self.revoked.insert(jti.clone())),
                Write::PutToken(token) if token.revoked_ms.is_some() => {
                    self.revoked.insert(token.jti.clone());
                }
                Write::PutIdempotency(row) => {
                    let place = place::of(&[&row.principal, &row.route, &row.key]).to_vec();
                    self.used.insert(place, row.created_ms);
                }
                Write::ExpireIdempotency { before_ms } => {
                    self.used.retain(|_, created_ms| *created_ms >= *before_ms);
                }
                Write::DeleteRun { run } => self.forget(*run),
                Write::Erase(trace) => match &**trace {
                    Trace::Run(run) => self.forget(*run),
                    Trace::Answer { principal, route, key } => {
                        self.used.remove(place::of(&[principal, route, key]).as_slice());
                    }
                    _ => {}
                },
                _ => {}
            }
        }
    }

    fn forget(&mut self, run: u64) {
        self.cursors.remove(&run);
        self.meta.remove(&format!("{UNSTORED}{run}"));
    }
}
