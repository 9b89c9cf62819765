//! Queries of a run's flow.

use axum::{Json as JsonBody, extract::State};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{
    app::Api,
    params::{self, Asker, At, Params},
};
use crate::{
    door::{Code, Problem, ProblemBody},
    protocol::Json,
};

/// The query's argument.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct QueryParams {
    /// The function's argument: JSON; null by default.
    argument: Option<String>,
}

/// Asks a function that the flow registered with `ctx:on_query`, also after the run's end.
#[utoipa::path(
    get, path = "/v1/runs/{run}/query/{name}", operation_id = "run_query", tag = "runs",
    params(
        ("run" = String, Path, description = "The run's id."),
        ("name" = String, Path, description = "The query's name."),
        QueryParams,
    ),
    responses(
        (status = 200, description = "What the function returned.", body = serde_json::Value),
        (status = 404, description = "`not_found`", body = ProblemBody),
        (status = 422, description = "`invalid_input`: the argument is not JSON; `flow_failed` with `failure`", body = ProblemBody),
    ),
)]
pub(super) async fn ask(
    State(api): State<Api>,
    Asker(caller): Asker,
    At((run, name)): At<(String, String)>,
    Params(params): Params<QueryParams>,
) -> Result<JsonBody<Json>, Problem> {
    let argument = match params.argument {
        Some(text) => Json::parse(text).map_err(|error| {
            Problem::new(Code::InvalidInput, format!("argument is not JSON: {error}"))
        })?,
        None => Json::null(),
    };
    Ok(JsonBody(api.engine.query(&caller, params::id(&run)?, name, argument).await?))
}
