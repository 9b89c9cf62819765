//! Messages, for clients of Anthropic's API.

use axum::{
    Json as JsonBody,
    extract::State,
    response::{IntoResponse, Response},
};
use serde_json::Value;
use utoipa::ToSchema;

use super::{begin_other, failed, sse};
use crate::{
    api::{
        app::Api,
        body::Posted,
        params::{Asker, Key},
    },
    door::{MessageErrorBody, Problem},
    respond::messages::{self, Events},
};

/// The fields that every request for a message has; other fields are those of the Messages API.
#[derive(ToSchema)]
#[expect(dead_code, reason = "a schema of the OpenAPI document")]
pub(super) struct MessagesBody {
    /// A blueprint, or `blueprint/agent`.
    #[schema(example = "hello")]
    model: String,
    /// The most tokens of the answer.
    #[schema(minimum = 1, maximum = 4_294_967_295_u64, example = 1024)]
    max_tokens: u64,
    /// The conversation.
    #[schema(min_items = 1)]
    messages: Vec<TurnBody>,
}

/// A message of the conversation.
#[derive(ToSchema)]
#[expect(dead_code, reason = "a schema of the OpenAPI document")]
struct TurnBody {
    /// The author.
    #[schema(pattern = "^(user|assistant|system)$")]
    role: String,
    /// The text, or blocks.
    content: String,
}

/// Answers a conversation in the shape of Anthropic's Messages API. It is a response like any other;
/// `store: false` lets its run go. The token may be in `x-api-key`.
#[utoipa::path(
    post, path = "/v1/messages", operation_id = "message_create", tag = "responses",
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition harmless for 24 hours.")),
    request_body = MessagesBody,
    responses(
        (status = 200, description = "The message, or its events.", content((Object = "application/json"), (Object = "text/event-stream"))),
        (status = 400, description = "`invalid_body`, `invalid_input`, `not_supported`", body = MessageErrorBody),
        (status = 404, description = "`model_not_found`", body = MessageErrorBody),
        (status = 409, description = "`idempotency_mismatch`", body = MessageErrorBody),
        (status = 500, description = "`response_failed`: the flow failed", body = MessageErrorBody),
    ),
)]
pub(in crate::api) async fn message(
    State(api): State<Api>,
    Asker(caller): Asker,
    key: Key,
    posted: Posted<Value>,
) -> Result<Response, Problem> {
    let body = messages::as_response(&posted.body)?;
    let stops = messages::stops(&posted.body)?;
    let key = key.of("POST /v1/messages", &posted.raw);
    // A model that stops by itself would not say at which text, and this API does.
    let (mut answering, is_streamed) = begin_other(&api, &caller, &body, None, key).await?;
    if is_streamed {
        let mut events = Events::new(&answering.responding.stream().response(), stops);
        let feed = sse::Feed::new(answering, None);
        return Ok(sse::stream(&api, feed, None, move |event| {
            events.of(event).into_iter().map(|(name, data)| (Some(name), data)).collect()
        }));
    }
    let response = answering.end(&api, &caller).await?;
    Ok(JsonBody(messages::message(&response, stops).map_err(|error| failed(&error))?)
        .into_response())
}
