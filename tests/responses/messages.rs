//! Anthropic's Messages API over the same runs.

use serde_json::{Value, json};

use crate::{
    checker::frames,
    model::desk,
    plain::{MIRROR, put},
    support::{Daemon, Shell, send},
};

const PATH: &str = "/v1/messages";

async fn daemon(shell: &Shell) -> Daemon {
    let usage = json!({ "input": 10, "output": 4, "cached": 2 });
    let turns = json!({ "helper": [
        { "when": "hello", "reasoning": "A greeting.", "text": "Hello to you.", "usage": usage },
        { "when": "weather?", "text": "I shall look.", "calls": [
            { "name": "weather", "arguments": { "town": "Lagos" } },
            { "name": "weather", "arguments": { "town": "Faro" } }] },
        { "when": "sun", "text": "Sunny in both." },
    ] });
    let daemon = desk(shell, turns).await;
    put(&daemon, "mirror", MIRROR).await;
    daemon
}

fn ask(model: &str, text: &str) -> Value {
    json!({ "model": model, "max_tokens": 100, "messages": [{ "role": "user", "content": text }] })
}

/// Builds the message that a stream sends, and checks the order of its events.
async fn streamed(daemon: &Daemon, mut body: Value) -> Value {
    body["stream"] = true.into();
    let frames = frames(daemon.post(PATH, &body).send().await.unwrap()).await;
    assert_eq!(frames.first().unwrap().0.as_deref(), Some("message_start"));
    assert_eq!(frames.last().unwrap().0.as_deref(), Some("message_stop"), "there is no [DONE]");
    let mut message = Value::Null;
    for (name, data) in frames {
        let data: Value = serde_json::from_str(&data).unwrap();
        assert_eq!(data["type"].as_str(), name.as_deref());
        let index = data["index"].as_u64().unwrap_or_default() as usize;
        match name.as_deref().unwrap() {
            "message_start" => message = data["message"].clone(),
            "content_block_start" => {
                let content = message["content"].as_array_mut().unwrap();
                assert_eq!(content.len(), index);
                content.push(data["content_block"].clone());
            }
            "content_block_delta" => {
                let (block, delta) = (&mut message["content"][index], &data["delta"]);
                let (field, piece) = match delta["type"].as_str().unwrap() {
                    "text_delta" => ("text", &delta["text"]),
                    "thinking_delta" => ("thinking", &delta["thinking"]),
                    "signature_delta" => ("signature", &delta["signature"]),
                    "input_json_delta" => {
                        let input = delta["partial_json"].as_str().unwrap();
                        block["input"] = serde_json::from_str(input).unwrap();
                        continue;
                    }
                    other => panic!("{other}"),
                };
                let text = block[field].as_str().unwrap_or_default().to_owned();
                block[field] = (text + piece.as_str().unwrap()).into();
            }
            "message_delta" => {
                message["stop_reason"] = data["delta"]["stop_reason"].clone();
                message["stop_sequence"] = data["delta"]["stop_sequence"].clone();
                message["usage"] = data["usage"].clone();
            }
            _ => {}
        }
    }
    message
}

#[tokio::test]
async fn a_message_is_the_same_answer_whole_or_in_events() {
    let shell = Shell::new();
    let daemon = daemon(&shell).await;
    let mut stop = ask("mirror", "hello");
    stop["stop_sequences"] = json!(["hel"]);
    for body in [ask("desk/helper", "hello"), ask("mirror", "hello"), stop.clone()] {
        let (status, mut whole) = send(daemon.post(PATH, &body)).await;
        assert_eq!(status, 200, "{whole}");
        let mut live = streamed(&daemon, body).await;
        for message in [&mut whole, &mut live] {
            assert!(message["id"].as_str().unwrap().starts_with("msg_"), "{message}");
            message["id"] = Value::Null;
        }
        assert_eq!(whole, live);
    }
    let (_, said) = send(daemon.post(PATH, &ask("desk/helper", "hello"))).await;
    assert_eq!(said["content"][0]["type"], "thinking");
    assert_eq!(said["content"][1], json!({ "type": "text", "text": "Hello to you." }));
    let usage = json!({ "input_tokens": 8, "cache_read_input_tokens": 2,
        "cache_creation_input_tokens": 0, "output_tokens": 4 });
    assert_eq!((&said["usage"], &said["stop_reason"]), (&usage, &json!("end_turn")));
    let (_, cut) = send(daemon.post(PATH, &stop)).await;
    assert_eq!(cut["content"], json!([{ "type": "text", "text": "You said: " }]));
    let reason = (&cut["stop_reason"], &cut["stop_sequence"]);
    assert_eq!(reason, (&json!("stop_sequence"), &json!("hel")));
}

#[tokio::test]
async fn a_client_answers_the_calls_and_sends_the_conversation_back() {
    let shell = Shell::new();
    let daemon = daemon(&shell).await;
    let mut body = ask("desk/helper", "weather?");
    body["tools"] = json!([{ "name": "weather", "input_schema": { "type": "object",
        "properties": { "town": { "type": "string" } }, "required": ["town"] } }]);
    let first = streamed(&daemon, body.clone()).await;
    assert_eq!(first["stop_reason"], "tool_use", "{first}");
    let calls: Vec<_> = first["content"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|block| block["type"] == "tool_use")
        .collect();
    assert_eq!(calls[1]["input"], json!({ "town": "Faro" }));
    let results: Vec<_> = calls
        .iter()
        .map(|call| json!({ "type": "tool_result", "tool_use_id": call["id"], "content": "sun" }))
        .collect();
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(json!({ "role": "assistant", "content": first["content"] }));
    messages.push(json!({ "role": "user", "content": results }));
    let (status, second) = send(daemon.post(PATH, &body)).await;
    assert_eq!(
        (status, &second["content"][0]["text"]),
        (200, &json!("Sunny in both.")),
        "{second}"
    );
}

#[tokio::test]
async fn refusals_have_the_shape_that_clients_read_and_the_token_may_be_a_key() {
    let shell = Shell::new();
    let daemon = daemon(&shell).await;
    let (status, refused) = send(daemon.post(PATH, &ask("nobody", "x"))).await;
    assert_eq!((status, &refused["type"]), (404, &json!("error")));
    assert_eq!(refused["error"]["type"], "not_found_error");
    assert_eq!(refused["error"]["code"], "model_not_found");
    let (status, refused) = send(daemon.post(PATH, &json!({ "model": "mirror" }))).await;
    assert_eq!((status, &refused["error"]["type"]), (400, &json!("invalid_request_error")));
    assert!(refused["error"]["message"].as_str().unwrap().contains("max_tokens"), "{refused}");
    let (status, refused) = send(daemon.post(PATH, &ask("mirror", "fail"))).await;
    assert_eq!((status, &refused["error"]["type"]), (500, &json!("api_error")), "{refused}");

    let client = moonswarm::environment::http_client().no_proxy().build().unwrap();
    let with = |path: &str, key: &str| {
        let request = client.post(format!("{}{path}", daemon.url)).header("x-api-key", key);
        request.json(&ask("mirror", "hello"))
    };
    assert_eq!(send(with("/v1/messages?beta=true", &daemon.token)).await.0, 200);
    let (status, refused) = send(with(PATH, "sk-wrong")).await;
    assert_eq!((status, &refused["error"]["type"]), (401, &json!("authentication_error")));
    // Elsewhere such a header is none.
    assert_eq!(send(with("/v1/runs", &daemon.token)).await.1["code"], "unauthenticated");
    // The key of another service beside a bearer is not read.
    let both = with(PATH, "sk-of-another").bearer_auth(&daemon.token);
    assert_eq!(send(both).await.0, 200);
}
