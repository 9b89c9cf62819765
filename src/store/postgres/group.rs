//! Plans a group of batches within its transaction: which are refused, and the statements of the
//! others.

use std::collections::HashMap;

use super::{
    checks::Known,
    failed::Failed,
    place,
    rows::Rows,
    session::{Call, Session},
    state, stats_fold,
    value::{damaged, int, text, uint},
    write,
};
use crate::{
    protocol::RunId,
    store::{
        Answers, Batch, StateBatch, StateRow, Trace, UNSTORED, Write,
        change::{self, Changed, Plan, Planned},
        commit::BatchResult,
    },
};

/// A group whose transaction is open.
pub struct Group<'a> {
    session: &'a Session,
    known: Known,
    rows: Rows<'a>,
    calls: Vec<Call>,
    /// The number of ended runs that are not folded into the sums.
    unfolded: &'a mut u64,
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
    pub fn new(session: &'a Session, known: Known, unfolded: &'a mut u64) -> Self {
        let (rows, calls) = (Rows::default(), Vec::new());
        Self { session, known, rows, calls, unfolded, wrote: false, answers: Vec::new() }
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
            if self.rows.add(write) {
                continue;
            }
            match write {
                Write::ChangeState(changes) => {
                    if let Some(plan) = plans.next().flatten() {
                        self.carry_out(changes, plan);
                    }
                }
                Write::CountRun(counted) => {
                    let body = postcard::to_allocvec(counted).expect("counts are plain data");
                    let add = Call::new("INSERT INTO stats_new (body) VALUES ($1)").with(body);
                    self.calls.push(add);
                    *self.unfolded += 1;
                    if *self.unfolded >= stats_fold::FOLDED {
                        self.flush()?;
                        stats_fold::fold(self.session, counted.ended_ms)?;
                        *self.unfolded = 0;
                    }
                }
                Write::DeleteRun { run } => self.delete_run(*run)?,
                Write::Tidy { rows, .. } => self.tidy(*rows)?,
                Write::Erase(trace) => match &**trace {
                    Trace::Run(run) => {
                        self.delete_run(*run)?;
                        self.calls.push(Call::new("DELETE FROM frames WHERE run = $1").num(*run));
                        self.flush()?;
                        stats_fold::forget_run(self.session, *run)?;
                    }
                    Trace::Sums(name) => {
                        self.flush()?;
                        stats_fold::forget_name(self.session, name)?;
                    }
                    _ => write::statements(write, &mut self.calls),
                },
                write => write::statements(write, &mut self.calls),
            }
        }
        Ok(Ok(()))
    }

    /// Returns the results of the batches, and the statements that are left, or `None` if nothing is to be
    /// written.
    pub fn finish(mut self, verdicts: Vec<BatchResult>) -> (Decided, Option<Vec<Call>>) {
        let mut calls = Vec::new();
        self.rows.take(&mut calls);
        calls.append(&mut self.calls);
        let answers = std::mem::take(&mut self.answers);
        (Decided { verdicts, answers }, self.wrote.then_some(calls))
    }

    /// Sends what was planned so far, so that reads see it.
    fn flush(&mut self) -> Result<(), Failed> {
        let mut calls = Vec::new();
        self.rows.take(&mut calls);
        calls.append(&mut self.calls);
        if calls.is_empty() { Ok(()) } else { self.session.all(&calls).map(drop) }
    }

    /// Plans changes of state, or refuses them. Returns `None` if they were already made.
    fn plan(&mut self, batch: &StateBatch) -> Result<Option<Plan>, Failed> {
        self.flush()?;
        let places: Vec<Vec<u8>> = batch
            .changes
            .iter()
            .map(|change| place::of(&[&change.scope, &change.key]).to_vec())
            .collect();
        let (run, step) = batch.receipt.map_or((-1, -1), |(run, step)| (int(run), i64::from(step)));
        let found = self.session.all(&[
            Call::new("SELECT answer FROM state_receipts WHERE run = $1 AND step = $2")
                .with(run)
                .with(step),
            Call::new(concat!("SELECT ", state::columns!(), " FROM state WHERE place = ANY($1)"))
                .with(places),
        ])?;
        let [receipts, values] = &found[..] else { return Err(Failed::Silent) };
        if let Some(receipt) = receipts.first() {
            // Without the receipt, the step would be applied a second time.
            let answers: Vec<Changed> =
                serde_json::from_str(&text(receipt, 0)?).map_err(|error| {
                    damaged(format!("the answer to step {step} of run {run}"), error)
                })?;
            self.answers.push((batch.answers.clone(), answers));
            return Ok(None);
        }
        let mut known: HashMap<(String, String), Result<StateRow, Failed>> = HashMap::new();
        for row in values {
            let place = (text(row, 0)?, text(row, 1)?);
            known.insert(place, state::read(row));
        }
        change::plan(batch, |scope, key| {
            known.remove(&(scope.to_owned(), key.to_owned())).transpose()
        })
        .map(Some)
    }

    fn carry_out(&mut self, batch: &StateBatch, plan: Plan) {
        let calls = &mut self.calls;
        for write in plan.writes {
            match write {
                Planned::Put { scope, key, value, hints, expires_ms } => calls.push(
                    write::put_state((&scope, &key), &value, &hints, (expires_ms, batch.at_ms)),
                ),
                Planned::Delete { scope, key } => write::delete_state(&scope, &key, calls),
                Planned::Link { scope, from, to, relation, metadata } => calls
                    .push(write::put_link(&scope, (&from, &relation, &to), metadata.as_deref())),
                Planned::Unlink { scope, from, to, relation } => {
                    calls.push(write::delete_link(&scope, (&from, &relation, &to)));
                }
            }
        }
        if let Some((run, step)) = batch.receipt {
            let answer = serde_json::to_string(&plan.answers).expect("answers are plain data");
            calls.push(
                Call::new("INSERT INTO state_receipts (run, step, answer) VALUES ($1, $2, $3)")
                    .num(run)
                    .num(step)
                    .text(&answer),
            );
        }
        self.answers.push((batch.answers.clone(), plan.answers));
    }

    fn delete_run(&mut self, run: u64) -> Result<(), Failed> {
        self.flush()?;
        let found = self.session.one("SELECT created_ms FROM runs WHERE num = $1", &[&int(run)])?;
        if let Some(row) = found {
            let id = RunId::new(run, uint(&row, 0)?).to_string();
            write::delete_run(run, &id, &mut self.calls);
        }
        write::delete_around_run(run, &format!("{UNSTORED}{run}"), &mut self.calls);
        Ok(())
    }

    fn tidy(&mut self, rows: usize) -> Result<(), Failed> {
        self.flush()?;
        let found = self.session.one(
            "SELECT key FROM meta WHERE key >= 'debris:'::bytea AND key < 'debris;'::bytea LIMIT 1",
            &[],
        )?;
        let Some(row) = found.filter(|_| rows > 0) else { return Ok(()) };
        let key = text(&row, 0)?;
        match key[write::DEBRIS.len()..].parse() {
            Ok(run) => write::clear_journal(run, rows, &mut self.calls),
            Err(_) => self.calls.push(Call::new("DELETE FROM meta WHERE key = $1").text(&key)),
        }
        Ok(())
    }
}
