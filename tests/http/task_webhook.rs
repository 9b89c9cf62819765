//! Tasks that open are announced to a webhook: a real daemon, and a receiver of the test's own.

use std::path::PathBuf;

use data_encoding::BASE64;
use ring::hmac;
use serde_json::json;

use crate::support::{
    Daemon, Shell, eventually,
    receiver::{Received, Receiver},
    send, when,
};

const ASKS: &str = r#"local swarm = require("swarm")
return swarm.blueprint { name = "asks",
  agents = { ask = { operator = "human", prompt = "Ship {{ what }}?", by = { "ann" } },
             other = { operator = "human", prompt = "And?", by = { "bob" } },
             e = { operator = "echo" } },
  flow = function(ctx, input)
    ctx:run("e", {})
    if input.other then ctx:run("other", {}) end
    return ctx:run("ask", { what = input.what })
  end }"#;

/// A receiver of announcements, and the file that configures it.
struct Desk {
    receiver: Receiver,
    config: PathBuf,
}

impl Desk {
    fn start(shell: &Shell, more: &str) -> Self {
        let receiver = Receiver::start();
        let address = receiver.address;
        let config = shell.write(
            "moonswarm.toml",
            format!(
                "[webhooks.desk]\nurl = \"http://{address}/opened\"\nallow_hosts = [\"127.0.0.1\"]\n{more}"
            ),
        );
        Self { receiver, config }
    }

    fn daemon(&self, shell: &Shell) -> Daemon {
        Daemon::start_with(&shell.path("data"), &["--config".as_ref(), self.config.as_ref()])
    }

    fn next(&self) -> Received {
        self.receiver.next()
    }
}

/// Waits until nothing waits for the webhook.
async fn drained(daemon: &Daemon) {
    eventually("nothing waits for the webhook", async || {
        let (_, host) = send(daemon.get("/v1/host")).await;
        let lines = host["doctor"].as_array().unwrap();
        let line = lines.iter().find(|it| it["what"] == "tasks for webhook desk").unwrap();
        when(line["says"] == "0 wait", line.to_string())
    })
    .await;
}

#[tokio::test]
async fn an_opened_task_is_posted_signed_to_whom_it_concerns_and_without_a_link() {
    let shell = Shell::new();
    let secret = shell.write("secret", "hush-hush\n");
    let more = format!(
        "people = [\"ann\"]\nsecret = {{ file = {:?} }}\nheaders = {{ X-Team = \"red\" }}\n",
        secret.to_str().unwrap()
    );
    let desk = Desk::start(&shell, &more);
    let daemon = desk.daemon(&shell);
    // The task of bob comes first, and is not for this receiver.
    let other = daemon.run_source(ASKS, json!({ "what": "one", "other": true })).await;
    daemon.waits(&other, "task").await;
    let run = daemon.run_source(ASKS, json!({ "what": "the release" })).await;
    let posted = desk.next();
    let (id, at) = (posted.header("webhook-id"), posted.header("webhook-timestamp"));
    let signed = format!("{id}.{at}.{}", posted.text);
    let key = hmac::Key::new(hmac::HMAC_SHA256, b"hush-hush");
    let signature = format!("v1,{}", BASE64.encode(hmac::sign(&key, signed.as_bytes()).as_ref()));
    assert_eq!(posted.header("webhook-signature"), signature);
    assert_eq!(posted.header("x-team"), "red");
    assert!(!posted.text.contains("ln_") && !posted.text.contains("hush"), "{}", posted.text);
    let said = posted.json();
    assert_eq!((&said["type"], &said["run"]), (&json!("task.opened"), &json!(run)), "{said}");
    assert_eq!((&said["blueprint"], &said["agent"]), (&json!("asks"), &json!("ask")));
    assert_eq!((&said["prompt"], &said["by"]), (&json!("Ship the release?"), &json!(["ann"])));
    let task = said["task"].as_str().unwrap();
    assert_eq!(id, format!("{task}.1"));
    posted.answer("204 No Content", "");
    assert_eq!(said["url"], format!("{}/ui/inbox/{task}", daemon.url));
    let (_, view) = send(daemon.get(&format!("/v1/tasks/{task}"))).await;
    assert_eq!(said["revision"], view["revision"]);
    drained(&daemon).await;
    let config = send(daemon.get("/v1/host")).await.1["config"].to_string();
    assert!(config.contains("desk") && !config.contains("hush"), "{config}");
}

#[tokio::test]
async fn an_announcement_survives_kills_until_its_receiver_has_it_and_is_then_over() {
    let shell = Shell::new();
    let desk = Desk::start(&shell, "agents = [\"ask\"]\n");
    let daemon = desk.daemon(&shell);
    let run = daemon.run_source(ASKS, json!({ "what": "it" })).await;
    let first = desk.next();
    let id = first.header("webhook-id").to_owned();
    // It was asked, and has not answered yet.
    daemon.kill();
    drop(first);
    let daemon = desk.daemon(&shell);
    let again = desk.next();
    assert_eq!(again.header("webhook-id"), id);
    again.answer("503 Service Unavailable", "");
    let again = desk.next();
    assert_eq!(again.header("webhook-id"), id, "it is posted again after a pause");
    // A task that ended is not announced any more.
    let doomed = daemon.run_source(ASKS, json!({ "what": "nothing" })).await;
    daemon.waits(&doomed, "task").await;
    let (status, _) = send(daemon.post(&format!("/v1/runs/{doomed}/cancel"), &json!({}))).await;
    assert_eq!(status, 200);
    daemon.ended(&doomed).await;
    again.answer("200 OK", "");
    drained(&daemon).await;
    daemon.kill();
    let daemon = desk.daemon(&shell);
    let later = daemon.run_source(ASKS, json!({ "what": "more" })).await;
    let posted = desk.next();
    assert_eq!(posted.json()["run"], later, "the first one, {run}, is over");
    posted.answer("200 OK", "");
    drained(&daemon).await;
    assert!(desk.receiver.is_idle(), "nothing else was posted");
}

#[cfg(feature = "faults")]
#[tokio::test]
async fn a_host_killed_around_a_post_repeats_it_with_the_same_id_and_loses_none() {
    for (at, taken) in [("engine.webhook#1", false), ("engine.webhook_taken#1", true)] {
        let shell = Shell::new();
        let desk = Desk::start(&shell, "agents = [\"ask\"]\n");
        let data = shell.path("data");
        let config = desk.config.to_str().unwrap();
        let env = [("MOONSWARM_KILL_AT", at), ("MOONSWARM_CONFIG", config)];
        let daemon = Daemon::launch(&data, &env).unwrap();
        let start = json!({ "source": ASKS, "input": { "what": "it" } });
        // It may die before it answers, or just after.
        let _ = daemon.post("/v1/runs", &start).header("idempotency-key", "once").send().await;
        let first = taken.then(|| {
            let posted = desk.next();
            let id = posted.header("webhook-id").to_owned();
            posted.answer("200 OK", "");
            id
        });
        assert!(daemon.died(), "{at}");
        let daemon = desk.daemon(&shell);
        let again = desk.next();
        let id = again.header("webhook-id").to_owned();
        assert!(first.is_none_or(|first| first == id), "{at}: {id}");
        again.answer("200 OK", "");
        drained(&daemon).await;
        daemon.kill();
        let daemon = desk.daemon(&shell);
        drained(&daemon).await;
        assert!(desk.receiver.is_idle(), "{at}: it is over");
    }
}
