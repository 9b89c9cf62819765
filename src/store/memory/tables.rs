//! The durable data as plain collections, and the effect of each write on them.

use std::{
    collections::{BTreeMap, btree_map},
    sync::Arc,
};

use crate::{
    journal::Entry,
    protocol::{Lifetime, RunId, Scope, StoreOptions},
    store::{
        ArtifactRow, AuditRow, BlueprintRow, ChargeRow, Check, EvidenceRow, Expiring, FrameRow,
        Header, IdempotencyRow, JournalRow, OutboxRow, RunWrite, SessionRow, StateBatch, StateRow,
        StoreError, TaskRow, TokenRow, UNSTORED, VersionRow, Write,
        change::{self, Changed, Plan, Planned},
        rows::MOST_EVIDENCE,
        stats::Sums,
    },
};

/// A row of the journal, stored under its number.
pub(super) struct Row {
    pub(super) run: u64,
    /// The previous row of the run.
    pub(super) before: Option<u64>,
    pub(super) begins: bool,
    pub(super) bytes: Vec<u8>,
}

/// The durable data.
#[derive(Default)]
pub(super) struct Tables {
    pub(super) headers: BTreeMap<u64, Header>,
    pub(super) journal: BTreeMap<u64, Row>,
    pub(super) tasks: BTreeMap<(u64, u32), TaskRow>,
    pub(super) state: BTreeMap<(String, String), StateRow>,
    pub(super) blobs: BTreeMap<String, Arc<[u8]>>,
    pub(super) artifacts: BTreeMap<(u64, u32), ArtifactRow>,
    pub(super) blueprints: Vec<BlueprintRow>,
    pub(super) names: BTreeMap<String, (String, u64)>,
    pub(super) charges: BTreeMap<u64, ChargeRow>,
    pub(super) charged: BTreeMap<String, (u64, u64)>,
    pub(super) tokens: Vec<TokenRow>,
    pub(super) revocations: BTreeMap<String, u64>,
    pub(super) idempotency: BTreeMap<(String, String, String), IdempotencyRow>,
    pub(super) outbox: Vec<OutboxRow>,
    pub(super) evidence: Vec<EvidenceRow>,
    pub(super) meta: BTreeMap<String, String>,
    pub(super) sessions: BTreeMap<String, SessionRow>,
    pub(super) frames: BTreeMap<(String, u64), FrameRow>,
    pub(super) links: BTreeMap<(String, String, String, String), Option<String>>,
    pub(super) receipts: BTreeMap<(u64, u32), Vec<Changed>>,
    pub(super) kept: BTreeMap<(String, String), (String, Option<u64>)>,
    pub(super) audit: Vec<AuditRow>,
    pub(super) stats: Sums,
    most: (u64, u64),
}

impl Tables {
    /// Writes a batch as a whole, or not at all.
    pub(super) fn apply(
        &mut self,
        checks: &[Check],
        run: Option<&RunWrite>,
        writes: &[Write],
    ) -> Result<(), StoreError> {
        for check in checks {
            self.check(check)?;
        }
        let mut plans = Vec::new();
        for write in writes {
            if let Write::ChangeState(changes) = write {
                plans.push(self.plan(changes)?);
            }
        }
        if let Some(run) = run {
            self.append(run)?;
        }
        let mut plans = plans.into_iter();
        for write in writes {
            match write {
                Write::ChangeState(changes) => {
                    if let Some(plan) = plans.next().flatten() {
                        self.carry_out(changes, plan);
                    }
                }
                write => self.write(write.clone()),
            }
        }
        Ok(())
    }

    fn plan(&self, batch: &StateBatch) -> Result<Option<Plan>, StoreError> {
        if let Some(answers) = batch.receipt.and_then(|receipt| self.receipts.get(&receipt)) {
            batch.answers.give(answers.clone());
            return Ok(None);
        }
        let read = |scope: &str, key: &str| {
            Ok(self.state.get(&(scope.to_owned(), key.to_owned())).cloned())
        };
        change::plan(batch, read).map(Some)
    }

    fn carry_out(&mut self, batch: &StateBatch, plan: Plan) {
        for write in plan.writes {
            match write {
                Planned::Put { scope, key, value, hints, expires_ms } => {
                    self.put_state((scope, key), value, hints, (expires_ms, batch.at_ms));
                }
                Planned::Delete { scope, key } => self.delete_state(scope, key),
                Planned::Link { scope, from, to, relation, metadata } => {
                    self.links.insert((scope, from, relation, to), metadata);
                }
                Planned::Unlink { scope, from, to, relation } => {
                    self.links.remove(&(scope, from, relation, to));
                }
            }
        }
        if let Some(receipt) = batch.receipt {
            self.receipts.insert(receipt, plan.answers.clone());
        }
        batch.answers.give(plan.answers);
    }

    fn put_state(
        &mut self,
        (scope, key): (String, String),
        value: String,
        hints: StoreOptions,
        (expires_ms, at_ms): (Option<u64>, u64),
    ) {
        let revision = self.state.get(&(scope.clone(), key.clone())).map_or(0, |row| row.revision);
        let row = StateRow {
            scope: scope.clone(),
            key: key.clone(),
            value,
            revision: revision + 1,
            updated_ms: at_ms,
            expires_ms,
            hints,
        };
        self.state.insert((scope, key), row);
    }

    pub(super) fn delete_state(&mut self, scope: String, key: String) {
        self.links.retain(|(of, from, _, to), _| *of != scope || (*from != key && *to != key));
        self.state.remove(&(scope, key));
    }

    fn delete_states(&mut self, gone: impl Fn(&StateRow) -> bool, most: usize) {
        let doomed = self.state.values().filter(|row| gone(row)).take(most);
        let keys: Vec<_> = doomed.map(|row| (row.scope.clone(), row.key.clone())).collect();
        for (scope, key) in keys {
            self.delete_state(scope, key);
        }
    }

    /// Returns the last refused reports of a run or of one step of it, oldest first.
    pub(super) fn evidence_of(
        &self,
        run: u64,
        step: Option<u32>,
        limit: usize,
    ) -> Vec<EvidenceRow> {
        let is_of = |row: &&EvidenceRow| row.run == run && step.is_none_or(|step| row.step == step);
        let last = self.evidence.iter().rev().filter(is_of).take(limit);
        let mut found: Vec<_> = last.cloned().collect();
        found.reverse();
        found
    }

    /// Returns a token with its revocation.
    pub(super) fn shown(&self, token: &TokenRow) -> TokenRow {
        TokenRow { revoked_ms: self.revocations.get(&token.jti).copied(), ..token.clone() }
    }

    /// Returns the newest version of a blueprint that has a publisher.
    pub(super) fn last_published(&self, name: &str) -> Option<String> {
        let published = |row: &&BlueprintRow| row.name == name && row.publisher.is_some();
        // The last one of those that were stored in the same millisecond.
        let last = self.blueprints.iter().filter(published).max_by_key(|row| row.created_ms);
        last.map(|row| row.hash.clone())
    }

    /// Returns the first hash with a prefix, and the number of versions that have it.
    pub(super) fn version_like(
        &self,
        name: &str,
        prefix: &str,
        published: bool,
    ) -> Option<(String, u64)> {
        let is_like = |row: &&BlueprintRow| {
            row.name == name
                && row.hash.starts_with(prefix)
                && (!published || row.publisher.is_some())
        };
        let like = || self.blueprints.iter().filter(is_like).map(|row| &row.hash);
        let first = like().min()?;
        Some((first.clone(), like().count() as u64))
    }

    /// Returns the versions of a blueprint, newest first, after one of them.
    pub(super) fn versions_of(
        &self,
        name: &str,
        after: Option<(u64, &str)>,
        limit: usize,
    ) -> Vec<VersionRow> {
        let of_name = self.blueprints.iter().filter(|row| row.name == name);
        let mut found: Vec<_> = of_name
            .filter(|row| after.is_none_or(|after| (row.created_ms, &*row.hash) < after))
            .map(|row| VersionRow {
                hash: row.hash.clone(),
                created_ms: row.created_ms,
                published: row.publisher.is_some(),
            })
            .collect();
        found.sort_by(|a, b| (b.created_ms, &b.hash).cmp(&(a.created_ms, &a.hash)));
        found.truncate(limit);
        found
    }

    /// Returns the largest numbers of durable rows: (run, lsn).
    pub(super) fn high_water(&self) -> (u64, u64) {
        let last = |key: Option<&u64>| key.copied().unwrap_or_default();
        let (run, lsn) = self.most;
        (
            run.max(last(self.headers.keys().next_back())),
            lsn.max(last(self.journal.keys().next_back())),
        )
    }

    fn check(&self, check: &Check) -> Result<(), StoreError> {
        match check {
            Check::TokenLive(jti) if self.revocations.contains_key(jti) => {
                Err(StoreError::Revoked { jti: jti.clone() })
            }
            Check::KeyFree { principal, route, key }
                if self.idempotency.contains_key(&(
                    principal.clone(),
                    route.clone(),
                    key.clone(),
                )) =>
            {
                Err(StoreError::KeyUsed { key: key.clone() })
            }
            Check::RunAt { run, cursor }
                if self.headers.get(run).is_none_or(|header| header.cursor != *cursor) =>
            {
                Err(StoreError::Moved { run: *run })
            }
            Check::MetaIs { key, value } if self.meta.get(key) != value.as_ref() => {
                Err(StoreError::Changed { key: key.clone() })
            }
            Check::TokenLive(_)
            | Check::KeyFree { .. }
            | Check::RunAt { .. }
            | Check::MetaIs { .. } => Ok(()),
        }
    }

    fn append(&mut self, write: &RunWrite) -> Result<(), StoreError> {
        let num = write.header.num;
        let stored = self.headers.get(&num).map(|header| header.cursor);
        if stored != write.expected {
            return Err(StoreError::Moved { run: num });
        }
        match self.headers.entry(num) {
            btree_map::Entry::Occupied(mut header) if !write.whole => {
                let (header, new) = (header.get_mut(), &write.header);
                header.cursor = new.cursor;
                header.seq = new.seq;
                header.steps = new.steps;
                header.steps_done = new.steps_done;
                header.updated_ms = new.updated_ms;
                header.bytes = new.bytes;
            }
            btree_map::Entry::Occupied(mut header) => {
                header.insert(write.header.clone());
            }
            btree_map::Entry::Vacant(place) => {
                place.insert(write.header.clone());
            }
        }
        for row in &write.entries {
            let kept = {
                let JournalRow { before, begins, ref bytes, .. } = *row;
                Row { run: num, before, begins, bytes: bytes.clone() }
            };
            self.journal.insert(row.lsn, kept);
        }
        Ok(())
    }

    fn write(&mut self, write: Write) {
        match write {
            Write::PutSession(row) => {
                self.sessions.insert(row.id.clone(), *row);
            }
            Write::ExtendSession { session, expires_ms } => {
                if let Some(row) = self.sessions.get_mut(&session) {
                    row.expires_ms = row.expires_ms.max(expires_ms);
                }
            }
            Write::CloseSession { session, at_ms, reason } => {
                if let Some(row) =
                    self.sessions.get_mut(&session).filter(|row| row.closed_ms.is_none())
                {
                    row.closed_ms = Some(at_ms);
                    row.reason = Some(reason);
                }
                self.frames.retain(|(of, _), _| *of != session);
                let scope = Scope::Session(session.as_str().into()).to_string();
                let of_session = Some(Lifetime::Session);
                self.delete_states(
                    |row| row.scope == scope && row.hints.lifetime == of_session,
                    usize::MAX,
                );
            }
            Write::ForgetSessions { before_ms, rows } => {
                self.expire(Expiring::Sessions, before_ms, rows);
            }
            Write::PutFrame(frame) => {
                if let Some(row) =
                    self.sessions.get_mut(&frame.session).filter(|row| row.closed_ms.is_none())
                {
                    row.last_seq = row.last_seq.max(frame.seq);
                    self.frames.insert((frame.session.clone(), frame.seq), *frame);
                }
            }
            Write::AckFrames { session, seq } => {
                self.frames.retain(|(of, number), _| *of != session || *number > seq);
                if let Some(row) = self.sessions.get_mut(&session) {
                    row.acked_seq = row.acked_seq.max(seq);
                }
            }
            // Deletions here leave nothing behind.
            Write::Tidy { .. } => {}
            Write::PutTask(task) => {
                self.tasks.insert((task.run, task.step), *task);
            }
            Write::HoldTask(hold) => {
                if let Some(task) = self.tasks.get_mut(&(hold.run, hold.step)) {
                    task.held_as(*hold);
                }
            }
            Write::CloseTask { run, step } => {
                self.tasks.remove(&(run, step));
            }
            Write::CloseTasks { run } => self.tasks.retain(|(of, _), _| *of != run),
            Write::PutState { scope, key, value, hints, expires_ms, at_ms } => {
                self.put_state((scope, key), value, hints, (expires_ms, at_ms));
            }
            Write::DeleteState { scope, key } => self.delete_state(scope, key),
            // Planned before anything of its batch is written.
            Write::ChangeState(_) => {}
            Write::ForgetReceipt { run, step } => {
                self.receipts.remove(&(run, step));
            }
            Write::ExpireState { now_ms, rows } => {
                self.delete_states(|row| !row.is_live(now_ms), rows);
            }
            Write::PutBlob { hash, data } => {
                self.blobs.insert(hash, data);
            }
            Write::PutArtifact(row) => {
                self.artifacts.insert((row.run, row.n), row);
            }
            Write::PublishArtifacts { run, step, attempt } => {
                for row in self.artifacts.values_mut() {
                    row.published |= (row.run, row.step, row.attempt) == (run, step, attempt);
                }
            }
            Write::PutBlueprint(row) => {
                match self.blueprints.iter_mut().find(|known| known.hash == row.hash) {
                    None => self.blueprints.push(row),
                    Some(known) if row.publisher.is_some() => known.publisher = row.publisher,
                    Some(_) => {}
                }
            }
            Write::NameBlueprint { name, hash, at_ms } => {
                self.names.insert(name, (hash, at_ms));
            }
            Write::UnnameBlueprint { name, hash } => {
                if self.names.get(&name).is_some_and(|(named, _)| *named == hash) {
                    self.names.remove(&name);
                }
            }
            Write::DeleteBlueprint { name } => {
                self.names.remove(&name);
                let headers = &self.headers;
                self.blueprints.retain(|row| {
                    row.name != name || headers.values().any(|run| run.hash == row.hash)
                });
            }
            Write::CountRun(counted) => self.stats.add(&counted),
            Write::PutCharge(row) => drop(self.charges.insert(row.run, row)),
            Write::PutToken(row) => self.put_token(row),
            Write::RevokeToken { jti, at_ms } => {
                self.revocations.entry(jti).or_insert(at_ms);
            }
            Write::PutIdempotency(row) => {
                let key = (row.principal.clone(), row.route.clone(), row.key.clone());
                self.idempotency.insert(key, row);
            }
            Write::PutOutbox(row) => {
                if !self.outbox.iter().any(|it| (it.run, it.step) == (row.run, row.step)) {
                    self.outbox.push(row);
                }
            }
            Write::DeleteOutbox { run, step } => {
                self.outbox.retain(|row| (row.run, row.step) != (run, step));
            }
            Write::PutEvidence(row) => {
                let of = |it: &EvidenceRow| (it.run, it.step, it.attempt);
                let others = self.evidence.iter().filter(|it| of(it) == of(&row)).count();
                if others < MOST_EVIDENCE {
                    self.evidence.push(row);
                }
            }
            Write::PutMeta { key, value } => {
                self.meta.insert(key, value);
            }
            Write::ExpireIdempotency { before_ms, rows } => {
                self.expire(Expiring::Answers, before_ms, rows);
            }
            Write::ForgetAnswer { principal, route, key, before_ms } => {
                let key = (principal, route, key);
                if self.idempotency.get(&key).is_some_and(|row| row.created_ms < before_ms) {
                    self.idempotency.remove(&key);
                }
            }
            Write::PutKept { layer, key, value, expires_ms } => {
                self.kept.insert((layer, key), (value, expires_ms));
            }
            Write::RemoveKept { layer, key } => {
                self.kept.remove(&(layer, key));
            }
            Write::ExpireKept { before_ms, rows } => {
                self.expire(Expiring::Kept, before_ms, rows);
            }
            Write::AddAudit(row) => self.audit.push(row),
            Write::Erase(trace) => self.erase(*trace),
            // What is deleted here is gone.
            Write::Rewrite => {}
            Write::ReserveRun { num } => self.most.0 = self.most.0.max(num),
            Write::DeleteRun { run } => self.delete_run(run),
        }
    }

    fn put_token(&mut self, mut row: TokenRow) {
        if let Some(at_ms) = row.revoked_ms.take() {
            self.revocations.entry(row.jti.clone()).or_insert(at_ms);
        }
        match self.tokens.iter_mut().find(|known| known.jti == row.jti) {
            Some(known) => *known = row,
            None => self.tokens.push(row),
        }
    }

    pub(super) fn delete_run(&mut self, run: u64) {
        self.most = self.high_water();
        if let Some(header) = self.headers.remove(&run) {
            self.journal.retain(|_, row| row.run != run);
            let id = RunId::new(run, header.created_ms);
            let (own, operators) = (format!("run:{id}"), format!("operator:{id}:"));
            let of_run = |scope: &str| scope == own || scope.starts_with(&operators);
            self.state.retain(|(scope, _), _| !of_run(scope));
            self.links.retain(|(scope, ..), _| !of_run(scope));
            self.receipts.retain(|(of, _), _| *of != run);
        }
        self.meta.remove(&format!("{UNSTORED}{run}"));
        if let Some(row) = self.charges.remove(&run) {
            let (tokens, nano_usd) = self.charged.entry(row.jti).or_default();
            *tokens += row.tokens;
            *nano_usd += row.nano_usd;
        }
        self.tasks.retain(|(of, _), _| *of != run);
        let (mine, others): (Vec<_>, Vec<_>) =
            self.artifacts.values().partition(|row| row.run == run);
        let orphans: Vec<String> = mine
            .iter()
            .filter(|row| !others.iter().any(|other| other.hash == row.hash))
            .map(|row| row.hash.clone())
            .collect();
        self.blobs.retain(|hash, _| !orphans.contains(hash));
        self.artifacts.retain(|(of, _), _| *of != run);
        self.outbox.retain(|row| row.run != run);
        self.evidence.retain(|row| row.run != run);
    }

    /// Returns the entries of a run with numbers over `after_seq`, oldest first, of all its
    /// histories or only of the current one.
    pub(super) fn entries(
        &self,
        run: u64,
        after_seq: u32,
        all: bool,
    ) -> Result<Vec<Entry>, StoreError> {
        let mut next = self
            .headers
            .get(&run)
            .and_then(|header| (header.seq > after_seq).then_some(header.cursor));
        let mut entries = Vec::new();
        while let Some(lsn) = next {
            let damaged = |reason: String| StoreError::Damaged {
                what: format!("row {lsn} of the journal of run {run}"),
                reason,
            };
            let row = self.journal.get(&lsn).filter(|row| row.run == run);
            let row = row.ok_or_else(|| damaged("it is not there".to_owned()))?;
            let entry =
                Entry::decode(run, &row.bytes).map_err(|error| damaged(error.to_string()))?;
            next = row.before.filter(|_| all || !row.begins);
            if entry.seq <= after_seq {
                break;
            }
            entries.push(entry);
        }
        entries.reverse();
        Ok(entries)
    }
}
