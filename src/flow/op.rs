//! What a step can be asked to do, with the parts that the journal keeps.

use serde::{Deserialize, Serialize};

use super::state_op::StateOp;
use crate::{
    journal::StepKey,
    protocol::{Content, Json, ModelAsk, OperatorInput, StepKind},
};

/// A step that a flow asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct StepRequest {
    /// Its identity.
    pub key: StepKey,
    /// What to do.
    pub op: StepOp,
}

/// What to do.
#[derive(Debug, Clone, PartialEq)]
pub enum StepOp {
    /// Let an operator execute a task. The value is its result.
    Task(Box<TaskRequest>),
    /// Wait until a time. The value is null.
    Timer {
        /// When, in Unix milliseconds.
        wake_at_ms: u64,
    },
    /// Wait for a signal. The value is `{"payload": …}`, or `{"timeout": true}`.
    Signal {
        /// Its name.
        name: String,
        /// When to give up, in Unix milliseconds.
        deadline_ms: Option<u64>,
    },
    /// Run another blueprint and wait for its end. The value is its output.
    Child {
        /// `name`, `name@hash-prefix`.
        blueprint: String,
        /// Its input.
        input: Json,
    },
    /// Read or write the run's state. The value depends on the operation.
    State(StateOp),
    /// Read or write the state of a scope that others share, once everything before it is durable.
    /// The value depends on the operation.
    Scoped {
        /// The scope: `session`, `operator:<name>` within the run, or the text of a scope.
        scope: String,
        /// What to do there.
        op: StateOp,
    },
    /// Write or read a file of the run.
    Artifact(ArtifactOp),
    /// Send a signal to another run. The value is null, once the signal is durable.
    SendSignal {
        /// The receiving run's id.
        run: String,
        /// The signal's name.
        name: String,
        /// Its payload.
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
    /// What this call overrides.
    pub opts: TaskOpts,
    /// What it is a part of a model's loop as; absent for what a flow asks for.
    pub part: Option<Box<Part>>,
}

/// A step of a model's loop.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// A call of the model, of a tool, or something that the loop needs first.
    pub kind: StepKind,
    /// The model's operator, the tool, the server.
    pub name: String,
    /// The provider's id of the call.
    pub call_id: Option<String>,
    /// What the journal keeps of what is asked.
    pub request: Json,
    /// The agent or tool that its use is counted for.
    pub charged: String,
    /// The tool of a server that is called.
    pub tool: Option<String>,
    /// Whether a model is asked.
    pub model: bool,
}

impl TaskRequest {
    /// About how many bytes of payload it carries.
    pub fn size(&self) -> usize {
        let opts = &self.opts;
        let texts = [&opts.idempotency_key, &opts.summary, &opts.session, &opts.asked];
        let texts: usize = texts.into_iter().flatten().map(String::len).sum();
        let part = self.part.as_ref().map_or(0, |part| part.request.len());
        let form = self.opts.form.as_ref().map_or(0, Json::len);
        self.input.len() + part + form + texts
    }

    /// A task that a flow asks for.
    pub fn new(agent: impl Into<String>, input: Json, opts: TaskOpts) -> Self {
        Self { agent: agent.into(), input, opts, part: None }
    }

    /// Whether it is a single call of a model within a loop.
    pub fn is_model_call(&self) -> bool {
        self.part.as_ref().is_some_and(|part| part.model)
    }

    /// Whether a server is asked for its tools.
    pub fn lists_tools(&self) -> bool {
        self.part.as_ref().is_some_and(|part| part.kind == StepKind::Local && !part.model)
    }
}

/// What a call may override of its agent's settings.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskOpts {
    /// Time for one attempt, in milliseconds.
    pub timeout_ms: Option<u64>,
    /// The retry policy.
    pub retry: Option<Backoff>,
    /// The operator.
    pub operator: Option<String>,
    /// Passed to the worker, for its own deduplication.
    pub idempotency_key: Option<String>,
    /// One line for a person.
    pub summary: Option<String>,
    /// A conversation that the worker keeps.
    pub session: Option<String>,
    /// The input of an operator as its caller wrote it, where a task was dispatched with one: JSON
    /// text of an [`OperatorInput`](crate::protocol::OperatorInput).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<String>,
    /// For `ctx:approve`: the form's JSON Schema, in place of the agent's output schema.
    pub form: Option<Json>,
    /// For `ctx:approve`: whom to ask, in place of what the agent says.
    #[serde(default)]
    pub asking: Asking,
    /// For agents whose operator is a model: what is asked beside the agent's own settings. The
    /// value of the task is then a [`ModelAnswer`](crate::protocol::ModelAnswer).
    #[serde(default)]
    pub ask: Option<Box<ModelAsk>>,
}

impl TaskOpts {
    /// The input of an operator as its caller wrote it, if there is one that can be read.
    pub fn asked(&self) -> Option<OperatorInput> {
        serde_json::from_str(self.asked.as_deref()?).ok()
    }

    /// Puts another message in place of the one that the caller wrote.
    pub fn ask_instead(&mut self, message: Content) {
        if let Some(mut asked) = self.asked() {
            asked.message = message;
            self.asked = serde_json::to_string(&asked).ok();
        }
    }
}

/// Whom a task for people asks, and how.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Asking {
    /// Who may answer: roles, and subjects of tokens; anybody who may answer at all if empty.
    pub by: Vec<String>,
    /// How many different ones must say yes; 1 if absent.
    pub required: Option<u32>,
    /// How often an open task is recalled, in milliseconds; never if absent.
    pub remind_ms: Option<u64>,
}

impl Asking {
    /// This over another: what this one does not say, the other does.
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

/// How often, and how fast, an attempt follows a failed one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Backoff {
    /// Attempts in all, at least 1.
    pub max_attempts: u32,
    /// The pause before the second attempt, in milliseconds.
    pub backoff_ms: u64,
    /// What each further pause is multiplied by.
    pub factor: f64,
    /// The longest pause, in milliseconds.
    pub max_ms: u64,
    /// Whether a pause is spread evenly over its second half.
    pub jitter: bool,
    /// Whether an interrupted attempt fails the step instead of being run again.
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
    /// Store bytes; gives `{"id", "hash", "size"}`.
    Write {
        /// The name that a person sees.
        name: String,
        /// The bytes.
        data: Vec<u8>,
    },
    /// The text of a stored artifact, as a JSON string.
    Read {
        /// Its id.
        id: String,
    },
}

impl StepOp {
    /// About how many bytes of payload it carries.
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

    /// What kind of step it is.
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

    /// The name that the chain shows.
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

    /// What was asked, as the journal keeps it; the bytes of an artifact only by their hash.
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

    /// When the step is due by itself, in Unix milliseconds.
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

    /// The line for a person, if the author gave one.
    pub fn summary(&self) -> Option<&str> {
        match self {
            Self::Task(task) => task.opts.summary.as_deref(),
            _ => None,
        }
    }
}
