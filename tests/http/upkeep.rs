//! The routes that copy, move and collect runs: who may, and what a repetition does.

use reqwest::Method;
use serde_json::json;

use crate::support::{Daemon, needs_sqlite, refusal, send};

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
    if needs_sqlite("a copy of the database's file") {
        return;
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

#[tokio::test]
async fn the_host_is_described_and_its_configuration_only_to_admins() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("swarm.toml");
    let text = "lease = \"7s\"\n[secrets]\ndeploy = { env = \"HIDDEN_PLACE\" }\n[operators.hook]\n\
                kind = \"http\"\nurl = \"http://127.0.0.1:9/x\"\nheaders = { Authorization = \"Bearer hush\" }";
    std::fs::write(&config, text).unwrap();
    let flags = ["--config".as_ref(), config.as_os_str()];
    let daemon = Daemon::start_with(&dir.path().join("data"), &flags);
    let (status, host) = send(daemon.get("/v1/host")).await;
    assert_eq!(status, 200, "{host}");
    assert_eq!((&host["ready"], &host["url"]), (&json!(true), &json!(daemon.url)));
    assert!(
        host["database_bytes"].as_u64() > Some(0) && host["disk_free_bytes"].as_u64() > Some(0),
        "{host}"
    );
    assert!(host["shards"].as_u64() > Some(0) && host["started_at"].is_string(), "{host}");
    let config = host["config"].as_array().unwrap();
    let find = |key: &str| {
        let item = config.iter().find(|it| it["key"] == key).unwrap();
        (item["value"].clone(), item["origin"].as_str().unwrap())
    };
    assert_eq!(find("lease"), (json!("7s"), "file"));
    assert_eq!(find("data").1, "flag");
    assert_eq!(find("run_memory"), (json!(null), "default"));
    assert_eq!(find("secrets"), (json!(["deploy"]), "file"));
    let doctor = host["doctor"].as_array().unwrap();
    let secret = doctor.iter().find(|it| it["what"] == "secret").unwrap();
    assert_eq!(secret["verdict"], "fail", "{secret}");
    assert!(!host.to_string().contains("hush"), "{host}");

    let mint = async |role: &str| {
        let (_, minted) =
            send(daemon.post("/v1/tokens", &json!({ "role": role, "ttl": "1h" }))).await;
        minted["token"].as_str().unwrap().to_owned()
    };
    let (_, host) = send(daemon.with(&mint("observer").await, Method::GET, "/v1/host")).await;
    assert!(
        host["ready"] == true && host.get("config").is_none() && host.get("doctor").is_none(),
        "{host}"
    );
    let approver = mint("approver").await;
    let refused = refusal(daemon.with(&approver, Method::GET, "/v1/host")).await;
    assert_eq!(refused, (403, "forbidden_verb".to_owned()));
}
