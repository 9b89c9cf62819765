//! The last step of a run as the answer of an operator, with what the host itself knows of it.
//!
//! | in the history | in the metadata of the answer |
//! |---|---|
//! | a delegate, a handoff | a record with the name of the operator |
//! | a tool call of a model, a member of a composite | a record with its name |
//! | a model call | a turn |
//! | the time from start to end | the duration, where the operator gave none |

use std::collections::BTreeMap;

use crate::{
    journal::{Decision, Entry, Fact, Outcome, Scheduled, Usage},
    middleware::answer_of,
    protocol::{DurationMs, Effect, Json, OperatorOutput, StepKind, SubDispatchRecord},
    store::{Store, StoreError, read_in_pages},
};

/// The last step of a run, as its history has it.
#[derive(Default)]
pub(crate) struct LastStep {
    /// Its reported usage.
    pub(crate) usage: Option<Usage>,
    /// The effects that were applied with its result.
    pub(crate) effects: Option<Json>,
    /// The operators and tools that the host called for it, in order.
    records: Vec<SubDispatchRecord>,
    turns: u32,
    duration: DurationMs,
}

/// A step of the history.
struct Known {
    scheduled: Scheduled,
    from_ms: u64,
    /// Its end, and true if it completed.
    end: Option<(u64, bool)>,
}

/// What is known of a history of which a part was read.
#[derive(Default)]
struct History {
    steps: BTreeMap<u32, Known>,
    /// Whom each step was passed on to: the operator, and when.
    passed: Vec<(u32, String, u64)>,
    last: Option<(u32, Option<Usage>, Option<Json>)>,
    used: Usage,
}

impl History {
    fn add(&mut self, Entry { fact, at_ms, .. }: &Entry) {
        match fact {
            Fact::StepScheduled(step) => self.schedule(step, *at_ms, None),
            Fact::StepRecorded(step, outcome) => {
                self.schedule(step, *at_ms, Some((*at_ms, is_completed(outcome))));
            }
            Fact::StepEnded { step, outcome, usage, effects, .. } => {
                if let Some(known) = self.steps.get_mut(step) {
                    known.end = Some((*at_ms, is_completed(outcome)));
                }
                if let Some(usage) = usage {
                    self.used.add(usage);
                }
                self.last = Some((*step, usage.clone(), effects.clone()));
            }
            Fact::Decided(Decision::Follow(followed)) => {
                let to = match followed.why.as_str() {
                    DELEGATE | HANDOFF => followed.operator.clone(),
                    _ => String::new(),
                };
                self.passed.push((followed.step, to, *at_ms));
            }
            _ => {}
        }
    }

    fn schedule(&mut self, step: &Scheduled, from_ms: u64, end: Option<(u64, bool)>) {
        // A history can have many large requests.
        let scheduled = Scheduled { request: Json::null(), ..step.clone() };
        self.steps.insert(step.step, Known { scheduled, from_ms, end });
    }
}

impl LastStep {
    /// Reads a history, a page at a time.
    ///
    /// # Errors
    /// Fails when the history cannot be read.
    pub(crate) fn read(store: &dyn Store, run: u64) -> Result<Self, StoreError> {
        let mut history = History::default();
        read_in_pages(store, run, 0, |entry| history.add(entry))?;
        Ok(Self::of(history))
    }

    fn of(History { steps, passed, last, used }: History) -> Self {
        let Some((step, usage, effects)) = last else { return Self::default() };
        let own = steps.get(&step);
        let (end_ms, completed) = own.and_then(|it| it.end).unwrap_or_default();
        let passed: Vec<_> = passed.into_iter().filter(|(of, ..)| *of == step).collect();
        let mut records: Vec<(u64, SubDispatchRecord)> = Vec::new();
        for (place, (_, to, from_ms)) in passed.iter().enumerate() {
            // Whoever it was passed on to next had its result: it had succeeded.
            let (until, success) = match passed.get(place + 1) {
                Some((.., next_ms)) => (*next_ms, true),
                None => (end_ms, completed),
            };
            if !to.is_empty() {
                let took = DurationMs::from_millis(until.saturating_sub(*from_ms));
                records.push((*from_ms, SubDispatchRecord::new(to.clone(), took, success)));
            }
        }
        let parts: Vec<&Known> =
            steps.values().filter(|it| it.scheduled.parent == Some(step)).collect();
        for part in &parts {
            let (end_ms, success) = part.end.unwrap_or((part.from_ms, false));
            let took = DurationMs::from_millis(end_ms.saturating_sub(part.from_ms));
            let name = match part.scheduled.kind {
                StepKind::ToolCall => &part.scheduled.name,
                // A member of a composite is known by its operator.
                StepKind::Task => match &part.scheduled.call_id {
                    Some(operator) => operator,
                    None => continue,
                },
                _ => continue,
            };
            let record = SubDispatchRecord::new(name.clone(), took, success);
            records.push((part.from_ms, record));
        }
        records.sort_by_key(|(from_ms, _)| *from_ms);
        let turns = parts.iter().filter(|it| it.scheduled.kind == StepKind::ModelCall).count();
        // A composite or a loop has used what its parts have.
        let of_parts = (!parts.is_empty() && used != Usage::default()).then_some(used);
        Self {
            usage: usage.or(of_parts),
            effects,
            records: records.into_iter().map(|(_, record)| record).collect(),
            turns: u32::try_from(turns).unwrap_or(u32::MAX),
            duration: DurationMs::from_millis(
                end_ms.saturating_sub(own.map_or(end_ms, |it| it.from_ms)),
            ),
        }
    }

    /// Returns the answer of the step's operator: its own, or its value; nothing if it failed without
    /// one.
    pub(crate) fn answer(&self, output: Option<&Json>) -> Option<OperatorOutput> {
        let effects = self.effects.as_ref().and_then(|it| it.decode::<Vec<Effect>>().ok());
        let mut answer = answer_of(output, self.usage.clone(), effects.unwrap_or_default())?;
        let metadata = &mut answer.metadata;
        metadata.sub_dispatches.extend(self.records.iter().cloned());
        if metadata.turns_used == 0 {
            metadata.turns_used = self.turns;
        }
        if metadata.duration == DurationMs::from_millis(0) {
            metadata.duration = self.duration;
        }
        Some(answer)
    }
}

/// The words of the history for what an operator passes on.
const DELEGATE: &str = "delegate";
const HANDOFF: &str = "handoff";

fn is_completed(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Completed(_))
}
