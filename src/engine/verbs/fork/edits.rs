//! Edits of a history: the input of the first step that is executed again, the outputs of kept
//! steps. Both must match the schemas of their agents.

use crate::{
    engine::{Breach, Checked, EngineError, shared::places::scheduled, verbs::fork::request::Fork},
    journal::{Entry, Fact, Outcome, Scheduled},
    lua,
    protocol::{Json, RunId, StepKind},
    schema::{Schema, Violation},
};

/// The maximum number of outputs of one fork that are edited.
const MOST: usize = 100;

/// Edits the entries that a fork keeps.
///
/// # Errors
/// Fails when there is no such step, it cannot be edited, or a value does not match its schema.
pub(super) fn edit(
    run: RunId,
    kept: &mut Vec<Entry>,
    fork: &Fork,
    program: &lua::Program,
) -> Result<(), EngineError> {
    if fork.outputs.len() > MOST {
        let (what, size) = ("a fork with edited outputs", fork.outputs.len());
        return Err(EngineError::TooLarge { what, size, limit: MOST });
    }
    if let Some(input) = &fork.step_input {
        edit_input(run, kept, fork.from_step, input, program)?;
    }
    for (step, output) in &fork.outputs {
        if *step >= fork.from_step {
            return Err(EngineError::BadRequest(format!(
                "fork run {run}: step {step} is executed again, so its output cannot be edited; \
                 fork from a later step"
            )));
        }
        edit_output(run, kept, *step, output, program)?;
    }
    Ok(())
}

fn edit_input(
    run: RunId,
    kept: &mut [Entry],
    step: u32,
    input: &Json,
    program: &lua::Program,
) -> Result<(), EngineError> {
    let entry = kept.iter_mut().find(|entry| scheduled(entry).is_some_and(|it| it.step == step));
    let entry = entry.ok_or_else(|| missing(run, step))?;
    let mut edited = scheduled(entry).cloned().ok_or_else(|| missing(run, step))?;
    editable(run, &edited)?;
    edited.request = match program.blueprint().agent(&edited.name) {
        Some(agent) if edited.kind == StepKind::Task => {
            accepted(agent.input(), input, Checked::Input, "$.step_input")?
        }
        Some(_) | None => input.clone(),
    };
    // The fingerprint stays that of the flow's own request, which a replay still makes.
    entry.fact = Fact::StepScheduled(Box::new(edited));
    Ok(())
}

fn edit_output(
    run: RunId,
    kept: &mut Vec<Entry>,
    step: u32,
    output: &Json,
    program: &lua::Program,
) -> Result<(), EngineError> {
    let it = kept.iter().filter_map(scheduled).find(|it| it.step == step).cloned();
    let it = it.ok_or_else(|| missing(run, step))?;
    editable(run, &it)?;
    let output = match program.blueprint().agent(&it.name) {
        Some(agent) if it.kind == StepKind::Task => {
            let at = format!("$.outputs.{step}");
            accepted(agent.output(), output, Checked::Result, &at)?
        }
        Some(_) | None => output.clone(),
    };
    for entry in kept.iter_mut() {
        let ended = match &mut entry.fact {
            Fact::StepRecorded(it, outcome) if it.step == step => outcome,
            Fact::StepEnded { step: ended, outcome, .. } if *ended == step => outcome,
            _ => continue,
        };
        if matches!(ended, Outcome::Canceled(_)) {
            return Err(EngineError::BadRequest(format!(
                "fork run {run}: step {step} was given up by the flow, and has no output"
            )));
        }
        *ended = Outcome::Completed(output);
        return Ok(());
    }
    // It has no result yet: the edited one ends it.
    if kept.iter().filter_map(scheduled).any(|part| part.whole() == Some(step)) {
        return Err(EngineError::BadRequest(format!(
            "fork run {run}: step {step} is in progress and has steps of its own; fork from before it"
        )));
    }
    let at_ms = kept.last().map_or(0, |last| last.at_ms);
    let (attempt, epoch) = (it.attempt, it.epoch);
    let outcome = Outcome::Completed(output);
    let ended = Fact::StepEnded { step, attempt, epoch, outcome, effects: None, usage: None };
    kept.push(Entry::new(0, at_ms, ended));
    Ok(())
}

fn missing(run: RunId, step: u32) -> EngineError {
    EngineError::NotFound { what: "step", id: format!("{run}/{step}") }
}

/// Fails unless the flow requested the step itself, as work of an agent or of another run.
fn editable(run: RunId, step: &Scheduled) -> Result<(), EngineError> {
    let number = step.step;
    let why = match (step.whole(), step.kind) {
        (Some(whole), _) => format!("step {number} is a part of step {whole}; edit that one"),
        (None, StepKind::Task | StepKind::Child) => return Ok(()),
        (None, kind) => format!(
            "step {number} is of kind {}; tasks and calls of runs can be edited",
            kind.as_str()
        ),
    };
    Err(EngineError::BadRequest(format!("fork run {run}: {why}")))
}

/// Returns a value in the form of its schema; its violations have paths below `at`.
fn accepted(schema: &Schema, value: &Json, what: Checked, at: &str) -> Result<Json, EngineError> {
    let breach = |it: Violation| Breach {
        path: format!("{at}{}", it.path.strip_prefix('$').unwrap_or(&it.path)),
        message: it.message,
    };
    schema.accept_json(value).map_err(|violations| EngineError::Invalid {
        what,
        violations: violations.into_iter().map(breach).collect(),
    })
}
