//! Triggers: schedules, watches of files and signals that start runs.

use axum::{Json as JsonBody, extract::State, response::Response};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    app::Api,
    body::Posted,
    params::{self, Asker, At, Key, Params},
    runs::created,
};
use crate::{
    door::{Problem, ProblemBody},
    engine::{RunView, TriggerEntry},
    protocol::Json,
};

/// Which triggers.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// Only those of this blueprint.
    blueprint: Option<String>,
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
    /// About how many, from 1 to 500; the triggers of one blueprint are never split.
    limit: Option<usize>,
}

/// A page of triggers.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct TriggerPage {
    /// The triggers, by blueprint.
    items: Vec<TriggerEntry>,
    /// Pass it as `cursor` to get the next page; null at the end.
    next_cursor: Option<String>,
}

/// Lists the triggers of the blueprints that the token reaches: when each is due next, and what it
/// started last.
#[utoipa::path(
    get, path = "/v1/triggers", operation_id = "trigger_list", tag = "triggers",
    params(ListParams),
    responses(
        (status = 200, description = "A page. It may be short and still have a next one.", body = TriggerPage),
        (status = 403, description = "`forbidden_verb`", body = ProblemBody),
    ),
)]
pub(super) async fn list(
    State(api): State<Api>,
    Asker(caller): Asker,
    Params(asked): Params<ListParams>,
) -> Result<JsonBody<TriggerPage>, Problem> {
    let limit = params::page_limit(asked.limit)?;
    let (blueprint, cursor) = (asked.blueprint.as_deref(), asked.cursor.as_deref());
    let page = api.engine.triggers().list(&caller, blueprint, cursor, limit).await?;
    Ok(JsonBody(TriggerPage { items: page.items, next_cursor: page.next_cursor }))
}

/// Pauses a trigger. It starts nothing until it is resumed; what was due in between is skipped.
#[utoipa::path(
    post, path = "/v1/triggers/{trigger}/pause", operation_id = "trigger_pause", tag = "triggers",
    params(("trigger" = String, Path, description = "The trigger's id.")),
    responses(
        (status = 200, description = "The paused trigger; a repetition changes nothing.", body = TriggerEntry),
        (status = 403, description = "`forbidden_verb`", body = ProblemBody),
        (status = 404, description = "`not_found`", body = ProblemBody),
    ),
)]
pub(super) async fn pause(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(trigger): At<String>,
) -> Result<JsonBody<TriggerEntry>, Problem> {
    Ok(JsonBody(api.engine.triggers().pause(&caller, &trigger).await?))
}

/// Resumes a paused trigger.
#[utoipa::path(
    post, path = "/v1/triggers/{trigger}/resume", operation_id = "trigger_resume", tag = "triggers",
    params(("trigger" = String, Path, description = "The trigger's id.")),
    responses(
        (status = 200, description = "The trigger; a repetition changes nothing.", body = TriggerEntry),
        (status = 403, description = "`forbidden_verb`", body = ProblemBody),
        (status = 404, description = "`not_found`", body = ProblemBody),
    ),
)]
pub(super) async fn resume(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(trigger): At<String>,
) -> Result<JsonBody<TriggerEntry>, Problem> {
    Ok(JsonBody(api.engine.triggers().resume(&caller, &trigger).await?))
}

/// Starts the run of a trigger now, also while it is paused. The run has the rights of this token,
/// and `fired` in its `ctx.trigger`.
#[utoipa::path(
    post, path = "/v1/triggers/{trigger}/fire", operation_id = "trigger_fire", tag = "triggers",
    params(
        ("trigger" = String, Path, description = "The trigger's id."),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition harmless for 24 hours."),
    ),
    request_body(content = Option<Object>, description = "The payload of a signal: any JSON; `true` if the body is empty."),
    responses(
        (status = 201, description = "The run; `Location` names it.", body = RunView),
        (status = 403, description = "`forbidden_verb`", body = ProblemBody),
        (status = 404, description = "`not_found`", body = ProblemBody),
        (status = 409, description = "`idempotency_mismatch`", body = ProblemBody),
        (status = 422, description = "`invalid_input` with `violations`", body = ProblemBody),
    ),
)]
pub(super) async fn fire(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(trigger): At<String>,
    key: Key,
    posted: Posted<Json>,
) -> Result<Response, Problem> {
    let payload = super::signals::payload_of(&posted);
    let key = key.of("POST /v1/triggers/{trigger}/fire", &posted.raw);
    Ok(created(&api.engine.triggers().fire(&caller, &trigger, payload, key).await?))
}
