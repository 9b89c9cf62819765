//! The views of the engine's data: the shapes of `docs/` and of the HTTP API.

use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use crate::clock::rfc3339;
use crate::{
    blueprint::{Form, Violation, WorkerBinding},
    engine::Breach,
    journal::{Outcome, StepFile, StepFiles},
    protocol::{ArtifactId, Failure, Json, RunId, StepKind, TaskId, WorkerId},
    store::ArtifactRow,
    token::Quotas,
};

/// A page of a list.
#[derive(Debug, Clone, Serialize)]
pub struct Page<T> {
    /// The items.
    pub items: Vec<T>,
    /// The `cursor` of the next page; absent at the end.
    pub next_cursor: Option<String>,
}

/// A task that a session has.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SpawnView {
    /// The task, with its prompt.
    #[serde(flatten)]
    pub task: TaskView,
    /// The bearer for the worker API.
    pub handle: String,
    /// The command to start for it.
    #[schema(value_type = Option<Object>)]
    pub worker: Option<WorkerBinding>,
    /// The system prompt.
    pub system: Option<String>,
}

/// A failure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FailureView {
    /// A stable word: timeout, worker, limit, or the author's own.
    pub kind: String,
    /// One line for a person.
    pub message: String,
    /// The step.
    pub step: Option<u32>,
    /// The agent.
    pub agent: Option<String>,
    /// The attempt.
    pub attempt: Option<u32>,
    /// True if another attempt may succeed.
    pub retryable: bool,
    /// The data of the error.
    #[schema(value_type = Option<serde_json::Value>)]
    pub data: Option<Json>,
}

impl From<Failure> for FailureView {
    fn from(it: Failure) -> Self {
        let Failure { kind, message, step, agent, attempt, retryable, data } = it;
        Self { kind, message, step, agent, attempt, retryable, data }
    }
}

/// An event of a run.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct EventView {
    /// The number of a durable event, from 1 without gaps; absent for lossy ones.
    pub seq: Option<u32>,
    /// `run.started`, `step.scheduled`, `step.completed`, `log`, `status`, `progress`, …
    #[serde(rename = "type")]
    pub kind: String,
    /// RFC 3339, UTC.
    pub at: String,
    /// The text.
    #[schema(value_type = serde_json::Value)]
    pub data: Json,
}

/// One of several answers to a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AnswerView {
    /// The subject of the token that answered.
    pub by: String,
    /// RFC 3339, UTC.
    pub at: String,
    /// The answer.
    #[schema(value_type = serde_json::Value)]
    pub output: Json,
}

/// A task that somebody outside the flow is to do, or did.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TaskView {
    /// Its id.
    #[schema(value_type = String)]
    pub id: TaskId,
    /// Its run.
    #[schema(value_type = String)]
    pub run: RunId,
    /// Its step's number.
    pub step: u32,
    /// The open attempt.
    pub attempt: u32,
    /// The agent.
    pub agent: String,
    /// The operator's name.
    pub operator: String,
    /// The operator's kind.
    pub kind: String,
    /// The queue, for pull workers.
    pub queue: Option<String>,
    /// pending, processing, completed, failed, canceled.
    pub state: String,
    /// One line for a person.
    pub summary: Option<String>,
    /// The holder.
    pub worker: Option<String>,
    /// RFC 3339, UTC.
    pub scheduled_at: String,
    /// RFC 3339, UTC.
    pub deadline: Option<String>,
    /// The rendered prompt; only where one task is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// The input; only where one task is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub input: Option<Json>,
    /// The JSON Schema of an answer; only where one task is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub output_schema: Option<Json>,
    /// A hash of what is shown of it to people, or of the question to a senior: send it with the
    /// answer, and an answer to something else is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// The form of the answer, for tasks of people; only in the view of one task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form: Option<Form>,
    /// The roles and subjects that may answer, for tasks of people; absent if the verb is enough.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by: Vec<String>,
    /// The number of different people who must answer, for tasks of people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub required: Option<u32>,
    /// The answers so far, if more are needed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answers: Vec<AnswerView>,
    /// The number of reminders, for tasks of people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reminders: Option<u32>,
    /// RFC 3339, UTC: when nobody is waited for any longer, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// The question of its attempt to a senior, while it waits for the answer; a list has its first 120
    /// characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
    /// The data of that question; not in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub question_data: Option<Json>,
    /// The command that answers it.
    pub command: Option<String>,
}

/// The prompt that a worker fetches.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PromptView {
    /// The task.
    #[schema(value_type = String)]
    pub task: TaskId,
    /// The run.
    #[schema(value_type = String)]
    pub run: RunId,
    /// The agent.
    pub agent: String,
    /// The attempt, from 1.
    pub attempt: u32,
    /// The id of the attempt's worker.
    #[schema(value_type = String)]
    pub worker_id: WorkerId,
    /// The conversation that the task belongs to: the `session` of its call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The system prompt.
    pub system: Option<String>,
    /// The prompt.
    pub prompt: String,
    /// The input.
    #[schema(value_type = serde_json::Value)]
    pub input: Json,
    /// Facts around the task: `{blueprint, summary, idempotency_key, open, steps}`; `open` has
    /// everything that the agent's `context` names, and `steps` points to the last of its steps.
    #[schema(value_type = serde_json::Value)]
    pub context: Json,
    /// The JSON Schema that the output must satisfy.
    #[schema(value_type = Option<serde_json::Value>)]
    pub output_schema: Option<Json>,
    /// RFC 3339, UTC.
    pub deadline: Option<String>,
    /// The attempt's question to a senior, with the answer once there is one:
    /// `{question, data, asked_at, answer, by}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub advice: Option<Json>,
    /// The path for artifacts: `{"put": "/v1/worker/artifact?name={name}"}`.
    #[schema(value_type = serde_json::Value)]
    pub artifacts: Json,
}

/// A leased task.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct LeaseView {
    /// The task.
    #[schema(value_type = String)]
    pub task: TaskId,
    /// The bearer for the worker API.
    pub handle: String,
    /// RFC 3339, UTC: when the lease ends without a heartbeat.
    pub deadline: String,
    /// The span that the attempt is a part of, as W3C Trace Context writes it; spans of the worker are
    /// its children.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// The prompt, if the lease asked for prompts; those that would make the answer larger than 8 MiB
    /// are absent, and are fetched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<Box<PromptView>>,
}

/// The answer to a heartbeat.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct HeartbeatView {
    /// RFC 3339, UTC.
    pub deadline: Option<String>,
    /// True if the worker should stop.
    pub cancel: bool,
    /// A fresh token, where the caller came with a JWT.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

/// A file of a run.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ArtifactView {
    /// Its id.
    #[schema(value_type = String)]
    pub id: ArtifactId,
    /// Its run.
    #[schema(value_type = String)]
    pub run: RunId,
    /// The step that made it.
    pub step: u32,
    /// Its name.
    pub name: String,
    /// BLAKE3, hex.
    pub hash: String,
    /// Bytes.
    pub size: u64,
    /// RFC 3339, UTC.
    pub created_at: String,
}

/// A reference to a file, in the event of the step that left it. `GET /v1/artifacts/{id}` has the bytes.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ArtifactRef {
    /// Its id.
    #[schema(value_type = String)]
    pub id: ArtifactId,
    /// Its name.
    pub name: String,
    /// BLAKE3, hex.
    pub hash: String,
    /// Bytes.
    pub size: u64,
}

/// A token, without its secret.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TokenView {
    /// Its id.
    pub jti: String,
    /// The owner.
    #[serde(default)]
    pub subject: String,
    /// RFC 3339, UTC: when it was used last since the daemon started.
    #[serde(default)]
    pub last_used_at: Option<String>,
    /// Its role.
    pub role: String,
    /// The verbs that it is narrowed to; absent for all of its role.
    pub verbs: Option<Vec<String>>,
    /// Its scopes.
    pub scopes: Vec<String>,
    /// The token that it was made from.
    pub parent: Option<String>,
    /// RFC 3339, UTC.
    pub created_at: String,
    /// RFC 3339, UTC.
    pub expires_at: String,
    /// RFC 3339, UTC.
    pub revoked_at: Option<String>,
    /// The quotas of this token and all tokens made from it: `{open_runs,
    /// starts_per_minute, stored_bytes, tokens, usd}`.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub quotas: Option<Quotas>,
    /// The used part of its quotas.
    #[serde(default)]
    pub used: Option<QuotaUse>,
}

/// Returns true if an operator executes it as a task.
pub(crate) fn is_task(kind: StepKind) -> bool {
    matches!(kind, StepKind::Task | StepKind::ModelCall | StepKind::ToolCall)
}

/// Returns the view of a file.
pub(crate) fn artifact(row: &ArtifactRow, run: RunId) -> ArtifactView {
    ArtifactView {
        id: ArtifactId::new(row.run, row.n, row.created_ms),
        run,
        step: row.step,
        name: row.name.clone(),
        hash: row.hash.clone(),
        size: row.size,
        created_at: rfc3339(row.created_ms),
    }
}

/// Adds the references to the files of a step to the event of its end: `artifacts`, and
/// `artifacts_total` where the list is shorter.
pub(crate) fn add_files(data: &mut serde_json::Value, run: u64, files: StepFiles) {
    if files.total == 0 {
        return;
    }
    let refer = |file: StepFile| ArtifactRef {
        id: ArtifactId::new(run, file.n, file.created_ms),
        name: file.name,
        hash: file.hash,
        size: file.size,
    };
    let (total, files) = (files.total, files.files);
    if total > files.len() {
        data["artifacts_total"] = total.into();
    }
    let files: Vec<ArtifactRef> = files.into_iter().map(refer).collect();
    data["artifacts"] = serde_json::json!(files);
}

/// Returns the view of one violation of a schema.
pub(crate) fn breach(violation: Violation) -> Breach {
    Breach { path: violation.path, message: violation.message }
}

/// Returns the name of an outcome.
pub(crate) fn outcome_word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Completed(_) => "completed",
        Outcome::Failed(_) => "failed",
        Outcome::Canceled(_) => "canceled",
    }
}

/// A key in a list of state.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StateItem {
    /// The key.
    pub key: String,
    /// The value's revision; in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// RFC 3339, UTC; in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<String>,
    /// RFC 3339, UTC: when it expires; in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// The score, in searches; higher is better.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
    /// The part that fits, its words in brackets; in searches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snippet: Option<String>,
}

/// The usage that counts against the quotas of a token now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QuotaUse {
    /// Runs that are open.
    pub open_runs: u64,
    /// Bytes that its runs keep.
    pub stored_bytes: u64,
    /// Tokens that its runs used.
    pub tokens: u64,
    /// Money that its runs used, in US dollars.
    #[schema(value_type = String)]
    pub usd: Decimal,
}
