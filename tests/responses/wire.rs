//! Responses whose model is a server: what of a request reaches it in each API, and who joins in the
//! middle of its answer.

use serde_json::{Value, json};

use crate::{
    checker::{check_response, events},
    feed::Feed,
    model::DESK,
    plain::put,
    support::{
        Daemon, Shell,
        provider::{Answer, Bit, Gate, Provider, Turn},
        send,
    },
};

/// A daemon whose model is at a provider.
async fn desk(shell: &Shell, provider: &Provider, api: &str, more: &str) -> Daemon {
    let config = format!(
        "[operators.model]\nkind = \"llm\"\napi = \"{api}\"\nmodel = \"mock\"\n\
         base_url = \"{}\"\nallow_hosts = [\"127.0.0.1\"]\n{more}\n",
        provider.base_url
    );
    let config = shell.write("moonswarm.toml", config);
    let flags = ["--config".as_ref(), config.as_os_str()];
    let daemon = Daemon::start_with(&shell.path("data"), &flags);
    put(&daemon, "desk", DESK).await;
    daemon
}

async fn create(daemon: &Daemon, body: Value) -> Value {
    let (status, response) = send(daemon.post("/v1/responses", &body)).await;
    assert_eq!((status, &response["status"]), (200, &json!("completed")), "{response:#}");
    response
}

#[tokio::test]
async fn a_picture_that_a_tool_gave_reaches_the_model_in_every_api() {
    for api in ["chat", "responses", "anthropic"] {
        let provider = Provider::says(vec![Turn::text("A moon.")]);
        let shell = Shell::new();
        let daemon = desk(&shell, &provider, api, "").await;
        let picture = "data:image/png;base64,AAAA";
        let output = json!([{ "type": "input_text", "text": "the screen" },
            { "type": "input_image", "image_url": picture, "detail": "low" }]);
        let response = create(
            &daemon,
            json!({ "model": "desk/helper",
                "tools": [{ "type": "function", "name": "shot", "parameters": { "type": "object" } }],
                "input": [
                    { "role": "user", "content": "What is on the screen?" },
                    { "type": "function_call", "call_id": "call_1", "name": "shot", "arguments": "{}" },
                    { "type": "function_call_output", "call_id": "call_1", "output": output },
                ] }),
        )
        .await;
        check_response(&response);
        assert_eq!(response["output"][0]["content"][0]["text"], "A moon.", "{api}");
        let asked = provider.asked().remove(0).body;
        let said = match api {
            "responses" => &asked["input"],
            _ => &asked["messages"],
        };
        let said = said.as_array().unwrap();
        match api {
            "responses" => {
                assert_eq!(said[2]["output"][1]["image_url"], picture);
                assert_eq!(said[2]["output"][1]["detail"], "low");
            }
            "anthropic" => {
                let result = &said[2]["content"][0];
                assert_eq!(
                    (&result["type"], &result["tool_use_id"]),
                    (&json!("tool_result"), &json!("call_1"))
                );
                let source = json!({ "type": "base64", "media_type": "image/png", "data": "AAAA" });
                assert_eq!(result["content"][1], json!({ "type": "image", "source": source }));
            }
            _ => {
                let tool = said.iter().find(|message| message["role"] == "tool").unwrap();
                assert_eq!(tool["content"], "the screen");
                let last = said.last().unwrap();
                let shown = json!({ "type": "image_url", "image_url": { "url": picture, "detail": "low" } });
                assert_eq!((&last["role"], &last["content"][1]), (&json!("user"), &shown));
            }
        }
    }
}

/// Anthropic's answer with a search of its own before the text.
fn searched() -> Answer {
    let block = |index: usize, block: Value| {
        [
            json!({ "type": "content_block_start", "index": index, "content_block": block }),
            json!({ "type": "content_block_stop", "index": index }),
        ]
    };
    let search = json!({ "type": "server_tool_use", "id": "srv_1", "name": "web_search",
        "input": { "query": "moon" } });
    let found = json!({ "type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [
        { "type": "web_search_result", "url": "https://moon.example", "encrypted_content": "e" } ] });
    let mut all =
        vec![json!({ "type": "message_start", "message": { "model": "mock-1", "usage": {} } })];
    all.extend(block(0, search));
    all.extend(block(1, found));
    all.extend(block(2, json!({ "type": "text", "text": "It is full." })));
    all.push(
        json!({ "type": "message_delta", "delta": { "stop_reason": "end_turn" }, "usage": {} }),
    );
    all.push(json!({ "type": "message_stop" }));
    Answer::stream(all.iter().map(|it| Bit::Send(format!("data: {it}\n\n").into())).collect())
}

#[tokio::test]
async fn a_search_of_the_providers_is_in_the_response_and_goes_back_as_it_came() {
    let provider = Provider::start(|number, asked| match number {
        0 => searched(),
        _ => Answer::turn(&Turn::text("Yes."), &asked.path),
    });
    let shell = Shell::new();
    let own =
        "[[operators.model.options.tools]]\ntype = \"web_search_20250305\"\nname = \"web_search\"";
    let daemon = desk(&shell, &provider, "anthropic", own).await;
    let ask = json!({ "model": "desk/helper", "input": "How full is the moon?" });
    let first = create(&daemon, ask).await;
    let kinds: Vec<&str> = first["output"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["type"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["anthropic:server_tool_use", "anthropic:web_search_tool_result", "message"]);
    let sure =
        json!({ "model": "desk/helper", "input": "Sure?", "previous_response_id": first["id"] });
    create(&daemon, sure).await;
    let asked = provider.asked();
    let names: Vec<&str> = asked[0].body["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["look", "web_search"], "the agent's own stay");
    let blocks = &asked[1].body["messages"][1]["content"];
    assert_eq!(blocks[0]["id"], "srv_1");
    assert_eq!(blocks[1]["content"][0]["encrypted_content"], "e");
    assert_eq!(blocks[2]["text"], "It is full.");
}

/// A provider that says a word, waits for the gate, and says the rest.
fn halting(gate: &Gate) -> Provider {
    let gate = gate.clone();
    Provider::start(move |_, asked| {
        let said = Turn::text("first second third").events(&asked.path);
        let mut bits: Vec<Bit> = said.into_iter().map(|it| Bit::Send(it.into_bytes())).collect();
        let second = bits.iter().position(
            |bit| matches!(bit, Bit::Send(bytes) if String::from_utf8_lossy(bytes).contains("second ")),
        );
        bits.insert(second.unwrap(), Bit::Wait(gate.clone()));
        Answer::stream(bits)
    })
}

/// Hears a feed up to the first delta of a text.
async fn up_to_a_delta(feed: &mut Feed) -> Vec<Value> {
    let mut heard = Vec::new();
    loop {
        let event = feed.next().await.expect("a delta");
        let is_delta = event["type"] == "response.output_text.delta";
        heard.push(event);
        if is_delta {
            return heard;
        }
    }
}

#[tokio::test]
async fn who_joins_in_the_middle_of_an_answer_hears_what_was_said_and_then_the_rest() {
    let (gate, shell) = (Gate::default(), Shell::new());
    let provider = halting(&gate);
    let daemon = desk(&shell, &provider, "chat", "").await;
    let ask = json!({ "model": "desk/helper", "input": "go", "stream": true });
    let mut live = Feed::of(daemon.post("/v1/responses", &ask).send().await.unwrap());
    let heard = up_to_a_delta(&mut live).await;
    let id = heard[0]["response"]["id"].as_str().unwrap().to_owned();

    let path = format!("/v1/responses/{id}?stream=true");
    let mut late = Feed::of(daemon.get(&path).send().await.unwrap());
    assert_eq!(up_to_a_delta(&mut late).await, heard, "the same before the model goes on");
    let last = heard.last().unwrap()["sequence_number"].as_u64().unwrap();
    let behind = format!("{path}&starting_after={}", last - 1);
    let mut behind = Feed::of(daemon.get(&behind).send().await.unwrap());
    assert_eq!(&behind.next().await.unwrap(), heard.last().unwrap());

    // The run's own events are there for who comes late as well.
    let run = id.replacen("resp_", "run_", 1);
    let mut run_events =
        Feed::of(daemon.get(&format!("/v1/runs/{run}/events")).send().await.unwrap());
    loop {
        let event = run_events.next().await.expect("a piece");
        if event["data"]["delta"]["type"] == "text" {
            assert_eq!(
                (&event["data"]["delta"]["delta"], &event["data"]["n"]),
                (&json!("first "), &json!(1))
            );
            break;
        }
    }

    gate.open();
    let whole = events(daemon.get(&path).send().await.unwrap()).await;
    for (mut feed, mut said) in [(live, heard.clone()), (late, heard.clone()), (behind, heard)] {
        while said.last().is_none_or(|it| it["type"] != "response.completed") {
            said.push(feed.next().await.expect("it goes on to its end"));
        }
        assert_eq!(said, whole);
    }
}
