//! Leases, results and heartbeats of many tasks in one request.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Daemon, Shell, eventually, refusal, send, when};

/// A fan-out of tasks that a pull worker gets.
pub const FLOW: &str = r#"local swarm = require("swarm")
local s = swarm.schema
return swarm.blueprint { name = "many",
  agents = { work = { operator = "queue", queue = "many", prompt = "Work on {{ n }}.",
    output = s.object { ok = s.boolean } } },
  flow = function(ctx, input)
    local all = {}
    for n = 1, input.tasks do all[n] = n end
    return ctx:map(all, function(n) return ctx:run("work", { n = n }).ok end)
  end }"#;

async fn token(daemon: &Daemon) -> String {
    let body = json!({"role": "queue", "scopes": ["queue:many"], "ttl": "1h"});
    let (status, minted) = send(daemon.post("/v1/tokens", &body)).await;
    assert_eq!(status, 201, "{minted}");
    minted["token"].as_str().unwrap().to_owned()
}

async fn lease(daemon: &Daemon, token: &str, tasks: usize) -> Vec<Value> {
    let mut leased = Vec::new();
    while leased.len() < tasks {
        let body = json!({"queue": "many", "wait": "30s", "max": 100, "prompts": true});
        let asked = daemon.with(token, Method::POST, "/v1/worker/lease").json(&body);
        let (status, more) = send(asked).await;
        assert_eq!(status, 200, "{more}");
        leased.extend(more.as_array().unwrap().iter().cloned());
    }
    leased
}

async fn results(daemon: &Daemon, token: &str, items: Vec<Value>) -> Vec<Value> {
    let asked = daemon.with(token, Method::POST, "/v1/worker/results");
    let (status, answer) = send(asked.json(&json!({ "results": items }))).await;
    assert_eq!(status, 200, "{answer}");
    answer["items"].as_array().unwrap().clone()
}

fn good(lease: &Value) -> Value {
    json!({"handle": lease["handle"], "result": {"output": {"ok": true}, "usage": {"input": 3}}})
}

#[tokio::test]
async fn each_result_of_a_batch_has_its_own_answer() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let token = token(&daemon).await;
    let run = daemon.run_source(FLOW, json!({"tasks": 6})).await;
    let leased = lease(&daemon, &token, 6).await;
    let prompt = &leased[0]["prompt"];
    assert_eq!((&prompt["prompt"], &prompt["attempt"]), (&json!("Work on 1."), &json!(1)));

    let bad = json!({"handle": leased[1]["handle"], "result": {"output": {"ok": "yes"}}});
    let empty = json!({"handle": leased[2]["handle"], "result": {}});
    let odd = json!({"handle": leased[3]["handle"], "result": {"output": null}, "more": 1});
    let forged = json!({"handle": "wh_nobody", "result": {"output": 1}});
    let items = vec![good(&leased[0]), bad, empty, odd, forged, json!(7), good(&leased[4])];
    let answers = results(&daemon, &token, items.clone()).await;
    let said = |answer: &Value| {
        (answer["status"].as_u64().unwrap(), answer["problem"]["code"].as_str().map(str::to_owned))
    };
    let refused = |status, code: &str| (status, Some(code.to_owned()));
    assert_eq!(
        answers.iter().map(said).collect::<Vec<_>>(),
        [
            (200, None),
            refused(422, "invalid_result"),
            refused(422, "invalid_body"),
            refused(422, "unknown_field"),
            refused(401, "unauthenticated"),
            refused(422, "invalid_body"),
            (200, None),
        ],
        "{answers:?}"
    );
    assert_eq!(answers[0]["accepted"], true);
    assert_eq!(answers[0]["repeated"], false);
    assert_eq!(answers[1]["problem"]["path"], "$.ok");

    // The same again, and the same as a request by itself: both are repetitions.
    let answers = results(&daemon, &token, vec![items[0].clone()]).await;
    assert_eq!(answers[0]["repeated"], true, "{answers:?}");
    let handle = leased[0]["handle"].as_str().unwrap();
    let single = daemon.with(handle, Method::POST, "/v1/worker/result");
    let (status, again) = send(single.json(&items[0]["result"])).await;
    assert_eq!((status, &again["repeated"]), (200, &json!(true)), "{again}");

    let rest = [1, 2, 3, 5].map(|n: usize| good(&leased[n]));
    let answers = results(&daemon, &token, rest.to_vec()).await;
    assert!(answers.iter().all(|it| it["accepted"] == true), "{answers:?}");
    let ended = daemon.ended(&run).await;
    assert_eq!(ended["output"], json!([true, true, true, true, true, true]), "{ended}");
    assert_eq!(ended["usage"]["total"]["input_tokens"], 18, "the usage of each counts: {ended}");
}

#[tokio::test]
async fn a_handle_that_comes_twice_in_a_batch_is_accepted_once() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let token = token(&daemon).await;
    let run = daemon.run_source(FLOW, json!({"tasks": 1})).await;
    let leased = lease(&daemon, &token, 1).await;
    let other = json!({"handle": leased[0]["handle"], "result": {"output": {"ok": false}}});
    let items = vec![good(&leased[0]), good(&leased[0]), other];
    let answers = results(&daemon, &token, items).await;
    assert_eq!(answers[0]["repeated"], false, "{answers:?}");
    assert_eq!(answers[1]["repeated"], true, "{answers:?}");
    assert_eq!(answers[2]["problem"]["code"], "already_accepted", "{answers:?}");
    assert_eq!(daemon.ended(&run).await["output"], json!([true]));
}

#[tokio::test]
async fn heartbeats_keep_each_lease_by_itself() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let token = token(&daemon).await;
    let run = daemon.run_source(FLOW, json!({"tasks": 2})).await;
    let leased = lease(&daemon, &token, 2).await;
    let handles: Vec<_> = leased.iter().map(|it| it["handle"].clone()).collect();
    let beat = async |handles: Vec<Value>| {
        let asked = daemon.with(&token, Method::POST, "/v1/worker/heartbeats");
        send(asked.json(&json!({ "handles": handles }))).await
    };
    let (status, kept) =
        beat(vec![handles[0].clone(), json!("wh_nobody"), handles[1].clone()]).await;
    assert_eq!(status, 200, "{kept}");
    assert_eq!(kept["items"][0]["cancel"], false, "{kept}");
    assert!(kept["items"][2]["deadline"].is_string(), "{kept}");
    assert_eq!(kept["items"][1]["problem"]["code"], "unauthenticated", "{kept}");
    send(daemon.post(&format!("/v1/runs/{run}/cancel"), &json!({}))).await;
    let stops = async || {
        let (_, kept) = beat(handles.clone()).await;
        when(kept["items"].as_array().unwrap().iter().all(|it| it["cancel"] == true), kept)
    };
    eventually("both are told to stop", stops).await;
    let too_many = daemon.with(&token, Method::POST, "/v1/worker/heartbeats");
    let many = vec!["wh_nobody"; 1_001];
    let refused = refusal(too_many.json(&json!({ "handles": many }))).await;
    assert_eq!(refused, (422, "invalid_body".to_owned()));
}

#[tokio::test]
async fn a_batch_that_was_accepted_is_accepted_after_a_kill() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    let token = token(&daemon).await;
    let runs = [
        daemon.run_source(FLOW, json!({"tasks": 3})).await,
        daemon.run_source(FLOW, json!({"tasks": 3})).await,
    ];
    let leased = lease(&daemon, &token, 6).await;
    let first: Vec<_> = leased[..4].iter().map(good).collect();
    let answers = results(&daemon, &token, first.clone()).await;
    assert!(answers.iter().all(|it| it["repeated"] == false), "{answers:?}");
    daemon.kill();

    let daemon = Daemon::start(&data);
    let all: Vec<_> = leased.iter().map(good).collect();
    let answers = results(&daemon, &token, all.clone()).await;
    let repeated: Vec<_> = answers.iter().map(|it| it["repeated"].as_bool()).collect();
    let expected = [true, true, true, true, false, false].map(Some);
    assert_eq!(repeated, expected, "{answers:?}");
    for run in &runs {
        assert_eq!(daemon.ended(run).await["output"], json!([true, true, true]));
    }
    let answers = results(&daemon, &token, all).await;
    assert!(answers.iter().all(|it| it["repeated"] == true), "also afterwards: {answers:?}");
}

#[tokio::test]
async fn a_command_works_for_many_tasks_at_a_time() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path(".moonswarm"));
    let run = daemon.run_source(FLOW, json!({"tasks": 30})).await;
    let args = ["worker", "--queue", "many", "--max-in-flight", "8", "--", "sh", "-c"];
    let mut worker = shell.start(&[&args[..], &["cat >/dev/null; echo '{\"ok\":true}'"]].concat());
    worker.until("done");
    assert_eq!(daemon.ended(&run).await["output"], json!(vec![true; 30]));
    worker.signal(rustix::process::Signal::TERM);
}
