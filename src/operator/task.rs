//! One attempt of a task, as a backend sees it.

use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::inquiry::Inquiry;
use crate::{
    blueprint::{Agent, Labels, WorkerBinding},
    flow::TaskOpts,
    lua::Program,
    middleware::Stacks,
    protocol::{
        Json, ModelDelta, OperatorConfig, RunId, SecretAccessEvent, StateReader, TaskId, Ticket,
        TriggerType,
    },
    session::Seat,
};

/// One attempt of a task.
pub struct Task {
    /// The task.
    pub id: TaskId,
    /// Its run.
    pub run: RunId,
    /// The attempt, from 1.
    pub attempt: u32,
    /// The attempt's epoch.
    pub epoch: u32,
    /// The run's nonce.
    pub nonce: u64,
    /// The agent's name.
    pub agent_name: Arc<str>,
    /// The agent.
    pub agent: Arc<Agent>,
    /// The operator's name.
    pub operator: Arc<str>,
    /// What the call overrides.
    pub opts: TaskOpts,
    /// The input, before the layers of its dispatch.
    pub given: Json,
    /// What set its run to work.
    pub trigger: TriggerType,
    /// The operator that a layer has routed it to, in place of `operator`.
    pub routed: OnceLock<Arc<str>>,
    /// The blueprint with its source and files.
    pub program: Arc<Program>,
    /// Where child processes run; empty for work that stays in the host.
    pub workdir: PathBuf,
    /// Whether that directory is the run's own, which is made when it is first needed.
    pub own_workdir: bool,
    /// The host's address, once it listens: `http://127.0.0.1:7700`.
    pub url: Option<Arc<str>>,
    /// The bearer of this attempt for the worker API; empty for work that stays in the host.
    pub handle: String,
    /// What the worker fetches; absent for work that stays in the host.
    pub prompt: Option<Arc<Prompt>>,
    /// Who should have it, where its operator has sessions.
    pub seat: Seat,
    /// Whether its operator is asked for its tools, and for nothing else.
    pub lists_tools: bool,
    /// Time for the attempt from its delivery on, in milliseconds.
    pub timeout_ms: Option<u64>,
    /// Canceled when the attempt is given up.
    pub cancel: CancellationToken,
    /// Canceled when the attempt's result came through the worker API: nothing is to be
    /// returned any more, what was started may end by itself.
    pub reported: CancellationToken,
    /// What differs from the operator's defaults, once the layers have had their say.
    pub config: OnceLock<OperatorConfig>,
    /// What stands around the programs that it starts.
    pub stacks: Arc<Stacks>,
    /// Where to say what happens meanwhile.
    pub reporter: Arc<dyn Reporter>,
    /// State, as far as this attempt may read it: the run's own, its operator's within the run,
    /// and what the run's starter may read. Through the layers, and only what is durable.
    pub state: Arc<dyn StateReader>,
}

impl Task {
    /// The attempt, by its numbers.
    pub fn ticket(&self) -> Ticket {
        Ticket { run: self.id.run(), step: self.id.step(), attempt: self.attempt }
    }

    /// The operator that executes it: the one that it names, unless a layer has routed it.
    pub fn executor(&self) -> &Arc<str> {
        self.routed.get().unwrap_or(&self.operator)
    }

    /// Its system prompt, with what the caller and the layers say besides.
    pub fn system(&self) -> Option<String> {
        let prompt = self.prompt.as_deref();
        let more = match self.config.get() {
            Some(config) => config.system_addendum.as_deref(),
            None => prompt.and_then(|prompt| prompt.addendum.as_deref()),
        };
        joined(prompt.and_then(|prompt| prompt.system.as_deref()), more)
    }
}

/// A system prompt and what is said besides, which never takes its place.
pub fn joined(system: Option<&str>, addendum: Option<&str>) -> Option<String> {
    match (system, addendum) {
        (Some(system), Some(more)) => Some(format!("{system}\n\n{more}")),
        (one, other) => one.or(other).map(str::to_owned),
    }
}

/// What a worker fetches: `GET /v1/worker/prompt`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Prompt {
    /// The task's id.
    pub task: TaskId,
    /// The run's id.
    pub run: RunId,
    /// The agent's name.
    pub agent: String,
    /// The attempt, from 1.
    pub attempt: u32,
    /// The rendered system prompt.
    pub system: Option<String>,
    /// What the caller says besides the system prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addendum: Option<String>,
    /// The rendered prompt.
    pub prompt: String,
    /// The input.
    pub input: Json,
    /// The JSON Schema that the output must satisfy.
    pub output_schema: Option<Json>,
    /// One line for a person.
    pub summary: Option<String>,
    /// For the worker's own deduplication.
    pub idempotency_key: Option<String>,
    /// Whom it asks and what they said so far, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inquiry: Option<Inquiry>,
    /// What a pull worker must have to take it.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// What a session starts for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerBinding>,
}

/// How an attempt reached its worker.
#[derive(Debug, Clone, PartialEq)]
pub struct Delivery {
    /// Who has it: `pid 4711`, a worker's name.
    pub worker: String,
}

/// Hears what happens to an attempt while it is under way.
pub trait Reporter: Send + Sync {
    /// The work began: the attempt's timeout is counted from now. May be called twice.
    fn delivered(&self, delivery: Delivery);

    /// A line for whoever watches; lossy.
    fn progress(&self, data: Json);

    /// A piece of a model's answer, for whoever watches; lossy.
    fn delta(&self, delta: ModelDelta);

    /// A secret was asked for on behalf of the attempt. Kept in the run's history.
    fn secret_accessed(&self, event: SecretAccessEvent);
}
