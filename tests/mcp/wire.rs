//! The protocol itself: revisions, credentials, limits.

use reqwest::Method;
use rmcp::{model::ProtocolVersion, service::ClientLifecycleMode};
use serde_json::{Value, json};

use crate::{
    client::{Agent, operator},
    support::{Daemon, Shell, refusal, send},
};

fn post(daemon: &Daemon, token: &str, body: &Value) -> reqwest::RequestBuilder {
    daemon
        .with(token, Method::POST, "/mcp")
        .header("accept", "application/json, text/event-stream")
        .json(body)
}

fn hello(version: &str) -> Value {
    let client = json!({"name": "test", "version": "1"});
    let params = json!({"protocolVersion": version, "capabilities": {}, "clientInfo": client});
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
}

#[tokio::test]
async fn every_revision_is_spoken_and_a_message_needs_no_session() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    for version in ["2025-06-18", "2025-11-25"] {
        let answer = post(&daemon, &daemon.token, &hello(version)).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        assert!(answer.headers().contains_key("mcp-session-id"));
        let answer = answer.text().await.unwrap();
        let data = answer.lines().find_map(|line| line.strip_prefix("data: {")).unwrap();
        let answer: Value = serde_json::from_str(&format!("{{{data}")).unwrap();
        assert_eq!(answer["result"]["protocolVersion"], version, "{answer}");
        assert_eq!(answer["result"]["serverInfo"]["name"], "moonswarm");
        // A message of its own, as a client that was never greeted by this process sends it.
        let list = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"});
        let list = post(&daemon, &daemon.token, &list).header("mcp-protocol-version", version);
        let (status, list) = send(list).await;
        assert_eq!(status, 200, "{list}");
        assert!(list["result"]["tools"].as_array().unwrap().len() > 20, "{list}");
        let said = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        assert_eq!(send(post(&daemon, &daemon.token, &said)).await.0, 202);
    }
    let log = daemon.log();
    assert!(
        !log.contains("serve_inner") && !log.contains("peer_info"),
        "one message, no line: {log}"
    );
    let token = operator(&daemon).await;
    for version in [ProtocolVersion::V_2025_06_18, ProtocolVersion::LATEST] {
        let lifecycle = ClientLifecycleMode::Auto {
            preferred_versions: vec![version.clone()],
            legacy_version: Some(ProtocolVersion::V_2025_06_18),
        };
        let agent = Agent::speaking(&daemon, &token, lifecycle).await;
        assert!(agent.ok("list_runs", json!({})).await["items"].is_array(), "{version}");
    }
}

#[tokio::test]
async fn the_door_is_the_one_of_the_api() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    let bare = daemon.bare(Method::POST, "/mcp").json(&ping);
    assert_eq!(refusal(bare).await, (401, "unauthenticated".to_owned()));
    let origin = post(&daemon, &daemon.token, &ping).header("origin", "http://evil.example");
    assert_eq!(refusal(origin).await, (403, "origin_not_allowed".to_owned()));
    let host = post(&daemon, &daemon.token, &ping).header("host", "evil.example");
    assert_eq!(refusal(host).await, (403, "host_not_allowed".to_owned()));
    let stream = daemon.get("/mcp").header("accept", "text/event-stream");
    assert_eq!(send(stream).await.0, 405, "a message is a POST");
    let (status, answer) = send(post(&daemon, &daemon.token, &ping)).await;
    assert_eq!((status, &answer["result"]), (200, &json!({})), "{answer}");
    let unknown = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "none", "arguments": {}}});
    let answer = send(post(&daemon, &daemon.token, &unknown)).await.1;
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
}

#[tokio::test]
async fn parameters_of_another_form_are_not_taken_for_an_unknown_method() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let text = json!({ "name": "doctor", "arguments": "{}" });
    for (method, params, code) in [
        ("tools/call", text, -32602),
        ("tools/call", json!({}), -32602),
        ("resources/read", json!({ "uri": 5 }), -32602),
        ("tools/cal", json!({}), -32601),
    ] {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let answer = send(post(&daemon, &daemon.token, &body)).await.1;
        assert_eq!(answer["error"]["code"], code, "{method} {params}: {answer}");
    }
}

#[tokio::test]
async fn a_revoked_token_has_no_tools() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let body = json!({"role": "operator", "ttl": "1h"});
    let minted = send(daemon.post("/v1/tokens", &body)).await.1;
    let token = minted["token"].as_str().unwrap();
    let agent = Agent::http(&daemon, token).await;
    agent.ok("list_runs", json!({})).await;
    let path = format!("/v1/tokens/{}", minted["jti"].as_str().unwrap());
    assert_eq!(send(daemon.delete(&path)).await.0, 204);
    let list = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"});
    assert_eq!(refusal(post(&daemon, token, &list)).await, (401, "token_revoked".to_owned()));
}

/// A message is answered by the library of the protocol if it weighs the forms of its answer, and else
/// at once, if it is a call of a tool of this server.
#[tokio::test]
async fn a_call_that_is_answered_at_once_has_the_answer_that_the_library_gives() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let call = |id: Value, name: &str, arguments: Value| {
        json!({"jsonrpc": "2.0", "id": id, "method": "tools/call",
            "params": {"name": name, "arguments": arguments}})
    };
    let newest = |mut call: Value| {
        call["params"]["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        call
    };
    let bare = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "list_runs"}});
    let stray = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "extra": 1,
        "params": {"name": "list_runs"}});
    let mut halves = newest(call(json!(1), "list_runs", json!({})));
    halves["params"]["_meta"]
        .as_object_mut()
        .unwrap()
        .remove("io.modelcontextprotocol/clientCapabilities");
    let list = |id: Value| call(id, "list_runs", json!({}));
    for (version, message) in [
        (None, list(json!(1))),
        (None, list(json!("one"))),
        (None, list(json!(1.5))),
        (None, list(json!(null))),
        (None, bare),
        (None, stray),
        (None, call(json!(1), "list_runs", json!({"limit": "many"}))),
        (None, call(json!(1), "get_run", json!({"run": "none"}))),
        (None, call(json!(1), "none", json!({}))),
        (None, newest(list(json!(1)))),
        (Some("2025-06-18"), list(json!(1))),
        (Some("2025-11-25"), list(json!(1))),
        (Some("2025-11-25"), newest(list(json!(1)))),
        (Some("2026-07-28"), list(json!(1))),
        (Some("2026-07-28"), newest(list(json!(1)))),
        (Some("2026-07-28"), newest(call(json!(1), "get_run", json!({"run": "none"})))),
        (Some("2026-07-28"), halves),
        (Some("1999-01-01"), list(json!(1))),
    ] {
        for (method, name) in [("tools/call", &message["params"]["name"]), ("ping", &json!("x"))] {
            let answers = ["", ";q=0.9"].map(|weight| {
                let accept = format!("application/json{weight}, text/event-stream{weight}");
                let request = daemon.with(&daemon.token, Method::POST, "/mcp").json(&message);
                let request = request.header("accept", accept).header("mcp-method", method);
                let request = request.header("mcp-name", name.as_str().unwrap());
                let versioned = version.map(|it| ("mcp-protocol-version", it));
                let request =
                    versioned.into_iter().fold(request, |it, (key, value)| it.header(key, value));
                async {
                    let answer = request.send().await.unwrap();
                    let kind = answer.headers().get("content-type").cloned();
                    (answer.status(), kind, answer.text().await.unwrap())
                }
            });
            let [at_once, by_library] = answers;
            let by_library = by_library.await;
            assert_eq!(at_once.await, by_library, "{version:?} {method} {message}");
        }
    }
}

#[tokio::test]
async fn tools_are_called_over_http2_as_well() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let client = moonswarm::environment::http_client().no_proxy().http2_prior_knowledge();
    let client = client.build().unwrap();
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "list_runs", "arguments": {}}});
    // At once, and by the library of the protocol.
    for weight in ["", ";q=0.9"] {
        let accept = format!("application/json{weight}, text/event-stream{weight}");
        let request = client.post(format!("{}/mcp", daemon.url)).bearer_auth(&daemon.token);
        let answer = request.header("accept", accept).json(&call).send().await.unwrap();
        assert_eq!(answer.version(), reqwest::Version::HTTP_2);
        let answer: Value = answer.json().await.unwrap();
        assert!(answer["result"]["structuredContent"]["items"].is_array(), "{answer}");
    }
}
