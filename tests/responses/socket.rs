//! Responses over a WebSocket.

use std::time::Duration;

use futures::{SinkExt as _, StreamExt as _};
use moonswarm::{
    door::{DoorConfig, Limits},
    host::{Host, HostConfig},
};
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_tungstenite::{
    connect_async,
    tungstenite::{Message, client::IntoClientRequest as _},
};

use crate::{
    checker::{check_stream, fits},
    plain::{daemon, gone},
    support::{Daemon, PATIENCE, Shell, send},
};

type Socket =
    tokio_tungstenite::WebSocketStream<tokio_tungstenite::MaybeTlsStream<tokio::net::TcpStream>>;

async fn connect(daemon: &Daemon) -> Socket {
    connect_with(daemon, &daemon.token).await
}

async fn connect_with(daemon: &Daemon, token: &str) -> Socket {
    let url = format!("{}/v1/responses", daemon.url.replacen("http", "ws", 1));
    let mut request = url.into_client_request().unwrap();
    let bearer = format!("Bearer {token}").parse().unwrap();
    request.headers_mut().insert("authorization", bearer);
    connect_async(request).await.unwrap().0
}

async fn say(socket: &mut Socket, message: Value) {
    socket.send(Message::text(message.to_string())).await.unwrap();
}

async fn hear(socket: &mut Socket) -> Value {
    loop {
        let message = timeout(PATIENCE, socket.next()).await.expect("a message");
        match message.unwrap().unwrap() {
            Message::Text(text) => return serde_json::from_str(&text).unwrap(),
            Message::Ping(_) | Message::Pong(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

async fn response(socket: &mut Socket) -> Value {
    let mut events = Vec::new();
    loop {
        let event = hear(socket).await;
        let kind = event["type"].as_str().unwrap().to_owned();
        events.push(event);
        if ["response.completed", "response.failed", "response.incomplete"].contains(&&*kind) {
            return check_stream(&events, true);
        }
    }
}

#[tokio::test]
async fn a_conversation_over_one_connection_needs_nothing_stored() {
    let shell = Shell::new();
    let daemon = daemon(&shell).await;
    let mut socket = connect(&daemon).await;
    let create =
        json!({ "type": "response.create", "model": "mirror", "input": "one", "store": false });
    say(&mut socket, create).await;
    let first = response(&mut socket).await;
    assert_eq!(first["output"][0]["content"][0]["text"], "You said: one");
    gone(&daemon, &format!("/v1/responses/{}", first["id"].as_str().unwrap())).await;
    let next = json!({ "type": "response.create", "model": "mirror", "input": "table",
        "store": false, "previous_response_id": first["id"] });
    say(&mut socket, next).await;
    let second = response(&mut socket).await;
    let text = second["output"][0]["content"][0]["text"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(text).unwrap()["said"], 3);
}

#[tokio::test]
async fn what_could_not_be_continued_is_not_kept_for_another_try() {
    let shell = Shell::new();
    let daemon = daemon(&shell).await;
    let mut socket = connect(&daemon).await;
    for bad in [
        json!([{ "type": "function_call_output", "call_id": "none", "output": "" }]),
        json!("fail"),
    ] {
        let create =
            json!({ "type": "response.create", "model": "mirror", "input": "one", "store": false });
        say(&mut socket, create.clone()).await;
        let first = response(&mut socket).await;
        gone(&daemon, &format!("/v1/responses/{}", first["id"].as_str().unwrap())).await;
        let mut next = create;
        next["previous_response_id"] = first["id"].clone();
        next["input"] = bad.clone();
        say(&mut socket, next.clone()).await;
        match bad.as_str() {
            Some(_) => assert_eq!(response(&mut socket).await["status"], "failed"),
            None => assert_eq!(hear(&mut socket).await["type"], "error"),
        }
        next["input"] = "again".into();
        say(&mut socket, next).await;
        let error = hear(&mut socket).await;
        assert_eq!(error["error"]["code"], "previous_response_not_found", "{error}");
    }
}

#[tokio::test]
async fn requests_are_answered_one_after_the_other_and_errors_end_nothing() {
    let shell = Shell::new();
    let daemon = daemon(&shell).await;
    let mut socket = connect(&daemon).await;
    for (message, param) in [
        (json!({ "type": "hello" }), json!("type")),
        (json!({ "type": "response.create", "model": "mirror" }), json!("input")),
        (
            json!({ "type": "response.create", "model": "mirror", "input": "x", "stream": true }),
            json!("stream"),
        ),
    ] {
        say(&mut socket, message).await;
        let error = hear(&mut socket).await;
        fits("WebSocketErrorEvent", &error);
        assert_eq!((&error["status"], &error["error"]["param"]), (&json!(400), &param));
    }
    for input in ["wait", "two"] {
        let create = json!({ "type": "response.create", "model": "mirror", "input": input });
        say(&mut socket, create).await;
    }
    let created = hear(&mut socket).await;
    let run = created["response"]["id"].as_str().unwrap().replacen("resp_", "run_", 1);
    let go = daemon.post(&format!("/v1/runs/{run}/signals/go"), &json!("one"));
    assert_eq!(send(go).await.0, 204);
    let mut texts = Vec::new();
    while texts.len() < 2 {
        let event = hear(&mut socket).await;
        if event["type"] == "response.completed" {
            texts.push(event["response"]["output"][0]["content"][0]["text"].clone());
        }
    }
    assert_eq!(texts, [json!("one"), json!("You said: two")]);
    let (status, answer) = send(daemon.get("/v1/responses")).await;
    assert_eq!((status, &answer["error"]["code"]), (426, &json!("upgrade_required")));
}

/// A token of an operator and its id.
async fn minted(daemon: &Daemon, ttl: &str) -> (String, String) {
    let body = json!({ "role": "operator", "ttl": ttl });
    let (status, minted) = send(daemon.post("/v1/tokens", &body)).await;
    assert_eq!(status, 201, "{minted}");
    let text = |name: &str| minted[name].as_str().unwrap().to_owned();
    (text("token"), text("jti"))
}

/// The events until the server closes the connection, and the code of that.
async fn rest(socket: &mut Socket) -> (Vec<Value>, u16) {
    let mut events = Vec::new();
    loop {
        let message = timeout(PATIENCE, socket.next()).await.expect("a message");
        match message.expect("a close frame").unwrap() {
            Message::Text(text) => events.push(serde_json::from_str(&text).unwrap()),
            Message::Close(frame) => return (events, frame.expect("a code").code.into()),
            _ => {}
        }
    }
}

#[tokio::test]
async fn a_revoked_token_gets_nothing_more_of_its_response() {
    let shell = Shell::new();
    let daemon = daemon(&shell).await;
    let (token, jti) = minted(&daemon, "1h").await;
    let mut socket = connect_with(&daemon, &token).await;
    let create = json!({ "type": "response.create", "model": "mirror", "input": "wait" });
    say(&mut socket, create).await;
    let created = hear(&mut socket).await;
    let run = created["response"]["id"].as_str().unwrap().replacen("resp_", "run_", 1);
    daemon.waits(&run, "signal").await;
    assert_eq!(send(daemon.delete(&format!("/v1/tokens/{jti}"))).await.0, 204);
    let go = daemon.post(&format!("/v1/runs/{run}/signals/go"), &json!("secret"));
    assert_eq!(send(go).await.0, 204);
    let (events, code) = rest(&mut socket).await;
    assert_eq!(code, 4001);
    assert!(!json!(events).to_string().contains("secret"), "{events:?}");
    assert_eq!(daemon.ended(&run).await["output"], "secret", "the run goes on");
}

#[tokio::test]
async fn an_idle_connection_ends_with_its_token() {
    let shell = Shell::new();
    let limits = Limits { ping: Duration::from_millis(100), ..Limits::default() };
    let config = HostConfig {
        shards: 1,
        door: DoorConfig { limits, ..DoorConfig::default() },
        ..HostConfig::new(shell.path("data"))
    };
    let host = Host::open(config).await.unwrap();
    let daemon = Daemon::of(host.url(), host.admin_token());
    let (token, _) = minted(&daemon, "2s").await;
    let mut socket = connect_with(&daemon, &token).await;
    assert_eq!(rest(&mut socket).await, (Vec::new(), 4002));
    host.stop(Duration::from_secs(5)).await;
}
