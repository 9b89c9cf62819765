//! The lines of a blueprint's source that scheduled the steps of a run.

use std::collections::{BTreeMap, HashMap};

use crate::{
    engine::{Caller, Engine, EngineError},
    journal::{Additions, Entry, Fact, LINE, Outcome, Scheduled},
    protocol::{RunId, StepKind},
    token::Verb,
};

/// The steps that a line scheduled.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LineSteps {
    /// The number of all.
    pub steps: u32,
    /// The number of open ones: the run waits here.
    pub open: u32,
    /// The number of failed ones.
    pub failed: u32,
    /// The number of canceled ones.
    pub canceled: u32,
    /// The sum of the durations of those that ended, in milliseconds.
    pub ended_ms: u64,
    /// The number of the latest step that is open or, without one, of the latest step.
    pub latest: u32,
}

/// The marked lines by file and number.
pub type Lines = BTreeMap<(String, u32), LineSteps>;

/// One of the things that a line does: a line may run several agents.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LineAct {
    /// The file.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The kind of the steps, as in APIs.
    pub kind: &'static str,
    /// The name of the steps.
    pub name: String,
}

/// The steps of a run by what scheduled them.
pub type LineActs = BTreeMap<LineAct, LineSteps>;

impl Engine {
    /// Returns the lines that scheduled the steps of a run's current history.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or there is no such run.
    pub async fn lines(&self, caller: &Caller, run: RunId) -> Result<Lines, EngineError> {
        caller.may(Verb::RunRead, run)?;
        self.header(run).await?;
        self.read(move |store| Ok(by_line(&store.entries(run.num(), 0)?))).await
    }

    /// Returns the lines that scheduled the steps of a run's current history, apart for each kind and
    /// name of steps.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or there is no such run.
    pub async fn line_acts(&self, caller: &Caller, run: RunId) -> Result<LineActs, EngineError> {
        caller.may(Verb::RunRead, run)?;
        self.header(run).await?;
        self.read(move |store| Ok(by_act(&store.entries(run.num(), 0)?))).await
    }
}

fn by_line(entries: &[Entry]) -> Lines {
    counted(entries, |additions, _| line_of(additions))
}

fn by_act(entries: &[Entry]) -> LineActs {
    counted(entries, |additions, step| {
        let (file, line) = line_of(additions)?;
        let kind = StepKind::as_str(step.kind);
        Some(LineAct { file, line, kind, name: step.name.clone() })
    })
}

/// Counts the steps of each key.
fn counted<K: Ord + Clone>(
    entries: &[Entry],
    key: impl Fn(&Additions, &Scheduled) -> Option<K>,
) -> BTreeMap<K, LineSteps> {
    let mut lines: BTreeMap<K, LineSteps> = BTreeMap::new();
    let mut open: HashMap<u32, (K, u64)> = HashMap::new();
    for entry in entries {
        match &entry.fact {
            Fact::RunStarted(_) => {
                lines.clear();
                open.clear();
            }
            Fact::StepScheduled(step) => {
                if let Some(line) = key(&entry.additions, step) {
                    let counts = lines.entry(line.clone()).or_default();
                    counts.steps += 1;
                    counts.open += 1;
                    counts.latest = step.step;
                    open.insert(step.step, (line, entry.at_ms));
                }
            }
            Fact::StepRecorded(step, outcome) => {
                if let Some(line) = key(&entry.additions, step) {
                    let counts = lines.entry(line).or_default();
                    counts.steps += 1;
                    if counts.open == 0 {
                        counts.latest = step.step;
                    }
                    end(counts, outcome, 0);
                }
            }
            Fact::StepEnded { step, outcome, .. } => {
                if let Some((line, from_ms)) = open.remove(step)
                    && let Some(counts) = lines.get_mut(&line)
                {
                    counts.open -= 1;
                    end(counts, outcome, entry.at_ms.saturating_sub(from_ms));
                }
            }
            _ => {}
        }
    }
    // A step that is still open is of more interest than one that was scheduled after it.
    let mut waits: Vec<_> = open.into_iter().collect();
    waits.sort_unstable_by_key(|(step, _)| *step);
    for (step, (line, _)) in waits {
        if let Some(counts) = lines.get_mut(&line) {
            counts.latest = step;
        }
    }
    lines
}

fn end(counts: &mut LineSteps, outcome: &Outcome, took_ms: u64) {
    counts.ended_ms += took_ms;
    match outcome {
        Outcome::Completed(_) => {}
        Outcome::Failed(_) => counts.failed += 1,
        Outcome::Canceled(_) => counts.canceled += 1,
    }
}

fn line_of(additions: &Additions) -> Option<(String, u32)> {
    split(&additions.text(LINE)?)
}

/// Returns the parts of `file:line`.
fn split(place: &str) -> Option<(String, u32)> {
    let (file, line) = place.rsplit_once(':')?;
    Some((file.to_owned(), line.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        journal::{Scheduled, ScopePath, StepKey},
        protocol::{Failure, Json, StepKind},
    };

    fn scheduled(step: u32) -> Box<Scheduled> {
        Box::new(Scheduled {
            step,
            key: StepKey::new(ScopePath::main(), step),
            prev: None,
            parent: None,
            kind: StepKind::Task,
            name: "e".into(),
            call_id: None,
            request: Json::null(),
            fingerprint: 1,
            attempt: 1,
            epoch: 1,
            seat_epoch: 0,
            wake_at_ms: None,
            summary: None,
        })
    }

    fn entry(seq: u32, line: Option<&str>, fact: Fact) -> Entry {
        let mut entry = Entry::new(seq, u64::from(seq) * 100, fact);
        if let Some(line) = line {
            entry.additions.put(LINE, Json::encode(&line).unwrap());
        }
        entry
    }

    fn ended(step: u32, outcome: Outcome) -> Fact {
        Fact::StepEnded { step, attempt: 1, epoch: 1, outcome, effects: None, usage: None }
    }

    #[test]
    fn steps_are_counted_at_their_lines_and_those_of_an_older_release_at_none() {
        let failed = Outcome::Failed(Failure::new("worker", "no"));
        let entries = [
            entry(1, Some("lib/a.luau:3"), Fact::StepScheduled(scheduled(1))),
            entry(2, Some("lib/a.luau:3"), Fact::StepScheduled(scheduled(2))),
            entry(3, Some("lib/a.luau:3"), Fact::StepRecorded(scheduled(3), failed)),
            entry(4, None, Fact::StepScheduled(scheduled(4))),
            entry(5, None, ended(2, Outcome::Canceled("x".into()))),
            entry(6, None, ended(4, Outcome::Completed(Json::null()))),
        ];
        let lines = by_line(&entries);
        let one = LineSteps { steps: 3, open: 1, failed: 1, canceled: 1, ended_ms: 300, latest: 1 };
        assert_eq!(lines, Lines::from([(("lib/a.luau".to_owned(), 3), one.clone())]));
        let act = LineAct { file: "lib/a.luau".into(), line: 3, kind: "task", name: "e".into() };
        assert_eq!(by_act(&entries), LineActs::from([(act, one)]));
    }
}
