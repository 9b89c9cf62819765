//! The models: blueprints and agents that answer requests.

use axum::{Json as JsonBody, extract::State};
use serde_json::{Value, json};

use super::said;
use crate::{
    api::{
        app::Api,
        params::{Asker, At},
    },
    door::{ModelErrorBody, Problem},
    engine::ModelView,
};

fn shown(model: &ModelView) -> Value {
    json!({
        "id": model.id, "object": "model", "created": model.created_ms / 1_000,
        "owned_by": "moonswarm",
    })
}

/// Lists what answers: every blueprint with a name, and its agents whose operator is a model.
#[utoipa::path(
    get, path = "/v1/models", operation_id = "model_list", tag = "responses",
    responses((status = 200, description = "`{object: \"list\", data: [{id, object, created, owned_by}]}`", body = Object)),
)]
pub(in crate::api) async fn models(
    State(api): State<Api>,
    Asker(caller): Asker,
) -> Result<JsonBody<Value>, Problem> {
    let models = api.engine.responses().models(&caller).await.map_err(said)?;
    let data: Vec<Value> = models.iter().map(shown).collect();
    Ok(JsonBody(json!({ "object": "list", "data": data })))
}

/// Shows a blueprint as a model.
#[utoipa::path(
    get, path = "/v1/models/{model}", operation_id = "model_get", tag = "responses",
    params(("model" = String, Path, description = "`blueprint`, or `blueprint/agent` with its slash encoded.")),
    responses(
        (status = 200, description = "`{id, object: \"model\", created, owned_by}`", body = Object),
        (status = 404, description = "`model_not_found`", body = ModelErrorBody),
    ),
)]
pub(in crate::api) async fn model(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(model): At<String>,
) -> Result<JsonBody<Value>, Problem> {
    Ok(JsonBody(shown(&api.engine.responses().model(&caller, &model).await.map_err(said)?)))
}

/// Shows an agent as a model.
#[utoipa::path(
    get, path = "/v1/models/{blueprint}/{agent}", operation_id = "model_get_agent", tag = "responses",
    params(
        ("blueprint" = String, Path, description = "The blueprint."),
        ("agent" = String, Path, description = "The agent."),
    ),
    responses(
        (status = 200, description = "`{id, object: \"model\", created, owned_by}`", body = Object),
        (status = 404, description = "`model_not_found`", body = ModelErrorBody),
    ),
)]
pub(in crate::api) async fn agent(
    State(api): State<Api>,
    Asker(caller): Asker,
    At((blueprint, agent)): At<(String, String)>,
) -> Result<JsonBody<Value>, Problem> {
    let id = format!("{blueprint}/{agent}");
    Ok(JsonBody(shown(&api.engine.responses().model(&caller, &id).await.map_err(said)?)))
}
