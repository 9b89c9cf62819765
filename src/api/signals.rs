//! Signals to a run.

use axum::{extract::State, http::StatusCode};

use super::{
    body::Posted,
    door::Api,
    error::{Problem, ProblemBody},
    params::{self, Asker, At, Key},
};
use crate::protocol::Json;

/// Sends a run a signal and answers when it is durable.
#[utoipa::path(
    post, path = "/v1/runs/{run}/signals/{name}", operation_id = "run_signal", tag = "runs",
    params(
        ("run" = String, Path, description = "The run's id."),
        ("name" = String, Path, description = "The signal's name."),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition harmless for 24 hours."),
    ),
    request_body(content = Option<Object>, description = "The payload: any JSON; `true` if the body is empty."),
    responses(
        (status = 204, description = "It is queued."),
        (status = 404, description = "`not_found`", body = ProblemBody),
        (status = 409, description = "`run_closed`, `idempotency_mismatch`", body = ProblemBody),
    ),
)]
pub(super) async fn send(
    State(api): State<Api>,
    Asker(caller): Asker,
    At((run, name)): At<(String, String)>,
    key: Key,
    posted: Posted<Json>,
) -> Result<StatusCode, Problem> {
    let empty = posted.raw.iter().all(u8::is_ascii_whitespace);
    let payload = if empty { Json::from_trusted("true") } else { posted.body };
    let key = key.of("POST /v1/runs/{run}/signals/{name}", &posted.raw);
    api.engine.signal(&caller, params::id(&run)?, name, payload, key).await?;
    Ok(StatusCode::NO_CONTENT)
}
