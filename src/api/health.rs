//! Liveness and readiness of the server.

use axum::{Extension, Json as JsonBody, extract::State};
use serde::Serialize;
use utoipa::ToSchema;

use super::app::Api;
use crate::door::{Code, Entered, Problem, ProblemBody};

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
    /// The program's version, for a caller with a token.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<&'static str>,
    /// `asynchronous` if a failover of the database may lose the last commits, for a caller with a
    /// token.
    #[serde(skip_serializing_if = "Option::is_none")]
    durability: Option<&'static str>,
}

/// Returns whether the host accepts work. Without a token it says no more than that, for load
/// balancers; with one, also why it does not.
#[utoipa::path(
    get, path = "/readyz", operation_id = "readyz", tag = "host",
    responses(
        (status = 200, description = "It does.", body = ReadyView),
        (status = 503, description = "`not_ready`: it is taking runs up, stopping, or cannot store anything.", body = ProblemBody),
    ),
)]
pub(super) async fn readyz(
    State(api): State<Api>,
    entered: Option<Extension<Entered>>,
) -> Result<JsonBody<ReadyView>, Problem> {
    let is_known = entered.is_some_and(|Extension(it)| it.bearer.is_some());
    let ready =
        api.engine.ready().and_then(|()| api.engine.safe_mode().taking_up().map_or(Ok(()), Err));
    match ready {
        Ok(()) => {
            let version = is_known.then_some(env!("CARGO_PKG_VERSION"));
            let durability = api.engine.is_asynchronous().then_some("asynchronous");
            let durability = durability.filter(|_| is_known);
            Ok(JsonBody(ReadyView { status: "ready", version, durability }))
        }
        Err(reason) => {
            let reason = if is_known { reason } else { "a token shows the reason".to_owned() };
            Err(Problem::new(Code::NotReady, reason).retry_after(1))
        }
    }
}
