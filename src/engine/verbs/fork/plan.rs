//! The dry run of a fork.

use std::{collections::HashSet, sync::Arc};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    engine::{
        Divergence, Engine, EngineError,
        shared::places::scheduled,
        turn::retell::{ReplayStop, Retold},
        verbs::{
            fork::request::{Fork, Prepared},
            replay::Past,
        },
    },
    flow::{Command, NextAction},
    journal::{Entry, Fact},
    lua::{self, Vms},
    protocol::{Json, RunId},
};

/// The maximum number of steps of a plan, on each side of the cut.
const MOST_STEPS: usize = 250;
/// The maximum number of requests of a plan.
const MOST_ASKS: usize = 20;

/// The result of a dry run of a fork.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ForkPlan {
    /// The original run.
    #[schema(value_type = String)]
    pub run: RunId,
    /// The first step that is executed again.
    pub from_step: u32,
    /// The blueprint of the fork: `name@hash`.
    pub blueprint: String,
    /// The input of the fork.
    #[schema(value_type = serde_json::Value)]
    pub input: Json,
    /// The number of steps that the fork keeps.
    pub kept: u32,
    /// The number of steps of the original that it does not keep.
    pub redone: u32,
    /// The steps around the cut, by number: the last that are kept and the first that are not.
    pub steps: Vec<ForkStep>,
    /// True if there are more steps than those.
    pub partial: bool,
    /// The first difference between the flow and the kept steps. The fork would be paused there.
    pub divergence: Option<Divergence>,
    /// The first steps that the flow requests after the kept ones.
    pub asks: Vec<ForkAsk>,
    /// `completed` or `failed` if the flow ends without a further step; absent if it goes on.
    pub ends: Option<String>,
}

/// A step of the original, and its fate in the fork.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ForkStep {
    /// The step's number.
    pub step: u32,
    /// The kind of the step.
    pub kind: String,
    /// The agent, signal, blueprint or operation.
    pub name: String,
    /// Its fate.
    pub fate: ForkFate,
}

/// The fate of a step in a fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ForkFate {
    /// The fork keeps the step with its result.
    Kept,
    /// The fork keeps the step with the edited output.
    EditedOutput,
    /// The fork executes the step with the edited input.
    EditedInput,
    /// The step had no result: the fork executes it.
    Open,
    /// The fork drops the step; its flow may request it again.
    Redone,
}

impl ForkFate {
    /// Returns the word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::EditedOutput => "edited_output",
            Self::EditedInput => "edited_input",
            Self::Open => "open",
            Self::Redone => "redone",
        }
    }
}

/// A step that the flow of a fork requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ForkAsk {
    /// The step's place in the flow: its scope and index.
    pub at: String,
    /// The kind of the step.
    pub kind: String,
    /// The agent, signal, blueprint or operation.
    pub name: String,
}

/// Replays the kept entries, and returns the plan.
pub(super) async fn plan(
    engine: &Engine,
    run: RunId,
    fork: Fork,
    prepared: Prepared,
) -> Result<ForkPlan, EngineError> {
    let Prepared { program, entries, kept } = prepared;
    let blueprint = program.blueprint().version();
    let read = move |told, kept: &[Entry]| planned(run, &fork, blueprint, &entries, kept, told);
    retold(engine, run, program, kept, read).await
}

/// Replays the kept entries, and returns what `read` makes of that.
pub(super) async fn retold<T: Send + 'static>(
    engine: &Engine,
    run: RunId,
    program: Arc<lua::Program>,
    kept: Vec<Entry>,
    read: impl FnOnce(Result<Retold, ReplayStop>, &[Entry]) -> T + Send + 'static,
) -> Result<T, EngineError> {
    let shared = engine.shared();
    let past = Past {
        // A fork has an id of its own, which its flow may read.
        run: RunId::new(run.num(), shared.clock.now_ms()),
        blueprint: program.blueprint().version(),
        program,
        limits: shared.settings.limits.clone(),
    };
    let (limits, watchdog) = (shared.programs.limits(), Arc::clone(&engine.inner.watchdog));
    let told = shared.tasks.spawn_blocking(move || {
        let mut vms = Vms::new(limits, &watchdog);
        let told = past.told(&mut vms, &kept);
        read(told, &kept)
    });
    told.await.map_err(|_| EngineError::Stopping)
}

fn planned(
    run: RunId,
    fork: &Fork,
    blueprint: String,
    entries: &[Entry],
    kept: &[Entry],
    told: Result<Retold, ReplayStop>,
) -> ForkPlan {
    let input = kept.iter().find_map(|entry| match &entry.fact {
        Fact::RunStarted(started) => Some(started.input.clone()),
        _ => None,
    });
    let ended: HashSet<u32> = kept
        .iter()
        .filter_map(|entry| match &entry.fact {
            Fact::StepRecorded(step, _) => Some(step.step),
            Fact::StepEnded { step, .. } => Some(*step),
            _ => None,
        })
        .collect();
    let has: HashSet<u32> = kept.iter().filter_map(scheduled).map(|it| it.step).collect();
    let fate = |step: u32| match has.contains(&step) {
        false => ForkFate::Redone,
        true if fork.outputs.contains_key(&step) => ForkFate::EditedOutput,
        true if step == fork.from_step => ForkFate::EditedInput,
        true if ended.contains(&step) => ForkFate::Kept,
        true => ForkFate::Open,
    };
    let mut steps: Vec<ForkStep> = entries
        .iter()
        .filter_map(scheduled)
        .map(|it| ForkStep {
            step: it.step,
            kind: it.kind.as_str().to_owned(),
            name: it.name.clone(),
            fate: fate(it.step),
        })
        .collect();
    let total = steps.len();
    let cut = steps.partition_point(|it| it.step < fork.from_step);
    steps.truncate(cut + MOST_STEPS);
    steps.drain(..cut.saturating_sub(MOST_STEPS));
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let mut plan = ForkPlan {
        run,
        from_step: fork.from_step,
        blueprint,
        input: input.unwrap_or_else(Json::null),
        kept: count(has.len()),
        redone: count(total - has.len()),
        partial: steps.len() < total,
        steps,
        divergence: None,
        asks: Vec::new(),
        ends: None,
    };
    match told {
        Err(ReplayStop::Diverged(divergence)) => plan.divergence = Some(*divergence),
        Err(ReplayStop::Broken(why)) => {
            plan.divergence = Some(*Divergence::of(format!("the VM has no room: {why}")));
        }
        Ok(told) => {
            let asks = told.fresh.iter().filter_map(|command| match command {
                Command::Schedule(request) => Some(ForkAsk {
                    at: request.key.to_string(),
                    kind: request.op.kind().as_str().to_owned(),
                    name: request.op.name().to_owned(),
                }),
                Command::Note { .. } | Command::CancelScope(_) => None,
            });
            plan.asks = asks.take(MOST_ASKS).collect();
            plan.ends = match told.next {
                NextAction::Complete(_) => Some("completed".to_owned()),
                NextAction::Fail(_) | NextAction::Limit(_) => Some("failed".to_owned()),
                NextAction::Wait
                | NextAction::More
                | NextAction::ContinueAs(_)
                | NextAction::Broken(_) => None,
            };
        }
    }
    plan
}
