//! The declarations of a blueprint, after every check.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    Budget, ContextNames, Edition, FileWatch, Labels, Schedule, ToolFace, model_loop::ModelLoop,
};
use crate::{
    flow::{Asking, Backoff},
    protocol::{Json, Tags},
};

/// A blueprint: plain data; Lua functions, a flow that is one included, stay in the source.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Definition {
    /// Its name.
    pub name: String,
    /// The edition of the language that it is written in.
    pub edition: Edition,
    /// One line for a person.
    pub description: Option<String>,
    /// The blueprint as a tool for clients of MCP, if it is one.
    pub tool: Option<ToolFace>,
    /// The JSON Schema of its input.
    pub input: Option<Json>,
    /// The JSON Schema of its output.
    pub output: Option<Json>,
    /// Its agents by name.
    pub agents: BTreeMap<String, Agent>,
    /// Its flow, if that is a table of nodes.
    pub flow: Option<Json>,
    /// The triggers that start a run.
    pub on: Vec<Trigger>,
    /// The layers of middleware that it names, in their order.
    pub middleware: Vec<serde_json::Value>,
    /// The most steps that a run may take.
    pub max_steps: Option<u32>,
    /// The maximum depth of child runs.
    pub max_depth: Option<u32>,
    /// The longest that a run may take, in milliseconds.
    pub wall_ms: Option<u64>,
    /// The maximum number of open branches of a run.
    pub max_width: Option<u32>,
    /// The maximum number of open tasks of a run.
    pub max_open_tasks: Option<u32>,
    /// The budget of a run.
    pub budget: Budget,
}

/// A trigger that starts runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Trigger {
    /// The event that it waits for.
    pub event: TriggerEvent,
    /// The input of the run; a signal's payload if there is none.
    pub input: Option<Json>,
    /// The tags of the run.
    pub tags: Tags,
}

/// The event that a trigger waits for.
#[derive(Debug, Clone, PartialEq)]
pub enum TriggerEvent {
    /// A time.
    Schedule {
        /// The times.
        schedule: Box<Schedule>,
        /// The handling of times at which no host was running.
        missed: Missed,
    },
    /// A signal to the blueprint.
    Signal(String),
    /// Files that change.
    Watch {
        /// Which.
        watch: Box<FileWatch>,
        /// The handling of changes while no host was running: once, or skip.
        missed: Missed,
    },
}

/// The handling of scheduled times that were missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Missed {
    /// Nothing.
    Skip,
    /// One run for all of them.
    Once,
    /// A run for each.
    All,
}

/// A role that a blueprint declares.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Agent {
    /// The operator's name.
    pub operator: String,
    /// The earlier steps and files that its worker may open.
    pub context: ContextNames,
    /// The agents that audit its results.
    pub audit: Vec<String>,
    /// The template of the system prompt.
    pub system: Option<String>,
    /// True if `system` is the prompt as it stands, and no template.
    pub literal: bool,
    /// The template of the prompt; by default the input.
    pub prompt: Option<String>,
    /// One line for a person.
    pub description: Option<String>,
    /// The JSON Schema of its input.
    pub input: Option<Json>,
    /// The JSON Schema of its output.
    pub output: Option<Json>,
    /// The kind of sub-agent that a session starts for it.
    pub worker: Option<WorkerBinding>,
    /// The argv template of a process.
    pub command: Vec<String>,
    /// True if a process that exits with another code than 0 is a failure.
    pub check: bool,
    /// The directory of a process, relative to the run's.
    pub cwd: Option<String>,
    /// The environment variables of its process.
    pub env: BTreeMap<String, String>,
    /// The environment of its process: a name, or a declaration.
    pub environment: Option<Json>,
    /// The queue that its tasks go to.
    pub queue: Option<String>,
    /// The labels that a pull worker needs to take its tasks.
    pub labels: Labels,
    /// The tool of an MCP server that its tasks call.
    pub tool: Option<String>,
    /// Whom its tasks ask, for people.
    pub asking: Asking,
    /// True if it has a Lua function (`fn`).
    pub has_fn: bool,
    /// The retry policy for failed attempts.
    pub retry: Retry,
    /// Time for one attempt, in milliseconds.
    pub timeout_ms: Option<u64>,
    /// The time for which a task waits to be taken, in milliseconds.
    pub park_ms: Option<u64>,
    /// The lease of a worker outside the host.
    pub lease: Option<Lease>,
    /// The maximum number of its live attempts in the whole daemon.
    pub max_concurrency: Option<u32>,
    /// The names of the tools it may use (advisory for operators that cannot enforce it).
    pub tools: Vec<String>,
    /// The budget of its tasks in one run.
    pub budget: Budget,
    /// The model it asks for (advisory for operators that cannot choose one).
    pub model: Option<String>,
    /// The reasoning effort of its model (advisory, like the model).
    pub effort: Option<String>,
    /// The maximum number of model calls, as declared in its file.
    pub file_turns: Option<u32>,
    /// The settings of its model's loop, if its operator is a model.
    pub model_loop: Option<Box<ModelLoop>>,
}

/// The time for which a worker outside the host may be silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// The time since the last request of the worker about its task, in milliseconds.
    pub ms: u64,
    /// The number of attempts that count, from which on a silent one is the last.
    pub attempts: u32,
}

/// The retry policy of an agent.
pub type Retry = Backoff;

/// The sub-agent that a session starts for an agent's task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerBinding {
    /// The kind of sub-agent.
    pub subagent_type: String,
    /// Its tools.
    pub tools: Vec<String>,
}
