//! The conditions of a group: read at once, at the beginning of its transaction, and judged batch by
//! batch. Each batch sees the effects of those before it.
//!
//! The lock of the lane is held meanwhile, so nobody else writes the runs of the group. Other lanes
//! write too, of this host and of others:
//!
//! | what was read | why it is still true at the commit |
//! |---|---|
//! | the last row of a run | its lane is the only one that writes it; a deletion is met by the counted update |
//! | a token is not revoked | a revocation locks every lane |
//! | a key is free | its row is inserted and counted |
//! | a value of state, or that there is none | its row is locked; a new one is inserted and counted |
//! | a value of the host | lane 0 alone writes it |

use std::collections::{BTreeMap, BTreeSet};

use tokio_postgres::{Row, types::ToSql};

use super::{
    failed::Failed,
    place,
    session::Call,
    value::{bytes, int, text, uint},
    values::{self, Values},
};
use crate::store::{Batch, Check, StoreError, Trace, UNSTORED, Write};

/// The stored values that the batches of a group depend on.
#[derive(Default)]
pub struct Known {
    /// The last row of each run, if it is stored.
    cursors: BTreeMap<u64, u64>,
    revoked: BTreeSet<String>,
    /// The places of used idempotency keys. One that expires or is forgotten in the group, which depends on
    /// its age, counts as used until its end.
    used: BTreeSet<Vec<u8>>,
    meta: BTreeMap<String, String>,
    /// The values that are changed, and what was answered before.
    pub(super) values: Values,
}

/// The statements that read what the batches of a group depend on. Only what one of them asks for is
/// read.
#[derive(Default)]
pub struct Reads {
    subjects: Vec<Subject>,
    calls: Vec<Call>,
}

/// The subject of a statement.
#[derive(Clone, Copy)]
enum Subject {
    Cursors,
    Revoked,
    Used,
    Meta,
    Values,
    Receipts,
}

impl Reads {
    /// Returns the statements for a group.
    pub fn of(group: &[&Batch]) -> Self {
        let (mut runs, mut held, mut tokens) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let (mut places, mut keys) = (BTreeSet::new(), BTreeSet::new());
        for batch in group {
            runs.extend(batch.run.as_ref().map(|run| int(run.header.num)));
            for check in &batch.checks {
                match check {
                    Check::TokenLive(jti) => drop(tokens.insert(jti.as_bytes().to_vec())),
                    Check::RunAt { run, .. } => drop(held.insert(int(*run))),
                    Check::MetaIs { key, .. } => drop(keys.insert(key.as_bytes().to_vec())),
                    Check::KeyFree { principal, route, key } => {
                        places.insert(place::of(&[principal, route, key]).to_vec());
                    }
                }
            }
        }
        let mut reads = Self::default();
        reads.add(Subject::Cursors, CURSORS, runs);
        // What a batch writes without its header would outlive a run that another lane deletes meanwhile.
        reads.add(Subject::Cursors, HELD_CURSORS, held);
        reads.add(Subject::Revoked, "SELECT jti FROM revocations WHERE jti = ANY($1)", tokens);
        reads.add(Subject::Used, USED, places);
        reads.add(Subject::Meta, "SELECT key, value FROM meta WHERE key = ANY($1)", keys);
        reads.add(Subject::Values, values::LOCKED, values::places(group));
        if let Some(call) = values::receipts(group) {
            reads.subjects.push(Subject::Receipts);
            reads.calls.push(call);
        }
        reads
    }

    fn add<T>(&mut self, subject: Subject, sql: &'static str, of: BTreeSet<T>)
    where
        Vec<T>: ToSql + Sync + Send + 'static,
    {
        if !of.is_empty() {
            self.subjects.push(subject);
            self.calls.push(Call::new(sql).with(of.into_iter().collect::<Vec<T>>()));
        }
    }

    /// Returns the statements, each once.
    pub fn take(&mut self) -> Vec<Call> {
        std::mem::take(&mut self.calls)
    }
}

const CURSORS: &str = "SELECT num, cursor FROM runs WHERE num = ANY($1)";
const HELD_CURSORS: &str =
    "SELECT num, cursor FROM runs WHERE num = ANY($1) ORDER BY num FOR UPDATE";
const USED: &str = "SELECT place FROM idempotency WHERE place = ANY($1)";

impl Known {
    /// Creates it from the rows that the statements have returned.
    pub fn read(reads: &Reads, rows: &[Vec<Row>]) -> Result<Self, Failed> {
        let mut known = Self::default();
        for (subject, rows) in reads.subjects.iter().zip(rows) {
            for row in rows {
                match subject {
                    Subject::Cursors => drop(known.cursors.insert(uint(row, 0)?, uint(row, 1)?)),
                    Subject::Revoked => drop(known.revoked.insert(text(row, 0)?)),
                    Subject::Used => drop(known.used.insert(bytes(row, 0)?.to_vec())),
                    Subject::Meta => drop(known.meta.insert(text(row, 0)?, text(row, 1)?)),
                    Subject::Values => known.values.add(row)?,
                    Subject::Receipts => known.values.add_receipt(row)?,
                }
            }
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
                    if self.used.contains(place::of(&[principal, route, key]).as_slice()) =>
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
                    self.used.insert(place);
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
