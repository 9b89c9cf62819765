//! The parts of composites and loops in a history.

use std::collections::HashMap;

use crate::{
    journal::{Decision, Entry, Fact, Outcome, StepKey, Usage},
    protocol::StepKind,
};

/// The events of the parts of composites and loops, by their whole, in their original order.
#[derive(Default)]
pub(crate) struct Members(HashMap<u32, Vec<Event>>);

/// An event of a part.
pub(crate) enum Event {
    /// The part has a step.
    Began { key: StepKey, kind: StepKind, name: String },
    /// Its step has ended.
    Ended { key: StepKey, outcome: Outcome, used: Usage, allowed: Option<Vec<String>> },
}

impl Members {
    /// Collects the members of a history and their ends.
    pub(crate) fn of(entries: &[Entry]) -> Self {
        let mut members = Self::default();
        let mut known: HashMap<u32, PartUsage> = HashMap::new();
        for entry in entries {
            match &entry.fact {
                Fact::StepScheduled(step) | Fact::StepRecorded(step, _) => {
                    let Some(whole) = step.whole() else { continue };
                    let used = Usage::default();
                    known.insert(step.step, PartUsage { whole, key: step.key.clone(), used });
                    let (key, kind, name) = (step.key.clone(), step.kind, step.name.clone());
                    members.0.entry(whole).or_default().push(Event::Began { key, kind, name });
                    if let Fact::StepRecorded(_, outcome) = &entry.fact {
                        members.end(&mut known, step.step, outcome, None);
                    }
                }
                Fact::StepEnded { step, outcome, usage, .. } if known.contains_key(step) => {
                    uses(&mut known, *step, usage.as_ref());
                    members.end(&mut known, *step, outcome, entry.additions.allowed());
                }
                Fact::AttemptClosed(closed) => {
                    uses(&mut known, closed.step, closed.usage.as_ref());
                }
                Fact::Decided(Decision::Follow(followed)) => {
                    uses(&mut known, followed.step, followed.usage.as_ref());
                }
                _ => {}
            }
        }
        members
    }

    fn end(
        &mut self,
        known: &mut HashMap<u32, PartUsage>,
        step: u32,
        outcome: &Outcome,
        allowed: Option<Vec<String>>,
    ) {
        let Some(part) = known.get(&step) else { return };
        let (whole, key, used) = (part.whole, part.key.clone(), part.used.clone());
        // The usage of a part counts for everything that it is part of.
        uses(known, whole, Some(&used));
        let ended = Event::Ended { key, outcome: outcome.clone(), used, allowed };
        self.0.entry(whole).or_default().push(ended);
    }

    /// Returns the events of the parts of a whole.
    pub(crate) fn of_whole(&self, number: u32) -> &[Event] {
        self.0.get(&number).map_or(&[], Vec::as_slice)
    }
}

/// A part of a whole, as read so far.
struct PartUsage {
    whole: u32,
    key: StepKey,
    used: Usage,
}

fn uses(known: &mut HashMap<u32, PartUsage>, step: u32, usage: Option<&Usage>) {
    if let (Some(part), Some(usage)) = (known.get_mut(&step), usage) {
        part.used.add(usage);
    }
}
