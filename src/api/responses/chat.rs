//! Chat completions, for older clients.

use axum::{
    Json as JsonBody,
    extract::State,
    response::{IntoResponse, Response},
};
use serde_json::Value;
use utoipa::ToSchema;

use super::{begin_other, create::MessageBody, failed, sse};
use crate::{
    api::{
        app::Api,
        body::Posted,
        params::{Asker, Key},
    },
    door::{ModelErrorBody, Problem},
    respond::chat::{Chunks, Stops, as_response, completion},
};

/// The fields that every request for a completion has; other fields are those of chat completions.
#[derive(ToSchema)]
#[expect(dead_code, reason = "a schema of the OpenAPI document")]
pub(super) struct ChatBody {
    /// A blueprint, or `blueprint/agent`.
    #[schema(example = "hello")]
    model: String,
    /// The conversation.
    #[schema(min_items = 1)]
    messages: Vec<MessageBody>,
}

/// Answers a conversation in the shape of chat completions. It is a response like any other, and
/// the run behind it can be looked at; `store: false` lets it go.
#[utoipa::path(
    post, path = "/v1/chat/completions", operation_id = "chat_complete", tag = "responses",
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition harmless for 24 hours.")),
    request_body = ChatBody,
    responses(
        (status = 200, description = "The completion, or its chunks.", content((Object = "application/json"), (Object = "text/event-stream"))),
        (status = 400, description = "`invalid_body`, `invalid_input`, `not_supported`", body = ModelErrorBody),
        (status = 404, description = "`model_not_found`", body = ModelErrorBody),
        (status = 409, description = "`idempotency_mismatch`", body = ModelErrorBody),
        (status = 500, description = "`response_failed`: the flow failed", body = ModelErrorBody),
    ),
)]
pub(in crate::api) async fn complete(
    State(api): State<Api>,
    Asker(caller): Asker,
    key: Key,
    posted: Posted<Value>,
) -> Result<Response, Problem> {
    let body = as_response(&posted.body)?;
    let stops = Stops::read(&posted.body)?;
    let key = key.of("POST /v1/chat/completions", &posted.raw);
    let (mut answering, is_streamed) =
        begin_other(&api, &caller, &body, stops.option(), key).await?;
    if is_streamed {
        let usage = posted.body["stream_options"]["include_usage"] == true;
        let mut chunks = Chunks::new(&answering.responding.stream().response(), usage, stops);
        let feed = sse::Feed::new(answering, None);
        return Ok(sse::stream(&api, feed, Some(sse::DONE), move |event| {
            chunks.of(event).into_iter().map(|chunk| (None, chunk.to_string())).collect()
        }));
    }
    let response = answering.end(&api, &caller).await?;
    Ok(JsonBody(completion(&response, stops).map_err(|error| failed(&error))?).into_response())
}
