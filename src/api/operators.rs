//! The operators that tasks can go to.

use axum::{Json as JsonBody, extract::State};
use serde::Serialize;
use utoipa::ToSchema;

use super::{door::Api, params::All};

/// An operator.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct OperatorView {
    /// The name that blueprints use.
    name: String,
    /// What kind it is: process, lua, human, queue, echo, …
    kind: String,
}

/// Lists the operators.
#[utoipa::path(
    get, path = "/v1/operators", operation_id = "operator_list", tag = "operators",
    responses((status = 200, description = "All of them.", body = All<OperatorView>)),
)]
pub(super) async fn list(State(api): State<Api>) -> JsonBody<All<OperatorView>> {
    let operators = api.engine.operators().into_iter();
    JsonBody(All::of(operators.map(|(name, kind)| OperatorView { name, kind }).collect()))
}
