//! A new response.

use axum::{
    Json as JsonBody,
    extract::State,
    response::{IntoResponse, Response},
};
use serde_json::Value;
use utoipa::ToSchema;

use super::{answer, fresh, sse};
use crate::{
    api::{
        app::Api,
        body::Posted,
        params::{Asker, Key},
    },
    door::{ModelErrorBody, Problem},
    respond::open_responses::Create,
};

/// The fields that a request for a response needs; the specification has the others.
#[derive(ToSchema)]
#[expect(dead_code, reason = "a schema of the OpenAPI document")]
pub(super) struct ResponseBody {
    /// A blueprint, or `blueprint/agent`.
    #[schema(example = "hello")]
    model: String,
    input: InputBody,
}

/// The question. It may be absent beside `previous_response_id`.
#[derive(ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "a schema of the OpenAPI document")]
enum InputBody {
    /// The text of the user.
    Text(String),
    /// The items of a conversation; messages are the simplest of them.
    Items(Vec<MessageBody>),
}

/// A message of a conversation.
#[derive(ToSchema)]
#[expect(dead_code, reason = "a schema of the OpenAPI document")]
pub(super) struct MessageBody {
    /// The author.
    #[schema(pattern = "^(user|assistant|system|developer)$")]
    role: String,
    /// The text; the specification has other forms.
    content: String,
}

/// Answers a conversation, as a model does.
///
/// `model` is a blueprint, or `blueprint/agent`. The body, the response and the events are those of
/// the Open Responses specification; docs/responses-api.md says what differs. With `stream` the
/// answer is a stream of events, with `background` it comes at once; otherwise the request waits
/// for the end of the response.
#[utoipa::path(
    post, path = "/v1/responses", operation_id = "response_create", tag = "responses",
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition harmless for 24 hours.")),
    request_body = ResponseBody,
    responses(
        (status = 200, description = "The response, or its events.", content((Object = "application/json"), (Object = "text/event-stream"))),
        (status = 400, description = "`invalid_body`, `invalid_input`, `not_supported`, `previous_response_not_found`", body = ModelErrorBody),
        (status = 404, description = "`model_not_found`", body = ModelErrorBody),
        (status = 409, description = "`idempotency_mismatch`, `response_in_progress`", body = ModelErrorBody),
    ),
)]
pub(in crate::api) async fn create(
    State(api): State<Api>,
    Asker(caller): Asker,
    key: Key,
    posted: Posted<Value>,
) -> Result<Response, Problem> {
    let create = Create::read(&posted.body, &mut fresh)?;
    let (stream, background) = (create.stream, create.background);
    let key = key.of("POST /v1/responses", &posted.raw);
    let mut answering = answer(&api, &caller, create, key).await?;
    if stream {
        return Ok(sse::events(&api, answering, None));
    }
    let response = match background {
        true => answering.responding.stream().response(),
        false => answering.end(&api, &caller).await?,
    };
    Ok(JsonBody(response).into_response())
}
