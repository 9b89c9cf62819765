//! The nodes of the cluster.

use axum::{Json as JsonBody, extract::State};

use super::{
    app::Api,
    params::{All, Asker},
};
use crate::{
    door::{Problem, ProblemBody},
    engine::NodeView,
};

/// Lists the nodes of the cluster that have not ended: which one drives, and which stand by. Empty for a
/// daemon that is alone.
#[utoipa::path(
    get, path = "/v1/nodes", operation_id = "node_list", tag = "host",
    responses(
        (status = 200, description = "All of them, the oldest first.", body = All<NodeView>),
        (status = 403, description = "`forbidden_verb`", body = ProblemBody),
    ),
)]
pub(super) async fn list(
    State(api): State<Api>,
    Asker(caller): Asker,
) -> Result<JsonBody<All<NodeView>>, Problem> {
    Ok(JsonBody(All::of(api.engine.upkeep().nodes(&caller)?)))
}
