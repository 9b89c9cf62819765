//! The worker API: the holder of an attempt's handle fetches its prompt and reports on it. The
//! handle identifies the task, so no path does.

use std::{collections::BTreeMap, time::Duration};

use axum::{
    Json as JsonBody,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    app::Api,
    body::{Posted, Raw, read_json},
    params::{self, Asker, At, Key, Params, Reporter},
    tokens::MintedView,
};
use crate::{
    blueprint::{Labels, parse_duration},
    door::{Code, Problem, ProblemBody},
    engine::{
        ArtifactView, Caller, HeartbeatView, LeaseAsk, LeaseView, Leased, PromptView, Report,
        Verdict, rfc3339,
    },
    protocol::Json,
};

mod archive;
pub(super) mod batch;
pub(super) mod context;
mod report;

pub(super) use report::ResultBody;

/// The maximum number of tasks of one lease.
const MOST_LEASED: usize = 100;

/// The maximum length of the name of a queue or of a worker, in bytes.
const MOST_NAME: usize = 255;

/// The request of a pull worker.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LeaseBody {
    /// The queue.
    #[schema(max_length = 255)]
    queue: String,
    /// The time to wait for a task, at most a minute: `"30s"`. None by default.
    #[schema(pattern = "^[0-9]{1,3}s$")]
    wait: Option<String>,
    /// The maximum number of tasks: 1 to 100, 1 by default.
    #[schema(minimum = 1, maximum = 100)]
    max: Option<usize>,
    /// The worker's name, for people; the token's subject by default.
    #[schema(max_length = 255)]
    worker: Option<String>,
    /// The labels of the worker, `{"gpu": "true"}`: it receives only tasks whose labels are among
    /// them.
    #[serde(default)]
    labels: BTreeMap<String, String>,
    /// True to get the prompts with the tasks. The timeouts of the attempts begin then.
    #[serde(default)]
    prompts: bool,
}

/// A request of a pull worker that was read.
struct WantedTasks {
    queue: String,
    worker: String,
    labels: Labels,
    max: usize,
    wait: Duration,
    prompts: bool,
}

impl LeaseBody {
    fn read(self, caller: &Caller) -> Result<WantedTasks, Problem> {
        let Self { queue, wait, max, worker, labels, prompts } = self;
        let max = max.unwrap_or(1);
        if !(1..=MOST_LEASED).contains(&max) {
            let detail = format!("max is between 1 and {MOST_LEASED}");
            return Err(Problem::new(Code::InvalidBody, detail).at("$.max"));
        }
        let wait = params::wait(wait.as_deref())
            .map_err(|detail| Problem::new(Code::InvalidBody, detail).at("$.wait"))?
            .unwrap_or_default();
        let labels = Labels::new(labels).map_err(|error| {
            Problem::new(Code::InvalidBody, format!("failed to {error}")).at("$.labels")
        })?;
        for (name, at) in [(Some(&queue), "$.queue"), (worker.as_ref(), "$.worker")] {
            // Both are kept for an hour, for lists of workers.
            if name.is_some_and(|name| name.len() > MOST_NAME) {
                let detail = format!("a name has at most {MOST_NAME} bytes");
                return Err(Problem::new(Code::InvalidBody, detail).at(at));
            }
        }
        let worker = worker.unwrap_or_else(|| caller.subject.clone());
        Ok(WantedTasks { queue, worker, labels, max, wait, prompts })
    }
}

impl WantedTasks {
    fn ask(&self) -> LeaseAsk<'_> {
        let Self { queue, worker, labels, max, wait, prompts } = self;
        LeaseAsk { queue, worker, labels, max: *max, wait: *wait, prompts: *prompts }
    }
}

/// Leases tasks of a queue; waits for the first one.
#[utoipa::path(
    post, path = "/v1/worker/lease", operation_id = "worker_lease", tag = "worker",
    request_body = LeaseBody,
    responses(
        (status = 200, description = "At least one task.", body = Vec<LeaseView>),
        (status = 204, description = "None came in time, or the host is stopping."),
    ),
)]
pub(super) async fn lease(
    State(api): State<Api>,
    Asker(caller): Asker,
    posted: Posted<LeaseBody>,
) -> Result<Response, Problem> {
    let wanted = posted.body.read(&caller)?;
    // It ends by itself when the host stops, and not while a lease for it is being stored.
    let leased = api.engine.tasks().lease(&caller, &wanted.ask()).await?;
    if leased.is_empty() {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    Ok(JsonBody(views(leased)).into_response())
}

fn views(leased: Vec<Leased>) -> Vec<LeaseView> {
    let views = leased.into_iter().map(|leased| LeaseView {
        task: leased.task,
        handle: leased.handle,
        deadline: rfc3339(leased.lease_ms),
        traceparent: leased.trace.map(|trace| trace.to_string()),
        prompt: leased.prompt,
    });
    views.collect()
}

/// Gives the prompt and everything else that the work needs; the attempt counts as delivered.
#[utoipa::path(
    get, path = "/v1/worker/prompt", operation_id = "worker_prompt", tag = "worker",
    responses(
        (status = 200, description = "What is to be done.", body = PromptView),
        (status = 409, description = "`fenced`, `run_closed`", body = ProblemBody),
    ),
)]
pub(super) async fn prompt(
    State(api): State<Api>,
    Reporter(holder): Reporter,
) -> Result<JsonBody<PromptView>, Problem> {
    Ok(JsonBody(api.engine.tasks().prompt(&holder).await?))
}

/// A report was accepted.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct AcceptedView {
    /// Always true.
    accepted: bool,
    /// True if the same report was accepted before.
    repeated: bool,
}

impl AcceptedView {
    /// Creates the answer to a report; `first` is false for a repeated one.
    pub(super) fn new(first: bool) -> Self {
        Self { accepted: true, repeated: !first }
    }
}

async fn accept(
    api: &Api,
    holder: &crate::engine::Holder,
    report: Report,
) -> Result<JsonBody<AcceptedView>, Problem> {
    let first = api.engine.tasks().report(holder, report).await?;
    Ok(JsonBody(AcceptedView::new(first)))
}

/// Reports how the task went. Accepted exactly once: the same body again is 200, another is 409.
#[utoipa::path(
    post, path = "/v1/worker/result", operation_id = "worker_result", tag = "worker",
    params(("Idempotency-Key" = Option<String>, Header, description = "Marks a repetition; without it the body does.")),
    request_body = ResultBody,
    responses(
        (status = 200, description = "It is durable.", body = AcceptedView),
        (status = 409, description = "`already_accepted`, `idempotency_mismatch`, `fenced`, `run_closed`", body = ProblemBody),
        (status = 422, description = "`invalid_result` with `path` and `violations`; three of them end the attempt", body = ProblemBody),
    ),
)]
pub(super) async fn result(
    State(api): State<Api>,
    Reporter(holder): Reporter,
    key: Key,
    raw: Raw,
) -> Result<JsonBody<AcceptedView>, Problem> {
    raw.expect_json()?;
    let body: ResultBody = read_json(&raw.bytes)?;
    let (verdict, usage, effects) = body.into_parts()?;
    accept(&api, &holder, report_of(raw.text()?, key.bare(), verdict, usage, effects)).await
}

fn report_of(
    body: &str,
    key: Option<String>,
    verdict: Verdict,
    usage: Option<crate::journal::Usage>,
    effects: Vec<serde_json::Value>,
) -> Report {
    Report {
        verdict,
        usage,
        effects,
        body_hash: blake3::hash(body.as_bytes()).to_hex().to_string(),
        body: body.to_owned(),
        key,
    }
}

/// The verdict of a raw report.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SubmitParams {
    /// `skip`: the task does not apply, and the body is the reason.
    #[param(inline)]
    verdict: Option<SubmitVerdict>,
}

/// The verdict of a raw report.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum SubmitVerdict {
    /// The task is done, and the body is its output.
    Pass,
    /// The task does not apply, and the body is the reason.
    Skip,
}

/// Reports the raw body as the output: as JSON if it parses, as text otherwise.
#[utoipa::path(
    post, path = "/v1/worker/submit", operation_id = "worker_submit", tag = "worker",
    params(SubmitParams, ("Idempotency-Key" = Option<String>, Header, description = "Marks a repetition; without it the body does.")),
    request_body(content = String, description = "The output.", content_type = "text/plain"),
    responses(
        (status = 200, description = "It is durable.", body = AcceptedView),
        (status = 409, description = "`already_accepted`, `idempotency_mismatch`, `fenced`, `run_closed`", body = ProblemBody),
        (status = 422, description = "`invalid_result` with `path` and `violations`; three of them end the attempt", body = ProblemBody),
    ),
)]
pub(super) async fn submit(
    State(api): State<Api>,
    Reporter(holder): Reporter,
    Params(params): Params<SubmitParams>,
    key: Key,
    raw: Raw,
) -> Result<JsonBody<AcceptedView>, Problem> {
    let text = raw.text()?;
    if let Some(SubmitVerdict::Skip) = params.verdict {
        let (done, effects) = (Verdict::Done(Json::null()), vec![report::skip(text.trim())]);
        let mut report = report_of(text, key.bare(), done, None, effects);
        // The same words as an output are another report.
        report.body_hash.push_str("-skip");
        return accept(&api, &holder, report).await;
    }
    let output = read_json::<Json>(text.trim().as_bytes())
        .ok()
        .filter(|_| !text.trim().is_empty())
        .unwrap_or_else(|| Json::from(serde_json::Value::from(text)));
    let done = Verdict::Done(output);
    accept(&api, &holder, report_of(text, key.bare(), done, None, Vec::new())).await
}

/// The name of an artifact.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ArtifactParams {
    /// The file's name.
    #[param(example = "report.md")]
    name: String,
}

/// Stages a file; it is published with the accepted result and kept as evidence otherwise.
#[utoipa::path(
    post, path = "/v1/worker/artifact", operation_id = "worker_artifact", tag = "worker",
    params(ArtifactParams),
    request_body(content = Vec<u8>, description = "The file.", content_type = "application/octet-stream"),
    responses(
        (status = 200, description = "It is stored.", body = ArtifactView),
        (status = 409, description = "`fenced`, `run_closed`", body = ProblemBody),
    ),
)]
pub(super) async fn artifact(
    State(api): State<Api>,
    Reporter(holder): Reporter,
    Params(params): Params<ArtifactParams>,
    raw: Raw,
) -> Result<JsonBody<ArtifactView>, Problem> {
    if params.name.is_empty() || params.name.len() > 255 || params.name.contains(char::is_control) {
        return Err(params::bad_query("name has 1 to 255 bytes, none of them a control character"));
    }
    let data = Vec::from(raw.bytes);
    Ok(JsonBody(api.engine.tasks().put_artifact(&holder, params.name, data).await?))
}

/// The progress of the work.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ProgressBody {
    /// One line for a person.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// Between 0 and 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    percent: Option<f64>,
    /// Anything more.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    data: Option<Json>,
}

impl ProgressBody {
    /// Creates a report of progress.
    ///
    /// # Errors
    /// Returns `invalid_body` if the percentage is out of range.
    pub(super) fn new(
        text: Option<String>,
        percent: Option<f64>,
        data: Option<Json>,
    ) -> Result<Self, Problem> {
        if percent.is_some_and(|percent| !(0.0..=100.0).contains(&percent)) {
            let detail = "percent is between 0 and 100";
            return Err(Problem::new(Code::InvalidBody, detail).at("$.percent"));
        }
        Ok(Self { text, percent, data })
    }
}

/// Reports the progress of the work. It is shown to watchers, and not stored.
#[utoipa::path(
    post, path = "/v1/worker/progress", operation_id = "worker_progress", tag = "worker",
    request_body = ProgressBody,
    responses(
        (status = 204, description = "It was heard."),
        (status = 409, description = "`fenced`, `run_closed`", body = ProblemBody),
    ),
)]
pub(super) async fn progress(
    State(api): State<Api>,
    Reporter(holder): Reporter,
    posted: Posted<ProgressBody>,
) -> Result<StatusCode, Problem> {
    let ProgressBody { text, percent, data } = posted.body;
    let said = ProgressBody::new(text, percent, data)?;
    let said = Json::encode(&said).expect("progress is plain data");
    api.engine.tasks().progress(&holder, said).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The question of an attempt.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct QuestionBody {
    /// The question, for a person.
    question: String,
    /// Anything more.
    #[schema(value_type = Option<serde_json::Value>)]
    data: Option<Json>,
}

/// Asks a senior; the step waits. The answer stands in the prompt's `advice`.
#[utoipa::path(
    post, path = "/v1/worker/escalate", operation_id = "worker_escalate", tag = "worker",
    request_body = QuestionBody,
    responses(
        (status = 204, description = "It waits."),
        (status = 409, description = "`question_open`, `fenced`, `run_closed`", body = ProblemBody),
    ),
)]
pub(super) async fn escalate(
    State(api): State<Api>,
    Reporter(holder): Reporter,
    posted: Posted<QuestionBody>,
) -> Result<StatusCode, Problem> {
    let question = Json::encode(&posted.body).expect("a question is plain data");
    api.engine.sessions().escalate(&holder, question).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Keeps the attempt and says whether to stop. A JWT is renewed: the answer has the next one.
#[utoipa::path(
    post, path = "/v1/worker/heartbeat", operation_id = "worker_heartbeat", tag = "worker",
    responses(
        (status = 200, description = "It is kept.", body = HeartbeatView),
        (status = 409, description = "`fenced`, `run_closed`", body = ProblemBody),
    ),
)]
pub(super) async fn heartbeat(
    State(api): State<Api>,
    Reporter(holder): Reporter,
) -> Result<JsonBody<HeartbeatView>, Problem> {
    Ok(JsonBody(api.engine.tasks().heartbeat(&holder).await?))
}

/// The request for the token of a task.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TaskTokenBody {
    /// Only these verbs of a worker; those of the bearer if absent.
    verbs: Option<Vec<String>>,
    /// The lifetime of the token; at most an hour, `"10m"` by default.
    ttl: Option<String>,
}

/// Gives a token (a JWT) in place of the handle: one that ends by itself, is renewed by heartbeats
/// and may be narrowed to some verbs, for a part of the work that is given to somebody else.
#[utoipa::path(
    post, path = "/v1/worker/token", operation_id = "worker_token", tag = "worker",
    request_body = TaskTokenBody,
    responses(
        (status = 201, description = "The token.", body = MintedView),
        (status = 403, description = "`forbidden_verb`", body = ProblemBody),
        (status = 409, description = "`fenced`, `run_closed`", body = ProblemBody),
    ),
)]
pub(super) async fn token(
    State(api): State<Api>,
    Reporter(holder): Reporter,
    posted: Posted<TaskTokenBody>,
) -> Result<(StatusCode, JsonBody<MintedView>), Problem> {
    let TaskTokenBody { verbs, ttl } = posted.body;
    let ttl_ms = parse_duration(ttl.as_deref().unwrap_or("10m")).map_err(|error| {
        Problem::new(Code::InvalidBody, format!("failed to {error}")).at("$.ttl")
    })?;
    let minted = api.engine.tasks().worker_token(&holder, verbs.as_deref(), ttl_ms).await?;
    Ok((StatusCode::CREATED, JsonBody(minted.into())))
}

/// Which scope.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct StateParams {
    /// The run's own by default; also `operator:<run>:<operator>` of the attempt, and what the
    /// token's scopes of state reach.
    scope: Option<String>,
}

/// Reads a value of the state that the agent may see.
#[utoipa::path(
    get, path = "/v1/worker/state/{key}", operation_id = "worker_state_get", tag = "worker",
    params(("key" = String, Path, description = "The key, percent-encoded."), StateParams),
    responses(
        (status = 200, description = "The value.", body = serde_json::Value),
        (status = 403, description = "`forbidden_scope`", body = ProblemBody),
        (status = 404, description = "`not_found`", body = ProblemBody),
    ),
)]
pub(super) async fn state(
    State(api): State<Api>,
    Reporter(holder): Reporter,
    At(key): At<String>,
    Params(params): Params<StateParams>,
) -> Result<JsonBody<Json>, Problem> {
    let value = api.engine.tasks().worker_state(&holder, params.scope, key.clone()).await?;
    value
        .map(JsonBody)
        .ok_or_else(|| Problem::new(Code::NotFound, format!("there is no value under {key:?}")))
}

/// Writes a value of the state that the agent may see.
#[utoipa::path(
    put, path = "/v1/worker/state/{key}", operation_id = "worker_state_put", tag = "worker",
    params(("key" = String, Path, description = "The key, percent-encoded."), StateParams),
    request_body(content = Object, description = "The value: any JSON."),
    responses(
        (status = 204, description = "It is durable."),
        (status = 409, description = "`fenced`, `run_closed`", body = ProblemBody),
    ),
)]
pub(super) async fn put_state(
    State(api): State<Api>,
    Reporter(holder): Reporter,
    At(key): At<String>,
    Params(params): Params<StateParams>,
    posted: Posted<Json>,
) -> Result<StatusCode, Problem> {
    if posted.raw.iter().all(u8::is_ascii_whitespace) {
        return Err(Problem::new(Code::MalformedJson, "the body is empty"));
    }
    api.engine.tasks().put_worker_state(&holder, params.scope, key, posted.body).await?;
    Ok(StatusCode::NO_CONTENT)
}
