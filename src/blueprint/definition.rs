//! What a blueprint declares, after every check.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Budget, Edition, FileWatch, Labels, Schedule, model_loop::ModelLoop};
use crate::{
    flow::{Asking, Backoff},
    protocol::Json,
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
    /// The JSON Schema of its input.
    pub input: Option<Json>,
    /// The JSON Schema of its output.
    pub output: Option<Json>,
    /// Its agents by name.
    pub agents: BTreeMap<String, Agent>,
    /// Its flow, if that is a table of nodes.
    pub flow: Option<Json>,
    /// What starts a run of it by itself.
    pub on: Vec<Trigger>,
    /// The layers of middleware that it names, in their order.
    pub middleware: Vec<serde_json::Value>,
    /// The most steps that a run may take.
    pub max_steps: Option<u32>,
    /// How deep runs may call each other.
    pub max_depth: Option<u32>,
    /// The longest that a run may take, in milliseconds.
    pub wall_ms: Option<u64>,
    /// How many branches of a run may be open at the same time.
    pub max_width: Option<u32>,
    /// How many tasks of a run may be open at the same time.
    pub max_open_tasks: Option<u32>,
    /// What a run may use.
    pub budget: Budget,
}

/// What starts a run by itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Trigger {
    /// What it waits for.
    pub event: TriggerEvent,
    /// The input of the run; a signal's payload if there is none.
    pub input: Option<Json>,
}

/// What a trigger waits for.
#[derive(Debug, Clone, PartialEq)]
pub enum TriggerEvent {
    /// A time.
    Schedule {
        /// When.
        schedule: Box<Schedule>,
        /// What becomes of times at which no host was running.
        missed: Missed,
    },
    /// A signal to the blueprint.
    Signal(String),
    /// Files that change.
    Watch {
        /// Which.
        watch: Box<FileWatch>,
        /// What becomes of changes while no host was running: once, or skip.
        missed: Missed,
    },
}

/// What becomes of scheduled times that passed unheard.
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
    /// The template of the system prompt.
    pub system: Option<String>,
    /// Whether `system` is the prompt as it stands, and no template.
    pub literal: bool,
    /// The template of the prompt; by default the input.
    pub prompt: Option<String>,
    /// One line for a person.
    pub description: Option<String>,
    /// The JSON Schema of its input.
    pub input: Option<Json>,
    /// The JSON Schema of its output.
    pub output: Option<Json>,
    /// What kind of sub-agent a session starts for it.
    pub worker: Option<WorkerBinding>,
    /// The argv template of a process.
    pub command: Vec<String>,
    /// Whether a process that exits with another code than 0 is a failure.
    pub check: bool,
    /// The directory of a process, relative to the run's.
    pub cwd: Option<String>,
    /// What a process gets in its environment.
    pub env: BTreeMap<String, String>,
    /// Where a process runs: an environment's name, or one written out.
    pub environment: Option<Json>,
    /// The queue that its tasks go to.
    pub queue: Option<String>,
    /// What a pull worker must have to take its tasks.
    pub labels: Labels,
    /// The tool of an MCP server that its tasks call.
    pub tool: Option<String>,
    /// Whom its tasks ask, for people.
    pub asking: Asking,
    /// Whether it has a Lua function (`fn`).
    pub has_fn: bool,
    /// How often a failed attempt is followed by another.
    pub retry: Retry,
    /// Time for one attempt, in milliseconds.
    pub timeout_ms: Option<u64>,
    /// How long a task waits for somebody to take it, in milliseconds.
    pub park_ms: Option<u64>,
    /// How many of its attempts are live at the same time, in the whole daemon.
    pub max_concurrency: Option<u32>,
    /// The names of the tools it may use (advisory for operators that cannot enforce it).
    pub tools: Vec<String>,
    /// What its tasks may use in one run.
    pub budget: Budget,
    /// The model it asks for (advisory for operators that cannot choose one).
    pub model: Option<String>,
    /// How much a model is to reason for it (advisory, like the model).
    pub effort: Option<String>,
    /// How often a model may be asked for it, as its file says.
    pub file_turns: Option<u32>,
    /// How its model works, where its operator is one.
    pub model_loop: Option<Box<ModelLoop>>,
}

/// The retry policy of an agent.
pub type Retry = Backoff;

/// What a session starts for an agent's task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerBinding {
    /// The kind of sub-agent.
    pub subagent_type: String,
    /// Its tools.
    pub tools: Vec<String>,
}
