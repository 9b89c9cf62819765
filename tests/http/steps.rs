//! Steps: where in the source each comes from.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Daemon, Shell, refusal, send};

const SOURCE: &str = r#"local swarm = require("swarm")
return swarm.blueprint {
  name = "lines", agents = { e = { operator = "echo" } },
  flow = function(ctx, input)
    ctx:run("e", 1)
    ctx:map({ "a", "b" }, function(x)
      return ctx:run("e", x)
    end)
    ctx:wait("go")
  end,
}"#;

async fn ok(request: reqwest::RequestBuilder) -> Value {
    let (status, body) = send(request).await;
    assert!(status < 300, "{status} {body}");
    body
}

#[tokio::test]
async fn a_step_has_the_line_that_scheduled_it_and_its_branch_in_words() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    let run = ok(daemon.post("/v1/runs", &json!({"source": SOURCE}))).await;
    let run = run["id"].as_str().unwrap().to_owned();
    daemon.waits(&run, "signal").await;
    let places = |steps: &Value| -> Vec<Value> {
        let items = steps["items"].as_array().unwrap();
        items.iter().map(|it| json!([it["line"], it["branch"]])).collect()
    };
    let wanted = [
        json!(["main.lua:5", null]),
        json!(["main.lua:7", "map, item 1"]),
        json!(["main.lua:7", "map, item 2"]),
        json!(["main.lua:9", null]),
    ];
    let steps = ok(daemon.get(&format!("/v1/runs/{run}/steps"))).await;
    assert_eq!(places(&steps), wanted, "{steps}");
    let one = ok(daemon.get(&format!("/v1/runs/{run}/steps/2"))).await;
    assert_eq!((&one["line"], &one["branch"]), (&json!("main.lua:7"), &json!("map, item 1")));
    // A replay keeps what was recorded.
    drop(daemon);
    let daemon = Daemon::start(&data);
    ok(daemon.post(&format!("/v1/runs/{run}/signals/go"), &json!(1))).await;
    assert_eq!(daemon.ended(&run).await["status"], "completed");
    let steps = ok(daemon.get(&format!("/v1/runs/{run}/steps"))).await;
    assert_eq!(places(&steps), wanted, "{steps}");
}

const TRIED: &str = r#"local swarm = require("swarm")
return swarm.blueprint { name = "tried",
  agents = { review = { operator = "queue", queue = "reviews", system = "Be kind.", prompt = "Review {{ what }}." } },
  flow = function(ctx)
    ctx:run("review", { what = "the code" }, { retry = { max_attempts = 2, backoff = 0 } })
    ctx:wait("go")
  end,
}"#;

#[tokio::test]
async fn the_attempts_of_a_step_say_who_had_each_and_keep_its_prompt_and_late_results() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let minted = json!({"role": "queue", "scopes": ["queue:reviews"], "ttl": "1h"});
    let queue = ok(daemon.post("/v1/tokens", &minted)).await["token"].as_str().unwrap().to_owned();
    let run = daemon.run_source(TRIED, json!({})).await;
    let attempts = format!("/v1/runs/{run}/steps/1/attempts");
    let lease = async || {
        let ask = json!({"queue": "reviews", "wait": "30s", "max": 1, "worker": "box-7"});
        let leased = daemon.with(&queue, Method::POST, "/v1/worker/lease").json(&ask);
        ok(leased).await[0]["handle"].as_str().unwrap().to_owned()
    };
    let report = |handle: &str, body: Value| {
        daemon.with(handle, Method::POST, "/v1/worker/result").json(&body)
    };
    let first = lease().await;
    let open = ok(daemon.get(&attempts)).await;
    assert_eq!(open["items"][0]["state"], "processing", "{open}");
    assert!(open["items"][0]["last_heartbeat_at"].is_string(), "{open}");
    assert_eq!(open["items"][0]["worker"], "box-7", "{open}");
    assert_eq!(
        (&open["system"], &open["prompt"]),
        (&json!("Be kind."), &json!("Review the code."))
    );
    ok(report(&first, json!({"error": {"message": "tired", "retryable": true}}))).await;
    let second = lease().await;
    let (status, late) = send(report(&first, json!({"output": "late"}))).await;
    assert_eq!((status, &late["code"]), (409, &json!("already_accepted")), "{late}");
    ok(report(&second, json!({"output": "good", "usage": {"input_tokens": 5}}))).await;
    daemon.waits(&run, "signal").await;
    let whole = ok(daemon.get(&format!("/v1/runs/{run}"))).await;
    assert_eq!((&whole["steps"], &whole["attempts"]), (&json!(2), &json!(2)), "{whole}");
    let listed = ok(daemon.get("/v1/runs")).await;
    assert!(listed["items"][0].get("attempts").is_none(), "{listed}");

    let view = ok(daemon.get(&attempts)).await;
    let items = view["items"].as_array().unwrap();
    let states: Vec<_> = items.iter().map(|it| (&it["attempt"], &it["state"])).collect();
    assert_eq!(states, [(&json!(1), &json!("failed")), (&json!(2), &json!("completed"))], "{view}");
    assert_eq!(items[0]["error"]["message"], "tired", "{view}");
    assert!(items[0]["retry_at"].is_string() && items[0]["ended_at"].is_string(), "{view}");
    let refused = &items[0]["refused"][0];
    assert_eq!(refused["code"], "already_accepted", "{view}");
    assert!(refused["body"].as_str().unwrap().contains("late"), "{view}");
    assert_eq!(items[1]["usage"]["input_tokens"], 5, "{view}");
    assert!(items[1]["last_heartbeat_at"].is_null(), "{view}");
    assert_eq!(
        (&view["system"], &view["prompt"]),
        (&json!("Be kind."), &json!("Review the code."))
    );
    let wait = ok(daemon.get(&format!("/v1/runs/{run}/steps/2/attempts"))).await;
    assert_eq!(wait["items"], json!([]), "a wait has none: {wait}");

    // Refusals: no such step, a token of another run, and prompts only for who may read tasks.
    let none = daemon.get(&format!("/v1/runs/{run}/steps/9/attempts"));
    assert_eq!(refusal(none).await, (404, "not_found".to_owned()));
    let narrow = |scope: &str, verbs: Value| json!({"role": "observer", "scopes": [scope], "verbs": verbs, "ttl": "1h"});
    let token = async |body: Value| {
        ok(daemon.post("/v1/tokens", &body)).await["token"].as_str().unwrap().to_owned()
    };
    let another = daemon.run_source(TRIED, json!({})).await;
    let other = token(narrow(&format!("run:{another}"), json!(["run.read"]))).await;
    let (status, _) = refusal(daemon.with(&other, Method::GET, &attempts)).await;
    assert_eq!(status, 403);
    let own = token(narrow(&format!("run:{run}"), json!(["run.read"]))).await;
    let shown = ok(daemon.with(&own, Method::GET, &attempts)).await;
    assert!(shown["prompt"].is_null() && shown["items"][1]["state"] == "completed", "{shown}");
}
