//! The parts of composites and loops in a history.

use std::collections::HashMap;

use crate::{
    engine::run::{
        composite::OpenComposite,
        model_loop::{OpenLoop, RECALL},
    },
    journal::{Decision, Entry, Fact, Outcome, Usage},
    protocol::StepKind,
};

/// The parts that composites and loops of a history began, and their ends.
#[derive(Default)]
pub(crate) struct Members {
    /// The parts by their whole: index, and step number.
    pub(crate) begun: HashMap<u32, Vec<(usize, u32)>>,
    /// The ends of parts, in order.
    pub(crate) ended: Vec<(u32, Outcome)>,
    /// The events of the parts of each loop, in order.
    pub(crate) loops: HashMap<u32, Vec<Event>>,
}

/// An event of a part of a loop.
pub(crate) enum Event {
    Began { place: usize, kind: StepKind, name: String },
    Ended { place: usize, outcome: Outcome, used: Usage },
}

impl Members {
    /// Collects the members of a history and their ends.
    pub(crate) fn of(entries: &[Entry]) -> Self {
        let mut members = Self::default();
        let mut known: HashMap<u32, Known> = HashMap::new();
        for entry in entries {
            match &entry.fact {
                Fact::StepScheduled(step) | Fact::StepRecorded(step, _) => {
                    let (Some(whole), Some((_, _, place))) = (step.whole(), step.key.scope.outer())
                    else {
                        continue;
                    };
                    let used = Usage::default();
                    let index = step.key.index as usize;
                    known.insert(step.step, Known { whole, index, used });
                    members.begun.entry(whole).or_default().push((place as usize, step.step));
                    let (kind, name) = (step.kind, step.name.clone());
                    let began = Event::Began { place: index, kind, name };
                    members.loops.entry(whole).or_default().push(began);
                    if let Fact::StepRecorded(_, outcome) = &entry.fact {
                        members.end(&mut known, step.step, outcome);
                    }
                }
                Fact::StepEnded { step, outcome, usage, .. } if known.contains_key(step) => {
                    uses(&mut known, *step, usage.as_ref());
                    members.end(&mut known, *step, outcome);
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

    pub(crate) fn end(&mut self, known: &mut HashMap<u32, Known>, step: u32, outcome: &Outcome) {
        self.ended.push((step, outcome.clone()));
        let Some(part) = known.get(&step) else { return };
        let (whole, place, used) = (part.whole, part.index, part.used.clone());
        // The usage of a part counts for everything that it is part of.
        uses(known, whole, Some(&used));
        let ended = Event::Ended { place, outcome: outcome.clone(), used };
        self.loops.entry(whole).or_default().push(ended);
    }

    /// Returns true if a loop asked its model without having read a conversation.
    pub(crate) fn asked_without_recall(&self, number: u32) -> bool {
        let began = self.loops.get(&number).into_iter().flatten().find_map(|event| match event {
            Event::Began { kind: StepKind::ModelCall, .. } => Some(true),
            Event::Began { name, .. } if name == RECALL => Some(false),
            _ => None,
        });
        began.unwrap_or_default()
    }

    /// Replays the events of a loop's parts, in their original order.
    pub(crate) fn replay_loop(&self, number: u32, open: &mut OpenLoop) {
        for event in self.loops.get(&number).into_iter().flatten() {
            match event {
                Event::Began { place, kind, name } => open.replay_begin(*place, *kind, name),
                Event::Ended { place, outcome, used } => {
                    open.replay_end(*place, outcome.clone(), used);
                }
            }
        }
    }

    /// Replays the events of a composite's members, in their original order.
    pub(crate) fn replay(&self, number: u32, open: &mut OpenComposite) {
        let Some(begun) = self.begun.get(&number) else { return };
        for (place, _) in begun {
            open.course.begin(*place);
        }
        for (step, outcome) in &self.ended {
            if let Some((place, _)) = begun.iter().find(|(_, member)| member == step) {
                open.course.end(*place, outcome.clone());
            }
        }
    }
}

/// A part of a whole, as read so far.
pub(crate) struct Known {
    pub(crate) whole: u32,
    pub(crate) index: usize,
    pub(crate) used: Usage,
}

pub(crate) fn uses(known: &mut HashMap<u32, Known>, step: u32, usage: Option<&Usage>) {
    if let (Some(part), Some(usage)) = (known.get_mut(&step), usage) {
        part.used.add(usage);
    }
}
