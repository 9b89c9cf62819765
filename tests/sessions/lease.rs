//! The lease of an agent: a session that accepts a task and falls silent.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    client::{Opened, open},
    support::{Daemon, Shell, elapse, send},
};

fn leased(lease: &str) -> String {
    format!(
        r#"local swarm = require("swarm")
return swarm.blueprint {{ name = "leased",
  agents = {{ coder = {{ operator = "main-ai", worker = {{ subagent_type = "coder" }},
    lease = "{lease}" }} }},
  flow = function(ctx)
    local result, err = ctx:try("coder", {{}})
    return {{ result = result, kind = err and err.kind, message = err and err.message }}
  end }}"#
    )
}

impl Opened {
    /// The next frame of this method, which comes; earlier ones are acknowledged.
    async fn until(&self, daemon: &Daemon, after: &mut u64, method: &str) -> Value {
        loop {
            let path = format!("/v1/sessions/{}/next?wait=60s&after={after}", self.id);
            let (status, view) = send(self.http(daemon, Method::POST, &path)).await;
            assert_eq!(status, 200, "{view}");
            let frame = view["items"][0].clone();
            *after = view["after"].as_u64().unwrap();
            if frame["method"] == method {
                return frame["params"].clone();
            }
        }
    }

    async fn call_of(&self, daemon: &Daemon, call: &str, body: Value) -> (u16, Value) {
        let path = format!("/v1/sessions/{}/{call}", self.id);
        send(self.http(daemon, Method::POST, &path).json(&body)).await
    }
}

#[tokio::test]
async fn a_session_that_accepts_and_falls_silent_gets_three_attempts_and_then_the_step_fails() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let session = open(&daemon).await;
    let run = daemon.run_source(&leased("300ms"), json!({})).await;
    let mut after = 0;
    for attempt in 1..=3 {
        let spawn = session.until(&daemon, &mut after, "task/spawn").await;
        assert_eq!(spawn["attempt"], attempt, "{spawn}");
        let accept = json!({ "task": spawn["task"], "attempt": attempt });
        let (status, answer) = session.call_of(&daemon, "accept", accept).await;
        assert!(status == 200 || answer["code"] == "fenced", "{status} {answer}");
    }
    let output = daemon.ended(&run).await["output"].clone();
    assert_eq!(output["kind"], "timeout", "{output}");
    let message = "the worker was silent for longer than its lease of 300 ms";
    assert_eq!(output["message"], message, "{output}");
}

#[tokio::test]
async fn a_new_attempt_goes_to_the_session_and_progress_keeps_the_task() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let session = open(&daemon).await;
    let run = daemon.run_source(&leased("2s"), json!({})).await;
    let mut after = 0;
    let first = session.until(&daemon, &mut after, "task/spawn").await;
    let accept = json!({ "task": first["task"] });
    assert_eq!(session.call_of(&daemon, "accept", accept).await.0, 200);
    let second = session.until(&daemon, &mut after, "task/spawn").await;
    assert_eq!((&second["task"], &second["attempt"]), (&first["task"], &json!(2)));
    let late = json!({ "task": first["task"], "attempt": 1, "output": "late" });
    assert_eq!(session.call_of(&daemon, "report", late).await.1["code"], "fenced");
    let accept = json!({ "task": first["task"], "attempt": 2 });
    assert_eq!(session.call_of(&daemon, "accept", accept).await.0, 200);
    for n in 1..=6 {
        elapse(Duration::from_millis(500)).await;
        let said = json!({ "task": first["task"], "text": format!("part {n}") });
        assert_eq!(session.call_of(&daemon, "progress", said).await.0, 204);
    }
    let done = json!({ "task": first["task"], "attempt": 2, "output": "done" });
    assert_eq!(session.call_of(&daemon, "report", done).await.0, 200);
    assert_eq!(daemon.ended(&run).await["output"]["result"], "done");
}
