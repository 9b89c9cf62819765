//! The middleware layers, and the audit log that one of them writes.

use axum::{Json as JsonBody, extract::State};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::{
    app::Api,
    params::{self, All, Asker, Params},
};
use crate::{
    door::{Problem, ProblemBody},
    engine::{AuditView, LayerState, LayerView, Page},
};

/// The agent or blueprint whose layers are listed.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct LayerParams {
    /// Those of this blueprint's runs, by `name` or `name@hash`; without it the host's own.
    blueprint: Option<String>,
}

/// Lists the layers that runs go through, from the outermost to the innermost.
#[utoipa::path(
    get, path = "/v1/middleware", operation_id = "middleware_list", tag = "host",
    params(LayerParams),
    responses(
        (status = 200, description = "All of them, boundary by boundary.", body = All<LayerView>),
        (status = 404, description = "`not_found`", body = ProblemBody),
    ),
)]
pub(super) async fn list(
    State(api): State<Api>,
    Asker(caller): Asker,
    Params(params): Params<LayerParams>,
) -> Result<JsonBody<All<LayerView>>, Problem> {
    Ok(JsonBody(All::of(api.engine.upkeep().layers(&caller, params.blueprint).await?)))
}

/// Lists what the breakers and rate limits of the host keep: at most 100 values of each.
#[utoipa::path(
    get, path = "/v1/middleware/state", operation_id = "middleware_state", tag = "host",
    responses(
        (status = 200, description = "All of them, by layer and key.", body = All<LayerState>),
        (status = 403, description = "`forbidden_verb`", body = ProblemBody),
    ),
)]
pub(super) async fn states(
    State(api): State<Api>,
    Asker(caller): Asker,
) -> Result<JsonBody<All<LayerState>>, Problem> {
    Ok(JsonBody(All::of(api.engine.upkeep().layer_states(&caller).await?)))
}

/// Which lines to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct AuditParams {
    /// Items on a page: 1 to 500, 50 by default.
    limit: Option<usize>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// A page of the audit log.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "the schema of `Page<AuditView>` in the OpenAPI document")]
pub(super) struct AuditPage {
    /// The lines, oldest first.
    items: Vec<AuditView>,
    /// Pass it as `cursor` to get the next page; null at the end.
    next_cursor: Option<String>,
}

/// Lists the lines of the audit log.
#[utoipa::path(
    get, path = "/v1/audit", operation_id = "audit_list", tag = "host",
    params(AuditParams),
    responses((status = 200, description = "A page of lines.", body = AuditPage)),
)]
pub(super) async fn audit(
    State(api): State<Api>,
    Asker(caller): Asker,
    Params(params): Params<AuditParams>,
) -> Result<JsonBody<Page<AuditView>>, Problem> {
    let after = params.cursor.as_deref().map_or(Ok(0), |cursor| {
        cursor.parse().map_err(|_| params::bad_query("cursor is not one of this list's"))
    })?;
    let limit = params::page_limit(params.limit)?;
    Ok(JsonBody(api.engine.upkeep().audit(&caller, after, limit).await?))
}
