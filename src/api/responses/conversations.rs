//! Conversations under an id of their own: `/v1/conversations`.

use axum::{Json as JsonBody, extract::State};
use serde_json::{Map, Value, json};

use super::{
    conversation, fresh, said,
    stored::{ItemParams, page},
};
use crate::{
    api::{
        app::Api,
        body::Posted,
        params::{Asker, At, Params},
    },
    door::{Code, ModelErrorBody, Problem},
    engine::{EngineError, StoredConversation},
    respond::{
        Refused,
        open_responses::{Fields, check_metadata, read_items},
    },
    token::Verb,
};

/// The most items that one request adds.
const MOST_ADDED: usize = 20;

/// A conversation that a response continues at the moment.
pub(super) fn locked(id: &str) -> Problem {
    let detail = format!("a response continues {id}; wait for it, or cancel it");
    Problem::new(Code::ConversationLocked, detail)
}

fn shown(conversation: &StoredConversation) -> Value {
    json!({
        "id": conversation.id,
        "object": "conversation",
        "created_at": conversation.created_ms / 1_000,
        "metadata": conversation.metadata,
    })
}

fn object(body: &Value) -> Result<&Map<String, Value>, Refused> {
    let wrong = || Refused { param: None, ..Refused::invalid("", "the body is not an object") };
    body.as_object().ok_or_else(wrong)
}

fn metadata(body: &Map<String, Value>) -> Result<Map<String, Value>, Refused> {
    check_metadata(&Fields::at(body, ""))?;
    Ok(body.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default())
}

/// The items of a body, under the names that they have there.
fn items(body: &Map<String, Value>) -> Result<Vec<Value>, Refused> {
    let list = match body.get("items") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(list @ Value::Array(_)) => list,
        Some(_) => return Err(Refused::invalid("items", "must be a list of items")),
    };
    let items = read_items(Some(list), &mut fresh).map_err(|refused| Refused {
        param: refused.param.map(|it| it.replacen("input", "items", 1)),
        ..refused
    })?;
    if items.len() > MOST_ADDED {
        let what = format!("has {} items; at most {MOST_ADDED} are taken at once", items.len());
        return Err(Refused::invalid("items", what));
    }
    Ok(items)
}

/// Creates a conversation, with up to 20 items.
#[utoipa::path(
    post, path = "/v1/conversations", operation_id = "conversation_create", tag = "responses",
    request_body = Object,
    responses(
        (status = 200, description = "`{id, object: \"conversation\", created_at, metadata}`", body = Object),
        (status = 400, description = "`invalid_body`", body = ModelErrorBody),
    ),
)]
pub(in crate::api) async fn create_conversation(
    State(api): State<Api>,
    Asker(caller): Asker,
    posted: Posted<Value>,
) -> Result<JsonBody<Value>, Problem> {
    let body = object(&posted.body)?;
    let (metadata, items) = (metadata(body)?, items(body)?);
    let created =
        api.engine.responses().create_conversation(&caller, metadata, items).await.map_err(said)?;
    Ok(JsonBody(shown(&created)))
}

/// Shows a conversation.
#[utoipa::path(
    get, path = "/v1/conversations/{conversation}", operation_id = "conversation_get", tag = "responses",
    params(("conversation" = String, Path, description = "The conversation's id.")),
    responses(
        (status = 200, description = "The conversation.", body = Object),
        (status = 404, description = "`not_found`", body = ModelErrorBody),
    ),
)]
pub(in crate::api) async fn get_conversation(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(id): At<String>,
) -> Result<JsonBody<Value>, Problem> {
    Ok(JsonBody(shown(&conversation(&api, &caller, Verb::RunRead, &id).await?)))
}

/// Replaces the metadata of a conversation.
#[utoipa::path(
    post, path = "/v1/conversations/{conversation}", operation_id = "conversation_update", tag = "responses",
    params(("conversation" = String, Path, description = "The conversation's id.")),
    request_body = Object,
    responses(
        (status = 200, description = "The conversation.", body = Object),
        (status = 400, description = "`invalid_body`", body = ModelErrorBody),
        (status = 404, description = "`not_found`", body = ModelErrorBody),
    ),
)]
pub(in crate::api) async fn update_conversation(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(id): At<String>,
    posted: Posted<Value>,
) -> Result<JsonBody<Value>, Problem> {
    let metadata = metadata(object(&posted.body)?)?;
    let changed = api.engine.responses().change_conversation(&caller, Verb::RunStart, &id, |it| {
        it.metadata.clone_from(&metadata);
        Ok(true)
    });
    Ok(JsonBody(shown(&changed.await.map_err(said)?)))
}

/// Deletes a conversation; the responses that continued it stay.
#[utoipa::path(
    delete, path = "/v1/conversations/{conversation}", operation_id = "conversation_delete", tag = "responses",
    params(("conversation" = String, Path, description = "The conversation's id.")),
    responses(
        (status = 200, description = "`{id, object: \"conversation.deleted\", deleted: true}`", body = Object),
        (status = 404, description = "`not_found`", body = ModelErrorBody),
    ),
)]
pub(in crate::api) async fn delete_conversation(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(id): At<String>,
) -> Result<JsonBody<Value>, Problem> {
    api.engine.responses().delete_conversation(&caller, &id).await.map_err(said)?;
    Ok(JsonBody(json!({ "id": id, "object": "conversation.deleted", "deleted": true })))
}

/// Adds up to 20 items to a conversation.
#[utoipa::path(
    post, path = "/v1/conversations/{conversation}/items", operation_id = "conversation_items_add", tag = "responses",
    params(("conversation" = String, Path, description = "The conversation's id.")),
    request_body = Object,
    responses(
        (status = 200, description = "`{object: \"list\", data, first_id, last_id, has_more}`: what was added.", body = Object),
        (status = 400, description = "`invalid_body`", body = ModelErrorBody),
        (status = 404, description = "`not_found`", body = ModelErrorBody),
        (status = 409, description = "`conversation_locked`", body = ModelErrorBody),
    ),
)]
pub(in crate::api) async fn add_items(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(id): At<String>,
    posted: Posted<Value>,
) -> Result<JsonBody<Value>, Problem> {
    let added = items(object(&posted.body)?)?;
    if added.is_empty() {
        return Err(Refused::invalid("items", "is missing").into());
    }
    change(&api, &caller, &id, |stored| {
        stored.items.extend(added.iter().cloned());
        Ok(())
    })
    .await?;
    let id_of = |item: Option<&Value>| item.map_or(Value::Null, |item| item["id"].clone());
    Ok(JsonBody(json!({
        "object": "list", "first_id": id_of(added.first()), "last_id": id_of(added.last()),
        "has_more": false, "data": added,
    })))
}

/// Lists the items of a conversation.
#[utoipa::path(
    get, path = "/v1/conversations/{conversation}/items", operation_id = "conversation_items", tag = "responses",
    params(("conversation" = String, Path, description = "The conversation's id."), ItemParams),
    responses(
        (status = 200, description = "`{object: \"list\", data, first_id, last_id, has_more}`", body = Object),
        (status = 404, description = "`not_found`", body = ModelErrorBody),
    ),
)]
pub(in crate::api) async fn list_items(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(id): At<String>,
    Params(params): Params<ItemParams>,
) -> Result<JsonBody<Value>, Problem> {
    let stored = conversation(&api, &caller, Verb::RunRead, &id).await?;
    page(stored.items, &params).map(JsonBody)
}

/// Shows an item of a conversation.
#[utoipa::path(
    get, path = "/v1/conversations/{conversation}/items/{item}", operation_id = "conversation_item", tag = "responses",
    params(("conversation" = String, Path, description = "The conversation's id."),
        ("item" = String, Path, description = "The item's id.")),
    responses(
        (status = 200, description = "The item.", body = Object),
        (status = 404, description = "`not_found`", body = ModelErrorBody),
    ),
)]
pub(in crate::api) async fn get_item(
    State(api): State<Api>,
    Asker(caller): Asker,
    At((id, item)): At<(String, String)>,
) -> Result<JsonBody<Value>, Problem> {
    let stored = conversation(&api, &caller, Verb::RunRead, &id).await?;
    let found = stored.items.into_iter().find(|it| it["id"] == item.as_str());
    found.map(JsonBody).ok_or_else(|| no_item(&id, &item))
}

/// Deletes an item of a conversation, and gives the conversation.
#[utoipa::path(
    delete, path = "/v1/conversations/{conversation}/items/{item}", operation_id = "conversation_item_delete", tag = "responses",
    params(("conversation" = String, Path, description = "The conversation's id."),
        ("item" = String, Path, description = "The item's id.")),
    responses(
        (status = 200, description = "The conversation.", body = Object),
        (status = 404, description = "`not_found`", body = ModelErrorBody),
        (status = 409, description = "`conversation_locked`", body = ModelErrorBody),
    ),
)]
pub(in crate::api) async fn delete_item(
    State(api): State<Api>,
    Asker(caller): Asker,
    At((id, item)): At<(String, String)>,
) -> Result<JsonBody<Value>, Problem> {
    let changed = change(&api, &caller, &id, |stored| {
        let before = stored.items.len();
        stored.items.retain(|it| it["id"] != item.as_str());
        match stored.items.len() == before {
            true => Err(EngineError::NotFound { what: "item", id: item.clone() }),
            false => Ok(()),
        }
    });
    match changed.await {
        Ok(stored) => Ok(JsonBody(shown(&stored))),
        Err(problem) if problem.code() == Code::NotFound => {
            conversation(&api, &caller, Verb::RunStart, &id).await?;
            Err(no_item(&id, &item))
        }
        Err(problem) => Err(problem),
    }
}

/// Changes the items of a conversation that nothing continues at the moment.
async fn change(
    api: &Api,
    caller: &crate::engine::Caller,
    id: &str,
    change: impl Fn(&mut StoredConversation) -> Result<(), EngineError>,
) -> Result<StoredConversation, Problem> {
    let changed =
        api.engine.responses().change_conversation(caller, Verb::RunStart, id, |stored| {
            if stored.is_continued() {
                let message = format!("a response continues {id}; wait for it, or cancel it");
                return Err(EngineError::Conflict { code: Code::ConversationLocked, message });
            }
            change(stored).map(|()| true)
        });
    changed.await.map_err(said)
}

fn no_item(conversation: &str, item: &str) -> Problem {
    let cut = |text: &str| text.chars().take(64).collect::<String>();
    let detail = format!("{} has no item {}", cut(conversation), cut(item));
    Problem::new(Code::NotFound, detail)
}
