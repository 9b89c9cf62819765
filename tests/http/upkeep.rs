//! The routes that copy, move and collect runs: who may, and what a repetition does.

use reqwest::Method;
use serde_json::json;

use crate::support::{Daemon, refusal, send};

const HELLO: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "hello",
  agents = { e = { operator = "echo" } },
  flow = function(ctx, input) return ctx:run("e", input.n + 1) end,
}
"#;

fn daemon() -> (tempfile::TempDir, Daemon) {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&dir.path().join("data"));
    (dir, daemon)
}

#[tokio::test]
async fn only_an_admin_copies_collects_and_takes_in() {
    let (_dir, daemon) = daemon();
    let mint = json!({"role": "operator", "ttl": "1h"});
    let (_, minted) = send(daemon.post("/v1/tokens", &mint)).await;
    let token = minted["token"].as_str().unwrap();
    for (method, path) in [
        (Method::GET, "/v1/backup"),
        (Method::GET, "/v1/check"),
        (Method::POST, "/v1/gc"),
        (Method::POST, "/v1/runs/import"),
    ] {
        let refused = refusal(daemon.with(token, method, path)).await;
        assert_eq!(refused, (403, "forbidden_verb".to_owned()), "{path}");
    }
    let answer = daemon.get("/v1/backup").send().await.unwrap();
    let announced = answer.content_length().unwrap();
    let bytes = answer.bytes().await.unwrap();
    assert!(bytes.starts_with(b"SQLite format 3"));
    assert_eq!(bytes.len() as u64, announced);
}

#[tokio::test]
async fn a_fork_and_an_import_that_are_repeated_are_the_same_run() {
    let (_dir, daemon) = daemon();
    let run = daemon.run_source(HELLO, json!({"n": 1})).await;
    daemon.ended(&run).await;
    let body = json!({"from_step": 1, "input_patch": {"n": 5}});
    let fork = || {
        let request = daemon.post(&format!("/v1/runs/{run}/fork"), &body);
        send(request.header("idempotency-key", "fork-1"))
    };
    let (status, first) = fork().await;
    assert_eq!(status, 201, "{first}");
    assert_eq!(fork().await.1["id"], first["id"]);
    let id = first["id"].as_str().unwrap();
    assert_eq!(daemon.ended(id).await["output"], 6);
    assert_eq!(daemon.ended(id).await["copied_from"], json!({"run": run, "step": 1}));

    let document = daemon.get(&format!("/v1/runs/{run}/export")).send().await.unwrap();
    let document = document.text().await.unwrap();
    let import = || {
        let request = daemon.with(&daemon.token, Method::POST, "/v1/runs/import");
        send(request.header("idempotency-key", "import-1").body(document.clone()))
    };
    let (status, first) = import().await;
    assert_eq!((status, &first["output"]), (201, &json!(2)), "{first}");
    assert_ne!(first["id"], json!(run));
    assert_eq!(import().await.1["id"], first["id"]);

    let whole = daemon.with(&daemon.token, Method::POST, "/v1/runs/import").body("{}");
    assert_eq!(refusal(whole).await, (400, "bad_request".to_owned()));
    let unknown = daemon.post(&format!("/v1/runs/{run}/fork"), &json!({"from_step": 1, "x": 1}));
    assert_eq!(refusal(unknown).await, (422, "unknown_field".to_owned()));
    let (_, replay) = send(daemon.post(&format!("/v1/runs/{run}/replay"), &json!({}))).await;
    assert_eq!(replay["divergence"], json!(null), "{replay}");
}
