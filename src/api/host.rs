//! The host itself.

use axum::{Json as JsonBody, extract::State};

use super::{app::Api, params::Asker};
use crate::{
    door::{Problem, ProblemBody},
    engine::HostView,
};

/// Describes the host: health, room on its disk, shards, retention; with the verb `host.inspect` also
/// its effective configuration, each value with its origin and secrets as names, and what `doctor`
/// finds.
#[utoipa::path(
    get, path = "/v1/host", operation_id = "host_get", tag = "host",
    responses(
        (status = 200, description = "The host.", body = HostView),
        (status = 403, description = "`forbidden_verb`", body = ProblemBody),
    ),
)]
pub(super) async fn get(
    State(api): State<Api>,
    Asker(caller): Asker,
) -> Result<JsonBody<HostView>, Problem> {
    Ok(JsonBody(api.engine.upkeep().host(&caller).await?))
}
