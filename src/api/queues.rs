//! The queues of pull workers, and the workers.

use axum::{Json as JsonBody, extract::State};

use super::{
    app::Api,
    params::{All, Asker},
};
use crate::{
    door::{Problem, ProblemBody},
    engine::{QueueView, WorkerView},
};

/// Lists the queues that have tasks or workers, as far as the token reaches.
#[utoipa::path(
    get, path = "/v1/queues", operation_id = "queue_list", tag = "operators",
    responses(
        (status = 200, description = "All of them, by name.", body = All<QueueView>),
        (status = 403, description = "`forbidden_verb`", body = ProblemBody),
    ),
)]
pub(super) async fn list(
    State(api): State<Api>,
    Asker(caller): Asker,
) -> Result<JsonBody<All<QueueView>>, Problem> {
    Ok(JsonBody(All::of(api.engine.tasks().queues(&caller).await?)))
}

/// Lists the pull workers that were seen in the last hour, or that hold tasks, as far as the token
/// reaches. Their names and labels are what they said themselves.
#[utoipa::path(
    get, path = "/v1/workers", operation_id = "worker_list", tag = "operators",
    responses(
        (status = 200, description = "All of them, by queue and name.", body = All<WorkerView>),
        (status = 403, description = "`forbidden_verb`", body = ProblemBody),
    ),
)]
pub(super) async fn workers(
    State(api): State<Api>,
    Asker(caller): Asker,
) -> Result<JsonBody<All<WorkerView>>, Problem> {
    Ok(JsonBody(All::of(api.engine.tasks().workers(&caller).await?)))
}
