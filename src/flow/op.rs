//! The operations of steps, and the parts of them that the journal keeps.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::state_op::StateOp;
use crate::{
    journal::StepKey,
    protocol::{Content, Json, ModelAsk, OperatorInput, StepKind, Tags},
};

/// A step that a flow requests.
#[derive(Debug, Clone, PartialEq)]
pub struct StepRequest {
    /// The identity of the step.
    pub key: StepKey,
    /// The operation.
    pub op: StepOp,
}

/// The operation of a step.
#[derive(Debug, Clone, PartialEq)]
pub enum StepOp {
    /// Dispatches a task to an operator. Yields its result.
    Task(Box<TaskRequest>),
    /// Waits until a time. Yields null.
    Timer {
        /// The time, in Unix milliseconds.
        wake_at_ms: u64,
    },
    /// Waits for a signal. Yields `{"payload": …}`, or `{"timeout": true}`.
    Signal {
        /// The signal's name.
        name: String,
        /// The timeout, in Unix milliseconds.
        deadline_ms: Option<u64>,
    },
    /// Runs another blueprint and waits for its end. Yields its output.
    Child {
        /// `name` or `name@hash-prefix`.
        blueprint: String,
        /// The input.
        input: Json,
        /// Its tags.
        tags: Tags,
    },
    /// Reads or writes the run's own state. The result depends on the operation.
    State(StateOp),
    /// Reads or writes a shared state scope, after everything before it is durable. The result
    /// depends on the operation.
    Scoped {
        /// The scope: `session`, `operator:<name>` within the run, or the text of a scope.
        scope: String,
        /// The operation there.
        op: StateOp,
    },
    /// Writes or reads a file of the run.
    Artifact(ArtifactOp),
    /// Sends a signal to another run. Yields null, once the signal is durable.
    SendSignal {
        /// The receiving run's id.
        run: String,
        /// The signal's name.
        name: String,
        /// The payload.
        payload: Json,
    },
}

/// A task for an agent.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskRequest {
    /// The agent's name, as the blueprint declares it.
    pub agent: String,
    /// The input.
    pub input: Json,
    /// The overrides of this call.
    pub opts: TaskOpts,
    /// Set if the task is a step of a model's loop; absent if a flow requested it.
    pub part: Option<Box<LoopPart>>,
}

/// A step of a model's loop.
#[derive(Debug, Clone, PartialEq)]
pub struct LoopPart {
    /// The kind: a call of the model, a call of a tool, or a preparation of the loop.
    pub kind: StepKind,
    /// The name of the model's operator, of the tool or of the server.
    pub name: String,
    /// The provider's id of the call.
    pub call_id: Option<String>,
    /// The request as the journal keeps it.
    pub request: Json,
    /// The tool that is called on a server.
    pub tool: Option<String>,
    /// True for a call of the model.
    pub model: bool,
    /// The operators and tools that the caller of the loop allows; any if absent.
    pub allowed: Option<Vec<String>>,
}

impl TaskRequest {
    /// Returns the approximate size of the payload in bytes.
    pub fn size(&self) -> usize {
        let opts = &self.opts;
        let texts = [&opts.idempotency_key, &opts.summary, &opts.session, &opts.asked];
        let texts: usize = texts.into_iter().flatten().map(String::len).sum();
        let part = self.part.as_ref().map_or(0, |part| part.request.len());
        let form = self.opts.form.as_ref().map_or(0, Json::len);
        self.input.len() + part + form + texts
    }

    /// Creates a task that a flow requests.
    pub fn new(agent: impl Into<String>, input: Json, opts: TaskOpts) -> Self {
        Self { agent: agent.into(), input, opts, part: None }
    }

    /// Returns true for a single model call within a loop.
    pub fn is_model_call(&self) -> bool {
        self.part.as_ref().is_some_and(|part| part.model)
    }

    /// Returns true for a request of a server's tools.
    pub fn lists_tools(&self) -> bool {
        self.part.as_ref().is_some_and(|part| part.kind == StepKind::Local && !part.model)
    }
}

/// A composite with an idempotency key, which its members answer together.
#[derive(Debug, PartialEq)]
pub struct KeyOwner {
    /// The number of its step.
    pub step: u32,
    /// Its operator.
    pub operator: Arc<str>,
    /// Its input.
    pub input: Json,
}

/// Overrides of an agent's settings for one call.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskOpts {
    /// The timeout of one attempt, in milliseconds.
    pub timeout_ms: Option<u64>,
    /// The retry policy.
    pub retry: Option<Backoff>,
    /// The operator.
    pub operator: Option<String>,
    /// Passed to the worker, which can use it for deduplication.
    pub idempotency_key: Option<String>,
    /// The composite that the key belongs to, if this is the call of a member.
    #[serde(skip)]
    pub key_owner: Option<Arc<KeyOwner>>,
    /// A one-line summary for people.
    pub summary: Option<String>,
    /// The conversation that the worker continues.
    pub session: Option<String>,
    /// The operator's input as the caller wrote it, for a task that was dispatched with one: the
    /// JSON text of an [`OperatorInput`](crate::protocol::OperatorInput).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<String>,
    /// For `ctx:approve`: the JSON Schema of the form, in place of the agent's output schema.
    pub form: Option<Json>,
    /// For `ctx:approve`: the people to ask, in place of the agent's settings.
    #[serde(default)]
    pub asking: Asking,
    /// For agents whose operator is a model: overrides of the model request. The task's value is
    /// then a [`ModelAnswer`](crate::protocol::ModelAnswer).
    #[serde(default)]
    pub ask: Option<Box<ModelAsk>>,
}

impl TaskOpts {
    /// Returns the operator's input as the caller wrote it, if there is a readable one.
    pub fn asked(&self) -> Option<OperatorInput> {
        serde_json::from_str(self.asked.as_deref()?).ok()
    }

    /// Returns the session that the task belongs to.
    pub fn session_of(&self) -> Option<String> {
        self.session.clone().or_else(|| Some(self.asked()?.session?.to_string()))
    }

    /// Replaces the message that the caller wrote.
    pub fn ask_instead(&mut self, message: Content) {
        if let Some(mut asked) = self.asked() {
            asked.message = message;
            self.asked = serde_json::to_string(&asked).ok();
        }
    }
}

/// The words of `by` for the client that started the run: itself, its model, its directories.
pub const STARTER: [&str; 3] = ["starter", "starter:model", "starter:roots"];

/// The people that a task asks, and the rules for it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Asking {
    /// The people who may answer: roles and token subjects. If empty, everyone with the verb.
    pub by: Vec<String>,
    /// The number of different people who must approve; 1 if absent.
    pub required: Option<u32>,
    /// The interval of reminders in milliseconds; no reminders if absent.
    pub remind_ms: Option<u64>,
}

impl Asking {
    /// Returns these settings, with those of `below` where they are absent.
    #[must_use]
    pub fn over(&self, below: &Self) -> Self {
        let by = if self.by.is_empty() { &below.by } else { &self.by };
        Self {
            by: by.clone(),
            required: self.required.or(below.required),
            remind_ms: self.remind_ms.or(below.remind_ms),
        }
    }
}

/// The retry policy of a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Backoff {
    /// The maximum number of attempts, at least 1.
    pub max_attempts: u32,
    /// The delay before the second attempt, in milliseconds.
    pub backoff_ms: u64,
    /// The factor by which each further delay grows.
    pub factor: f64,
    /// The maximum delay, in milliseconds.
    pub max_ms: u64,
    /// True if a delay is chosen at random from its second half.
    pub jitter: bool,
    /// True if an interrupted attempt fails the step. Otherwise it is run again.
    pub fail_on_interrupt: bool,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            max_attempts: 1,
            backoff_ms: 1_000,
            factor: 2.0,
            max_ms: 300_000,
            jitter: true,
            fail_on_interrupt: false,
        }
    }
}

/// An operation on the run's files.
#[derive(Debug, Clone, PartialEq)]
pub enum ArtifactOp {
    /// Stores bytes. Yields `{"id", "hash", "size"}`.
    Write {
        /// The name shown to people.
        name: String,
        /// The bytes.
        data: Vec<u8>,
    },
    /// Reads the text of a stored artifact. Yields a JSON string.
    Read {
        /// The artifact's id.
        id: String,
    },
}

impl StepOp {
    /// Returns the approximate size of the payload in bytes.
    pub fn size(&self) -> usize {
        match self {
            Self::Task(task) => task.size(),
            Self::Child { input, .. } => input.len(),
            Self::State(op) | Self::Scoped { op, .. } => op.size(),
            Self::Artifact(ArtifactOp::Write { data, .. }) => data.len(),
            Self::SendSignal { payload, .. } => payload.len(),
            Self::Timer { .. } | Self::Signal { .. } | Self::Artifact(ArtifactOp::Read { .. }) => 0,
        }
    }

    /// Returns the kind of the step.
    pub fn kind(&self) -> StepKind {
        match self {
            Self::Task(task) => task.part.as_ref().map_or(StepKind::Task, |part| part.kind),
            Self::Timer { .. } => StepKind::Timer,
            Self::Signal { .. } => StepKind::Signal,
            Self::Child { .. } => StepKind::Child,
            Self::State(_) | Self::Scoped { .. } => StepKind::State,
            Self::Artifact(_) | Self::SendSignal { .. } => StepKind::Local,
        }
    }

    /// Returns the name shown in the chain.
    pub fn name(&self) -> &str {
        match self {
            Self::Task(task) => task.part.as_ref().map_or(&task.agent, |part| &part.name),
            Self::Timer { .. } => "timer",
            Self::Signal { name, .. } => name,
            Self::Child { blueprint, .. } => blueprint,
            Self::State(op) | Self::Scoped { op, .. } => op.name(),
            Self::Artifact(ArtifactOp::Write { .. }) => "artifact.write",
            Self::Artifact(ArtifactOp::Read { .. }) => "artifact.read",
            Self::SendSignal { .. } => "signal.send",
        }
    }

    /// Returns the request as the journal keeps it. The bytes of an artifact appear only as their
    /// hash.
    pub fn request(&self) -> Json {
        match self {
            Self::Task(task) => {
                task.part.as_ref().map_or(&task.input, |part| &part.request).clone()
            }
            Self::Timer { wake_at_ms } => serde_json::json!({ "wake_at_ms": wake_at_ms }).into(),
            Self::Signal { name, deadline_ms } => {
                serde_json::json!({ "name": name, "deadline_ms": deadline_ms }).into()
            }
            Self::Child { input, .. } => input.clone(),
            Self::State(op) => Json::encode(op).expect("a state operation is plain data"),
            Self::Scoped { scope, op } => {
                let mut request =
                    serde_json::to_value(op).expect("a state operation is plain data");
                request["scope"] = scope.as_str().into();
                request.into()
            }
            Self::Artifact(ArtifactOp::Write { name, data }) => serde_json::json!({
                "name": name,
                "hash": blake3::hash(data).to_hex().as_str(),
                "size": data.len(),
            })
            .into(),
            Self::Artifact(ArtifactOp::Read { id }) => serde_json::json!({ "id": id }).into(),
            Self::SendSignal { run, name, payload } => {
                serde_json::json!({ "run": run, "name": name, "payload": payload }).into()
            }
        }
    }

    /// Returns when the step's timer or timeout is due, in Unix milliseconds.
    pub fn wake_at_ms(&self) -> Option<u64> {
        match self {
            Self::Timer { wake_at_ms } => Some(*wake_at_ms),
            Self::Signal { deadline_ms, .. } => *deadline_ms,
            Self::Task(_)
            | Self::Child { .. }
            | Self::State(_)
            | Self::Scoped { .. }
            | Self::Artifact(_)
            | Self::SendSignal { .. } => None,
        }
    }

    /// Returns the summary for people, if the author set one.
    pub fn summary(&self) -> Option<&str> {
        match self {
            Self::Task(task) => task.opts.summary.as_deref(),
            _ => None,
        }
    }
}
