//! Liveness and readiness of the server.

use axum::{Json as JsonBody, extract::State};
use serde::Serialize;
use utoipa::ToSchema;

use super::app::Api;
use crate::door::{Code, Problem, ProblemBody};

/// The server lives.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct HealthView {
    /// `ok`.
    status: &'static str,
}

/// Says that the server answers at all; needs no token.
#[utoipa::path(
    get, path = "/healthz", operation_id = "healthz", tag = "host",
    responses((status = 200, description = "It does.", body = HealthView)),
)]
pub(super) async fn healthz() -> JsonBody<HealthView> {
    JsonBody(HealthView { status: "ok" })
}

/// The host takes work.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ReadyView {
    /// `ready`.
    status: &'static str,
    /// The program's version.
    version: &'static str,
}

/// Returns whether the host accepts work.
#[utoipa::path(
    get, path = "/readyz", operation_id = "readyz", tag = "host",
    responses(
        (status = 200, description = "It does.", body = ReadyView),
        (status = 503, description = "`not_ready`: it is taking runs up, stopping, or cannot store anything.", body = ProblemBody),
    ),
)]
pub(super) async fn readyz(State(api): State<Api>) -> Result<JsonBody<ReadyView>, Problem> {
    let ready =
        api.engine.ready().and_then(|()| api.engine.safe_mode().taking_up().map_or(Ok(()), Err));
    match ready {
        Ok(()) => Ok(JsonBody(ReadyView { status: "ready", version: env!("CARGO_PKG_VERSION") })),
        Err(reason) => Err(Problem::new(Code::NotReady, reason).retry_after(1)),
    }
}
