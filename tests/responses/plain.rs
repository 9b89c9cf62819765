//! A blueprint without a model, as a model.

use serde_json::{Value, json};

use crate::{
    checker::{check_response, check_stream, events, fits, frames, kinds},
    support::{Daemon, Shell, send},
};

/// Answers with what it is told, backwards for those who ask for it; "fail" fails.
pub const MIRROR: &str = r#"local swarm = require("swarm")
return swarm.blueprint { name = "mirror", agents = {
    echo = { operator = "echo" },
    ask = { operator = "echo", input = swarm.schema.object { question = swarm.schema.string } },
  },
  flow = function(ctx, input)
    if input == "fail" then swarm.fail("blocked", "it is not to be") end
    if input == "wait" then return ctx:wait("go") end
    if input == "table" then return { kind = ctx.trigger.kind, said = #ctx.trigger.conversation } end
    return "You said: " .. tostring(ctx:run("echo", input))
  end }"#;

/// A daemon that has it.
pub async fn daemon(shell: &Shell) -> Daemon {
    let daemon = Daemon::start(&shell.path("data"));
    put(&daemon, "mirror", MIRROR).await;
    daemon
}

pub async fn put(daemon: &Daemon, name: &str, source: &str) {
    let path = format!("/v1/blueprints/{name}");
    let (status, view) = send(daemon.put(&path, &json!({ "source": source }))).await;
    assert_eq!(status, 200, "{view}");
}

/// Creates a response and waits for it.
pub async fn create(daemon: &Daemon, body: Value) -> Value {
    let (status, response) = send(daemon.post("/v1/responses", &body)).await;
    assert_eq!(status, 200, "{response}");
    check_response(&response);
    response
}

async fn refused(daemon: &Daemon, path: &str, body: Value) -> (u16, String, Option<String>) {
    let (status, answer) = send(daemon.post(path, &body)).await;
    let error = &answer["error"];
    assert!(error["message"].is_string() && error["type"].is_string(), "{answer}");
    let text = |it: &Value| it.as_str().map(str::to_owned);
    (status, text(&error["code"]).unwrap(), text(&error["param"]))
}

#[tokio::test]
async fn a_blueprint_answers_like_a_model_and_is_a_run() {
    let shell = Shell::new();
    let daemon = daemon(&shell).await;
    let response = create(
        &daemon,
        json!({ "model": "mirror", "input": "hello", "metadata": { "a": "b" }, "colour": "red" }),
    )
    .await;
    assert_eq!(response["status"], "completed");
    assert_eq!(response["output"][0]["content"][0]["text"], "You said: hello");
    assert_eq!(response["metadata"], json!({ "a": "b" }));
    let id = response["id"].as_str().unwrap();
    let (_, again) = send(daemon.get(&format!("/v1/responses/{id}"))).await;
    assert_eq!(again, response);
    let run = id.replacen("resp_", "run_", 1);
    let (_, run) = send(daemon.get(&format!("/v1/runs/{run}"))).await;
    assert_eq!((&run["blueprint"], &run["status"]), (&json!("mirror"), &json!("completed")));
    assert_eq!(run["steps"], 1);
}

#[tokio::test]
async fn an_agent_is_asked_by_its_name_in_place_of_the_flow() {
    let shell = Shell::new();
    let daemon = daemon(&shell).await;
    let response = create(&daemon, json!({ "model": "mirror/echo", "input": "fail" })).await;
    assert_eq!(response["output"][0]["content"][0]["text"], "fail");
    let response = create(&daemon, json!({ "model": "mirror/ask", "input": "why?" })).await;
    assert_eq!(response["output"][0]["content"][0]["text"], r#"{"question":"why?"}"#);
    let (status, models) = send(daemon.get("/v1/models")).await;
    assert_eq!((status, &models["object"]), (200, &json!("list")));
    assert_eq!(models["data"][0]["id"], "mirror");
    for model in ["mirror", "mirror/echo", "mirror%2Fecho"] {
        let (status, model) = send(daemon.get(&format!("/v1/models/{model}"))).await;
        assert_eq!((status, &model["object"]), (200, &json!("model")));
    }
}

#[tokio::test]
async fn a_stream_has_every_event_in_order_and_is_the_same_afterwards() {
    let shell = Shell::new();
    let daemon = daemon(&shell).await;
    let body = json!({ "model": "mirror", "input": "hello", "stream": true });
    let live = events(daemon.post("/v1/responses", &body).send().await.unwrap()).await;
    let response = check_stream(&live, true);
    assert_eq!(
        kinds(&live),
        [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "completed"
        ]
    );
    let path = format!("/v1/responses/{}?stream=true", response["id"].as_str().unwrap());
    let again = events(daemon.get(&path).send().await.unwrap()).await;
    assert_eq!(again, live);
    for after in [0, 4, 7] {
        let rest = format!("{path}&starting_after={after}");
        let rest = events(daemon.get(&rest).send().await.unwrap()).await;
        assert_eq!(rest, live[after + 1..]);
    }
    let none = format!("{path}&starting_after=8");
    assert!(events(daemon.get(&none).send().await.unwrap()).await.is_empty());
}

#[tokio::test]
async fn a_failure_and_a_cancel_are_each_one_terminal_event() {
    let shell = Shell::new();
    let daemon = daemon(&shell).await;
    let body = json!({ "model": "mirror", "input": "fail", "stream": true });
    let failed = events(daemon.post("/v1/responses", &body).send().await.unwrap()).await;
    let response = check_stream(&failed, true);
    assert_eq!(kinds(&failed), ["created", "in_progress", "failed"]);
    assert_eq!(response["error"]["code"], "server_error");
    assert_eq!(response["error"]["message"], "blocked: it is not to be");

    let body = json!({ "model": "mirror", "input": "wait", "background": true });
    let waits = create(&daemon, body).await;
    assert_eq!(waits["status"], "in_progress");
    let path = format!("/v1/responses/{}", waits["id"].as_str().unwrap());
    let reading = daemon.get(&format!("{path}?stream=true")).send().await.unwrap();
    let (_, canceled) = send(daemon.post(&format!("{path}/cancel"), &json!({}))).await;
    check_response(&canceled);
    assert_eq!(canceled["status"], "cancelled");
    let stream = events(reading).await;
    assert_eq!(kinds(&stream), ["created", "queued", "in_progress", "incomplete"]);
    assert_eq!(check_stream(&stream, true), canceled);
    let (status, again) = send(daemon.post(&format!("{path}/cancel"), &json!({}))).await;
    assert_eq!((status, again), (200, canceled));
}

#[tokio::test]
async fn a_conversation_goes_on_from_an_earlier_response() {
    let shell = Shell::new();
    let daemon = daemon(&shell).await;
    let first = create(&daemon, json!({ "model": "mirror", "input": "one" })).await;
    let input = json!([{ "role": "user", "content": [{ "type": "input_text", "text": "table" },
        { "type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "low" }] }]);
    let body = json!({ "model": "mirror", "input": input, "previous_response_id": first["id"] });
    let second = create(&daemon, body).await;
    let said: Value =
        serde_json::from_str(second["output"][0]["content"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(said, json!({ "kind": "response", "said": 3 }));
    let path = format!("/v1/responses/{}/input_items", second["id"].as_str().unwrap());
    let (_, items) = send(daemon.get(&format!("{path}?order=asc"))).await;
    let texts: Vec<_> = items["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| {
            fits("ItemField", item);
            item["content"][0]["text"].as_str().unwrap()
        })
        .collect();
    assert_eq!(texts, ["one", "You said: one", "table"]);
    assert_eq!(items["data"][1]["id"], first["output"][0]["id"]);
    let (_, last) = send(daemon.get(&format!("{path}?limit=1"))).await;
    assert_eq!((&last["has_more"], &last["data"][0]), (&json!(true), &items["data"][2]));
}

#[tokio::test]
async fn what_is_not_to_be_stored_leaves_nothing_behind() {
    let shell = Shell::new();
    let daemon = daemon(&shell).await;
    let body = json!({ "model": "mirror", "input": "secret", "store": false });
    let response = create(&daemon, body.clone()).await;
    let path = format!("/v1/responses/{}", response["id"].as_str().unwrap());
    gone(&daemon, &path).await;
    let mut streamed = body;
    streamed["stream"] = true.into();
    let stream = events(daemon.post("/v1/responses", &streamed).send().await.unwrap()).await;
    let response = check_stream(&stream, true);
    gone(&daemon, &format!("/v1/responses/{}", response["id"].as_str().unwrap())).await;
    let (_, runs) = send(daemon.get("/v1/runs")).await;
    assert_eq!(runs["items"], json!([]));
    let next = json!({ "model": "mirror", "input": "x", "previous_response_id": response["id"] });
    let refusal = refused(&daemon, "/v1/responses", next).await;
    assert_eq!(refusal.1, "previous_response_not_found");
}

/// Waits until a response is not there any more.
pub async fn gone(daemon: &Daemon, path: &str) {
    crate::support::eventually(&format!("the end of {path}"), async || {
        let (status, _) = send(daemon.get(path)).await;
        crate::support::when(status == 404, status)
    })
    .await;
}

#[tokio::test]
async fn a_deleted_response_is_gone_also_if_it_was_under_way() {
    let shell = Shell::new();
    let daemon = daemon(&shell).await;
    for input in ["hello", "wait"] {
        let body = json!({ "model": "mirror", "input": input, "background": true });
        let id = create(&daemon, body).await["id"].as_str().unwrap().to_owned();
        let (status, deleted) = send(daemon.delete(&format!("/v1/responses/{id}"))).await;
        let expected = json!({ "id": id, "object": "response", "deleted": true });
        assert_eq!((status, deleted), (200, expected));
        assert_eq!(send(daemon.get(&format!("/v1/responses/{id}"))).await.0, 404);
    }
}

#[tokio::test]
async fn a_refusal_has_the_shape_that_clients_expect() {
    let shell = Shell::new();
    let daemon = daemon(&shell).await;
    let path = "/v1/responses";
    for (body, expected) in [
        (json!({ "input": "x" }), (400, "invalid_body", Some("model"))),
        (json!({ "model": "mirror" }), (400, "invalid_body", Some("input"))),
        (json!({ "model": "nobody", "input": "x" }), (404, "model_not_found", Some("model"))),
        (json!({ "model": "mirror/x", "input": "x" }), (404, "model_not_found", Some("model"))),
        (
            json!({ "model": "mirror", "input": "x", "tools": [{ "type": "web_search" }] }),
            (400, "not_supported", Some("tools[0].type")),
        ),
        (
            json!({ "model": "mirror", "input": [
                { "type": "function_call_output", "call_id": "c", "output": "" }] }),
            (400, "invalid_body", Some("input[0].call_id")),
        ),
        (
            json!({ "model": "mirror", "input": "x", "previous_response_id": "resp_x" }),
            (400, "previous_response_not_found", Some("previous_response_id")),
        ),
        (json!({ "model": "mirror", "input": 1 }), (400, "invalid_body", Some("input"))),
        (json!([]), (400, "invalid_body", None)),
    ] {
        let (status, code, param) = refused(&daemon, path, body.clone()).await;
        assert_eq!((status, code.as_str(), param.as_deref()), expected, "{body}");
    }
    let waits =
        create(&daemon, json!({ "model": "mirror", "input": "wait", "background": true })).await;
    let next = json!({ "model": "mirror", "input": "x", "previous_response_id": waits["id"] });
    assert_eq!(refused(&daemon, path, next).await.1, "response_in_progress");
    let plain = json!({ "model": "mirror", "input": "x" });
    assert_eq!(refused(&daemon, "/v1/responses/compact", plain).await.1, "not_supported");
    let (status, answer) = send(daemon.with("nonsense", reqwest::Method::POST, path)).await;
    assert_eq!((status, &answer["error"]["type"]), (401, &json!("authentication_error")));
    let run = daemon.run_source(MIRROR, json!("hello")).await;
    let (status, _) =
        send(daemon.get(&format!("/v1/responses/{}", run.replacen("run", "resp", 1)))).await;
    assert_eq!(status, 404, "a run that was no response is none");
    let forged = json!({ "blueprint": "mirror", "input": "x", "trigger": { "kind": "response" } });
    assert_eq!(send(daemon.post("/v1/runs", &forged)).await.0, 400);
}

#[tokio::test]
async fn a_token_reaches_what_its_scopes_say() {
    let shell = Shell::new();
    let daemon = daemon(&shell).await;
    put(&daemon, "other", &MIRROR.replace("mirror", "other")).await;
    let ask = json!({ "role": "operator", "scopes": ["blueprint:other", "run:*"], "ttl": "1h" });
    let (_, minted) = send(daemon.post("/v1/tokens", &ask)).await;
    let token = minted["token"].as_str().unwrap();
    let post =
        |body: Value| send(daemon.with(token, reqwest::Method::POST, "/v1/responses").json(&body));
    assert_eq!(post(json!({ "model": "other", "input": "x" })).await.0, 200);
    let (status, answer) = post(json!({ "model": "mirror", "input": "x" })).await;
    assert_eq!((status, &answer["error"]["code"]), (403, &json!("forbidden_scope")));
    let (_, models) = send(daemon.with(token, reqwest::Method::GET, "/v1/models")).await;
    assert_eq!(models["data"].as_array().unwrap().len(), 1, "{models}");
    let observer = json!({ "role": "observer", "ttl": "1h" });
    let (_, minted) = send(daemon.post("/v1/tokens", &observer)).await;
    let token = minted["token"].as_str().unwrap();
    let request = daemon.with(token, reqwest::Method::POST, "/v1/responses");
    assert_eq!(send(request.json(&json!({ "model": "other", "input": "x" }))).await.0, 403);
}

#[tokio::test]
async fn a_chat_completion_is_the_same_answer_whole_or_in_chunks() {
    let shell = Shell::new();
    let daemon = daemon(&shell).await;
    let path = "/v1/chat/completions";
    let mut body = json!({ "model": "mirror", "messages": [
        { "role": "system", "content": "be brief" }, { "role": "user", "content": "hello" }] });
    let (status, whole) = send(daemon.post(path, &body)).await;
    assert_eq!((status, &whole["object"]), (200, &json!("chat.completion")));
    let choice = &whole["choices"][0];
    assert_eq!(choice["message"]["content"], "You said: hello");
    assert_eq!(choice["finish_reason"], "stop");
    body["stop"] = "hel".into();
    let (_, cut) = send(daemon.post(path, &body)).await;
    assert_eq!(cut["choices"][0]["message"]["content"], "You said: ", "{cut}");
    body["stop"] = Value::Null;
    body["stream"] = true.into();
    body["stream_options"] = json!({ "include_usage": true });
    let mut frames = frames(daemon.post(path, &body).send().await.unwrap()).await;
    assert_eq!(frames.pop(), Some((None, "[DONE]".to_owned())));
    let chunks: Vec<Value> = frames
        .iter()
        .map(|(name, data)| {
            assert_eq!(*name, None);
            serde_json::from_str(data).unwrap()
        })
        .collect();
    let text: String =
        chunks.iter().filter_map(|it| it["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, "You said: hello");
    assert_eq!(chunks.last().unwrap()["choices"], json!([]));
    body["messages"][1]["content"] = "fail".into();
    body["stream"] = false.into();
    let refusal = refused(&daemon, path, body).await;
    assert_eq!((refusal.0, refusal.1.as_str()), (500, "response_failed"));
}

#[tokio::test]
async fn a_key_makes_a_repetition_the_same_response() {
    let shell = Shell::new();
    let daemon = daemon(&shell).await;
    let ask = |input: &str| {
        let body = json!({ "model": "mirror", "input": input });
        send(daemon.post("/v1/responses", &body).header("idempotency-key", "k"))
    };
    let (_, first) = ask("one").await;
    let (_, again) = ask("one").await;
    assert_eq!(first, again);
    let (status, other) = ask("two").await;
    assert_eq!((status, &other["error"]["code"]), (409, &json!("idempotency_mismatch")));
}
