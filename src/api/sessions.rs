//! Sessions of operators, and the seats that they hold.

use axum::{
    Json as JsonBody,
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    app::Api,
    body::Posted,
    params::{self, All, Asker, At, Key},
};
use crate::{
    blueprint::parse_duration,
    door::{Code, Problem, ProblemBody},
    engine::{Advice, OpenSession, Opened, SessionView, TaskView, rfc3339},
    protocol::{Json, SessionId},
};

/// The default lifetime of a session's token, in milliseconds.
const TTL_MS: u64 = 24 * 3_600 * 1_000;

/// The request to open a session.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OpenBody {
    /// The lifetime of its token, at most 7 days and no longer than the caller's own; a day by
    /// default. It can be renewed.
    #[schema(example = "24h")]
    ttl: Option<String>,
    /// Only these scopes; the caller's own by default.
    scopes: Option<Vec<String>>,
    /// Verbs that an operator has only where its token names them, such as `run.source`; the
    /// opening token must have them.
    extra_verbs: Option<Vec<String>>,
    /// True if its frames carry system prompt and prompt; otherwise they are fetched with the
    /// handle.
    direct: Option<bool>,
}

/// An opened session.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct OpenedView {
    /// Its id.
    session: String,
    /// Its token, shown once.
    token: String,
    /// The address of the WebSocket, which takes the token as bearer.
    ws: String,
    /// RFC 3339, UTC: when the token ends.
    expires_at: String,
}

/// Parses the lifetime of a token.
///
/// # Errors
/// Returns `invalid_body` if it is not a duration.
pub(super) fn ttl(text: Option<&str>) -> Result<u64, Problem> {
    let Some(text) = text else { return Ok(TTL_MS) };
    parse_duration(text)
        .map_err(|error| Problem::new(Code::InvalidBody, error.to_string()).at("$.ttl"))
}

/// Opens a session as an operator.
#[utoipa::path(
    post, path = "/v1/operators/{name}/sessions", operation_id = "session_open", tag = "operators",
    params(
        ("name" = String, Path, description = "The operator's name."),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition harmless for 24 hours."),
    ),
    request_body = Option<OpenBody>,
    responses(
        (status = 201, description = "The session and its token.", body = OpenedView),
        (status = 404, description = "`not_found`", body = ProblemBody),
        (status = 409, description = "`no_sessions`, `idempotency_mismatch`", body = ProblemBody),
        (status = 429, description = "`too_many_sessions`", body = ProblemBody),
    ),
)]
pub(super) async fn open(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(operator): At<String>,
    key: Key,
    posted: Posted<Option<OpenBody>>,
) -> Result<Response, Problem> {
    let body = posted.body.unwrap_or_default();
    let open = OpenSession {
        operator,
        ttl_ms: ttl(body.ttl.as_deref())?,
        scopes: body.scopes,
        extra_verbs: body.extra_verbs.unwrap_or_default(),
        direct: body.direct.unwrap_or(false),
    };
    let key = key.of("POST /v1/operators/{name}/sessions", &posted.raw);
    let Opened { session, token, expires_ms } =
        api.engine.sessions().open_session(&caller, open, key).await?;
    let location = HeaderValue::try_from(format!("/v1/sessions/{session}"));
    let view = OpenedView {
        ws: format!("/v1/sessions/{session}/ws"),
        session: session.0,
        token,
        expires_at: rfc3339(expires_ms),
    };
    let location = location.expect("a session's id is ASCII");
    Ok((StatusCode::CREATED, [(header::LOCATION, location)], JsonBody(view)).into_response())
}

/// For how long a session is renewed.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RenewBody {
    /// The lifetime of the new token: at most 7 days, a day by default. It never ends sooner than the
    /// token did before.
    #[schema(example = "24h")]
    pub(super) ttl: Option<String>,
}

/// A renewed token.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RenewedView {
    /// The token: the same id, valid for longer.
    pub(super) token: String,
    /// RFC 3339, UTC: when it ends.
    pub(super) expires_at: String,
}

/// Lists the open sessions of the operators that the token reaches, oldest first.
#[utoipa::path(
    get, path = "/v1/sessions", operation_id = "session_list", tag = "operators",
    responses((status = 200, description = "All of them.", body = All<SessionView>)),
)]
pub(super) async fn list(
    State(api): State<Api>,
    Asker(caller): Asker,
) -> Result<JsonBody<All<SessionView>>, Problem> {
    Ok(JsonBody(All::of(api.engine.sessions().list(&caller)?)))
}

/// Shows a session, also for a day after its end.
#[utoipa::path(
    get, path = "/v1/sessions/{session}", operation_id = "session_get", tag = "operators",
    params(("session" = String, Path, description = "The session's id.")),
    responses(
        (status = 200, description = "The session.", body = SessionView),
        (status = 404, description = "`not_found`", body = ProblemBody),
    ),
)]
pub(super) async fn get(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(session): At<String>,
) -> Result<JsonBody<SessionView>, Problem> {
    Ok(JsonBody(api.engine.sessions().get(&caller, &SessionId::from(session)).await?))
}

/// Closes a session: what it had is given to others, or waits.
#[utoipa::path(
    delete, path = "/v1/sessions/{session}", operation_id = "session_close", tag = "operators",
    params(("session" = String, Path, description = "The session's id.")),
    responses(
        (status = 204, description = "It is closed."),
        (status = 404, description = "`not_found`", body = ProblemBody),
    ),
)]
pub(super) async fn close(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(session): At<String>,
) -> Result<StatusCode, Problem> {
    api.engine.sessions().close_session(&caller, &SessionId::from(session)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The new holder of a seat.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SeatBody {
    /// The session.
    session: String,
}

/// A seat that was taken.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SeatTaken {
    /// The run.
    run: String,
    /// The operator.
    operator: String,
    /// The current holder of its seat.
    session: String,
    /// Counts up with every change of the seat.
    epoch: u32,
}

impl SeatTaken {
    /// Creates a seat of a run.
    pub(super) fn new(run: String, operator: String, session: String, epoch: u32) -> Self {
        Self { run, operator, session, epoch }
    }
}

/// Gives an operator's seat in a run to a session: open tasks move there, and what the former
/// holder still reports is refused as `fenced`.
#[utoipa::path(
    post, path = "/v1/runs/{run}/seats/{operator}", operation_id = "run_seat", tag = "runs",
    params(
        ("run" = String, Path, description = "The run's id."),
        ("operator" = String, Path, description = "The operator's name."),
    ),
    request_body = SeatBody,
    responses(
        (status = 200, description = "It is taken; taking it again changes nothing.", body = SeatTaken),
        (status = 404, description = "`not_found`", body = ProblemBody),
        (status = 409, description = "`wrong_seat`, `run_closed`", body = ProblemBody),
    ),
)]
pub(super) async fn seat(
    State(api): State<Api>,
    Asker(caller): Asker,
    At((run, operator)): At<(String, String)>,
    posted: Posted<SeatBody>,
) -> Result<JsonBody<SeatTaken>, Problem> {
    let session = posted.body.session;
    let (id, holder) = (params::id(&run)?, SessionId::from(session.as_str()));
    let epoch = api.engine.sessions().take_seat(&caller, id, operator.clone(), holder).await?;
    Ok(JsonBody(SeatTaken { run, operator, session, epoch }))
}

/// The answer of a senior to the question of an attempt.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AdviceBody {
    /// The answer: any JSON.
    #[schema(value_type = serde_json::Value)]
    answer: Json,
    /// The `attempt` of the task that was shown; with it, an answer to another one is refused.
    attempt: Option<u32>,
    /// The `revision` of the task that was shown; with it, an answer to another question is refused.
    revision: Option<String>,
}

/// Answers what a working attempt asked with `task/escalate`; the same attempt goes on with it.
#[utoipa::path(
    post, path = "/v1/tasks/{task}/advice", operation_id = "task_advise", tag = "tasks",
    params(
        ("task" = String, Path, description = "The task's id."),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition harmless for 24 hours."),
    ),
    request_body = AdviceBody,
    responses(
        (status = 200, description = "The task, which goes on.", body = TaskView),
        (status = 404, description = "`not_found`", body = ProblemBody),
        (status = 409, description = "`no_question`, `stale_task`, `run_closed`, `idempotency_mismatch`", body = ProblemBody),
    ),
)]
pub(super) async fn advise(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(task): At<String>,
    key: Key,
    posted: Posted<AdviceBody>,
) -> Result<JsonBody<TaskView>, Problem> {
    let key = key.of("POST /v1/tasks/{task}/advice", &posted.raw);
    let AdviceBody { answer, attempt, revision } = posted.body;
    let advice = Advice { answer, attempt, revision };
    Ok(JsonBody(api.engine.sessions().advise(&caller, params::id(&task)?, advice, key).await?))
}
