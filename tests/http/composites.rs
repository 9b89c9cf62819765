//! Composite operators and budgets, over a daemon that is killed in the middle.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Daemon, Shell, refusal, send};

const CONFIG: &str = r#"
[operators.first]
kind = "queue"
queue = "first"
[operators.second]
kind = "queue"
queue = "second"
[operators.third]
kind = "queue"
queue = "third"
[operators.either]
kind = "composite"
rule = "fallback"
members = ["first", "second"]
[operators.fastest]
kind = "composite"
rule = "race"
members = ["either", "third"]
[operators.reviewers]
kind = "main_ai"
direct = true
require_binding = false
"#;

const FLOW: &str = r#"local swarm = require("swarm")
return swarm.blueprint { name = "both",
  agents = { it = { operator = "fastest" } },
  flow = function(ctx) local got = ctx:run("it", { n = 1 }) ctx:wait("done") return got end }"#;

fn daemon(shell: &Shell) -> Daemon {
    let config = shell.write("swarm.toml", CONFIG);
    Daemon::start_with(&shell.path("data"), &["--config".as_ref(), config.as_os_str()])
}

async fn lease(daemon: &Daemon, queue: &str) -> String {
    let body = json!({"queue": queue, "wait": "30s", "max": 1});
    let (status, leased) = send(daemon.post("/v1/worker/lease", &body)).await;
    assert_eq!(status, 200, "{leased}");
    leased[0]["handle"].as_str().unwrap().to_owned()
}

async fn report(daemon: &Daemon, handle: &str, body: Value) -> (u16, Value) {
    send(daemon.with(handle, Method::POST, "/v1/worker/result").json(&body)).await
}

#[tokio::test]
async fn a_composite_goes_on_after_a_kill_with_the_member_that_it_was_at() {
    let shell = Shell::new();
    let host = daemon(&shell);
    let run = host.run_source(FLOW, json!({})).await;
    let first = lease(&host, "first").await;
    let no =
        json!({"ok": false, "error": {"message": "no"}, "usage": {"input": 7, "cost": "0.25"}});
    assert_eq!(report(&host, &first, no).await.0, 200);
    let (second, third) = (lease(&host, "second").await, lease(&host, "third").await);
    host.kill();

    let host = daemon(&shell);
    let (status, said) = report(&host, &second, json!({"output": 2})).await;
    assert_eq!(status, 200, "{said}");
    let late = host.with(&third, Method::POST, "/v1/worker/result").json(&json!({"output": 3}));
    assert_eq!(refusal(late).await, (409, "fenced".to_owned()), "the other lost");
    send(host.post(&format!("/v1/runs/{run}/signals/done"), &json!(true))).await;
    let view = host.ended(&run).await;
    assert_eq!(view["output"], 2, "{view}");
    assert_eq!(view["usage"]["total"]["cost"], "0.25", "{view}");
    assert_eq!(view["usage"]["unreported"], 2, "the winner and the loser did not say");

    let (_, steps) = send(host.get(&format!("/v1/runs/{run}/steps"))).await;
    let mut shown: Vec<_> = steps["items"].as_array().unwrap().iter().collect();
    shown.retain(|step| step["kind"] == "task");
    let by: Vec<_> = shown.iter().map(|step| (&step["operator"], &step["state"])).collect();
    assert_eq!(by.len(), 5, "{steps}");
    for (operator, state) in [
        ("either", "completed"),
        ("third", "canceled"),
        ("first", "failed"),
        ("second", "completed"),
    ] {
        assert!(by.contains(&(&json!(operator), &json!(state))), "{operator}: {steps}");
    }
    let (status, replayed) = send(host.post(&format!("/v1/runs/{run}/replay"), &json!({}))).await;
    assert_eq!((status, &replayed["divergence"]), (200, &Value::Null), "{replayed}");
}

#[tokio::test]
async fn operators_of_a_kind_may_be_several_and_composites_name_their_members() {
    let shell = Shell::new();
    let host = daemon(&shell);
    let (_, operators) = send(host.get("/v1/operators")).await;
    let of = |name: &str| {
        let mut items = operators["items"].as_array().unwrap().iter();
        items.find(|it| it["name"] == name).unwrap_or_else(|| panic!("{name}: {operators}"))
    };
    let either = json!({"name": "either", "kind": "composite", "rule": "fallback",
        "members": ["first", "second"]});
    assert_eq!(of("either"), &either);
    assert_eq!(of("reviewers")["kind"], "main_ai");
    assert_eq!(of("main-ai")["sessions"], 0);
    let (status, session) = send(host.post("/v1/operators/reviewers/sessions", &json!({}))).await;
    assert_eq!(status, 201, "{session}");
    let (_, operators) = send(host.get("/v1/operators")).await;
    let open: Vec<_> = operators["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|it| it["sessions"] == 1)
        .map(|it| &it["name"])
        .collect();
    assert_eq!(open, ["reviewers"], "a session is of one operator");
}
