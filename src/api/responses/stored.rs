//! Stored responses: show, stream, cancel, delete.

use std::time::Duration;

use axum::{
    Json as JsonBody,
    extract::State,
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::IntoParams;

use super::{Answering, run_of, said, sse};
use crate::{
    api::{
        app::Api,
        params::{Asker, At, Params, bad_query},
        runs,
    },
    door::{ModelErrorBody, Problem},
    engine::{Caller, EngineError, WaitFor},
    protocol::{Code, RunId},
    respond::Stream,
};

/// The time for which a deletion waits for the response that it canceled.
const ENDING: Duration = Duration::from_secs(30);
/// The default and the maximum number of items of a page.
const ITEMS: (usize, usize) = (20, 100);

/// The form of a response.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(in crate::api) struct GetParams {
    /// True to stream its events instead.
    #[serde(default)]
    stream: bool,
    /// Only events after this number.
    starting_after: Option<u64>,
}

/// Shows a response, or streams its events.
///
/// The events of a response that ended are the same, under the same numbers, as those that were
/// sent while it was under way.
#[utoipa::path(
    get, path = "/v1/responses/{response}", operation_id = "response_get", tag = "responses",
    params(("response" = String, Path, description = "The response's id."), GetParams),
    responses(
        (status = 200, description = "The response, or its events.", content((Object = "application/json"), (Object = "text/event-stream"))),
        (status = 404, description = "`not_found`", body = ModelErrorBody),
    ),
)]
pub(in crate::api) async fn get(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(response): At<String>,
    Params(params): Params<GetParams>,
) -> Result<Response, Problem> {
    let run = run_of(&response)?;
    if params.stream {
        let responding = api.engine.responses().responding(&caller, run).await.map_err(said)?;
        return Ok(sse::events(&api, Answering::of(responding), params.starting_after));
    }
    let stream = api.engine.responses().response(&caller, run).await.map_err(said)?;
    Ok(JsonBody(stream.response()).into_response())
}

/// Which items to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(in crate::api) struct ItemParams {
    /// Items on a page: 1 to 100, 20 by default.
    limit: Option<usize>,
    /// `asc`, or `desc` (the default): from the last to the first.
    order: Option<String>,
    /// The id of the last item of the page before.
    after: Option<String>,
}

/// Lists the items that a response was given: the conversation before it, and what its request
/// added.
#[utoipa::path(
    get, path = "/v1/responses/{response}/input_items", operation_id = "response_input_items", tag = "responses",
    params(("response" = String, Path, description = "The response's id."), ItemParams),
    responses(
        (status = 200, description = "`{object: \"list\", data, first_id, last_id, has_more}`", body = Object),
        (status = 404, description = "`not_found`", body = ModelErrorBody),
    ),
)]
pub(in crate::api) async fn input_items(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(response): At<String>,
    Params(params): Params<ItemParams>,
) -> Result<JsonBody<Value>, Problem> {
    let stream =
        api.engine.responses().response(&caller, run_of(&response)?).await.map_err(said)?;
    page(stream.trigger().conversation.clone(), &params).map(JsonBody)
}

pub(super) fn page(mut items: Vec<Value>, params: &ItemParams) -> Result<Value, Problem> {
    let (usual, most) = ITEMS;
    let limit = params.limit.unwrap_or(usual);
    if !(1..=most).contains(&limit) {
        return Err(bad_query(format!("limit is between 1 and {most}")));
    }
    match params.order.as_deref() {
        None | Some("desc") => items.reverse(),
        Some("asc") => {}
        Some(_) => return Err(bad_query("order is asc or desc")),
    }
    let from = match &params.after {
        None => 0,
        Some(after) => {
            let found = items.iter().position(|item| item["id"] == after.as_str());
            found
                .map(|at| at + 1)
                .ok_or_else(|| bad_query(format!("no item has the id {after}")))?
        }
    };
    let has_more = items.len() > from + limit;
    let data: Vec<Value> = items.into_iter().skip(from).take(limit).collect();
    let id = |item: Option<&Value>| item.map_or(Value::Null, |item| item["id"].clone());
    Ok(json!({
        "object": "list",
        "first_id": id(data.first()),
        "last_id": id(data.last()),
        "has_more": has_more,
        "data": data,
    }))
}

/// Cancels a response; one that ended stays as it is.
#[utoipa::path(
    post, path = "/v1/responses/{response}/cancel", operation_id = "response_cancel", tag = "responses",
    params(("response" = String, Path, description = "The response's id.")),
    responses(
        (status = 200, description = "The response, after the cancel is durable.", body = Object),
        (status = 404, description = "`not_found`", body = ModelErrorBody),
    ),
)]
pub(in crate::api) async fn cancel(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(response): At<String>,
) -> Result<JsonBody<Value>, Problem> {
    let run = run_of(&response)?;
    let stream = match halt(&api, &caller, run, "canceled by a client").await? {
        Some(over) => over,
        None => api.engine.responses().response(&caller, run).await.map_err(said)?,
    };
    Ok(JsonBody(stream.response()))
}

/// Cancels a response in progress; returns one that is already over.
async fn halt(
    api: &Api,
    caller: &Caller,
    run: RunId,
    reason: &str,
) -> Result<Option<Stream>, Problem> {
    let stream = api.engine.responses().response(caller, run).await.map_err(said)?;
    if stream.is_over() {
        return Ok(Some(stream));
    }
    match api.engine.cancel(caller, run, reason.to_owned(), None).await {
        // It ended in the meantime.
        Err(EngineError::Conflict { code: Code::RunClosed, .. }) => {}
        canceled => drop(canceled.map_err(said)?),
    }
    Ok(None)
}

/// Deletes a response with its run; one under way is canceled first.
#[utoipa::path(
    delete, path = "/v1/responses/{response}", operation_id = "response_delete", tag = "responses",
    params(("response" = String, Path, description = "The response's id.")),
    responses(
        (status = 200, description = "`{id, object: \"response\", deleted: true}`", body = Object),
        (status = 404, description = "`not_found`", body = ModelErrorBody),
        (status = 409, description = "`not_ended`, `in_use`", body = ModelErrorBody),
    ),
)]
pub(in crate::api) async fn delete(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(response): At<String>,
) -> Result<JsonBody<Value>, Problem> {
    let run = run_of(&response)?;
    if halt(&api, &caller, run, "its response was deleted").await?.is_none() {
        runs::watched(&api, &caller, run, WaitFor::Ended, ENDING).await.map_err(said)?;
    }
    api.engine.delete_run(&caller, run).await.map_err(said)?;
    Ok(JsonBody(json!({ "id": response, "object": "response", "deleted": true })))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(limit: Option<usize>, order: Option<&str>, after: Option<&str>) -> ItemParams {
        let text = |it: Option<&str>| it.map(str::to_owned);
        ItemParams { limit, order: text(order), after: text(after) }
    }

    #[test]
    fn items_come_in_pages_from_the_last_on() {
        let items: Vec<Value> = ["a", "b", "c"].iter().map(|id| json!({ "id": id })).collect();
        let first = page(items.clone(), &ask(Some(2), None, None)).unwrap();
        assert_eq!((&first["first_id"], &first["last_id"]), (&json!("c"), &json!("b")));
        assert_eq!(first["has_more"], true);
        let last = page(items.clone(), &ask(None, None, Some("b"))).unwrap();
        assert_eq!((&last["data"], &last["has_more"]), (&json!([{ "id": "a" }]), &json!(false)));
        let upward = page(items.clone(), &ask(None, Some("asc"), None)).unwrap();
        assert_eq!(upward["first_id"], "a");
        for wrong in
            [ask(Some(0), None, None), ask(None, Some("up"), None), ask(None, None, Some("x"))]
        {
            assert_eq!(page(items.clone(), &wrong).unwrap_err().code(), "bad_query");
        }
    }
}
