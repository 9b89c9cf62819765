//! The locals of a flow at a step.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Daemon, Shell, refusal, send};

const SOURCE: &str = r#"local swarm = require("swarm")
local greeting = "hello"
return swarm.blueprint {
  name = "locals", agents = { e = { operator = "echo" } },
  flow = function(ctx, input)
    local sum = 0
    for i, n in ipairs(input.numbers) do
      sum += ctx:run("e", n)
    end
    ctx:map({ "a", "b" }, function(x)
      return ctx:run("e", greeting .. x)
    end)
    ctx:wait("go")
    return sum
  end,
}"#;

async fn ok(request: reqwest::RequestBuilder) -> Value {
    let (status, body) = send(request).await;
    assert!(status < 300, "{status} {body}");
    body
}

fn variables(frame: &Value) -> Value {
    let all = frame["variables"].as_array().unwrap().iter();
    all.map(|it| (it["name"].as_str().unwrap().to_owned(), it["value"].clone())).collect()
}

#[tokio::test]
async fn the_locals_at_each_step_are_shown_to_who_may_inspect_and_to_nobody_else() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let run = daemon.run_source(SOURCE, json!({ "numbers": [3, 4] })).await;
    daemon.waits(&run, "signal").await;
    let path = |seq: u32| format!("/v1/runs/{run}/steps/{seq}/locals");
    let before = ok(daemon.get(&format!("/v1/runs/{run}"))).await;

    for (seq, i, sum) in [(1, 1, 0), (2, 2, 3)] {
        let view = ok(daemon.get(&path(seq))).await;
        let frame = &view["branches"][0]["frames"][0];
        assert_eq!((&frame["file"], &frame["line"]), (&json!("main.lua"), &json!(8)), "{view}");
        assert_eq!(frame["text"], "sum += ctx:run(\"e\", n)");
        let own = variables(frame);
        assert_eq!((&own["i"], &own["sum"]), (&json!(i), &json!(sum)), "{view}");
        assert_eq!(own["input"], json!({ "numbers": [3, 4] }));
        assert_eq!(own["ctx"], json!({ "$object": "ctx" }));
    }
    let view = ok(daemon.get(&path(4))).await;
    assert_eq!((&view["previous"], &view["next"]), (&json!(3), &json!(5)), "{view}");
    let first = &view["branches"][0];
    assert_eq!((&first["branch"], &first["step"]), (&json!("map, item 2"), &json!(4)), "{view}");
    assert_eq!(
        variables(&first["frames"][0]),
        json!({ "x": "b", "greeting": "hello", "ctx": { "$object": "ctx" } })
    );

    assert_eq!(refusal(daemon.get(&path(9))).await, (404, "not_found".to_owned()));
    let token = async |body: Value| {
        ok(daemon.post("/v1/tokens", &body)).await["token"].as_str().unwrap().to_owned()
    };
    let looks = async |body: Value| {
        let token = token(body).await;
        send(daemon.with(&token, Method::GET, &path(1))).await
    };
    for role in ["operator", "observer"] {
        let (status, view) = looks(json!({ "role": role, "ttl": "1h" })).await;
        assert_eq!((status, &view["code"]), (403, &json!("forbidden_verb")), "{view}");
    }
    let publisher = json!({ "role": "operator", "extra_verbs": ["run.inspect"], "ttl": "1h" });
    let (status, view) = looks(publisher).await;
    assert_eq!((status, &view["step"]), (200, &json!(1)), "{view}");
    let other = daemon.run_source(SOURCE, json!({ "numbers": [] })).await;
    let narrow = json!({ "role": "admin", "verbs": ["run.inspect"], "scopes": [format!("run:{other}")], "ttl": "1h" });
    let (status, view) = looks(narrow).await;
    assert_eq!((status, &view["code"]), (403, &json!("forbidden_scope")), "{view}");
    let own = json!({ "role": "admin", "verbs": ["run.inspect"], "scopes": [format!("run:{run}")], "ttl": "1h" });
    let (status, view) = looks(own).await;
    assert_eq!(
        (status, &view["branches"][0]["frames"][0]["text"]),
        (200, &Value::Null),
        "no source: {view}"
    );

    let after = ok(daemon.get(&format!("/v1/runs/{run}"))).await;
    assert_eq!(after["last_event"], before["last_event"]);
    assert!(after["can"].as_array().unwrap().contains(&json!("run.inspect")), "{after}");
}

#[tokio::test]
async fn a_run_without_a_flow_of_its_own_says_so() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let flow = json!({ "kind": "step", "agent": "e", "input": { "n": 1 } });
    let agents = json!({ "e": { "operator": "echo" } });
    let run = ok(daemon.post("/v1/runs", &json!({ "flow": flow, "agents": agents }))).await;
    let run = run["id"].as_str().unwrap().to_owned();
    daemon.ended(&run).await;
    let view = ok(daemon.get(&format!("/v1/runs/{run}/steps/1/locals"))).await;
    assert_eq!((&view["flow"], &view["branches"]), (&json!("table"), &json!([])), "{view}");
}
