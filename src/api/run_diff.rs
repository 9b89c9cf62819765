//! The difference of two runs.

use axum::{Json as JsonBody, extract::State};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{
    app::Api,
    params::{self, Asker, At, Params},
};
use crate::{
    door::{Problem, ProblemBody},
    engine::RunDiff,
};

/// Which steps to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DiffParams {
    /// Steps on a page: 1 to 500, 50 by default.
    limit: Option<usize>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// Compares two runs step by step: usually a fork and its origin.
///
/// Steps belong together if they have the same place in the flow. Requests and results are compared,
/// and not listed; the views of the steps have them.
#[utoipa::path(
    get, path = "/v1/runs/{run}/diff/{other}", operation_id = "run_diff", tag = "runs",
    params(
        ("run" = String, Path, description = "The first run's id."),
        ("other" = String, Path, description = "The second run's id."),
        DiffParams,
    ),
    responses(
        (status = 200, description = "The first difference, and a page of the steps of both.", body = RunDiff),
        (status = 404, description = "`not_found`", body = ProblemBody),
    ),
)]
pub(super) async fn diff(
    State(api): State<Api>,
    Asker(caller): Asker,
    At((run, other)): At<(String, String)>,
    Params(params): Params<DiffParams>,
) -> Result<JsonBody<RunDiff>, Problem> {
    let runs = (params::id(&run)?, params::id(&other)?);
    let after = params.cursor.as_deref().map_or(Ok(0), str::parse);
    let after = after.map_err(|_| params::bad_query("cursor is not one of this list's"))?;
    let limit = params::page_limit(params.limit)?;
    Ok(JsonBody(api.engine.diff(&caller, runs, after, limit).await?))
}
