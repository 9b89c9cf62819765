//! The authority of a flow over other programs and runs: to call, signal and link them.
//!
//! | program | acts under |
//! |---|---|
//! | published under a name | what its publisher could do then |
//! | only came with a request | what the starter of the run may do |
//!
//! The run's own state, the run itself and its nearest family need nobody's leave. Everything else
//! that a run does (tasks for operators, values of shared state, effects of its workers) is bounded
//! by its starter alone.

use std::sync::Arc;

use crate::{
    engine::{EngineError, run::lookups::Publisher, turn::facts::Turn},
    lua::Program,
    protocol::{RunId, StepKind},
    token::{Grant, Need, Verb},
};

/// Returns the authority of a run's flow.
fn authority(turn: &Turn<'_>) -> Arc<Grant> {
    let Some((started, _)) = turn.run.chain.started() else {
        return Arc::clone(&turn.run.grant);
    };
    // It may have been published since the run was loaded. A helper was told; what it knows may be older.
    let known = || turn.shared.programs.known_publisher(&started.hash).flatten();
    let publisher = if turn.run.lent.is_some() { None } else { known() };
    publisher.or_else(|| turn.run.publisher.clone()).unwrap_or_else(|| Arc::clone(&turn.run.grant))
}

/// Returns true if a run's flow may call a program: itself, and what its authority may start.
pub(crate) fn may_call(
    turn: &Turn<'_>,
    program: &Program,
    publisher: &Publisher,
) -> Result<(), EngineError> {
    let blueprint = program.blueprint();
    if turn.run.chain.started().is_some_and(|(started, _)| started.hash == blueprint.hash()) {
        return Ok(());
    }
    let grant = authority(turn);
    if publisher.is_some() {
        return Ok(grant.check(Verb::RunStart, &[Need::Blueprint(blueprint.name())])?);
    }
    grant.check(Verb::RunStart, &[])?;
    Ok(grant.check(Verb::RunSource, &[])?)
}

/// Returns true if a run's flow may signal another run.
pub(crate) fn may_signal(turn: &Turn<'_>, to: RunId) -> Result<(), EngineError> {
    if is_family(turn, to) {
        return Ok(());
    }
    Ok(authority(turn).check(Verb::RunSignal, &[Need::Run(to)])?)
}

/// Returns true if a run's flow may link, or unlink, two keys of a shared scope.
pub(crate) fn may_link(turn: &Turn<'_>, scope: &str, ends: [&str; 2]) -> Result<(), EngineError> {
    let needs = ends.map(|key| Need::State { scope, key });
    Ok(authority(turn).check(Verb::StateWrite, &needs)?)
}

/// Returns true if a run is this one, the one that called it, or one that it called. A fork has
/// called nothing of what it copied: such a run is older than the fork.
pub(crate) fn is_family(turn: &Turn<'_>, other: RunId) -> bool {
    let run = &*turn.run;
    let called = || {
        let id = other.to_string();
        other.created_ms() >= run.header.created_ms
            && run.chain.steps().iter().any(|step| {
                step.scheduled.kind == StepKind::Child
                    && step.scheduled.call_id.as_deref() == Some(&id)
            })
    };
    other == run.id || run.header.parent.is_some_and(|(it, _)| it == other.num()) || called()
}
