//! An http operator: a real daemon, a webhook of the test's own, and the worker API for what comes
//! later.

use std::path::PathBuf;

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{
    Daemon, Shell, eventually,
    receiver::{Received, Receiver},
    send, when,
};

const FLOW: &str = r#"local swarm = require("swarm")
return swarm.blueprint { name = "hooked",
  agents = { ask = { operator = "hook", prompt = "Do {{ n }}.",
    retry = { max_attempts = 2, backoff = "1ms" } } },
  flow = function(ctx, input) return ctx:run("ask", { n = input.n }) end }"#;

/// A webhook, and the file that configures it.
struct Hook {
    receiver: Receiver,
    config: PathBuf,
}

/// A posted task that waits for its answer.
struct Posted {
    order: Value,
    received: Received,
}

impl Posted {
    fn key(&self) -> &str {
        self.received.header("idempotency-key")
    }

    fn answer(self, status: &str, body: &Value) {
        self.received.answer(status, &body.to_string());
    }
}

impl Hook {
    fn start(shell: &Shell) -> Self {
        let receiver = Receiver::start();
        let address = receiver.address;
        let config = shell.write(
            "moonswarm.toml",
            format!(
                "[operators.hook]\nkind = \"http\"\nurl = \"http://{address}/tasks\"\n\
                 allow_hosts = [\"127.0.0.1\"]\n"
            ),
        );
        Self { receiver, config }
    }

    fn daemon(&self, shell: &Shell) -> Daemon {
        Daemon::start_with(&shell.path("data"), &["--config".as_ref(), self.config.as_ref()])
    }

    fn next(&self) -> Posted {
        let received = self.receiver.next();
        Posted { order: received.json(), received }
    }
}

#[tokio::test]
async fn a_webhook_that_answers_at_once_has_done_the_task() {
    let shell = Shell::new();
    let hook = Hook::start(&shell);
    let daemon = hook.daemon(&shell);
    let (_, operators) = send(daemon.get("/v1/operators")).await;
    let known = operators["items"].as_array().unwrap();
    assert!(known.contains(&json!({ "name": "hook", "kind": "http" })), "{operators}");

    let run = daemon.run_source(FLOW, json!({ "n": 7 })).await;
    let posted = hook.next();
    assert_eq!((&posted.order["run"], &posted.order["prompt"]), (&json!(run), &json!("Do 7.")));
    posted.answer("429 Too Many Requests", &json!(null));
    let again = hook.next();
    assert_eq!(again.order["attempt"], 2);
    again.answer("200 OK", &json!({ "output": { "done": 7 }, "usage": { "input": 3 } }));

    let view = daemon.ended(&run).await;
    assert_eq!((&view["status"], &view["output"]), (&json!("completed"), &json!({ "done": 7 })));
    let (_, step) = send(daemon.get(&format!("/v1/runs/{run}/steps/1"))).await;
    assert_eq!(step["usage"]["input_tokens"], 3, "{step}");
}

#[tokio::test]
async fn a_task_that_a_webhook_took_on_outlives_a_killed_daemon_and_is_not_posted_again() {
    let shell = Shell::new();
    let hook = Hook::start(&shell);
    let daemon = hook.daemon(&shell);
    let run = daemon.run_source(FLOW, json!({ "n": 1 })).await;
    let posted = hook.next();
    let (handle, task) = (posted.order["handle"].clone(), posted.order["task"].clone());
    posted.answer("202 Accepted", &json!({}));
    let taken = format!("/v1/runs/{run}/steps/1");
    eventually("the webhook's acceptance is stored", async || {
        let (_, step) = send(daemon.get(&taken)).await;
        when(step["state"] == "processing", step)
    })
    .await;
    daemon.kill();

    let daemon = hook.daemon(&shell);
    let report = daemon.with(handle.as_str().unwrap(), Method::POST, "/v1/worker/result");
    let (status, body) = send(report.json(&json!({ "output": "late" }))).await;

    assert_eq!(status, 200, "{body} for {task}");
    assert_eq!(daemon.ended(&run).await["output"], "late");
    assert!(hook.receiver.is_idle(), "it was posted once");
}

#[tokio::test]
async fn a_task_without_an_answer_is_posted_again_under_the_same_key_after_a_kill() {
    let shell = Shell::new();
    let hook = Hook::start(&shell);
    let daemon = hook.daemon(&shell);
    let run = daemon.run_source(FLOW, json!({ "n": 1 })).await;
    let first = hook.next();
    daemon.kill();

    let daemon = hook.daemon(&shell);
    let second = hook.next();

    assert_eq!(second.key(), first.key());
    assert_eq!(second.order["attempt"], 1);
    second.answer("200 OK", &json!({ "output": "once" }));
    assert_eq!(daemon.ended(&run).await["output"], "once");
}
