//! A new run from the beginning of another one's history.
//!
//! | of the history | the copy has |
//! |---|---|
//! | steps before the given one | all of them, with their ends, also those that came later |
//! | that step and what came after it | nothing: the flow asks for it again |
//! | signals and notes | those before that step |
//! | pauses, cancels, the end | none |
//! | state | as the kept steps left it |
//! | files | those that the kept steps made |

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::{
    Caller, Engine, EngineError, IdempotencyKey, Program, RunView, copy::Copy,
    programs::accept_input,
};
use crate::{
    flow::StateOp,
    journal::{Decision, Entry, Fact, Outcome, Scheduled},
    protocol::{Effect, Json, RunId, Scope, StepKind, StoreOptions},
    store::{ArtifactRow, StateRow, Write, lay_over},
    token::{Need, Verb},
};

/// What a fork is to be.
#[derive(Debug, Clone)]
pub struct Fork {
    /// The first step that is done anew; the number after the last step copies them all.
    pub from_step: u32,
    /// Laid over the input, as a JSON merge patch.
    pub input_patch: Option<Json>,
    /// What it executes; the original's own version if absent.
    pub program: Option<Program>,
}

impl Engine {
    /// Copies a run's history up to a step into a new run, which goes on from there. Nothing is
    /// compensated; the original does not notice. A copy whose source or input asks for other
    /// steps than the history has rests, and says where.
    ///
    /// # Errors
    /// When the caller may not, there is no such run or step, the source has errors, or the input
    /// breaks its schema.
    pub async fn fork(
        &self,
        caller: &Caller,
        run: RunId,
        fork: Fork,
        key: Option<IdempotencyKey>,
    ) -> Result<RunView, EngineError> {
        caller.may(Verb::RunFork, run)?;
        if let Some(key) = &key
            && let Some(made) = self.repeated(caller, key).await?
        {
            let id = || EngineError::NotFound { what: "run", id: made.clone() };
            return self.run_view(made.parse().map_err(|_| id())?).await;
        }
        self.check_room()?;
        let header = self.header(run).await?;
        let changes = fork.program.is_some() || fork.input_patch.is_some();
        let program = match &fork.program {
            Some(program) => self.program_of(program).await?,
            None => self.program_by(header.hash).await?,
        };
        let name = program.blueprint().name();
        caller.grant.check(Verb::RunFork, &[Need::Run(run), Need::Blueprint(name)])?;

        let (num, scope) = (run.num(), format!("run:{run}"));
        let (entries, state, files) = self
            .read(move |store| {
                Ok((store.entries(num, 0)?, store.state(&scope)?, store.artifacts(num)?))
            })
            .await?;
        let mut kept = cut(&entries, fork.from_step).map_err(|refusal| match refusal {
            Refusal::NoStep => {
                EngineError::NotFound { what: "step", id: format!("{run}/{}", fork.from_step) }
            }
            Refusal::Compensation => EngineError::BadRequest(format!(
                "fork run {run}: step {} belongs to its compensation; name one before it",
                fork.from_step
            )),
        })?;
        let shared = self.shared();
        if let Some(Fact::RunStarted(started)) = kept.first_mut().map(|first| &mut first.fact) {
            if changes {
                let mut input = started.input.to_value();
                if let Some(patch) = &fork.input_patch {
                    lay_over(&mut input, &patch.to_value());
                }
                started.input = accept_input(&program, &input.into())?;
            }
            started.blueprint = name.to_owned();
            program.blueprint().hash().clone_into(&mut started.hash);
            started.principal.clone_from(&caller.subject);
            started.grant = Json::encode(&caller.grant).expect("a grant is plain data");
            (started.parent, started.depth, started.generation) = (None, 0, 0);
        }
        let now_ms = shared.clock.now_ms();
        let at_ms = kept.last().map_or(now_ms, |last| last.at_ms.max(now_ms));
        let id = RunId::new(shared.store.next_run(), now_ms);
        let mut writes = state_at(&entries, &kept, state)
            .into_iter()
            .map(|(key, value)| Write::PutState {
                scope: format!("run:{id}"),
                key,
                value: value.as_str().to_owned(),
                hints: StoreOptions::default(),
                expires_ms: None,
                at_ms,
            })
            .collect::<Vec<_>>();
        let made = files.into_iter().filter(|file| file.published && file.step < fork.from_step);
        writes.extend(made.map(|file| Write::PutArtifact(ArtifactRow { run: id.num(), ..file })));
        let copied = Decision::Copied {
            by: caller.subject.clone(),
            from: run.to_string(),
            step: Some(fork.from_step),
        };
        kept.push(Entry { seq: 0, at_ms, fact: Fact::Decided(copied) });
        self.put_copy(caller, Copy { id, entries: kept, writes, key }).await?;
        self.run_view(id).await
    }
}

/// Why a history cannot be cut at a step.
#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    NoStep,
    Compensation,
}

/// The part of a history that a fork from step `from` keeps.
fn cut(entries: &[Entry], from: u32) -> Result<Vec<Entry>, Refusal> {
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
    // One step past the last copies what the flow did, not how it was wound up.
    let wound_up = entries.iter().position(compensates).unwrap_or(entries.len());
    if wound_up < at && from < next {
        return Err(Refusal::Compensation);
    }
    let at = at.min(wound_up);
    // A step that was canceled after the cut is done; before it, the flow itself gave it up.
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
            before(step.step) && *place < wound_up
        }
        Fact::AttemptDelivered { step, .. } | Fact::SecretAccessed { step, .. } => {
            ended.contains(step)
        }
        Fact::AttemptClosed(closed) => ended.contains(&closed.step),
        Fact::AttemptOpened(opened) => ended.contains(&opened.step),
        Fact::StepEnded { step, outcome, .. } => ended.contains(step) && counts(*place, outcome),
        Fact::SignalReceived(_) | Fact::Noted { .. } => *place < at,
        Fact::Decided(decision) => {
            matches!(decision, Decision::Copied { .. } | Decision::Spent(_))
        }
        Fact::RunEnded(_) => false,
    };
    Ok(entries.iter().enumerate().filter(keeps).map(|(_, entry)| entry.clone()).collect())
}

/// The state that the kept entries left. What no entry of the whole history wrote came from
/// elsewhere (a worker that wrote state), and is as it is now.
fn state_at(all: &[Entry], kept: &[Entry], now: Vec<StateRow>) -> BTreeMap<String, Json> {
    let mut touched = BTreeSet::new();
    for entry in all {
        touched.extend(written(entry).into_iter().map(|(key, _)| key));
    }
    let elsewhere = now.into_iter().filter(|row| !touched.contains(&row.key));
    let mut state: BTreeMap<String, Json> =
        elsewhere.map(|row| (row.key, Json::from_trusted(row.value))).collect();
    for (key, value) in kept.iter().flat_map(written) {
        match value {
            Some(value) => state.insert(key, value),
            None => state.remove(&key),
        };
    }
    state
}

/// What an entry wrote to the run's state; nothing as a value is a deletion.
fn written(entry: &Entry) -> Vec<(String, Option<Json>)> {
    match &entry.fact {
        Fact::StepRecorded(step, Outcome::Completed(value)) if step.kind == StepKind::State => {
            by_flow(step, value).into_iter().collect()
        }
        Fact::StepEnded { outcome: Outcome::Completed(_), effects: Some(effects), .. } => {
            let effects: Vec<Effect> = effects.decode().unwrap_or_default();
            effects.into_iter().filter_map(by_effect).collect()
        }
        _ => Vec::new(),
    }
}

fn by_flow(step: &Scheduled, value: &Json) -> Option<(String, Option<Json>)> {
    match step.request.decode::<StateOp>().ok()? {
        StateOp::Set { key, value, .. } => Some((key, Some(value))),
        StateOp::Delete { key } => Some((key, None)),
        // These give the value that they leave.
        StateOp::Add { key, .. } | StateOp::Append { key, .. } | StateOp::Merge { key, .. } => {
            Some((key, Some(value.clone())))
        }
        StateOp::Get { .. }
        | StateOp::List { .. }
        | StateOp::Search { .. }
        | StateOp::Link { .. }
        | StateOp::Unlink { .. }
        | StateOp::Traverse { .. } => None,
    }
}

fn by_effect(effect: Effect) -> Option<(String, Option<Json>)> {
    match effect {
        Effect::WriteMemory { scope: Scope::Workflow(_), key, value, .. } => {
            Some((key, Some(value.into())))
        }
        Effect::DeleteMemory { scope: Scope::Workflow(_), key } => Some((key, None)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_patch_is_laid_over_member_by_member() {
        for (value, patch, merged) in [
            (
                json!({"a": 1, "b": {"c": 2}}),
                json!({"b": {"d": 3}}),
                json!({"a": 1, "b": {"c": 2, "d": 3}}),
            ),
            (json!({"a": 1, "b": 2}), json!({"a": null}), json!({"b": 2})),
            (json!({"a": [1, 2]}), json!({"a": [3]}), json!({"a": [3]})),
            (json!("text"), json!({"a": 1}), json!({"a": 1})),
            (json!({"a": 1}), json!(7), json!(7)),
        ] {
            let mut value = value;
            lay_over(&mut value, &patch);
            assert_eq!(value, merged);
        }
    }
}
