//! Flows that come as data, and blueprints that start by a signal.

use serde_json::{Value, json};

use crate::support::{Daemon, Shell, refusal, send};

async fn ok(request: reqwest::RequestBuilder, status: u16) -> Value {
    let (got, body) = send(request).await;
    assert_eq!(got, status, "{body}");
    body
}

#[tokio::test]
async fn a_flow_as_json_is_a_run_whose_version_is_its_hash() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let flow = json!({"kind": "seq", "children": [
        {"kind": "map", "id": "out", "over": "input.list", "as": "n",
         "body": {"kind": "step", "agent": "e", "input": {"n": "{{ n + 1 }}"}}},
        {"kind": "assign", "value": "{{ out }}"},
    ]});
    let body = json!({"flow": flow, "agents": {"e": {"operator": "echo"}}, "input": {"list": [1, 2]}, "wait": "30s"});
    let run = ok(daemon.post("/v1/runs", &body), 201).await;
    assert_eq!((&run["status"], &run["blueprint"]), (&json!("completed"), &json!("inline")));
    assert_eq!(run["output"], json!([{"n": 2}, {"n": 3}]));
    let again = ok(daemon.post("/v1/runs", &body), 201).await;
    assert_eq!(again["hash"], run["hash"]);
    let bad = json!({"flow": {"kind": "step", "agent": "nobody"}});
    let (status, problem) = send(daemon.post("/v1/runs", &bad)).await;
    assert_eq!((status, &problem["code"]), (422, &json!("blueprint_invalid")));
    assert_eq!(problem["findings"][0]["code"], "MS-B025");
    assert_eq!(problem["findings"][0]["file"], "inline.json");
}

#[tokio::test]
async fn a_signal_to_a_blueprint_starts_a_run_of_it_once() {
    let source = r#"local swarm = require("swarm")
return swarm.blueprint {
  name = "triage", agents = { e = { operator = "echo" } },
  on = { { signal = "opened" }, { schedule = "0 7 * * 1-5", zone = "Europe/Berlin" } },
  flow = function(ctx, input) return { input = ctx:run("e", input), by = ctx.trigger.kind } end,
}"#;
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    ok(daemon.put("/v1/blueprints/triage", &json!({"source": source})), 200).await;
    let signal = || {
        daemon
            .post("/v1/blueprints/triage/signals/opened", &json!({"title": "x"}))
            .header("idempotency-key", "one")
    };
    let run = ok(signal(), 201).await;
    assert_eq!(ok(signal(), 201).await["id"], run["id"]);
    let ended = daemon.ended(run["id"].as_str().unwrap()).await;
    assert_eq!(ended["output"], json!({"input": {"title": "x"}, "by": "signal"}));
    let closed = daemon.post("/v1/blueprints/triage/signals/closed", &json!(1));
    assert_eq!(refusal(closed).await, (404, "not_found".to_owned()));
    let view = ok(daemon.get("/v1/blueprints/triage"), 200).await;
    assert_eq!(view["on"][0], json!({"kind": "signal", "what": "opened"}));
    let next = view["on"][1]["next_at"].as_str().unwrap();
    assert!(next.ends_with(":00:00.000Z"), "{next}");
}
