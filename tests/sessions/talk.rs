//! Every method, every refusal, and a socket that lives on.

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::{
    Message,
    protocol::frame::{
        Frame,
        coding::{Data, OpCode},
    },
};

use crate::{
    client::{blueprint, open},
    support::{
        Daemon, Shell,
        provider::{Provider, Turn},
        refusal, repository, send,
    },
};

#[tokio::test]
async fn a_session_starts_watches_signals_and_cancels_runs() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let session = open(&daemon).await;
    let mut socket = session.connect(&daemon).await;
    let source = blueprint(r#"local got = ctx:wait("go") return ctx:run("note", got)"#);
    let start = json!({"source": source, "idempotency_key": "k1"});
    let run = socket.ask("run/start", start.clone()).await["id"].clone();
    assert_eq!(socket.ask("run/start", start).await["id"], run, "the same key is the same run");
    socket.ask("run/subscribe", json!({"run": run})).await;
    socket.ask("run/signal", json!({"run": run, "name": "go", "payload": {"n": 1}})).await;
    let mut kinds = Vec::new();
    let mut numbers = Vec::new();
    while kinds.last().map(String::as_str) != Some("run.ended") {
        let event = socket.until("event").await["params"]["event"].clone();
        kinds.push(event["type"].as_str().unwrap().to_owned());
        numbers.extend(event["seq"].as_u64());
    }
    assert_eq!(kinds[0], "run.started");
    assert!(kinds.contains(&"signal".to_owned()), "{kinds:?}");
    assert!(numbers.iter().zip(1..).all(|(a, b)| *a == b), "{numbers:?}");
    let view = socket.ask("run/get", json!({"run": run})).await;
    assert_eq!(view["output"], json!({"n": 1}), "{view}");
    assert_eq!(view["started_by"], format!("session/{}", session.id), "{view}");

    let other = json!({"source": blueprint(r#"ctx:wait("never")"#), "wait": "10ms"});
    let run = socket.ask("run/start", other).await["id"].clone();
    let view = socket.ask("run/cancel", json!({"run": run, "reason": "enough"})).await;
    assert_eq!(view["status"], "canceled", "{view}");
    assert_eq!(socket.refused("run/signal", json!({"run": run, "name": "x"})).await, "run_closed");
}

#[tokio::test]
async fn a_session_hears_what_a_model_of_its_run_says() {
    let provider = Provider::says(vec![Turn::text("a word or two")]);
    let shell = Shell::new();
    let config = format!(
        "[operators.model]\nkind = \"llm\"\napi = \"chat\"\nmodel = \"m\"\nbase_url = {:?}\n\
         allow_hosts = [\"127.0.0.1\"]\n",
        provider.base_url
    );
    let file = shell.write("moonswarm.toml", config);
    let env = [("MOONSWARM_CONFIG", file.to_str().unwrap())];
    let daemon = Daemon::launch(&shell.path("data"), &env).unwrap();
    let session = open(&daemon).await;
    let mut socket = session.connect(&daemon).await;
    let source = r#"local swarm = require("swarm")
return swarm.blueprint { name = "said", agents = { w = { operator = "model", prompt = "Talk." } },
  flow = function(ctx) ctx:wait("go") ctx:run("w", { items = swarm.array {} }) end }"#;
    let run = socket.ask("run/start", json!({"source": source})).await["id"].clone();
    socket.ask("run/subscribe", json!({"run": run})).await;
    socket.until("event").await;
    socket.ask("run/signal", json!({"run": run, "name": "go"})).await;
    let (mut said, mut ended) = (String::new(), false);
    while !ended {
        let event = socket.until("event").await["params"]["event"].clone();
        if event["type"] == "model.delta" {
            said.push_str(event["data"]["delta"]["delta"].as_str().unwrap_or_default());
        }
        ended = event["type"] == "run.ended";
    }
    assert_eq!(said, "a word or two");
}

#[tokio::test]
async fn every_refusal_has_its_code_and_the_socket_lives_on() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let (a, b) = (open(&daemon).await, open(&daemon).await);
    let (mut socket, mut other) = (a.connect(&daemon).await, b.connect(&daemon).await);
    let start = json!({"source": blueprint(r#"return ctx:run("coder", {})"#)});
    other.ask("run/start", start).await;
    let theirs = other.until("task/spawn").await["params"]["task"].clone();
    let unknown_run = "run_aaaaaaaaabyaaaeaaaaaaaaaaa";

    for (method, params, code) in [
        ("task/steal", json!({}), "unknown_method"),
        ("task/result", json!({"task": theirs, "output": 1}), "foreign_task"),
        ("task/accept", json!({"task": theirs}), "foreign_task"),
        ("task/accept", json!({"task": "x"}), "bad_id"),
        ("task/accept", json!({}), "invalid_body"),
        ("task/accept", json!({"task": theirs, "now": true}), "unknown_field"),
        ("task/result", json!({"task": theirs}), "invalid_body"),
        ("ack", json!({"seq": -1}), "invalid_body"),
        ("ack", json!([1]), "invalid_body"),
        ("run/get", json!({"run": unknown_run}), "not_found"),
        ("run/start", json!({"blueprint": "nobody"}), "not_found"),
        ("run/start", json!({"source": "return 1"}), "blueprint_invalid"),
        ("run/start", json!({"blueprint": "nobody", "idempotency_key": "a b"}), "invalid_body"),
        ("seat/acquire", json!({"run": "x"}), "bad_id"),
        ("session/renew", json!({"ttl": "soon"}), "invalid_body"),
    ] {
        assert_eq!(socket.refused(method, params.clone()).await, code, "{method} {params}");
    }
    for (text, code, number) in [
        ("{", "malformed_json", -32_700),
        ("[1,2]", "invalid_body", -32_602),
        (r#"{"jsonrpc":"2.0","id":1}"#, "invalid_body", -32_602),
    ] {
        socket.raw(Message::text(text)).await;
        let said = socket.answer(&Value::Null).await;
        assert_eq!(said["error"]["data"]["code"], code, "{said}");
        assert_eq!(said["error"]["code"], number, "{said}");
    }
    socket.raw(Message::binary(vec![1, 2, 3])).await;
    assert_eq!(socket.answer(&Value::Null).await["error"]["data"]["code"], "invalid_body");
    socket.raw(Message::text(format!("\"{}\"", "x".repeat(9 << 20)))).await;
    assert_eq!(socket.answer(&Value::Null).await["error"]["data"]["code"], "too_large");
    socket.notify("task/steal", json!({})).await;
    assert_eq!(socket.ask("tasks/list", json!({})).await["items"], json!([]));
}

#[tokio::test]
async fn a_result_that_breaks_its_schema_and_a_seat_of_another_operator_are_refused_in_words() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let session = open(&daemon).await;
    let mut socket = session.connect(&daemon).await;
    let start = json!({"source": blueprint(r#"return ctx:run("strict", {})"#)});
    let run = socket.ask("run/start", start).await["id"].clone();
    let task = socket.until("task/spawn").await["params"]["task"].clone();
    let wrong = socket.call("task/result", json!({"task": task, "output": {"ok": "yes"}})).await;
    let data = &wrong["error"]["data"];
    assert_eq!(
        (&data["code"], &data["path"]),
        (&json!("invalid_result"), &json!("$.ok")),
        "{wrong}"
    );
    let other = json!({"run": run, "operator": "human"});
    assert_eq!(socket.refused("seat/acquire", other).await, "wrong_seat");
    let done = socket.ask("task/result", json!({"task": task, "output": {"ok": true}})).await;
    assert_eq!(done["accepted"], true, "the socket and the attempt live on: {done}");
    assert_eq!(
        socket.ask("run/get", json!({"run": run, "wait": "20s"})).await["status"],
        "completed"
    );
}

#[tokio::test]
async fn what_ends_a_connection_leaves_the_session_alone() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let session = open(&daemon).await;
    let mut socket = session.connect(&daemon).await;
    let text = OpCode::Data(Data::Text);
    let bad = Frame::message(vec![b'"', 0xff, 0xfe, b'"'], text, true);
    socket.raw(Message::Frame(bad)).await;
    assert_eq!(socket.end().await.0, 1007);
    let mut socket = session.connect(&daemon).await;
    assert_eq!(socket.ask("tasks/list", json!({})).await["items"], json!([]));
    let (_, look) = send(daemon.get(&format!("/v1/sessions/{}", session.id))).await;
    assert_eq!((&look["connected"], &look["closed_at"]), (&json!(true), &Value::Null), "{look}");
}

#[tokio::test]
async fn the_door_is_for_the_sessions_own_token() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let (a, b) = (open(&daemon).await, open(&daemon).await);
    let stranger = crate::client::Opened { id: a.id.clone(), token: b.token.clone() };
    let refused = stranger.try_connect(&daemon, None).await.err().unwrap();
    assert_eq!(refused, (409, "wrong_seat".to_owned()));
    let nobody = crate::client::Opened { id: a.id.clone(), token: "x".into() };
    assert_eq!(nobody.try_connect(&daemon, None).await.err().unwrap().0, 401);
    assert_eq!(a.connect_by_protocol(&daemon).await, (Some("moonswarm.v1".to_owned()), 101));
    assert_eq!(stranger.connect_by_protocol(&daemon).await, (None, 409));
    assert_eq!(nobody.connect_by_protocol(&daemon).await, (None, 401));
    let plain = a.http(&daemon, reqwest::Method::GET, &format!("/v1/sessions/{}/ws", a.id));
    assert_eq!(refusal(plain).await, (426, "upgrade_required".to_owned()));
    let open =
        |operator: &str| daemon.post(&format!("/v1/operators/{operator}/sessions"), &Value::Null);
    assert_eq!(refusal(open("echo")).await, (409, "no_sessions".to_owned()));
    assert_eq!(refusal(open("nobody")).await, (404, "not_found".to_owned()));
    let (_, list) = send(daemon.get("/v1/sessions")).await;
    assert_eq!(list["items"].as_array().map(Vec::len), Some(2), "{list}");
    let (_, operators) = send(daemon.get("/v1/operators")).await;
    let main_ai = operators["items"].as_array().unwrap().iter().find(|it| it["name"] == "main-ai");
    assert_eq!(main_ai.unwrap()["sessions"], 2, "{operators}");
}

#[test]
fn every_method_of_the_schema_is_one_that_the_documents_have() {
    let read = |path: &str| std::fs::read_to_string(repository(path)).unwrap();
    let docs = read("docs/session-protocol.md");
    let schema: Value = serde_json::from_str(&read("docs/protocol/client.schema.json")).unwrap();
    for method in schema["oneOf"].as_array().unwrap() {
        let name = method["title"].as_str().unwrap();
        assert!(docs.contains(&format!("`{name}")), "{name} is not in docs/session-protocol.md");
    }
}
