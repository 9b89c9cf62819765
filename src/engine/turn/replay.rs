//! A flow for a run: a fresh one, and one that was fed what happened.

use std::sync::Arc;

use crate::{
    clock::Stopwatch,
    engine::{
        Divergence,
        turn::{
            facts::Turn,
            retell::{ReplayStop, Retold, retell},
        },
    },
    journal::{Entry, RunStarted, RunState},
    lua::{Program, RunFacts, ScriptFlow},
    protocol::{Failure, RunId},
};

/// Returns what a flow knows of its run.
pub(crate) fn facts_of(run: RunId, blueprint: String, started: &RunStarted) -> RunFacts {
    RunFacts {
        run_id: run.to_string(),
        blueprint,
        input: started.input.clone(),
        trigger: started.trigger.clone(),
        seed: started.seed,
    }
}

/// A flow for a run, before its first input.
pub(crate) fn new_flow(turn: &mut Turn<'_>, program: &Arc<Program>) -> Result<ScriptFlow, Failure> {
    let (started, _) = turn.run.chain.started().expect("a run starts before its flow");
    let facts = facts_of(turn.run.id, program.blueprint().version(), started);
    let mut limits = turn.shared.settings.limits.clone();
    if let Some(width) = program.blueprint().definition().max_width {
        limits.branches = limits.branches.min(width);
    }
    turn.vms.start(program.source(), facts, limits)
}

/// Feeds a fresh flow what happened.
pub(crate) fn replay(
    turn: &mut Turn<'_>,
    program: &Arc<Program>,
    entries: &[Entry],
) -> Result<Retold, ReplayStop> {
    let flow = new_flow(turn, program)
        .map_err(|failure| ReplayStop::Diverged(Divergence::of(failure.to_string())))?;
    let is_active = *turn.run.chain.state() == RunState::Active;
    let watch = Stopwatch::start();
    let retold = retell(flow, entries).and_then(|retold| retold.judge(is_active, turn.run.broken));
    let outcome = match &retold {
        Ok(_) => 0,
        Err(ReplayStop::Diverged(_)) => 1,
        Err(ReplayStop::Broken(_)) => 2,
    };
    turn.shared.counts.replays[outcome].inc();
    turn.shared.counts.replay.add(watch.micros());
    retold
}
