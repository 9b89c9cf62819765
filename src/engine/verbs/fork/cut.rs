//! The part of a history that a fork keeps.

use std::collections::HashSet;

use crate::{
    engine::EngineError,
    journal::{Decision, Entry, Fact, Outcome},
    protocol::RunId,
};

/// The reason why a history cannot be cut at a step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    NoStep,
    Compensation,
}

impl Refusal {
    /// Returns the refusal of a fork from step `from`.
    pub(super) fn of(self, run: RunId, from: u32) -> EngineError {
        match self {
            Self::NoStep => EngineError::NotFound { what: "step", id: format!("{run}/{from}") },
            Self::Compensation => EngineError::BadRequest(format!(
                "fork run {run}: step {from} belongs to its compensation; name one before it"
            )),
        }
    }
}

/// Returns the part of a history that a fork from step `from` keeps; with the request of that step
/// if its input is edited.
pub(super) fn cut(entries: &[Entry], from: u32, with_it: bool) -> Result<Vec<Entry>, Refusal> {
    let scheduled = |entry: &Entry| match &entry.fact {
        Fact::StepScheduled(step) | Fact::StepRecorded(step, _) => Some(step.step),
        _ => None,
    };
    let first = match entries.first().map(|entry| &entry.fact) {
        Some(Fact::RunStarted(started)) => started.first_step,
        _ => return Err(Refusal::NoStep),
    };
    let next = entries.iter().filter_map(scheduled).max().map_or(first, |last| last + 1);
    if !(first..=next).contains(&from) {
        return Err(Refusal::NoStep);
    }
    let at = entries.iter().position(|entry| scheduled(entry) == Some(from));
    let at = at.unwrap_or(entries.len());
    let compensates =
        |entry: &Entry| matches!(entry.fact, Fact::Decided(Decision::Compensate { .. }));
    // After the last step, only the flow is copied, not its compensation.
    let wound_up = entries.iter().position(compensates).unwrap_or(entries.len());
    if wound_up < at && from < next {
        return Err(Refusal::Compensation);
    }
    let at = at.min(wound_up);
    // A step that was canceled after the cut is repeated; before it, the flow itself gave it up.
    let counts = |place: usize, outcome: &Outcome| {
        place < at || (place < wound_up && !matches!(outcome, Outcome::Canceled(_)))
    };
    let before = |step: u32| step < from;
    let ended: HashSet<u32> = entries
        .iter()
        .enumerate()
        .filter_map(|(place, entry)| match &entry.fact {
            Fact::StepEnded { step, outcome, .. } if before(*step) && counts(place, outcome) => {
                Some(*step)
            }
            _ => None,
        })
        .collect();
    let keeps = |(place, entry): &(usize, &Entry)| match &entry.fact {
        Fact::RunStarted(_) => true,
        Fact::StepScheduled(step) | Fact::StepRecorded(step, _) => {
            let edited = with_it && step.step == from;
            (before(step.step) || edited) && *place < wound_up
        }
        Fact::AttemptDelivered { step, .. } | Fact::SecretAccessed { step, .. } => {
            ended.contains(step)
        }
        Fact::AttemptClosed(closed) => ended.contains(&closed.step),
        Fact::AttemptOpened(opened) => ended.contains(&opened.step),
        Fact::StepEnded { step, outcome, .. } => ended.contains(step) && counts(*place, outcome),
        Fact::SignalReceived(_) | Fact::Noted { .. } => *place < at,
        Fact::Decided(Decision::Spent(_)) => {
            entry.additions.called().is_none_or(|step| ended.contains(&step))
        }
        Fact::Decided(decision) => {
            matches!(decision, Decision::Copied { .. } | Decision::Joined { .. })
        }
        Fact::RunEnded(_) => false,
    };
    Ok(entries.iter().enumerate().filter(keeps).map(|(_, entry)| entry.clone()).collect())
}
