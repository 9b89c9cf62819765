//! Tasks for people over HTTP: forms, several answers, and who may give one.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Daemon, Shell, eventually, refusal, send};

const ASKS: &str = r#"local swarm = require("swarm")
return swarm.blueprint { name = "asks",
  agents = { own = { operator = "queue", queue = "q" } },
  flow = function(ctx)
    ctx:all {
      work = function() return ctx:run("own", 1) end,
      ask = function()
        return ctx:approve { title = "Ship it?", by = { "ann", "bob" }, required = 2, timeout = "1h" }
      end,
    }
    return "shipped"
  end }"#;

/// The one open task of a kind.
async fn open(daemon: &Daemon, kind: &str) -> Value {
    eventually(&format!("an open task of kind {kind}"), async || {
        let (_, list) = send(daemon.get(&format!("/v1/tasks?kind={kind}"))).await;
        list["items"].as_array().unwrap().first().cloned().ok_or(list)
    })
    .await
}

async fn named(daemon: &Daemon, name: &str) -> String {
    let body = json!({"role": "approver", "ttl": "1h", "name": name});
    let (status, minted) = send(daemon.post("/v1/tokens", &body)).await;
    assert_eq!(status, 201, "{minted}");
    minted["token"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn two_named_people_answer_what_they_were_shown_and_a_worker_never() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let run = daemon.run_source(ASKS, json!(null)).await;
    let listed = open(&daemon, "human").await;
    assert_eq!((&listed["required"], &listed["by"]), (&json!(2), &json!(["ann", "bob"])));
    let path = format!("/v1/tasks/{}", listed["id"].as_str().unwrap());
    let (_, task) = send(daemon.get(&path)).await;
    let names: Vec<&str> = task["form"]["fields"]
        .as_array()
        .unwrap()
        .iter()
        .map(|field| field["name"].as_str().unwrap())
        .collect();
    assert!(names.contains(&"approved") && names.contains(&"note"), "{task}");
    assert!(task["expires_at"].is_string(), "{task}");

    let lease = json!({"queue": "q", "wait": "20s"});
    let (_, leased) = send(daemon.post("/v1/worker/lease", &lease)).await;
    let handle = leased[0]["handle"].as_str().unwrap().to_owned();
    let (ann, bob) = (named(&daemon, "ann").await, named(&daemon, "bob").await);
    let answer = |token: &str, body: Value| {
        daemon.with(token, Method::POST, &format!("{path}/answer")).json(&body)
    };
    let yes = json!({"output": {"approved": true}, "revision": task["revision"]});
    let said = |code: &str| (403, code.to_owned());
    assert_eq!(refusal(answer(&handle, yes.clone())).await, said("self_approval"));
    assert_eq!(refusal(answer(&daemon.token, yes.clone())).await, said("wrong_role"));
    let stale = json!({"output": {"approved": true}, "revision": "0000000000000000"});
    assert_eq!(refusal(answer(&ann, stale)).await, (409, "stale_task".to_owned()));
    let wrong = json!({"output": {"approved": "yes"}});
    assert_eq!(refusal(answer(&ann, wrong)).await, (422, "invalid_result".to_owned()));

    let (status, open) = send(answer(&ann, yes.clone())).await;
    assert_eq!((status, &open["state"]), (200, &json!("pending")), "{open}");
    assert_eq!(open["answers"][0]["by"], "ann", "{open}");
    let again = refusal(answer(&ann, yes.clone())).await;
    assert_eq!(again, (409, "already_answered".to_owned()));
    let (_, done) = send(answer(&bob, yes)).await;
    assert_eq!(done["state"], "completed", "{done}");
    let result = daemon.with(&handle, Method::POST, "/v1/worker/result");
    assert_eq!(send(result.json(&json!({"output": 1}))).await.0, 200);
    assert_eq!(daemon.ended(&run).await["output"], "shipped");
}

#[tokio::test]
async fn an_operator_ends_the_time_for_an_answer_and_an_approver_does_not() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let source = r#"local swarm = require("swarm")
        return swarm.blueprint { name = "asks", flow = function(ctx)
          local ok, err = pcall(function() return ctx:approve { title = "x" } end)
          return err.kind end }"#;
    let run = daemon.run_source(source, json!(null)).await;
    let task = open(&daemon, "human").await;
    let path = format!("/v1/tasks/{}/expire", task["id"].as_str().unwrap());
    let ann = named(&daemon, "ann").await;
    let refused = refusal(daemon.with(&ann, Method::POST, &path)).await;
    assert_eq!(refused, (403, "forbidden_verb".to_owned()));
    let (status, expired) = send(daemon.with(&daemon.token, Method::POST, &path)).await;
    assert_eq!((status, &expired["state"]), (200, &json!("failed")), "{expired}");
    assert_eq!(daemon.ended(&run).await["output"], "timeout");
    let again = refusal(daemon.with(&daemon.token, Method::POST, &path)).await;
    assert_eq!(again, (409, "run_closed".to_owned()));
}
