//! A worker that stands still past its lease.

use std::fs;

use reqwest::Method;
use rustix::process::Signal;
use serde_json::json;

use crate::support::{Daemon, Shell, eventually, refusal, send, when};

const BLUEPRINT: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "queued", agents = { remote = { operator = "queue", queue = "q" } },
  flow = function(ctx) return ctx:run("remote", {}) end,
}
"#;

/// Says who it is, and works for ever.
const COMMAND: &str = r#"
printf %s "$MOONSWARM_HANDLE" > handle.new && mv handle.new handle
exec sleep 1000
"#;

#[tokio::test]
async fn a_worker_that_stood_still_past_its_lease_is_refused_everything() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::launch(&data, &[("MOONSWARM_LEASE", "1s")]).unwrap();
    let run = daemon.run_source(BLUEPRINT, json!({})).await;
    let dir = data.to_str().unwrap();
    let args = ["worker", "--data", dir, "--queue", "q", "--", "sh", "-c", COMMAND];
    let mut worker = shell.start(&args);
    let begun = async || when(shell.path("handle").exists(), "no handle");
    eventually("the worker's begin", begun).await;
    worker.signal(Signal::STOP);
    let old = fs::read_to_string(shell.path("handle")).unwrap();

    let ask = json!({ "queue": "q", "wait": "30s" });
    let (status, leased) = send(daemon.post("/v1/worker/lease", &ask)).await;
    assert_eq!(status, 200, "the task comes back: {leased}\n{}", daemon.log());
    let result = |handle: &str, text: &str| {
        let body = json!({ "output": text });
        daemon.with(handle, Method::POST, "/v1/worker/result").json(&body)
    };
    let fenced = (409, "fenced".to_owned());
    assert_eq!(refusal(result(&old, "late")).await, fenced);
    assert_eq!(refusal(daemon.with(&old, Method::GET, "/v1/worker/prompt")).await, fenced);
    let file = daemon.with(&old, Method::POST, "/v1/worker/artifact?name=late.txt").body("late");
    assert_eq!(refusal(file).await, fenced);
    let (_, beat) = send(daemon.with(&old, Method::POST, "/v1/worker/heartbeat")).await;
    assert_eq!((&beat["cancel"], &beat["deadline"]), (&json!(true), &json!(null)), "{beat}");

    let new = leased[0]["handle"].as_str().unwrap();
    let (status, accepted) = send(result(new, "from the next")).await;
    assert_eq!(status, 200, "{accepted}");
    worker.signal(Signal::CONT);
    worker.until("taken back");
    let view = daemon.ended(&run).await;
    assert_eq!(view["output"], "from the next", "{view}");
    let (_, steps) = send(daemon.get(&format!("/v1/runs/{run}/steps"))).await;
    assert_eq!(steps["items"][0]["attempts"], 2, "{steps}");
}
