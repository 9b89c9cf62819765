//! Agents whose operator is a model: their answers, tools, reasoning and refusals, whole and as
//! they come.

use serde_json::{Value, json};

use crate::{
    checker::{check_response, check_stream, events, fits, frames, kinds},
    plain::{create, put},
    support::{Daemon, Shell, send},
};

/// A helper that looks things up itself, by another agent that is a model too.
pub const DESK: &str = r#"local swarm = require("swarm")
local s = swarm.schema
return swarm.blueprint { name = "desk",
  agents = {
    helper = { operator = "model", system = "You help.",
      tools = {
        { agent = "clerk", name = "look", description = "Looks something up.", input = s.object { what = s.string } },
      } },
    clerk = { operator = "model", input = s.object { what = s.string }, prompt = "{{ what }}" },
  },
  flow = function(ctx, input) return ctx:run("helper", input) end }"#;

/// A daemon whose model says what stands in `turns`.
pub async fn desk(shell: &Shell, turns: Value) -> Daemon {
    let turns = shell.write("turns.json", turns.to_string());
    let model = format!(
        "[operators.model]\nkind = \"llm\"\napi = \"script\"\npace = 2000\nturns = {turns:?}\n"
    );
    let config = shell.write("moonswarm.toml", model);
    let flags = ["--config".as_ref(), config.as_os_str()];
    let daemon = Daemon::start_with(&shell.path("data"), &flags);
    put(&daemon, "desk", DESK).await;
    daemon
}

fn usage() -> Value {
    json!({ "input": 10, "output": 4, "cached": 2, "reasoning": 1 })
}

async fn stream(daemon: &Daemon, mut body: Value) -> (Vec<Value>, Value) {
    body["stream"] = true.into();
    let live = events(daemon.post("/v1/responses", &body).send().await.unwrap()).await;
    let response = check_stream(&live, true);
    let path = format!("/v1/responses/{}?stream=true", response["id"].as_str().unwrap());
    let again = events(daemon.get(&path).send().await.unwrap()).await;
    assert_eq!(again, live, "the same events under the same numbers");
    (live, response)
}

#[tokio::test]
async fn an_answer_comes_in_pieces_with_its_reasoning_first() {
    let shell = Shell::new();
    let turns = json!([{ "reasoning": "Let me think about it.", "text": "It is the moon of Portugal.",
        "usage": usage() }]);
    let daemon = desk(&shell, turns).await;
    let (live, response) =
        stream(&daemon, json!({ "model": "desk/helper", "input": "lua?" })).await;
    let deltas: Vec<&str> = live
        .iter()
        .filter(|event| event["type"] == "response.output_text.delta")
        .map(|event| event["delta"].as_str().unwrap())
        .collect();
    assert_eq!(deltas, ["It", " is", " the", " moon", " of", " Portugal."]);
    let items: Vec<&str> = response["output"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["type"].as_str().unwrap())
        .collect();
    assert_eq!(items, ["reasoning", "message"]);
    assert_eq!(response["usage"]["total_tokens"], 14);
    assert_eq!(response["usage"]["output_tokens_details"]["reasoning_tokens"], 1);
    let whole = create(&daemon, json!({ "model": "desk/helper", "input": "lua?" })).await;
    assert_eq!(whole["output"][1]["content"], response["output"][1]["content"]);
    let (_, models) = send(daemon.get("/v1/models")).await;
    let ids: Vec<&Value> = models["data"].as_array().unwrap().iter().map(|it| &it["id"]).collect();
    assert_eq!(ids, ["desk", "desk/clerk", "desk/helper"]);
}

#[tokio::test]
async fn the_clients_calls_are_handed_back_and_their_outputs_taken() {
    let shell = Shell::new();
    let turns = json!({ "helper": [
        { "calls": [{ "name": "weather", "arguments": { "town": "Lagos" } },
            { "name": "weather", "arguments": { "town": "Faro" } }] },
        "Sunny in both." ] });
    let daemon = desk(&shell, turns).await;
    let tool = json!({ "type": "function", "name": "weather", "description": "The weather.",
        "parameters": { "type": "object", "properties": { "town": { "type": "string" } } } });
    let mut body = json!({ "model": "desk/helper", "input": "weather?", "tools": [tool],
        "tool_choice": "required", "parallel_tool_calls": true });
    let (live, first) = stream(&daemon, body.clone()).await;
    assert_eq!(first["status"], "completed");
    let calls = first["output"].as_array().unwrap().clone();
    assert_eq!(calls.len(), 2, "the whole batch");
    assert_eq!(calls[1]["arguments"], r#"{"town":"Faro"}"#);
    assert!(kinds(&live).contains(&"function_call_arguments.done"));
    let outputs: Vec<Value> = calls
        .iter()
        .map(|call| json!({ "type": "function_call_output", "call_id": call["call_id"], "output": "sun" }))
        .collect();
    body["input"] = outputs.into();
    body["previous_response_id"] = first["id"].clone();
    body["tool_choice"] = "auto".into();
    let (_, second) = stream(&daemon, body).await;
    assert_eq!(second["output"][0]["content"][0]["text"], "Sunny in both.");
    let path = format!("/v1/responses/{}/input_items", second["id"].as_str().unwrap());
    let (_, items) = send(daemon.get(&path)).await;
    let kinds: Vec<&Value> =
        items["data"].as_array().unwrap().iter().map(|it| &it["type"]).collect();
    assert_eq!(
        kinds,
        [
            "function_call_output",
            "function_call_output",
            "function_call",
            "function_call",
            "message"
        ]
    );
}

#[tokio::test]
async fn the_agents_own_tools_are_seen_and_the_agent_below_is_not_mixed_in() {
    let shell = Shell::new();
    let turns = json!({
        "helper": [{ "text": "I look it up.", "calls": [{ "name": "look", "arguments": { "what": "moon" } }],
            "usage": usage() }, { "text": "It is full.", "usage": usage() }],
        "clerk": [{ "text": "hidden: full", "usage": usage() }],
    });
    let daemon = desk(&shell, turns).await;
    let (live, response) =
        stream(&daemon, json!({ "model": "desk/helper", "input": "moon?" })).await;
    let output = response["output"].as_array().unwrap();
    let items: Vec<&str> = output.iter().map(|it| it["type"].as_str().unwrap()).collect();
    assert_eq!(items, ["message", "function_call", "function_call_output", "message"]);
    assert_eq!(output[2]["output"], "hidden: full");
    let said: String = live
        .iter()
        .filter(|event| event["type"] == "response.output_text.delta")
        .map(|event| event["delta"].as_str().unwrap())
        .collect();
    assert_eq!(said, "I look it up.It is full.");
    assert_eq!(response["usage"]["total_tokens"], 42, "what is below counts as well");
    let run = response["id"].as_str().unwrap().replacen("resp_", "run_", 1);
    let (_, steps) = send(daemon.get(&format!("/v1/runs/{run}/steps"))).await;
    let kinds: Vec<&str> =
        steps["items"].as_array().unwrap().iter().map(|it| it["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == "model_call").count(), 3, "{kinds:?}");
    let body = json!({ "model": "desk/helper", "messages": [{ "role": "user", "content": "moon?" }],
        "stream": true });
    let chunks = frames(daemon.post("/v1/chat/completions", &body).send().await.unwrap()).await;
    let text: String = chunks[..chunks.len() - 1]
        .iter()
        .filter_map(|(_, data)| {
            let chunk: Value = serde_json::from_str(data).unwrap();
            chunk["choices"][0]["delta"]["content"].as_str().map(str::to_owned)
        })
        .collect();
    assert_eq!(text, "I look it up.\n\nIt is full.");
}

#[tokio::test]
async fn a_refusal_a_limit_and_a_failure_are_said_in_the_protocols_words() {
    let shell = Shell::new();
    let turns = json!({ "helper": [
        { "when": "refuse", "refusal": "I would rather not." },
        { "when": "cut", "text": "It goes on and", "stop": "length" },
        { "when": "fail", "fail": [{ "status": 400, "message": "no such model" }], "text": "x" },
    ] });
    let daemon = desk(&shell, turns).await;
    let ask = |input: &str| json!({ "model": "desk/helper", "input": input });
    let (live, refused) = stream(&daemon, ask("refuse")).await;
    assert_eq!(refused["output"][0]["content"][0]["refusal"], "I would rather not.");
    assert!(kinds(&live).contains(&"refusal.done"));
    let (live, cut) = stream(&daemon, ask("cut")).await;
    assert_eq!(cut["incomplete_details"], json!({ "reason": "max_output_tokens" }));
    assert_eq!(kinds(&live).last(), Some(&"incomplete"));
    let (live, failed) = stream(&daemon, ask("fail")).await;
    assert_eq!(
        (&failed["status"], &failed["error"]["code"]),
        (&json!("failed"), &json!("server_error"))
    );
    assert_eq!(kinds(&live), ["created", "in_progress", "failed"]);
}

#[tokio::test]
async fn a_conversation_is_compacted_by_the_agent_and_goes_on_from_there() {
    let shell = Shell::new();
    let turns = json!({ "helper": [
        { "when": "Write a summary", "text": "They want the moon." },
        { "when": "and now", "text": "Still the moon." },
        "Which moon?" ] });
    let daemon = desk(&shell, turns).await;
    let first =
        create(&daemon, json!({ "model": "desk/helper", "input": "the moon please" })).await;
    let body = json!({ "model": "desk/helper", "previous_response_id": first["id"] });
    let (status, compacted) = send(daemon.post("/v1/responses/compact", &body)).await;
    assert_eq!(status, 200, "{compacted}");
    fits("CompactResource", &compacted);
    let output = compacted["output"].as_array().unwrap();
    assert_eq!((output.len(), &output[0]["type"]), (1, &json!("compaction")));
    let mut input = output.clone();
    input.push(json!({ "role": "user", "content": "and now?" }));
    let next = create(&daemon, json!({ "model": "desk/helper", "input": input })).await;
    check_response(&next);
    assert_eq!(next["output"][0]["content"][0]["text"], "Still the moon.");
    let run = next["id"].as_str().unwrap().replacen("resp_", "run_", 1);
    let (_, events) = send(daemon.get(&format!("/v1/runs/{run}/events"))).await;
    let asked = events.as_str().unwrap().lines().find(|line| line.contains("\"trigger\"")).unwrap();
    assert!(asked.contains("They want the moon."), "the model is given the summary: {asked}");
}
