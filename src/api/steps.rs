//! The chain of a run, as rows.

use axum::{Json as JsonBody, extract::State};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::{
    app::Api,
    params::{self, Asker, At, Params},
};
use crate::{
    door::{Problem, ProblemBody},
    engine::{AttemptsView, LocalsView, Page, StepView},
};

/// Which steps to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// Items on a page: 1 to 500, 50 by default.
    limit: Option<usize>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// A page of steps.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "the schema of `Page<StepView>` in the OpenAPI document")]
pub(super) struct StepPage {
    /// The steps in the order in which they were scheduled, without request and response.
    items: Vec<StepView>,
    /// Pass it as `cursor` to get the next page; null at the end.
    next_cursor: Option<String>,
}

/// Lists the steps of a run.
#[utoipa::path(
    get, path = "/v1/runs/{run}/steps", operation_id = "step_list", tag = "runs",
    params(("run" = String, Path, description = "The run's id."), ListParams),
    responses(
        (status = 200, description = "A page of steps.", body = StepPage),
        (status = 404, description = "`not_found`", body = ProblemBody),
    ),
)]
pub(super) async fn list(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(run): At<String>,
    Params(params): Params<ListParams>,
) -> Result<JsonBody<Page<StepView>>, Problem> {
    let after = params.cursor.as_deref().map_or(Ok(0), |cursor| {
        cursor.parse().map_err(|_| params::bad_query("cursor is not one of this list's"))
    })?;
    let limit = params::page_limit(params.limit)?;
    Ok(JsonBody(api.engine.steps(&caller, params::id(&run)?, after, limit).await?))
}

/// Shows a step with its request and response.
#[utoipa::path(
    get, path = "/v1/runs/{run}/steps/{seq}", operation_id = "step_get", tag = "runs",
    params(
        ("run" = String, Path, description = "The run's id."),
        ("seq" = u32, Path, description = "The step's number."),
    ),
    responses(
        (status = 200, description = "The step.", body = StepView),
        (status = 404, description = "`not_found`", body = ProblemBody),
    ),
)]
pub(super) async fn get(
    State(api): State<Api>,
    Asker(caller): Asker,
    At((run, seq)): At<(String, String)>,
) -> Result<JsonBody<StepView>, Problem> {
    let step = api.engine.step(&caller, params::id(&run)?, params::number(&seq)?).await?;
    Ok(JsonBody(step))
}

/// Shows the attempts of a step: who had each, when, and how it ended.
#[utoipa::path(
    get, path = "/v1/runs/{run}/steps/{seq}/attempts", operation_id = "step_attempts", tag = "runs",
    params(
        ("run" = String, Path, description = "The run's id."),
        ("seq" = u32, Path, description = "The step's number."),
    ),
    responses(
        (status = 200, description = "The attempts.", body = AttemptsView),
        (status = 404, description = "`not_found`", body = ProblemBody),
    ),
)]
pub(super) async fn attempts(
    State(api): State<Api>,
    Asker(caller): Asker,
    At((run, seq)): At<(String, String)>,
) -> Result<JsonBody<AttemptsView>, Problem> {
    let (run, seq) = (params::id(&run)?, params::number(&seq)?);
    Ok(JsonBody(api.engine.attempts(&caller, run, seq).await?))
}

/// Shows the calls of a run's flow with their arguments, locals and upvalues, at the moment when it
/// requested a step. The history is replayed up to there; nothing is written and nothing is executed.
#[utoipa::path(
    get, path = "/v1/runs/{run}/steps/{seq}/locals", operation_id = "step_locals", tag = "runs",
    params(
        ("run" = String, Path, description = "The run's id."),
        ("seq" = u32, Path, description = "The step's number."),
    ),
    responses(
        (status = 200, description = "The calls, the innermost first. A flow that is a table has none.", body = LocalsView),
        (status = 404, description = "`not_found`", body = ProblemBody),
        (status = 409, description = "`conflict`: the source no longer leads to the step, a program drives the run, or the replay takes too long.", body = ProblemBody),
        (status = 429, description = "`busy`: this token has two such requests under way.", body = ProblemBody),
    ),
)]
pub(super) async fn locals(
    State(api): State<Api>,
    Asker(caller): Asker,
    At((run, seq)): At<(String, String)>,
) -> Result<JsonBody<LocalsView>, Problem> {
    let (run, seq) = (params::id(&run)?, params::number(&seq)?);
    Ok(JsonBody(api.engine.histories().locals(&caller, run, seq).await?))
}
