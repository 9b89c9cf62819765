//! Clients that go away between the commit and its answer, and ask again.

use reqwest::Method;
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt as _, net::TcpStream};

use crate::support::{Daemon, Shell, eventually, send};

const BLUEPRINT: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "queued", agents = { remote = { operator = "queue", queue = "q" } },
  flow = function(ctx) return ctx:run("remote", {}) end,
}
"#;

/// Sends a request and reads nothing of its answer.
async fn shout(daemon: &Daemon, path: &str, bearer: &str, key: &str, body: &Value) -> TcpStream {
    let host = daemon.url.strip_prefix("http://").unwrap();
    let mut socket = TcpStream::connect(host).await.unwrap();
    let body = body.to_string();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {bearer}\r\n\
         Content-Type: application/json\r\nIdempotency-Key: {key}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    socket.write_all(request.as_bytes()).await.unwrap();
    socket
}

async fn until(daemon: &Daemon, path: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    eventually(path, async || {
        let (_, seen) = send(daemon.get(path)).await;
        if is_so(&seen) { Ok(seen) } else { Err(seen) }
    })
    .await
}

#[tokio::test]
async fn a_client_that_went_between_commit_and_answer_gets_the_same_answer_again() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let start = json!({ "source": BLUEPRINT, "input": {} });
    let socket = shout(&daemon, "/v1/runs", &daemon.token, "start", &start).await;
    let runs = until(&daemon, "/v1/runs", |runs| runs["items"][0].is_object()).await;
    drop(socket);
    let again = daemon.post("/v1/runs", &start).header("idempotency-key", "start");
    let (status, run) = send(again).await;
    assert_eq!((status, &run["id"]), (201, &runs["items"][0]["id"]), "{run}");
    let other = json!({ "source": BLUEPRINT, "input": { "other": 1 } });
    let other = daemon.post("/v1/runs", &other).header("idempotency-key", "start");
    assert_eq!(send(other).await.1["code"], "idempotency_mismatch");

    let ask = json!({ "queue": "q", "wait": "10s" });
    let (_, leased) = send(daemon.post("/v1/worker/lease", &ask)).await;
    let handle = leased[0]["handle"].as_str().unwrap();
    let result = json!({ "output": { "n": 1 } });
    let socket = shout(&daemon, "/v1/worker/result", handle, "result", &result).await;
    let view = daemon.ended(run["id"].as_str().unwrap()).await;
    drop(socket);
    assert_eq!(view["output"], json!({ "n": 1 }), "{view}");
    let again = daemon.with(handle, Method::POST, "/v1/worker/result");
    let (status, accepted) = send(again.header("idempotency-key", "result").json(&result)).await;
    assert_eq!((status, accepted), (200, json!({ "accepted": true, "repeated": true })));
    let other =
        daemon.with(handle, Method::POST, "/v1/worker/result").json(&json!({ "output": 2 }));
    assert_eq!(send(other).await.1["code"], "already_accepted");
    let (_, runs) = send(daemon.get("/v1/runs")).await;
    assert_eq!(runs["items"].as_array().unwrap().len(), 1, "{runs}");
}
