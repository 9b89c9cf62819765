//! One attempt of a task, as seen by a backend.

use std::{
    path::PathBuf,
    sync::{Arc, LazyLock, OnceLock},
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
        TraceParent, TriggerType, WorkerId,
    },
    session::Seat,
};

/// Reads a prompt.
pub type ReadPrompt = Box<dyn FnOnce() -> Option<Arc<Prompt>> + Send>;

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
    /// The span of a distributed trace that the attempt is a part of.
    pub trace: Option<TraceParent>,
    /// The agent's name.
    pub agent_name: Arc<str>,
    /// The agent.
    pub agent: Arc<Agent>,
    /// The operator's name.
    pub operator: Arc<str>,
    /// The options of the call, which override the agent's.
    pub opts: TaskOpts,
    /// The input, before the layers of its dispatch.
    pub given: Json,
    /// The trigger of its run.
    pub trigger: TriggerType,
    /// The operator that a layer has routed it to, in place of `operator`.
    pub routed: OnceLock<Arc<str>>,
    /// The blueprint with its source and files.
    pub program: Arc<Program>,
    /// The working directory of child processes; empty for work inside the host.
    pub workdir: PathBuf,
    /// True if that directory is the run's own, which is created on first use.
    pub own_workdir: bool,
    /// The URL of the host, once it listens: `http://127.0.0.1:7700`.
    pub url: Option<Arc<str>>,
    /// The handle of this attempt for the worker API; empty for work inside the host.
    pub handle: String,
    /// The prompt that the worker fetches, read on first use; absent for work inside the host.
    pub prompt: LazyLock<Option<Arc<Prompt>>, ReadPrompt>,
    /// The seat that the task is for, if its operator uses sessions.
    pub seat: Seat,
    /// True if another operator passed the task on: as a delegate, or by a handoff.
    pub passed_on: bool,
    /// True if the operator is only asked for its list of tools.
    pub lists_tools: bool,
    /// The timeout of the attempt from its delivery, in milliseconds.
    pub timeout_ms: Option<u64>,
    /// Canceled when the attempt is given up.
    pub cancel: CancellationToken,
    /// Canceled when the result of the attempt came through the worker API: the backend's reply no
    /// longer counts, and what it started may end by itself.
    pub reported: CancellationToken,
    /// The configuration that overrides the operator's defaults, once the layers have run.
    pub config: OnceLock<OperatorConfig>,
    /// The layers around the programs that it starts.
    pub stacks: Arc<Stacks>,
    /// Receives the events of the attempt.
    pub reporter: Arc<dyn Reporter>,
    /// State, as far as this attempt may read it: the run's own, its operator's within the run, and
    /// what the starter of the run may read. Reads pass through the layers, and see only durable
    /// values.
    pub state: Arc<dyn StateReader>,
}

impl Task {
    /// Returns the identity of the attempt.
    pub fn ticket(&self) -> Ticket {
        Ticket { run: self.id.run(), step: self.id.step(), attempt: self.attempt }
    }

    /// Returns the id of the attempt's worker.
    pub fn worker(&self) -> WorkerId {
        WorkerId::new(self.id.run(), self.id.step(), self.attempt)
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

/// The prompt that a worker fetches: `GET /v1/worker/prompt`.
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
    /// The addendum of the caller to the system prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addendum: Option<String>,
    /// The rendered prompt.
    pub prompt: String,
    /// The input.
    pub input: Json,
    /// The JSON Schema that the output must satisfy.
    pub output_schema: Option<Json>,
    /// A summary in one line, for people.
    pub summary: Option<String>,
    /// A key for the worker's own deduplication.
    pub idempotency_key: Option<String>,
    /// The people that it asks, and their answers so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inquiry: Option<Inquiry>,
    /// The labels that a pull worker must have.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// The conversation that the task belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The sub-agent that a session starts for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerBinding>,
}

/// The delivery of an attempt to its worker.
#[derive(Debug, Clone, PartialEq)]
pub struct Delivery {
    /// The worker: `pid 4711`, a worker's name.
    pub worker: String,
}

/// Receives the events of an attempt in progress.
pub trait Reporter: Send + Sync {
    /// The work has begun: the attempt's timeout runs from now. May be called twice.
    fn delivered(&self, delivery: Delivery);

    /// The work begins now, after a wait within the host or before its delivery can be reported. It
    /// is not recorded, and may be called twice.
    fn begins(&self);

    /// Progress for watchers; lossy.
    fn progress(&self, data: Json);

    /// A delta of a model's reply, for watchers; lossy.
    fn delta(&self, delta: ModelDelta);

    /// A secret was accessed for the attempt. Recorded in the history of the run.
    fn secret_accessed(&self, event: SecretAccessEvent);
}
