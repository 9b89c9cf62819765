//! Compacts a conversation into a summary.

use axum::{Json as JsonBody, extract::State};
use serde_json::{Value, json};

use super::{begin, continued, create::ResponseBody, earlier, fresh, repeated, said};
use crate::{
    api::{
        app::Api,
        body::Posted,
        params::{Asker, Key},
    },
    door::{Code, ModelErrorBody, Problem},
    protocol::model::output_text,
    respond::{self, COMPACT_INSTRUCTIONS, open_responses::Create},
};

/// Compacts a conversation: an agent summarises it. The output takes its place as the input of
/// what follows.
///
/// `{model, input?, previous_response_id?, instructions?}`; the model is an agent whose operator is
/// one.
#[utoipa::path(
    post, path = "/v1/responses/compact", operation_id = "response_compact", tag = "responses",
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition harmless for 24 hours.")),
    request_body = ResponseBody,
    responses(
        (status = 200, description = "`{id, object: \"response.compaction\", created_at, output, usage}`", body = Object),
        (status = 400, description = "`invalid_body`, `not_supported`, `previous_response_not_found`", body = ModelErrorBody),
        (status = 404, description = "`model_not_found`", body = ModelErrorBody),
        (status = 409, description = "`idempotency_mismatch`, `response_in_progress`", body = ModelErrorBody),
        (status = 500, description = "`response_failed`: there is no summary", body = ModelErrorBody),
    ),
)]
pub(in crate::api) async fn compact(
    State(api): State<Api>,
    Asker(caller): Asker,
    key: Key,
    posted: Posted<Value>,
) -> Result<JsonBody<Value>, Problem> {
    let given = Create::read(&posted.body, &mut fresh)?;
    if !api.engine.responses().is_agent_with_model(&caller, &given.model).await.map_err(said)? {
        let detail = "an agent whose operator is a model compacts conversations: blueprint/agent";
        return Err(Problem::new(Code::NotSupported, detail).at("$.model"));
    }
    let before = match &given.previous {
        Some(previous) => earlier(&api, &caller, previous).await?,
        None => Vec::new(),
    };
    let whole = continued(given.clone(), before)?.conversation.items;
    let instructions = match &given.ask.instructions {
        Some(own) => format!("{own}\n\n{COMPACT_INSTRUCTIONS}"),
        None => COMPACT_INSTRUCTIONS.to_owned(),
    };
    let last = json!([{ "role": "user", "content": COMPACT_INSTRUCTIONS }]);
    let body = json!({
        "model": given.model, "instructions": instructions, "input": last,
        "metadata": { "purpose": "compaction" }, "prompt_cache_key": given.settings["prompt_cache_key"],
    });
    let asked = continued(Create::read(&body, &mut fresh)?, whole.clone())?;
    let key = key.of("POST /v1/responses/compact", &posted.raw);
    let mut answering = match repeated(&api, &caller, asked.create.store, key.as_ref()).await? {
        Some(answering) => answering,
        None => begin(&api, &caller, asked, key).await?,
    };
    let response = answering.end(&api, &caller).await?;
    let summary = output_text(answering.responding.stream().output());
    if response["status"] != "completed" || summary.trim().is_empty() {
        let why = response["error"]["message"].as_str().unwrap_or("it did not come to an end");
        return Err(Problem::new(Code::ResponseFailed, format!("there is no summary: {why}")));
    }
    let id = response["id"].as_str().unwrap_or_default();
    let usage = match &response["usage"] {
        // This format cannot express "not reported".
        Value::Null => json!({
            "input_tokens": 0,
            "input_tokens_details": { "cached_tokens": 0, "cache_write_tokens": 0 },
            "output_tokens": 0, "output_tokens_details": { "reasoning_tokens": 0 },
            "total_tokens": 0,
        }),
        usage => usage.clone(),
    };
    Ok(JsonBody(json!({
        "id": id,
        "object": "response.compaction",
        "created_at": response["created_at"],
        "output": [respond::compacted(&whole, &summary, &fresh("cmp"))],
        "usage": usage,
    })))
}
