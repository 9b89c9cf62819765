//! Sessions of clients of older revisions over HTTP: whose they are, and how they end.

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use crate::{
    client::operator,
    support::{Daemon, Shell, send},
};

const GREET: &str = r#"local swarm = require("swarm") local s = swarm.schema
    return swarm.blueprint { name = "greet", description = "Greets.", mcp = true,
    agents = { name = { operator = "human", by = "starter", prompt = "Who are you?",
        output = s.object { name = s.string } } },
    flow = function(ctx) return "hello, " .. ctx:run("name").name end }"#;

fn in_session(daemon: &Daemon, token: &str, method: Method, session: &str) -> RequestBuilder {
    daemon
        .with(token, method, "/mcp")
        .header("accept", "application/json, text/event-stream")
        .header("mcp-protocol-version", "2025-11-25")
        .header("mcp-session-id", session)
}

/// Opens a session of a client that fills in forms.
async fn open(daemon: &Daemon, token: &str) -> String {
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}},
        "clientInfo": {"name": "test", "version": "1"}}});
    let asked = daemon
        .with(token, Method::POST, "/mcp")
        .header("accept", "application/json, text/event-stream")
        .json(&hello);
    let answer = asked.send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let session = answer.headers()["mcp-session-id"].to_str().unwrap().to_owned();
    let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    let (status, _) = send(in_session(daemon, token, Method::POST, &session).json(&ready)).await;
    assert_eq!(status, 202);
    session
}

fn list() -> Value {
    json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"})
}

async fn status(request: RequestBuilder) -> u16 {
    request.send().await.unwrap().status().as_u16()
}

/// The next message of a stream.
async fn next(answer: &mut reqwest::Response, seen: &mut String) -> Value {
    loop {
        let data = seen.split("\n\n").find_map(|event| {
            let line = event.lines().find_map(|line| line.strip_prefix("data:"))?;
            serde_json::from_str::<Value>(line.trim()).ok()
        });
        if let Some(message) = data {
            let end =
                seen.find(&message["method"].as_str().unwrap_or("result").to_owned()).unwrap();
            let rest = seen[end..].split_once("\n\n").map_or("", |(_, rest)| rest).to_owned();
            *seen = rest;
            return message;
        }
        let piece = answer.chunk().await.unwrap().expect("the stream goes on");
        seen.push_str(std::str::from_utf8(&piece).unwrap());
    }
}

#[tokio::test]
async fn a_session_is_of_the_token_that_opened_it_until_its_client_ends_it() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let (token, other) = (operator(&daemon).await, operator(&daemon).await);
    let session = open(&daemon, &token).await;
    let post = |token: &str, session: &str| {
        in_session(&daemon, token, Method::POST, session).json(&list())
    };
    assert_eq!(status(post(&token, &session)).await, 200);
    assert_eq!(status(post(&other, &session)).await, 404, "another token has no such session");
    let stream = in_session(&daemon, &other, Method::GET, &session);
    assert_eq!(status(stream).await, 404);
    assert_eq!(status(in_session(&daemon, &other, Method::DELETE, &session)).await, 404);
    for unknown in ["x", "", &session[..16]] {
        assert_eq!(status(post(&token, unknown)).await, 404, "{unknown:?}");
    }
    assert_eq!(status(post(&token, &session)).await, 200);
    assert_eq!(status(in_session(&daemon, &token, Method::DELETE, &session)).await, 204);
    assert_eq!(status(post(&token, &session)).await, 404, "it has ended");
}

#[tokio::test]
async fn a_session_goes_on_after_a_restart_and_its_client_is_asked_during_a_call() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    let put = daemon.put("/v1/blueprints/greet", &json!({"source": GREET}));
    assert_eq!(send(put).await.0, 200);
    let token = operator(&daemon).await;
    let session = open(&daemon, &token).await;
    daemon.kill();
    let daemon = Daemon::start(&data);
    let call = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call",
        "params": {"name": "greet", "arguments": {}}});
    let post = |body: &Value| in_session(&daemon, &token, Method::POST, &session).json(body);
    let mut answer = post(&call).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let mut seen = String::new();
    let asked = next(&mut answer, &mut seen).await;
    assert_eq!(asked["method"], "elicitation/create", "{asked}");
    assert_eq!(asked["params"]["message"], "Who are you?", "{asked}");
    let said = json!({"jsonrpc": "2.0", "id": asked["id"],
        "result": {"action": "accept", "content": {"name": "moon"}}});
    // Only the session that was asked can answer.
    let mine = open(&daemon, &operator(&daemon).await).await;
    let stranger = in_session(&daemon, &token, Method::POST, &mine).json(&said);
    assert_eq!(status(stranger).await, 404);
    assert_eq!(send(post(&said)).await.0, 202);
    let done = next(&mut answer, &mut seen).await;
    assert_eq!(done["result"]["structuredContent"]["output"], "hello, moon", "{done}");
}

#[tokio::test]
async fn the_sessions_of_a_token_are_bounded_and_the_oldest_is_opened_again_when_it_is_used() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let token = operator(&daemon).await;
    let mut sessions = Vec::new();
    for _ in 0..40 {
        sessions.push(open(&daemon, &token).await);
    }
    for session in &sessions {
        let post = in_session(&daemon, &token, Method::POST, session).json(&list());
        assert_eq!(status(post).await, 200, "{session}");
    }
}

#[tokio::test]
async fn a_session_that_is_opened_again_reads_its_lists_again() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    let token = operator(&daemon).await;
    let session = open(&daemon, &token).await;
    daemon.kill();
    let daemon = Daemon::start(&data);
    let stream = in_session(&daemon, &token, Method::GET, &session);
    let mut stream = stream.send().await.unwrap();
    assert_eq!(stream.status(), 200);
    let mut seen = String::new();
    let mut told = Vec::new();
    for _ in 0..3 {
        told.push(next(&mut stream, &mut seen).await["method"].as_str().unwrap().to_owned());
    }
    let of = |list: &str| format!("notifications/{list}/list_changed");
    assert_eq!(told, [of("tools"), of("prompts"), of("resources")]);
    // What changes afterwards is told as well.
    let put = daemon.put("/v1/blueprints/greet", &json!({"source": GREET}));
    assert_eq!(send(put).await.0, 200);
    assert_eq!(next(&mut stream, &mut seen).await["method"], of("tools"));
}
