//! Plans a group of batches within its transaction: which are refused, and the statements of the
//! others.

use std::collections::BTreeMap;

use super::{
    checks::Known,
    failed::Failed,
    idempotency::{self, Claim},
    place, retention,
    rows::Rows,
    session::{Call, Session},
    stats_fold::{self, EndedRuns},
    value::{damaged, int, text, uint},
    values::{self, Place},
    write,
};
use crate::{
    protocol::{RunId, StoreOptions},
    store::{
        Answers, Batch, Check, StateBatch, Trace, UNSTORED, Write,
        change::{self, Changed, Plan, Planned},
        results::BatchResult,
    },
};

/// A group whose transaction is open.
pub struct Group<'a> {
    session: &'a Session,
    known: Known,
    /// The idempotency keys that are taken, by their places.
    claims: BTreeMap<Place, Claim<'a>>,
    /// The statements about values of state, each with its place.
    state: Vec<(Place, Call)>,
    /// Those about links between values.
    links: Vec<Call>,
    rows: Rows<'a>,
    calls: Vec<Call>,
    ended: &'a EndedRuns,
    wrote: bool,
    answers: Vec<(Answers, Vec<Changed>)>,
}

/// The results of a group's batches, if it is committed.
pub struct Decided {
    /// By batch.
    pub verdicts: Vec<BatchResult>,
    answers: Vec<(Answers, Vec<Changed>)>,
}

impl Decided {
    /// Returns the results, now that the group is durable, and gives the answers to changes of state:
    /// not before, because a group that is made again may have others.
    pub fn told(self) -> Vec<BatchResult> {
        for (to, answers) in self.answers {
            to.give(answers);
        }
        self.verdicts
    }
}

impl<'a> Group<'a> {
    /// Begins to plan.
    pub fn new(session: &'a Session, known: Known, ended: &'a EndedRuns) -> Self {
        Self {
            session,
            known,
            claims: BTreeMap::new(),
            state: Vec::new(),
            links: Vec::new(),
            rows: Rows::default(),
            calls: Vec::new(),
            ended,
            wrote: false,
            answers: Vec::new(),
        }
    }

    /// Adds a batch, or refuses it. A refused batch has written nothing.
    ///
    /// # Errors
    /// Fails when the transaction does.
    pub fn add(&mut self, batch: &'a Batch) -> Result<BatchResult, Failed> {
        if let Err(refusal) = self.known.judge(batch) {
            return Ok(Err(refusal));
        }
        let mut plans = Vec::new();
        for write in &batch.writes {
            if let Write::ChangeState(changes) = write {
                match self.plan(changes) {
                    Ok(plan) => plans.push(plan),
                    Err(Failed::Store(refusal)) => return Ok(Err(refusal)),
                    Err(failed) => return Err(failed),
                }
            }
        }
        self.known.accept(batch);
        self.wrote |= batch.run.is_some() || !batch.writes.is_empty();
        if let Some(run) = &batch.run {
            self.rows.add_run(run);
        }
        let mut plans = plans.into_iter();
        for write in &batch.writes {
            if let Write::CountRun(counted) = write {
                self.ended.add(counted.ended_ms);
            }
            if self.rows.add(write) {
                continue;
            }
            match write {
                Write::ChangeState(changes) => {
                    if let Some(plan) = plans.next().flatten() {
                        self.carry_out(changes, plan);
                    }
                }
                Write::PutState { scope, key, value, hints, expires_ms, at_ms } => {
                    self.put_state((scope, key), (value, hints), (*expires_ms, *at_ms), false);
                }
                Write::DeleteState { scope, key } => self.delete_state(scope, key),
                Write::ForgetReceipt { run, step } => {
                    self.known.values.forget((*run, *step));
                    write::statements(write, &mut self.calls);
                }
                Write::PutIdempotency(row) => {
                    let place = place::of(&[&row.principal, &row.route, &row.key]);
                    let is_free = batch.checks.iter().any(|check| {
                        matches!(check, Check::KeyFree { principal, route, key }
                            if place::of(&[principal, route, key]) == place)
                    });
                    self.claims.insert(place, Claim { row, is_free });
                }
                Write::Erase(trace) => match &**trace {
                    Trace::State { scope, key } => self.delete_state(scope, key),
                    Trace::Link { scope, from, relation, to } => {
                        self.links.push(write::delete_link(scope, (from, relation, to)));
                    }
                    Trace::Run(_) | Trace::Sums(_) => self.alone(write)?,
                    _ => write::statements(write, &mut self.calls),
                },
                Write::DeleteRun { .. }
                | Write::Tidy { .. }
                | Write::ExpireState { .. }
                | Write::CloseSession { .. }
                | Write::ExpireIdempotency { .. }
                // Its row is named, but keys are stored before everything else.
                | Write::ForgetAnswer { .. } => self.alone(write)?,
                write => write::statements(write, &mut self.calls),
            }
        }
        Ok(Ok(()))
    }

    /// Sends a write that concerns rows which it does not name: after what was planned before it, and
    /// before what follows.
    fn alone(&mut self, write: &Write) -> Result<(), Failed> {
        self.flush()?;
        match write {
            Write::DeleteRun { run } => self.delete_run(*run)?,
            Write::Tidy { rows, .. } => self.tidy(*rows)?,
            Write::Erase(trace) => match &**trace {
                Trace::Run(run) => {
                    self.delete_run(*run)?;
                    self.calls.push(Call::new("DELETE FROM frames WHERE run = $1").num(*run));
                    self.flush()?;
                    stats_fold::forget_run(self.session, *run)?;
                }
                Trace::Sums(name) => stats_fold::forget_name(self.session, name)?,
                _ => write::statements(write, &mut self.calls),
            },
            write => write::statements(write, &mut self.calls),
        }
        self.known.values.spoil();
        self.flush()
    }

    /// Returns the results of the batches, and the statements that are left, or `None` if nothing is to be
    /// written.
    pub fn finish(mut self, verdicts: Vec<BatchResult>) -> (Decided, Option<Vec<Call>>) {
        let calls = self.take();
        let answers = std::mem::take(&mut self.answers);
        (Decided { verdicts, answers }, self.wrote.then_some(calls))
    }

    /// Returns what was planned so far, in the order in which every lane takes its locks: keys, values,
    /// links, runs, the rest.
    fn take(&mut self) -> Vec<Call> {
        let mut calls = Vec::new();
        idempotency::put(std::mem::take(&mut self.claims), &mut calls);
        let mut state = std::mem::take(&mut self.state);
        state.sort_by_key(|(place, _)| *place);
        calls.extend(state.into_iter().map(|(_, call)| call));
        calls.append(&mut self.links);
        self.rows.take(&mut calls);
        calls.append(&mut self.calls);
        calls
    }

    /// Sends what was planned so far, so that reads see it.
    fn flush(&mut self) -> Result<(), Failed> {
        let calls = self.take();
        if calls.is_empty() { Ok(()) } else { self.session.all(&calls).map(drop) }
    }

    /// Plans changes of state, or refuses them. Returns `None` if they were already made.
    fn plan(&mut self, batch: &StateBatch) -> Result<Option<Plan>, Failed> {
        if self.known.values.is_spoiled() {
            self.flush()?;
            let places: Vec<_> = values::of_batch(batch).map(|place| place.to_vec()).collect();
            let found = self.session.all(&[Call::new(values::LOCKED).with(places)])?;
            found.iter().flatten().try_for_each(|row| self.known.values.add(row))?;
            if let Some((run, step)) = batch.receipt {
                let sql =
                    "SELECT run, step, answer FROM state_receipts WHERE run = $1 AND step = $2";
                let found = self.session.one(sql, &[&int(run), &i64::from(step)])?;
                found.iter().try_for_each(|row| self.known.values.add_receipt(row))?;
            }
        }
        let values = &self.known.values;
        if let Some((run, step)) = batch.receipt
            && let Some(answer) = values.receipt((run, step))
        {
            // Without the receipt, the step would be applied a second time.
            let answers: Vec<Changed> = serde_json::from_str(answer).map_err(|error| {
                damaged(format!("the answer to step {step} of run {run}"), error)
            })?;
            self.answers.push((batch.answers.clone(), answers));
            return Ok(None);
        }
        change::plan(batch, |scope, key| values.get(scope, key).map_err(Failed::Store)).map(Some)
    }

    fn carry_out(&mut self, batch: &StateBatch, plan: Plan) {
        for write in plan.writes {
            match write {
                Planned::Put { scope, key, value, hints, expires_ms } => {
                    let times = (expires_ms, batch.at_ms);
                    self.put_state((&scope, &key), (&value, &hints), times, true);
                }
                Planned::Delete { scope, key } => self.delete_state(&scope, &key),
                Planned::Link { scope, from, to, relation, metadata } => self
                    .links
                    .push(write::put_link(&scope, (&from, &relation, &to), metadata.as_deref())),
                Planned::Unlink { scope, from, to, relation } => {
                    self.links.push(write::delete_link(&scope, (&from, &relation, &to)));
                }
            }
        }
        if let Some((run, step)) = batch.receipt {
            let answer = serde_json::to_string(&plan.answers).expect("answers are plain data");
            self.calls.push(
                Call::new("INSERT INTO state_receipts (run, step, answer) VALUES ($1, $2, $3)")
                    .num(run)
                    .num(step)
                    .text(&answer),
            );
            self.known.values.answer((run, step), answer);
        }
        self.answers.push((batch.answers.clone(), plan.answers));
    }

    /// Replaces a value. `is_planned` is true if the new one was computed from the old one, or from
    /// there being none.
    fn put_state(
        &mut self,
        at: (&str, &str),
        (value, hints): (&str, &StoreOptions),
        times: (Option<u64>, u64),
        is_planned: bool,
    ) {
        let place = place::of(&[at.0, at.1]);
        let is_new = is_planned && !self.known.values.has(&place);
        let call = write::put_state(at, value, hints, times, is_new);
        self.state.push((place, call));
        self.known.values.put(at, (value, hints), times);
    }

    fn delete_state(&mut self, scope: &str, key: &str) {
        self.state.push((place::of(&[scope, key]), write::delete_state(scope, key)));
        self.links.extend(write::delete_links_of(scope, key));
        self.known.values.delete(scope, key);
    }

    fn delete_run(&mut self, run: u64) -> Result<(), Failed> {
        let found = self.session.one("SELECT created_ms FROM runs WHERE num = $1", &[&int(run)])?;
        if let Some(row) = found {
            let id = RunId::new(run, uint(&row, 0)?).to_string();
            retention::delete_run(run, &id, &mut self.calls);
        }
        retention::delete_around_run(run, &format!("{UNSTORED}{run}"), &mut self.calls);
        Ok(())
    }

    fn tidy(&mut self, rows: usize) -> Result<(), Failed> {
        let found = self.session.one(
            "SELECT key FROM meta WHERE key >= 'debris:'::bytea AND key < 'debris;'::bytea LIMIT 1",
            &[],
        )?;
        let Some(row) = found.filter(|_| rows > 0) else { return Ok(()) };
        let key = text(&row, 0)?;
        match key[retention::DEBRIS.len()..].parse() {
            Ok(run) => retention::clear(run, rows, &mut self.calls),
            Err(_) => self.calls.push(Call::new("DELETE FROM meta WHERE key = $1").text(&key)),
        }
        Ok(())
    }
}
