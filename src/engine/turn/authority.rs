//! What a flow may do with what is not its own: call, signal and link.
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
    engine::{
        EngineError,
        run::{open::OpenKind, resident::Run},
        shard::owner::Shard,
    },
    lua::Program,
    protocol::RunId,
    token::{Grant, Need, Verb},
};

impl Shard {
    /// What a run's flow acts under.
    pub(crate) fn authority(&self, run: &Run) -> Result<Arc<Grant>, EngineError> {
        let Some((started, _)) = run.chain.started() else { return Ok(Arc::clone(&run.grant)) };
        let publisher = self.shared.programs.publisher(&started.hash)?;
        Ok(publisher.unwrap_or_else(|| Arc::clone(&run.grant)))
    }

    /// Whether a run's flow may call a program: itself, and what its authority may start.
    pub(crate) fn may_call(&self, run: &Run, program: &Program) -> Result<(), EngineError> {
        let blueprint = program.blueprint();
        if run.chain.started().is_some_and(|(started, _)| started.hash == blueprint.hash()) {
            return Ok(());
        }
        let grant = self.authority(run)?;
        if self.shared.programs.publisher(blueprint.hash())?.is_some() {
            return Ok(grant.check(Verb::RunStart, &[Need::Blueprint(blueprint.name())])?);
        }
        grant.check(Verb::RunStart, &[])?;
        Ok(grant.check(Verb::RunSource, &[])?)
    }

    /// Whether a run's flow may signal another run.
    pub(crate) fn may_signal(&self, run: &Run, to: RunId) -> Result<(), EngineError> {
        if self.is_family(run, to)? {
            return Ok(());
        }
        Ok(self.authority(run)?.check(Verb::RunSignal, &[Need::Run(to)])?)
    }

    /// Whether a run's flow may link, or unlink, two keys of a shared scope.
    pub(crate) fn may_link(
        &self,
        run: &Run,
        scope: &str,
        ends: [&str; 2],
    ) -> Result<(), EngineError> {
        let needs = ends.map(|key| Need::State { scope, key });
        Ok(self.authority(run)?.check(Verb::StateWrite, &needs)?)
    }

    /// Whether a run is this one, the one that called it, or one that it called.
    pub(crate) fn is_family(&self, run: &Run, other: RunId) -> Result<bool, EngineError> {
        let calls = |kind: &OpenKind| matches!(kind, OpenKind::Child { run, .. } if *run == other);
        if other == run.id || run.open.values().any(|open| calls(&open.kind)) {
            return Ok(true);
        }
        let Some(header) = self.shared.store.header(other.num())? else { return Ok(false) };
        let is_parent = run.header.parent.is_some_and(|(parent, _)| parent == header.num);
        let is_child = header.parent.is_some_and(|(parent, _)| parent == run.num);
        Ok(header.created_ms == other.created_ms() && (is_parent || is_child))
    }
}
