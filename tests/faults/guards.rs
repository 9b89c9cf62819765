//! A task that was written down but had not passed its layers when the host was killed.

use serde_json::json;

use crate::support::{Daemon, Shell, send};

const BLUEPRINT: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "queued", agents = { remote = { operator = "queue", queue = "q" } },
  flow = function(ctx) return ctx:run("remote", {}) end,
}
"#;

/// A guard that denies the queue.
const DENIES: &str = "[[middleware]]\nkind = \"guard\"\ndeny = [\"queue\"]\n";

/// Starts a run in a host that dies before the run's task has passed a single layer.
async fn cut_off(shell: &Shell) {
    let env = [("MOONSWARM_KILL_AT", "engine.dispatch#1"), ("MOONSWARM_SHARDS", "1")];
    let daemon = Daemon::launch(&shell.path("data"), &env).unwrap();
    let start = json!({ "source": BLUEPRINT, "input": {} });
    let request = daemon.post("/v1/runs", &start).header("idempotency-key", "once");
    // It may die before it answers, or just after.
    let _ = request.send().await;
    assert!(daemon.died(), "it is not killed at the dispatch");
}

#[tokio::test]
async fn a_guard_that_denies_now_stands_before_what_an_earlier_host_wrote_down() {
    let shell = Shell::new();
    cut_off(&shell).await;
    let config = shell.write("moonswarm.toml", DENIES);
    let env = [("MOONSWARM_CONFIG", config.to_str().unwrap())];
    let daemon = Daemon::launch(&shell.path("data"), &env).unwrap();
    let runs = send(daemon.get("/v1/runs")).await.1;
    let run = runs["items"][0]["id"].as_str().unwrap().to_owned();
    let ask = json!({ "queue": "q", "wait": "0s" });
    let (status, leased) = send(daemon.post("/v1/worker/lease", &ask)).await;
    assert_eq!((status, leased.is_null()), (204, true), "{leased}");
    let view = daemon.ended(&run).await;
    assert_eq!(view["status"], "failed", "{view}");
    assert_eq!(view["error"]["kind"], "refused", "{view}");
    assert_eq!(view["error"]["data"]["code"], "guarded", "{view}");
    daemon.stop();
}

#[tokio::test]
async fn a_task_that_its_guards_let_pass_is_leased_at_once_after_a_restart() {
    let shell = Shell::new();
    cut_off(&shell).await;
    let daemon = Daemon::launch(&shell.path("data"), &[]).unwrap();
    let ask = json!({ "queue": "q", "wait": "0s" });
    let (status, leased) = send(daemon.post("/v1/worker/lease", &ask)).await;
    assert_eq!(status, 200, "{leased}\n{}", daemon.log());
    let handle = leased[0]["handle"].as_str().unwrap();
    let result = daemon.with(handle, reqwest::Method::POST, "/v1/worker/result");
    assert_eq!(send(result.json(&json!({ "output": 7 }))).await.0, 200);
    let run = send(daemon.get("/v1/runs")).await.1["items"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(daemon.ended(&run).await["output"], 7);
    daemon.stop();
}
