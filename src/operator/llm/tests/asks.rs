//! The request of each API, for a conversation with every kind of item.

use pretty::assert_json;
use serde_json::{Value, json};

use super::{
    Provider, Turn, at,
    provider::{Answer, Asked, Bit},
    reply,
};
use crate::{operator::Reply, protocol::ModelReply};

mod pretty {
    use serde_json::Value;

    #[track_caller]
    pub(super) fn assert_json(is: &Value, expected: &Value) {
        assert!(is == expected, "is {is:#}\nexpected {expected:#}");
    }
}

/// Returns a conversation with every kind of item.
fn conversation() -> Value {
    json!({
        "model": "m-1",
        "instructions": "Be brief.",
        "items": [
            { "role": "developer", "content": "House rules." },
            { "type": "message", "role": "user", "content": [
                { "type": "input_text", "text": "What is this?" },
                { "type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "low" },
                { "type": "input_image", "image_url": "https://pics.example/a.png" },
            ] },
            { "type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sealed" },
            { "type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
              "content": [{ "type": "output_text", "text": "Let me look.", "annotations": [] }] },
            { "type": "function_call", "id": "fc_1", "call_id": "c:1", "name": "look",
              "arguments": "{\"at\": 1}" },
            { "type": "function_call", "id": "fc_2", "call_id": "c2", "name": "read",
              "arguments": "{\"path\"" },
            { "type": "function_call_output", "call_id": "c:1", "output": [
                { "type": "input_text", "text": "a cat" },
                { "type": "input_image", "image_url": "data:image/png;base64,BBBB" } ] },
            { "type": "function_call_output", "call_id": "c2", "output": "not JSON" },
        ],
        "tools": [{ "name": "look", "description": "Looks.", "parameters": { "type": "object" } }],
        "tool_choice": { "type": "function", "name": "look" },
        "parallel_tool_calls": false,
        "options": {
            "temperature": 0.5, "max_output_tokens": 3_000, "reasoning": { "effort": "low" },
            "text": { "format": { "type": "json_schema", "name": "it", "schema": { "type": "object" } } },
        },
    })
}

async fn asked(api: &str, more: &str, request: Value) -> Asked {
    let provider = Provider::start(|_, asked| Answer::turn(&Turn::text("ok"), &asked.path));
    assert_eq!(reply(&at(&provider, api, more), request).await.text(), "ok");
    provider.asked().remove(0)
}

#[tokio::test]
async fn chat_completions_are_asked_in_their_words() {
    let asked = asked("chat", "[options]\ntemperature = 1\nseed = 7", conversation()).await;
    assert_eq!(asked.path, "/v1/chat/completions");
    let data = |letter: &str| format!("data:image/png;base64,{}", letter.repeat(4));
    assert_json(
        &asked.body,
        &json!({
            "model": "m-1",
            "messages": [
                { "role": "system", "content": "Be brief." },
                { "role": "developer", "content": "House rules." },
                { "role": "user", "content": [
                    { "type": "text", "text": "What is this?" },
                    { "type": "image_url", "image_url": { "url": data("A"), "detail": "low" } },
                    { "type": "image_url", "image_url": { "url": "https://pics.example/a.png" } },
                ] },
                { "role": "assistant", "content": "Let me look.", "tool_calls": [
                    { "id": "c:1", "type": "function",
                      "function": { "name": "look", "arguments": "{\"at\": 1}" } },
                    { "id": "c2", "type": "function",
                      "function": { "name": "read", "arguments": "{\"path\"" } },
                ] },
                { "role": "tool", "tool_call_id": "c:1", "content": "a cat" },
                { "role": "tool", "tool_call_id": "c2", "content": "not JSON" },
                { "role": "user", "content": [
                    { "type": "text", "text": "What the call c:1 shows:" },
                    { "type": "image_url", "image_url": { "url": data("B") } },
                ] },
            ],
            "stream": true,
            "stream_options": { "include_usage": true },
            "tools": [{ "type": "function", "function": {
                "name": "look", "parameters": { "type": "object" }, "description": "Looks." } }],
            "tool_choice": { "type": "function", "function": { "name": "look" } },
            "parallel_tool_calls": false,
            "temperature": 0.5,
            "seed": 7,
            "max_tokens": 3_000,
            "reasoning_effort": "low",
            "response_format": { "type": "json_schema",
                "json_schema": { "name": "it", "schema": { "type": "object" } } },
        }),
    );
}

#[tokio::test]
async fn responses_get_the_items_as_they_are() {
    let mut request = conversation();
    let sealed = json!({ "type": "reasoning", "id": "rs_2", "summary": [],
        "encrypted_content": "anthropic/signature:x" });
    request["items"].as_array_mut().unwrap().push(sealed);
    let asked = asked("responses", "", request).await;
    assert_eq!(asked.path, "/v1/responses");
    let mut items = conversation()["items"].clone();
    assert_json(&asked.body["input"], &items.take());
    assert_json(
        &{
            let mut body = asked.body;
            body["input"] = Value::Null;
            body
        },
        &json!({
            "model": "m-1", "stream": true, "store": false, "instructions": "Be brief.",
            "tools": [{ "type": "function", "name": "look", "description": "Looks.",
                "parameters": { "type": "object" }, "strict": false }],
            "tool_choice": { "type": "function", "name": "look" },
            "parallel_tool_calls": false,
            "temperature": 0.5, "max_output_tokens": 3_000, "reasoning": { "effort": "low" },
            "text": { "format": { "type": "json_schema", "name": "it",
                "schema": { "type": "object" } } },
            "include": ["reasoning.encrypted_content"],
            "input": null,
        }),
    );
}

#[tokio::test]
async fn anthropic_is_asked_in_its_words() {
    let asked = asked("anthropic", "", conversation()).await;
    assert_eq!(asked.path, "/v1/messages");
    assert!(asked.head.contains("anthropic-version: 2023-06-01"), "{}", asked.head);
    let source = |letter: &str| json!({ "type": "base64", "media_type": "image/png", "data": letter.repeat(4) });
    let call = format!("call_{}", &blake3::hash(b"c:1").to_hex()[..32]);
    let system = "Be brief.\n\nHouse rules.\n\nAnswer with JSON alone, without a fence around it, \
                  that satisfies this JSON Schema:\n{\"type\":\"object\"}";
    assert_json(
        &asked.body,
        &json!({
            "model": "m-1",
            "stream": true,
            "max_tokens": 3_000,
            "messages": [
                { "role": "user", "content": [
                    { "type": "text", "text": "What is this?" },
                    { "type": "image", "source": source("A") },
                    { "type": "image", "source":
                        { "type": "url", "url": "https://pics.example/a.png" } },
                ] },
                { "role": "assistant", "content": [
                    { "type": "text", "text": "Let me look." },
                    { "type": "tool_use", "id": call, "name": "look", "input": { "at": 1 } },
                    { "type": "tool_use", "id": "c2", "name": "read",
                      "input": { "malformed_arguments": "{\"path\"" } },
                ] },
                { "role": "user", "content": [
                    { "type": "tool_result", "tool_use_id": call, "content": [
                        { "type": "text", "text": "a cat" },
                        { "type": "image", "source": source("B") } ] },
                    { "type": "tool_result", "tool_use_id": "c2", "content": "not JSON" },
                ] },
            ],
            "system": system,
            "tools": [{ "name": "look", "input_schema": { "type": "object" },
                "description": "Looks." }],
            "tool_choice": { "type": "tool", "name": "look", "disable_parallel_tool_use": true },
            "temperature": 0.5,
            "thinking": { "type": "enabled", "budget_tokens": 1_024 },
        }),
    );
}

#[tokio::test]
async fn what_a_provider_executes_itself_stands_beside_the_agents_tools() {
    let search = json!({ "type": "web_search", "name": "web_search" });
    for api in super::APIS {
        let own = "[[options.tools]]\ntype = \"web_search\"\nname = \"web_search\"";
        let tools = asked(api, own, conversation()).await.body["tools"].take();
        let tools = tools.as_array().unwrap();
        assert_eq!((tools.len(), &tools[1]), (2, &search), "{api}: {tools:?}");
        assert!(tools[0].to_string().contains("Looks."), "{api}: {tools:?}");
        let alone = asked(api, own, super::hello()).await.body["tools"].take();
        assert_eq!(alone, json!([search]), "{api}");
    }
}

/// Returns a response of Anthropic that searches the web and pauses.
fn searches() -> Answer {
    let found = json!({ "type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [
        { "type": "web_search_result", "url": "https://moon.example", "encrypted_content": "e" } ] });
    let events = [
        json!({ "type": "message_start", "message": { "model": "mock-1",
            "usage": { "input_tokens": 10, "output_tokens": 1 } } }),
        json!({ "type": "content_block_start", "index": 0, "content_block":
            { "type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {} } }),
        json!({ "type": "content_block_delta", "index": 0, "delta":
            { "type": "input_json_delta", "partial_json": "{\"query\": \"moon\"}" } }),
        json!({ "type": "content_block_stop", "index": 0 }),
        json!({ "type": "content_block_start", "index": 1, "content_block": found }),
        json!({ "type": "content_block_stop", "index": 1 }),
        json!({ "type": "message_delta", "delta": { "stop_reason": "pause_turn" },
            "usage": { "output_tokens": 7 } }),
        json!({ "type": "message_stop" }),
    ];
    let sent = |event: &Value| Bit::Send(format!("data: {event}\n\n").into_bytes());
    Answer::stream(events.iter().map(sent).collect())
}

#[tokio::test]
async fn a_model_that_pauses_for_its_providers_tools_is_asked_on() {
    let provider = Provider::start(|number, asked| match number {
        0 => searches(),
        _ => Answer::turn(&Turn::text("It is full."), &asked.path),
    });
    let (answered, _) = super::ask(&at(&provider, "anthropic", ""), super::hello()).await;
    let Ok(Reply::Done(done)) = answered else { panic!("{answered:?}") };
    let reply: ModelReply = done.output.decode().unwrap();
    let kinds: Vec<&str> = reply.items.iter().filter_map(|it| it["type"].as_str()).collect();
    let own = ["anthropic:server_tool_use", "anthropic:web_search_tool_result", "message"];
    assert_eq!((kinds, reply.text().as_str()), (own.to_vec(), "It is full."));
    let usage = done.usage.unwrap();
    assert_eq!((usage.input_tokens, usage.output_tokens), (Some(110), Some(27)));
    let asked = provider.asked();
    assert_eq!(asked.len(), 2);
    let said = asked[1].body["messages"].as_array().unwrap();
    assert_eq!((said.len(), &said[1]["role"]), (2, &json!("assistant")));
    let blocks = &said[1]["content"];
    assert_eq!(blocks[0]["input"], json!({ "query": "moon" }));
    assert_eq!(blocks[1]["content"][0]["url"], "https://moon.example");

    let forever = Provider::start(|_, _| searches());
    let (failure, _) = super::failure(&at(&forever, "anthropic", "")).await;
    assert!(failure.message.contains("paused more than 16 times"), "{failure}");
}

#[tokio::test]
async fn what_a_model_thought_goes_back_as_it_came() {
    for api in ["responses", "anthropic"] {
        let thinks = Turn { reasoning: "step by step", text: "42", ..Turn::default() };
        let provider = Provider::says(vec![thinks, Turn::text("ok")]);
        let llm = at(&provider, api, "");
        let first = reply(&llm, super::hello()).await;
        let mut items = super::hello()["items"].as_array().unwrap().clone();
        items.extend(first.items.clone());
        items.push(json!({ "role": "user", "content": "Sure?" }));
        reply(&llm, json!({ "items": items })).await;
        let body = &provider.asked()[1].body;
        match api {
            "responses" => assert_json(&body["input"][1], &first.items[0]),
            _ => assert_json(
                &body["messages"][1]["content"][0],
                &json!({ "type": "thinking", "thinking": "step by step", "signature": "signed==" }),
            ),
        }
    }
    // As a client of the Messages API sends it.
    let summarized = json!({ "items": [
        { "type": "reasoning", "id": "r", "encrypted_content": "anthropic/signature:signed==",
          "summary": [{ "type": "summary_text", "text": "step by step" }] },
        { "role": "assistant", "content": "42" },
    ] });
    assert_json(
        &asked("anthropic", "", summarized).await.body["messages"][0]["content"][0],
        &json!({ "type": "thinking", "thinking": "step by step", "signature": "signed==" }),
    );
    // A chat server receives reasoning only if that is configured.
    let thought = json!({ "items": [
        { "type": "reasoning", "id": "r", "summary": [],
          "content": [{ "type": "reasoning_text", "text": "hm" }] },
        { "role": "assistant", "content": "42" },
    ] });
    let sent = asked("chat", "send_reasoning = true", thought.clone()).await;
    assert_eq!(sent.body["messages"][0]["reasoning_content"], "hm");
    assert!(
        asked("chat", "", thought).await.body["messages"][0].get("reasoning_content").is_none()
    );
}

#[tokio::test]
async fn an_item_that_an_api_has_no_word_for_is_refused_by_name() {
    let provider = Provider::says(vec![]);
    for (api, item, part) in [
        (
            "chat",
            json!({ "type": "web_search_call" }),
            "no word for an item of type \"web_search_call\"",
        ),
        ("anthropic", json!({ "type": "item_reference", "id": "x" }), "\"item_reference\""),
        ("chat", json!({ "type": "function_call", "name": "x" }), "has no `call_id`"),
        ("chat", json!({ "type": "compaction", "encrypted_content": "x" }), "sealed"),
        (
            "chat",
            json!({ "role": "user", "content": [{ "type": "input_image", "file_id": "f" }] }),
            "not by an id",
        ),
    ] {
        let (answered, _) = super::ask(&at(&provider, api, ""), json!({ "items": [item] })).await;
        let failure = answered.unwrap_err();
        assert_eq!(failure.kind, "invalid_input");
        assert!(failure.message.contains(part), "{failure}");
    }
    assert!(provider.asked().is_empty());
}
