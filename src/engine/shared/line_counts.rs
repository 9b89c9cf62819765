//! The steps of a run, counted by the line of the source that scheduled them.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use crate::{
    journal::{Additions, Entry, Fact, LINE, Outcome, Scheduled},
    protocol::StepKind,
};

/// The maximum number of lines, kinds and names that are told apart. Steps of a line with more names
/// are counted without their names.
const ACTS: usize = 4_096;
/// The size of an act and of an open step, in places.
const OF_ACT: usize = 16;
const OF_OPEN: usize = 4;

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

impl LineSteps {
    /// Adds the steps of another place.
    pub(crate) fn add(&mut self, more: &Self) {
        let newer = match (self.open > 0, more.open > 0) {
            (true, false) => false,
            (false, true) => true,
            _ => more.latest > self.latest,
        };
        if newer {
            self.latest = more.latest;
        }
        self.steps += more.steps;
        self.open += more.open;
        self.failed += more.failed;
        self.canceled += more.canceled;
        self.ended_ms += more.ended_ms;
    }

    fn end(&mut self, outcome: &Outcome, took_ms: u64) {
        self.ended_ms += took_ms;
        match outcome {
            Outcome::Completed(_) => {}
            Outcome::Failed(_) => self.failed += 1,
            Outcome::Canceled(_) => self.canceled += 1,
        }
    }
}

/// The marked lines by file and number.
pub type Lines = BTreeMap<(String, u32), LineSteps>;

/// One of the things that a line does: a line may run several agents.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LineAct {
    /// The file.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The kind of the steps, as in APIs.
    pub kind: &'static str,
    /// The name of the steps; empty if the run has too many of them.
    pub name: String,
}

/// The steps of a run by what scheduled them.
pub type LineActs = BTreeMap<LineAct, LineSteps>;

/// The counts of one run's current history. Entries are added in their order.
#[derive(Debug, Default)]
pub(crate) struct LineCounts {
    /// The counts; `latest` is the latest step, open or not.
    acts: BTreeMap<Arc<LineAct>, LineSteps>,
    /// The open steps, each with its act and the time at which it was scheduled.
    open: HashMap<u32, (Arc<LineAct>, u64)>,
}

impl LineCounts {
    /// Counts an entry.
    pub(crate) fn add(&mut self, entry: &Entry) {
        match &entry.fact {
            Fact::StepScheduled(step) => {
                if let Some(act) = self.of_step(&entry.additions, step)
                    && let Some(counts) = self.acts.get_mut(&act)
                {
                    counts.open += 1;
                    self.open.insert(step.step, (act, entry.at_ms));
                }
            }
            Fact::StepRecorded(step, outcome) => {
                if let Some(act) = self.of_step(&entry.additions, step)
                    && let Some(counts) = self.acts.get_mut(&act)
                {
                    counts.end(outcome, 0);
                }
            }
            Fact::StepEnded { step, outcome, .. } => {
                if let Some((act, from_ms)) = self.open.remove(step)
                    && let Some(counts) = self.acts.get_mut(&act)
                {
                    counts.open -= 1;
                    counts.end(outcome, entry.at_ms.saturating_sub(from_ms));
                }
            }
            _ => {}
        }
    }

    /// Counts a step where it was scheduled, if that is known.
    fn of_step(&mut self, additions: &Additions, step: &Scheduled) -> Option<Arc<LineAct>> {
        let (file, line) = split(&additions.text(LINE)?)?;
        let kind = StepKind::as_str(step.kind);
        let mut act = LineAct { file, line, kind, name: step.name.clone() };
        if self.acts.len() >= ACTS && !self.acts.contains_key(&act) {
            act.name.clear();
        }
        let act = match self.acts.get_key_value(&act) {
            Some((known, _)) => Arc::clone(known),
            None => Arc::new(act),
        };
        let counts = self.acts.entry(Arc::clone(&act)).or_default();
        counts.steps += 1;
        counts.latest = step.step;
        Some(act)
    }

    /// Returns the counts, apart for each kind and name of steps.
    pub(crate) fn by_act(&self) -> LineActs {
        // A step that is still open is of more interest than one that was scheduled after it.
        let mut waits: HashMap<&LineAct, u32> = HashMap::new();
        for (step, (act, _)) in &self.open {
            let latest = waits.entry(act).or_default();
            *latest = (*latest).max(*step);
        }
        let shown = |(act, counts): (&Arc<LineAct>, &LineSteps)| {
            let latest = waits.get(&**act).copied().unwrap_or(counts.latest);
            (LineAct::clone(act), LineSteps { latest, ..counts.clone() })
        };
        self.acts.iter().map(shown).collect()
    }

    /// Returns the counts by line.
    pub(crate) fn by_line(&self) -> Lines {
        let mut lines = Lines::new();
        for (act, counts) in self.by_act() {
            lines.entry((act.file, act.line)).or_default().add(&counts);
        }
        lines
    }

    /// Returns the memory that the counts take, in places.
    pub(crate) fn size(&self) -> usize {
        self.acts.len() * OF_ACT + self.open.len() * OF_OPEN
    }
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
        journal::{ScopePath, StepKey},
        protocol::{Failure, Json},
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
        let mut counts = LineCounts::default();
        entries.iter().for_each(|entry| counts.add(entry));
        let lines = counts.by_line();
        let one = LineSteps { steps: 3, open: 1, failed: 1, canceled: 1, ended_ms: 300, latest: 1 };
        assert_eq!(lines, Lines::from([(("lib/a.luau".to_owned(), 3), one.clone())]));
        let act = LineAct { file: "lib/a.luau".into(), line: 3, kind: "task", name: "e".into() };
        assert_eq!(counts.by_act(), LineActs::from([(act, one)]));
    }

    #[test]
    fn steps_with_very_many_names_are_counted_without_them() {
        let mut counts = LineCounts::default();
        let most = u32::try_from(ACTS).unwrap();
        for n in 1..=most + 10 {
            let mut step = scheduled(n);
            step.name = format!("e{n}");
            counts.add(&entry(n, Some("a.lua:1"), Fact::StepScheduled(step)));
        }
        let acts = counts.by_act();
        assert_eq!(acts.len(), ACTS + 1);
        assert_eq!(acts.values().next().map(|it| (it.steps, it.latest)), Some((10, most + 10)));
        assert_eq!(counts.by_line()[&("a.lua".to_owned(), 1)].steps, most + 10);
    }
}
