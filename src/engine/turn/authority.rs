//! The authority of a flow over other programs and runs: to call, signal and link them.
//!
//! | program | acts under |
//! |---|---|
//! | published under a name | what its publisher could do then |
//! | only came with a request | what whoever started the run may do |
//!
//! The run's own state, the run itself and its nearest family need nobody's leave. Everything else
//! that a run does (tasks for operators, values of shared state, effects of its workers) is bounded
//! by its starter alone.

use std::sync::Arc;

use crate::{
    engine::{EngineError, run::open::Open, turn::facts::Turn},
    lua::Program,
    protocol::RunId,
    store::excepted,
    token::{Grant, Need, Verb},
};

/// Returns the authority of a run's flow.
fn authority(turn: &Turn<'_>) -> Result<Arc<Grant>, EngineError> {
    let Some((started, _)) = turn.run.chain.started() else {
        return Ok(Arc::clone(&turn.run.grant));
    };
    let publisher = excepted("a called program", || turn.shared.programs.publisher(&started.hash))?;
    Ok(publisher.unwrap_or_else(|| Arc::clone(&turn.run.grant)))
}

/// Returns true if a run's flow may call a program: itself, and what its authority may start.
pub(crate) fn may_call(turn: &Turn<'_>, program: &Program) -> Result<(), EngineError> {
    let blueprint = program.blueprint();
    if turn.run.chain.started().is_some_and(|(started, _)| started.hash == blueprint.hash()) {
        return Ok(());
    }
    let grant = authority(turn)?;
    if excepted("a called program", || turn.shared.programs.publisher(blueprint.hash()))?.is_some()
    {
        return Ok(grant.check(Verb::RunStart, &[Need::Blueprint(blueprint.name())])?);
    }
    grant.check(Verb::RunStart, &[])?;
    Ok(grant.check(Verb::RunSource, &[])?)
}

/// Returns true if a run's flow may signal another run.
pub(crate) fn may_signal(turn: &Turn<'_>, to: RunId) -> Result<(), EngineError> {
    if is_family(turn, to)? {
        return Ok(());
    }
    Ok(authority(turn)?.check(Verb::RunSignal, &[Need::Run(to)])?)
}

/// Returns true if a run's flow may link, or unlink, two keys of a shared scope.
pub(crate) fn may_link(turn: &Turn<'_>, scope: &str, ends: [&str; 2]) -> Result<(), EngineError> {
    let needs = ends.map(|key| Need::State { scope, key });
    Ok(authority(turn)?.check(Verb::StateWrite, &needs)?)
}

/// Returns true if a run is this one, the one that called it, or one that it called.
pub(crate) fn is_family(turn: &Turn<'_>, other: RunId) -> Result<bool, EngineError> {
    let calls = |open: &Open| matches!(open, Open::Child { run: child, .. } if *child == other);
    if other == turn.run.id || turn.run.open.values().any(calls) {
        return Ok(true);
    }
    let header = excepted("a related run", || turn.shared.store.header(other.num()))?;
    let Some(header) = header else { return Ok(false) };
    let is_parent = turn.run.header.parent.is_some_and(|(parent, _)| parent == header.num);
    let is_child = header.parent.is_some_and(|(parent, _)| parent == turn.run.num);
    Ok(header.created_ms == other.created_ms() && (is_parent || is_child))
}
