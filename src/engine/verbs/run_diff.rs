//! The difference of two runs, step by step: usually a fork and its origin.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    engine::{Caller, Engine, EngineError},
    journal::{Chain, Step},
    protocol::RunId,
    token::Verb,
};

/// The difference of two runs.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RunDiff {
    /// The first run.
    #[schema(value_type = String)]
    pub a: RunId,
    /// The second run.
    #[schema(value_type = String)]
    pub b: RunId,
    /// The step from which one is a fork of the other, if it is.
    pub forked_at: Option<u32>,
    /// True if both have the same version of the blueprint.
    pub same_version: bool,
    /// True if both have the same input.
    pub same_input: bool,
    /// The first step that differs.
    pub first: Option<StepDiff>,
    /// The number of steps that differ.
    pub differing: u32,
    /// The steps of both, a page of them, without requests and results.
    pub items: Vec<StepDiff>,
    /// Pass it as `cursor` to get the next page; null at the end.
    pub next_cursor: Option<String>,
}

/// A step of two runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StepDiff {
    /// The branch, empty for the main one.
    pub scope: String,
    /// The place in the branch, from 0.
    pub index: u32,
    /// The kind of the step.
    pub kind: String,
    /// The name of the agent, signal, blueprint or operation.
    pub name: String,
    /// Its number in the first run; absent if it is not there.
    pub a: Option<u32>,
    /// Its number in the second run; absent if it is not there.
    pub b: Option<u32>,
    /// `same`, or what differs first: `only_a`, `only_b`, `operation` (its kind or its name),
    /// `request`, `state`, `result`, `error`.
    pub difference: String,
}

impl StepDiff {
    fn of(a: Option<&Step>, b: Option<&Step>) -> Option<Self> {
        let shown = a.or(b)?;
        let number = |step: &Step| step.scheduled.step;
        Some(Self {
            scope: shown.scheduled.key.scope.to_string(),
            index: shown.scheduled.key.index,
            kind: shown.scheduled.kind.as_str().to_owned(),
            name: shown.scheduled.name.clone(),
            a: a.map(number),
            b: b.map(number),
            difference: difference(a, b).to_owned(),
        })
    }

    /// Returns true if the step is the same in both.
    pub fn is_same(&self) -> bool {
        self.difference == "same"
    }
}

impl Engine {
    /// Compares the current histories of two runs, step by step. Steps belong together if they have
    /// the same place in the flow.
    ///
    /// # Errors
    /// Fails when the caller may not read one of them, or it does not exist.
    pub async fn diff(
        &self,
        caller: &Caller,
        (a, b): (RunId, RunId),
        after: usize,
        limit: usize,
    ) -> Result<RunDiff, EngineError> {
        caller.may(Verb::RunRead, a)?;
        caller.may(Verb::RunRead, b)?;
        // Both histories are held.
        let _turn = self.inner.heavy.acquire().await.map_err(|_| EngineError::Stopping)?;
        let (one, other) = (self.run_view(a).await?, self.run_view(b).await?);
        let steps = compare(&self.chain(a).await?, &self.chain(b).await?);
        let forked_at = [(&one, b), (&other, a)].into_iter().find_map(|(view, origin)| {
            let copied = view.copied_from.as_ref()?;
            (copied.run == origin.to_string()).then_some(copied.step)?
        });
        let differs = |step: &&StepDiff| !step.is_same();
        let more = steps.len() > after.saturating_add(limit);
        Ok(RunDiff {
            a,
            b,
            forked_at,
            same_version: one.hash == other.hash,
            same_input: one.input == other.input,
            first: steps.iter().find(differs).cloned(),
            differing: u32::try_from(steps.iter().filter(differs).count()).unwrap_or(u32::MAX),
            items: steps.into_iter().skip(after).take(limit).collect(),
            next_cursor: more.then(|| (after + limit).to_string()),
        })
    }
}

/// Returns the steps of both, in the order in which they were scheduled.
fn compare(a: &Chain, b: &Chain) -> Vec<StepDiff> {
    let mut all = BTreeMap::new();
    for (place, steps, other, is_a) in [(0, a.steps(), b, true), (1, b.steps(), a, false)] {
        for step in steps {
            let twin = other.find(&step.scheduled.key);
            // A step of both is listed at its place in the first.
            if twin.is_some() && !is_a {
                continue;
            }
            let pair = if is_a { (Some(step), twin) } else { (None, Some(step)) };
            all.extend(StepDiff::of(pair.0, pair.1).map(|it| ((step.scheduled.step, place), it)));
        }
    }
    all.into_values().collect()
}

fn difference(a: Option<&Step>, b: Option<&Step>) -> &'static str {
    let (a, b) = match (a, b) {
        (Some(a), Some(b)) => (a, b),
        (Some(_), None) => return "only_a",
        (None, _) => return "only_b",
    };
    let message = |step: &Step| step.error.as_ref().map(|error| error.message.clone());
    if (a.scheduled.kind, &a.scheduled.name) != (b.scheduled.kind, &b.scheduled.name) {
        "operation"
    } else if a.scheduled.request != b.scheduled.request {
        "request"
    } else if a.state != b.state {
        "state"
    } else if a.output != b.output {
        "result"
    } else if message(a) != message(b) {
        "error"
    } else {
        "same"
    }
}
