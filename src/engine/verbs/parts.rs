//! The parts of a step: the calls of a model's loop, and the members of a composite.

use std::collections::BTreeMap;

use crate::{
    engine::{Caller, Engine, EngineError, StepView, rfc3339, verbs::runs::damaged, view},
    journal::{Chain, Decision, Entry, Fact, Step},
    protocol::{RunId, StepKind},
    token::Verb,
};

/// A part of a step.
#[derive(Debug, Clone)]
pub struct StepPart {
    /// The part, with its request and its result.
    pub step: StepView,
    /// The people who answered for it, each with the time: those who approved a call, for example.
    pub answered: Vec<(String, String)>,
}

/// The parts of a step.
#[derive(Debug, Clone, Default)]
pub struct StepParts {
    /// The last ones, in their order.
    pub items: Vec<StepPart>,
    /// The number of those before them.
    pub earlier: usize,
}

impl Engine {
    /// Returns the parts of a step: the last `most` of them.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or there is no such run.
    pub async fn parts(
        &self,
        caller: &Caller,
        run: RunId,
        seq: u32,
        most: usize,
    ) -> Result<StepParts, EngineError> {
        caller.may(Verb::RunRead, run)?;
        self.header(run).await?;
        let entries = self.read(move |store| store.entries(run.num(), 0)).await?;
        let mut chain = Chain::full();
        for entry in &entries {
            chain.apply(entry).map_err(|error| damaged(run, error))?;
        }
        let own = |step: &&Step| {
            let scheduled = &step.scheduled;
            scheduled.whole() == Some(seq) || scheduled.member().is_some_and(|(of, _)| of == seq)
        };
        let all: Vec<_> = chain.steps().iter().filter(own).collect();
        let earlier = all.len().saturating_sub(most);
        let answered = answered(&entries);
        let part = |step: &Step| {
            let shown = view::step(run, step, true);
            let mut answered = answered.get(&step.scheduled.step).cloned().unwrap_or_default();
            // A task within a loop of a model is a question to a person. If one answer is enough, it
            // is the result of the task.
            let is_question =
                step.scheduled.kind == StepKind::Task && step.scheduled.member().is_none();
            if is_question
                && answered.is_empty()
                && let (Some(by), Some(at)) = (&step.worker, &shown.ended_at)
            {
                answered.push((by.clone(), at.clone()));
            }
            StepPart { step: shown, answered }
        };
        Ok(StepParts { items: all[earlier..].iter().map(|step| part(step)).collect(), earlier })
    }
}

/// Returns who answered for which step of the current history.
fn answered(entries: &[Entry]) -> BTreeMap<u32, Vec<(String, String)>> {
    let mut found: BTreeMap<u32, Vec<(String, String)>> = BTreeMap::new();
    for entry in entries {
        match &entry.fact {
            Fact::RunStarted(_) => found.clear(),
            Fact::Decided(Decision::Answered { by, step, .. }) => {
                found.entry(*step).or_default().push((by.clone(), rfc3339(entry.at_ms)));
            }
            _ => {}
        }
    }
    found
}
