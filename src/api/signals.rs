//! Signals to a run, or to a blueprint that starts on one.

use axum::{extract::State, http::StatusCode, response::Response};

use super::{
    app::Api,
    body::Posted,
    params::{self, Asker, At, Key},
    runs::created,
};
use crate::{
    door::{Problem, ProblemBody},
    engine::RunView,
    protocol::Json,
};

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
    let payload = payload_of(&posted);
    let key = key.of("POST /v1/runs/{run}/signals/{name}", &posted.raw);
    api.engine.signal(&caller, params::id(&run)?, name, payload, key).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Starts a run of a blueprint that waits for the signal (`on = { { signal = … } }`).
#[utoipa::path(
    post, path = "/v1/blueprints/{name}/signals/{signal}", operation_id = "blueprint_signal", tag = "blueprints",
    params(
        ("name" = String, Path, description = "The blueprint's name."),
        ("signal" = String, Path, description = "The signal's name."),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition harmless for 24 hours."),
    ),
    request_body(content = Option<Object>, description = "The payload, which is the run's input unless the trigger has one: any JSON; `true` if the body is empty."),
    responses(
        (status = 201, description = "The run; `Location` names it.", body = RunView),
        (status = 404, description = "`not_found`: there is no such blueprint, or it waits for no such signal", body = ProblemBody),
        (status = 409, description = "`idempotency_mismatch`", body = ProblemBody),
        (status = 422, description = "`invalid_input` with `violations`", body = ProblemBody),
    ),
)]
pub(super) async fn start(
    State(api): State<Api>,
    Asker(caller): Asker,
    At((name, signal)): At<(String, String)>,
    key: Key,
    posted: Posted<Json>,
) -> Result<Response, Problem> {
    let payload = payload_of(&posted);
    let key = key.of("POST /v1/blueprints/{name}/signals/{signal}", &posted.raw);
    let made =
        api.engine.triggers().signal_blueprint(&caller, &name, &signal, payload, key).await?;
    Ok(created(&made))
}

/// Returns the payload of a signal: `true` for an empty body.
pub(super) fn payload_of(posted: &Posted<Json>) -> Json {
    let empty = posted.raw.iter().all(u8::is_ascii_whitespace);
    if empty { Json::from_trusted("true") } else { posted.body.clone() }
}
