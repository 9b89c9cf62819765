//! The statistics of what ended.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Daemon, Shell, refusal, send};

const WORK: &str = r#"local swarm = require("swarm")
return swarm.blueprint { name = "work",
  agents = { e = { operator = "echo" }, review = { operator = "queue", queue = "reviews", prompt = "Review." } },
  flow = function(ctx, input)
    ctx:map({ 1, 2 }, function(n) return ctx:run("e", n) end)
    if input.fail then error("no") end
    if input.ask then ctx:run("review", {}) end
  end,
}"#;

async fn ok(request: reqwest::RequestBuilder) -> Value {
    let (status, body) = send(request).await;
    assert!(status < 300, "{status} {body}");
    body
}

fn group<'a>(stats: &'a Value, key: &str) -> &'a Value {
    let items = stats["items"].as_array().unwrap();
    items.iter().find(|it| it["key"] == key).unwrap_or_else(|| panic!("{key}: {stats}"))
}

#[tokio::test]
async fn what_ended_is_counted_once_and_outlives_restarts_and_deletions() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    let none = ok(daemon.get("/v1/stats")).await;
    assert_eq!((&none["items"], &none["total"]["count"]), (&json!([]), &json!(0)), "{none}");
    let done = daemon.run_source(WORK, json!({})).await;
    daemon.ended(&done).await;
    let failed = daemon.run_source(WORK, json!({ "fail": true })).await;
    daemon.ended(&failed).await;
    let asking = daemon.run_source(WORK, json!({ "ask": true })).await;
    let minted = json!({"role": "queue", "scopes": ["queue:reviews"], "ttl": "1h"});
    let queue = ok(daemon.post("/v1/tokens", &minted)).await["token"].as_str().unwrap().to_owned();
    let ask = json!({"queue": "reviews", "wait": "30s", "max": 1, "worker": "box-7"});
    let leased = ok(daemon.with(&queue, Method::POST, "/v1/worker/lease").json(&ask)).await;
    let handle = leased[0]["handle"].as_str().unwrap();
    let usage = json!({"input_tokens": 700, "output_tokens": 77, "cost": "0.25"});
    let result = json!({"output": "fine", "usage": usage});
    ok(daemon.with(handle, Method::POST, "/v1/worker/result").json(&result)).await;
    daemon.ended(&asking).await;
    let (status, _) = send(daemon.delete(&format!("/v1/runs/{done}"))).await;
    assert_eq!(status, 204);
    // A start reads the runs again, and counts none of them a second time.
    daemon.kill();
    let daemon = Daemon::start(&data);

    let by_status = ok(daemon.get("/v1/stats")).await;
    assert_eq!(group(&by_status, "completed")["count"], 2, "{by_status}");
    assert_eq!(group(&by_status, "failed")["count"], 1, "{by_status}");
    assert!(by_status["total"]["p95_ms"].is_u64(), "{by_status}");
    let by_blueprint = ok(daemon.get("/v1/stats?by=blueprint&since=24h")).await;
    let work = group(&by_blueprint, "work");
    assert_eq!(
        (&work["count"], &work["completed"], &work["failed"]),
        (&json!(3), &json!(2), &json!(1))
    );
    assert_eq!((&work["tokens"], &work["usd"]), (&json!(777), &json!("0.25")), "{by_blueprint}");
    let by_agent = ok(daemon.get("/v1/stats?by=agent")).await;
    assert_eq!(group(&by_agent, "e")["count"], 6, "{by_agent}");
    let review = group(&by_agent, "review");
    assert_eq!((&review["count"], &review["tokens"]), (&json!(1), &json!(777)), "{by_agent}");
    for by in ["hour", "day"] {
        let stats = ok(daemon.get(&format!("/v1/stats?by={by}&blueprint=work"))).await;
        assert_eq!(stats["total"]["count"], 3, "{stats}");
    }
    let runs = ok(daemon.get("/v1/stats?by=run")).await;
    assert_eq!(
        (&runs["items"][0]["key"], &runs["items"][0]["usd"]),
        (&json!(asking), &json!("0.25"))
    );
    assert_eq!(runs["items"].as_array().unwrap().len(), 1, "others used nothing: {runs}");
    let models = ok(daemon.get("/v1/stats?by=model")).await;
    assert_eq!(models["items"], json!([]), "{models}");
    let limited = ok(daemon.get("/v1/stats?by=agent&limit=1")).await;
    assert_eq!((limited["items"].as_array().unwrap().len(), &limited["left_off"]), (1, &json!(1)));
    assert_eq!(limited["items"][0]["key"], "review", "what cost most comes first: {limited}");
}

#[tokio::test]
async fn statistics_are_of_all_runs_and_need_a_token_of_all_runs() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let run = daemon.run_source(WORK, json!({})).await;
    for query in ["by=moon", "since=yesterday", "limit=0", "by=model&blueprint=work", "x=1"] {
        let asked = daemon.get(&format!("/v1/stats?{query}"));
        assert_eq!(refusal(asked).await, (400, "bad_query".to_owned()), "{query}");
    }
    let old = daemon.get("/v1/stats?by=hour&since=60d");
    assert_eq!(refusal(old).await, (400, "bad_request".to_owned()));
    let token = async |body: Value| {
        ok(daemon.post("/v1/tokens", &body)).await["token"].as_str().unwrap().to_owned()
    };
    let narrow = json!({"role": "observer", "scopes": [format!("run:{run}")], "ttl": "1h"});
    let narrow = token(narrow).await;
    let asked = daemon.with(&narrow, Method::GET, "/v1/stats");
    assert_eq!(refusal(asked).await, (403, "forbidden_scope".to_owned()));
    let queue = token(json!({"role": "queue", "scopes": ["queue:q"], "ttl": "1h"})).await;
    let asked = daemon.with(&queue, Method::GET, "/v1/stats");
    assert_eq!(refusal(asked).await, (403, "forbidden_verb".to_owned()));
}
