//! Checks the outcomes of the steps of flows: their effects, timers, signals and outputs.

use std::collections::{BTreeMap, BTreeSet};

use super::Judge;
use crate::{
    engine::tests::simulation::{
        blueprint::{FAILED, SHARED},
        history::What,
        record::{Record, Step, effect_of},
    },
    journal::{Decision, Outcome},
    protocol::StepKind,
    store::Write,
};

impl Judge<'_> {
    /// An effect is written with the result that it came with, once, and with nothing else.
    pub(super) fn effects(&mut self) {
        let mut found = Vec::new();
        let mut seen = BTreeSet::new();
        for commit in self.case.commits {
            for body in commit.writes.iter().filter_map(effect_of) {
                let ends = self.runs.values().flat_map(|record| record.steps.values());
                let with = ends.filter_map(|step| step.ended.as_ref()).any(|end| {
                    end.position == commit.position
                        && end.effects.is_some()
                        && matches!(&end.outcome, Outcome::Completed(value)
                            if value.to_string().contains(&format!("\"by\":{body}}}")))
                });
                if !with {
                    found.push(format!(
                        "body {body} in commit {} without its result",
                        commit.position
                    ));
                }
                if !seen.insert(body) {
                    found.push(format!("body {body} in commit {} once more", commit.position));
                }
            }
        }
        for record in self.runs.values() {
            for step in record.steps.values() {
                let Some(end) = &step.ended else { continue };
                let Outcome::Completed(value) = &end.outcome else { continue };
                if let Some(body) = value.to_value()["by"].as_u64()
                    && body.is_multiple_of(2)
                    && step.name != "human"
                    && !seen.contains(&u32::try_from(body).expect("it is small"))
                {
                    found.push(format!("body {body} was accepted and its effect is missing"));
                }
            }
        }
        for what in found {
            self.say("effects come with the accepted result", what);
        }
    }

    /// No timer fires early, and none that is due is forgotten where the host came to rest.
    pub(super) fn timers(&mut self) {
        let quiet = self.case.events.iter().rev().find(|event| event.what == What::Quiet);
        let quiet = quiet.map(|event| (event.position, event.at_ms));
        let mut found = Vec::new();
        for (run, record) in &self.runs {
            for (number, step) in &record.steps {
                let Some(wake) = step.wake_at_ms else { continue };
                let waits = matches!(step.kind, StepKind::Timer | StepKind::Signal);
                let fired = step.ended.as_ref().filter(|end| match &end.outcome {
                    Outcome::Completed(value) => {
                        step.kind == StepKind::Timer || value.to_string().contains("timeout")
                    }
                    Outcome::Failed(_) | Outcome::Canceled(_) => false,
                });
                if waits && fired.is_some_and(|end| end.at_ms < wake) {
                    found.push(format!(
                        "run {run} step {number} was due at {wake} and fired before"
                    ));
                }
                let Some((position, now)) = quiet else { continue };
                let open = step.ended.as_ref().is_none_or(|end| end.position > position);
                let decided = self.entry_at(record, step) <= position;
                if waits && open && decided && wake <= now && !is_paused(record, position) {
                    found.push(format!(
                        "run {run} step {number} was due at {wake} and had not fired at {now}"
                    ));
                }
            }
        }
        for what in found {
            self.say("timers fire, and none early", what);
        }
    }

    /// The position of the commit that decided a step.
    fn entry_at(&self, record: &Record, step: &Step) -> u64 {
        let seq = step.attempts.get(&1).map_or(0, |attempt| attempt.opened);
        record.entries.iter().find(|(_, entry)| entry.seq == seq).map_or(u64::MAX, |(at, _)| *at)
    }

    /// A replay after a crash came to what was: the engine let no run rest by itself.
    pub(super) fn replays(&mut self) {
        let mut found = Vec::new();
        for (run, record) in &self.runs {
            for (_, seq, decision) in &record.decisions {
                if let Decision::Pause { by, reason } = decision
                    && by == "engine"
                {
                    found.push(format!("run {run} rests by entry {seq}: {reason}"));
                }
            }
        }
        for what in found {
            self.say("a replay comes to what was", what);
        }
    }

    /// A run's end is what its flow says, or a cancel.
    pub(super) fn outputs(&mut self) {
        let mut found = Vec::new();
        for (run, record) in &self.runs {
            let Some((_, _, outcome)) = &record.ended else { continue };
            let blueprint = record.started.first().map(|(_, started)| started.blueprint.as_str());
            match outcome {
                Outcome::Failed(failure) => found.push(format!("run {run} failed: {failure}")),
                Outcome::Canceled(_) if record.canceled().is_none() => {
                    found.push(format!("run {run} is canceled and nobody canceled it"));
                }
                Outcome::Canceled(_) => {}
                Outcome::Completed(_) if record.canceled().is_some() => {
                    found.push(format!("run {run} was canceled and completed"));
                }
                Outcome::Completed(output) if blueprint == Some("main") => {
                    let expected = self.case.flow.value(&|round, id| leaf(record, round, id));
                    let got = output.to_value()["total"].as_i64();
                    if expected.is_none() || expected != got {
                        found
                            .push(format!("run {run} came to {got:?}; its steps say {expected:?}"));
                    }
                }
                Outcome::Completed(output) => {
                    if output.to_value()["v"] != 9 {
                        found.push(format!("run {run} came to {output}"));
                    }
                }
            }
            let counted = record.steps.values().filter(|step| {
                step.kind == StepKind::State && step.request.to_string().contains("count")
            });
            let counted = counted.count();
            let written = self.case.commits.iter().filter(|commit| commit.run == Some(*run));
            let written =
                written.flat_map(|commit| &commit.writes).filter_map(|write| match write {
                    Write::PutState { key, value, .. } if key == "count" => {
                        value.parse::<usize>().ok()
                    }
                    _ => None,
                });
            let written: Vec<usize> = written.collect();
            if written != (1..=counted).collect::<Vec<_>>() {
                found.push(format!("run {run} counted {written:?} in {counted} steps"));
            }
        }
        for what in found {
            self.say("an output is what its flow says", what);
        }
    }

    /// A change of the state that runs share is made once, and its step has the answer.
    pub(super) fn shares(&mut self) {
        let mut found = Vec::new();
        let sums: BTreeMap<_, _> = self.case.shared.iter().cloned().collect();
        let is_one = |sum: &str| sum.parse::<f64>().is_ok_and(|sum| sum == 1.0);
        for (key, sum) in sums.iter().filter(|(_, sum)| !is_one(sum)) {
            found.push(format!("{key} was added to once, and is {sum}"));
        }
        for (run, record) in &self.runs {
            for (number, step) in &record.steps {
                let key = step.request["key"].as_str().filter(|key| key.starts_with(SHARED));
                let outcome = step.ended.as_ref().map(|end| &end.outcome);
                let (Some(key), Some(Outcome::Completed(value))) = (key, outcome) else { continue };
                if !is_one(value.as_str()) || !sums.contains_key(key) {
                    found.push(format!("run {run} step {number}: {key} was answered with {value}"));
                }
            }
        }
        for what in found {
            self.say("a change is made once", what);
        }
    }

    /// Signals arrive once and in their order; what a run sent to a living one arrived.
    pub(super) fn signals(&mut self) {
        let mut found = Vec::new();
        for (run, record) in &self.runs {
            let mut senders = BTreeSet::new();
            for signal in &record.signals {
                if let Some(sender) = signal.sender
                    && !senders.insert(sender)
                {
                    found.push(format!("run {run} received the signal of {sender:?} twice"));
                }
            }
            let mut ends: Vec<_> = record
                .steps
                .values()
                .filter(|step| step.kind == StepKind::Signal && step.name == "go")
                .filter_map(|step| step.ended.as_ref())
                .filter_map(|end| match &end.outcome {
                    Outcome::Completed(value) => {
                        Some((end.seq, value.to_value().get("payload")?.to_string()))
                    }
                    Outcome::Failed(_) | Outcome::Canceled(_) => None,
                })
                .collect();
            ends.sort();
            let given: Vec<_> = ends.into_iter().map(|(_, payload)| payload).collect();
            let received: Vec<_> =
                record.signals.iter().filter(|it| it.name == "go").map(|it| &it.payload).collect();
            let same = given.iter().zip(&received).all(|(a, b)| same_json(a, b));
            if given.len() > received.len() || !same {
                found.push(format!("run {run} received {received:?} and was given {given:?}"));
            }
        }
        for (position, write) in self.writes(u64::MAX) {
            let Write::PutOutbox(row) = write else { continue };
            let Some(to) = self.runs.get(&row.to) else { continue };
            let arrived = to.signals.iter().any(|it| it.sender == Some((row.run, row.step)));
            if !arrived && to.ended.is_none() {
                found.push(format!(
                    "run {} sent {row:?} in commit {position}, and it is gone",
                    row.run
                ));
            }
        }
        for what in found {
            self.say("signals arrive once and in order", what);
        }
    }

    /// Never are more attempts of an agent given out than it allows.
    pub(super) fn places(&mut self) {
        let mut taken: BTreeSet<(u64, u32)> = BTreeSet::new();
        let mut found = Vec::new();
        for (position, write) in self.writes(u64::MAX) {
            match write {
                Write::PutTask(task) if task.agent == "one" => {
                    taken.insert((task.run, task.step));
                }
                Write::CloseTask { run, step } => {
                    taken.remove(&(*run, *step));
                }
                Write::CloseTasks { run } => taken.retain(|(of, _)| of != run),
                _ => {}
            }
            if taken.len() > 1 {
                found.push(format!("{taken:?} hold the one place at commit {position}"));
                taken.pop_first();
            }
        }
        for what in found {
            self.say("no more at once than allowed", what);
        }
    }
}

/// Returns true if a run rests at a position.
fn is_paused(record: &Record, position: u64) -> bool {
    let last = record.decisions.iter().rev().find(|(at, _, decision)| {
        *at <= position && matches!(decision, Decision::Pause { .. } | Decision::Resume { .. })
    });
    last.is_some_and(|(_, _, decision)| matches!(decision, Decision::Pause { .. }))
}

/// The recorded value of a leaf of the flow.
fn leaf(record: &Record, round: u32, id: &str) -> Option<i64> {
    let step = record.steps.values().find(|step| {
        step.round == round
            && matches!(step.kind, StepKind::Task | StepKind::Child)
            && step.request["id"] == id
    })?;
    match &step.ended.as_ref()?.outcome {
        Outcome::Completed(value) => value.to_value()["v"].as_i64(),
        Outcome::Failed(_) => Some(FAILED),
        Outcome::Canceled(_) => None,
    }
}

fn same_json(a: &str, b: &str) -> bool {
    let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).ok();
    parse(a) == parse(b)
}
