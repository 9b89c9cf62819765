//! The journal of one run as the checker reads it: its own fold, of commits and not of the engine.

use std::collections::BTreeMap;

use crate::{
    journal::{Decision, Entry, Fact, Outcome, RunStarted},
    protocol::StepKind,
    store::{Commit, Write},
};

/// A run, as its commits tell it.
#[derive(Default)]
pub struct Record {
    pub started: Vec<(u64, RunStarted)>,
    pub steps: BTreeMap<u32, Step>,
    pub signals: Vec<Signal>,
    pub decisions: Vec<(u64, u32, Decision)>,
    pub ended: Option<(u64, u32, Outcome)>,
    /// Everything, with the position of its commit.
    pub entries: Vec<(u64, Entry)>,
}

/// A signal that a run received.
pub struct Signal {
    pub position: u64,
    pub name: String,
    pub payload: String,
    pub sender: Option<(u64, u32)>,
}

/// A step of a run.
pub struct Step {
    pub kind: StepKind,
    pub name: String,
    pub request: serde_json::Value,
    pub wake_at_ms: Option<u64>,
    pub round: u32,
    pub attempts: BTreeMap<u32, Attempt>,
    pub ended: Option<StepEnd>,
}

/// The end of a step.
pub struct StepEnd {
    pub position: u64,
    pub seq: u32,
    pub at_ms: u64,
    pub attempt: u32,
    pub outcome: Outcome,
    pub effects: Option<String>,
}

/// One attempt at a step.
#[derive(Default)]
pub struct Attempt {
    pub opened: u32,
    pub delivered: Vec<(u64, String)>,
    /// Where it was closed without ending its step: position, sequence number, why.
    pub closed: Option<(u64, u32, String)>,
    pub retry_at_ms: u64,
}

/// The fold of all commits, by run; `broken` hears of what does not even fold.
pub fn records(commits: &[Commit], broken: &mut dyn FnMut(String)) -> BTreeMap<u64, Record> {
    let mut records: BTreeMap<u64, Record> = BTreeMap::new();
    for commit in commits {
        let Some(run) = commit.run else { continue };
        let record = records.entry(run).or_default();
        for row in &commit.rows {
            match Entry::decode(run, &row.bytes) {
                Ok(entry) => record.add(run, commit.position, entry, broken),
                Err(error) => broken(format!("run {run}: {error}")),
            }
        }
    }
    records
}

impl Record {
    fn add(&mut self, run: u64, position: u64, entry: Entry, broken: &mut dyn FnMut(String)) {
        let seq = entry.seq;
        if let Some((_, last)) = self.entries.last() {
            if last.seq + 1 != seq {
                broken(format!("run {run}: entry {seq} follows entry {}", last.seq));
            }
            if last.at_ms > entry.at_ms {
                broken(format!("run {run}: time goes back at entry {seq}"));
            }
        }
        if self.ended.is_some() {
            broken(format!("run {run}: entry {seq} comes after its end"));
        }
        let round = u32::try_from(self.started.len()).expect("few").saturating_sub(1);
        match &entry.fact {
            Fact::RunStarted(started) => self.started.push((position, (**started).clone())),
            Fact::StepScheduled(step) | Fact::StepRecorded(step, _) => {
                let opened = Attempt { opened: seq, ..Attempt::default() };
                let mut kept = Step {
                    kind: step.kind,
                    name: step.name.clone(),
                    request: step.request.to_value(),
                    wake_at_ms: step.wake_at_ms,
                    round,
                    attempts: BTreeMap::from([(1, opened)]),
                    ended: None,
                };
                if let Fact::StepRecorded(_, outcome) = &entry.fact {
                    kept.ended = Some(StepEnd {
                        position,
                        seq,
                        at_ms: entry.at_ms,
                        attempt: 1,
                        outcome: outcome.clone(),
                        effects: None,
                    });
                }
                if self.steps.insert(step.step, kept).is_some() {
                    broken(format!("run {run}: step {} is decided twice", step.step));
                }
            }
            Fact::AttemptDelivered { step, attempt, worker, .. } => {
                match self.attempt(*step, *attempt) {
                    Some(found) => found.delivered.push((position, worker.clone())),
                    None => broken(format!("run {run}: no attempt {attempt} of step {step}")),
                }
            }
            Fact::AttemptClosed(closed) => match self.attempt(closed.step, closed.attempt) {
                Some(found) if found.closed.is_none() => {
                    found.closed = Some((position, seq, closed.error.to_string()));
                    found.retry_at_ms = closed.retry_at_ms;
                }
                _ => broken(format!("run {run}: entry {seq} closes an attempt that is not open")),
            },
            Fact::AttemptOpened(opened) => {
                let before = self.attempt(opened.step, opened.attempt - 1);
                if before.is_none_or(|it| it.closed.is_none() || it.retry_at_ms > entry.at_ms) {
                    broken(format!("run {run}: entry {seq} opens an attempt too early"));
                }
                if let Some(step) = self.steps.get_mut(&opened.step) {
                    let fresh = Attempt { opened: seq, ..Attempt::default() };
                    step.attempts.insert(opened.attempt, fresh);
                }
            }
            Fact::StepEnded { step, attempt, outcome, effects, .. } => {
                let end = StepEnd {
                    position,
                    seq,
                    at_ms: entry.at_ms,
                    attempt: *attempt,
                    outcome: outcome.clone(),
                    effects: effects.as_ref().map(ToString::to_string),
                };
                match self.steps.get_mut(step) {
                    Some(step) if step.ended.is_none() => step.ended = Some(end),
                    _ => broken(format!("run {run}: entry {seq} ends step {step} once more")),
                }
            }
            Fact::SignalReceived(signal) => self.signals.push(Signal {
                position,
                name: signal.name.clone(),
                payload: signal.payload.to_string(),
                sender: signal.sender,
            }),
            Fact::Noted { .. } | Fact::SecretAccessed { .. } => {}
            Fact::Decided(decision) => self.decisions.push((position, seq, decision.clone())),
            Fact::RunEnded(outcome) => self.ended = Some((position, seq, outcome.clone())),
        }
        self.entries.push((position, entry));
    }

    fn attempt(&mut self, step: u32, attempt: u32) -> Option<&mut Attempt> {
        self.steps.get_mut(&step)?.attempts.get_mut(&attempt)
    }

    /// The sequence number of the first cancel.
    pub fn canceled(&self) -> Option<u32> {
        self.decisions.iter().find_map(|(_, seq, decision)| {
            matches!(decision, Decision::Cancel { .. }).then_some(*seq)
        })
    }

    /// Where the outcome that a body brought stands: the commit's position, and the attempt.
    pub fn accepted(&self, step: u32, body: u32) -> Vec<(u64, u32)> {
        let Some(step) = self.steps.get(&step) else { return Vec::new() };
        let marks = [format!("\"by\":{body}}}"), format!("body {body}.")];
        let has = |text: &str| marks.iter().any(|mark| text.contains(mark.as_str()));
        let mut found = Vec::new();
        for (number, attempt) in &step.attempts {
            if let Some((position, _, why)) = &attempt.closed
                && has(why)
            {
                found.push((*position, *number));
            }
        }
        if let Some(end) = &step.ended {
            let text = match &end.outcome {
                Outcome::Completed(value) => value.to_string(),
                Outcome::Failed(failure) => failure.to_string(),
                Outcome::Canceled(_) => String::new(),
            };
            if has(&text) {
                found.push((end.position, end.attempt));
            }
        }
        found
    }
}

/// Returns true if a commit writes the state that a body brings with it as an effect.
pub fn effect_of(write: &Write) -> Option<u32> {
    let Write::PutState { key, value, .. } = write else { return None };
    if key != "effect" {
        return None;
    }
    let value: serde_json::Value = serde_json::from_str(value).ok()?;
    u32::try_from(value["report"].as_u64()?).ok()
}
