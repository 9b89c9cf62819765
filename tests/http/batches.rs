//! Leases, results and heartbeats of many tasks in one request; results and a lease in one request.

use std::time::Duration;

use reqwest::{Method, RequestBuilder};
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

/// Tasks one after the other, each of which a pull worker gets. The prompts of the chain `a` are
/// `a1`, `a2` and so on.
const CHAIN: &str = r#"local swarm = require("swarm")
local s = swarm.schema
return swarm.blueprint { name = "chain",
  agents = { work = { operator = "queue", queue = "many", prompt = "{{ name }}{{ n }}",
    output = s.object { ok = s.boolean } } },
  flow = function(ctx, input)
    local all = {}
    for n = 1, input.steps do all[n] = ctx:run("work", { name = input.name, n = n }).ok end
    return all
  end }"#;

async fn token(daemon: &Daemon) -> String {
    let body = json!({"role": "queue", "scopes": ["queue:many"], "ttl": "1h"});
    let (status, minted) = send(daemon.post("/v1/tokens", &body)).await;
    assert_eq!(status, 201, "{minted}");
    minted["token"].as_str().unwrap().to_owned()
}

/// A daemon, and a token that leases.
async fn started() -> (Shell, Daemon, String) {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let token = token(&daemon).await;
    (shell, daemon, token)
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

async fn chain(daemon: &Daemon, name: &str, steps: usize) -> String {
    daemon.run_source(CHAIN, json!({"name": name, "steps": steps})).await
}

/// A lease of at most so many tasks, without a wait.
fn wanted(max: usize) -> Value {
    json!({"queue": "many", "max": max, "prompts": true})
}

fn combined(daemon: &Daemon, token: &str, items: &[Value], lease: &Value) -> RequestBuilder {
    let body = json!({"results": items, "lease": lease});
    daemon.with(token, Method::POST, "/v1/worker/results").json(&body)
}

/// Returns the answers to the results, and what was leased.
fn parts((status, answer): (u16, Value)) -> (Vec<Value>, Vec<Value>) {
    assert_eq!(status, 200, "{answer}");
    let list = |field: &str| answer[field].as_array().unwrap().clone();
    (list("items"), list("leased"))
}

async fn report_and_lease(
    daemon: &Daemon,
    token: &str,
    items: &[Value],
    lease: &Value,
) -> (Vec<Value>, Vec<Value>) {
    parts(send(combined(daemon, token, items, lease)).await)
}

/// The prompts of leased tasks, sorted.
fn prompts(leased: &[Value]) -> Vec<String> {
    let prompts = leased.iter().map(|it| it["prompt"]["prompt"].as_str().unwrap().to_owned());
    let mut prompts: Vec<_> = prompts.collect();
    prompts.sort();
    prompts
}

/// Waits until the view of the only queue has this number at this place.
async fn until_queue_has(daemon: &Daemon, place: &str, number: u64) {
    let has = async || {
        let (_, queues) = send(daemon.get("/v1/queues")).await;
        let found = queues["items"][0].pointer(place).and_then(Value::as_u64);
        when(found == Some(number), queues)
    };
    eventually(&format!("{number} at {place} of the queue"), has).await;
}

#[tokio::test]
async fn each_of_many_leased_tasks_has_its_own_prompt() {
    let (_shell, daemon, token) = started().await;
    daemon.run_source(FLOW, json!({"tasks": 80})).await;
    until_queue_has(&daemon, "/lines/0/waiting", 80).await;
    let leased = lease(&daemon, &token, 80).await;
    assert_eq!(leased.len(), 80);
    for task in &leased {
        assert_eq!(task["prompt"]["task"], task["task"], "{task}");
    }
}

#[tokio::test]
async fn each_result_of_a_batch_has_its_own_answer() {
    let (_shell, daemon, token) = started().await;
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
    let (_shell, daemon, token) = started().await;
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
    let (_shell, daemon, token) = started().await;
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

#[tokio::test]
async fn a_chain_of_tasks_needs_one_request_a_task() {
    let (_shell, daemon, token) = started().await;
    let run = chain(&daemon, "a", 3).await;
    let mut leased = lease(&daemon, &token, 1).await;
    for (n, ok) in [(1, true), (2, false), (3, true)] {
        assert_eq!(prompts(&leased), [format!("a{n}")]);
        let task = &leased[0];
        assert!(task["task"].is_string() && task["deadline"].is_string(), "{task}");
        let item = json!({"handle": task["handle"], "result": {"output": {"ok": ok}}});
        let (answers, next) = report_and_lease(&daemon, &token, &[item], &wanted(4)).await;
        let accepted = json!({"status": 200, "accepted": true, "repeated": false});
        assert_eq!(answers, [accepted]);
        leased = next;
    }
    assert!(leased.is_empty(), "the chain is over: {leased:?}");
    assert_eq!(daemon.ended(&run).await["output"], json!([true, false, true]));
}

#[tokio::test]
async fn what_waits_is_leased_beside_what_the_results_bring_about() {
    let (_shell, daemon, token) = started().await;
    let one = chain(&daemon, "a", 2).await;
    let first = lease(&daemon, &token, 1).await;
    let other = chain(&daemon, "b", 2).await;
    until_queue_has(&daemon, "/lines/0/waiting", 1).await;
    let (_, leased) = report_and_lease(&daemon, &token, &[good(&first[0])], &wanted(2)).await;
    assert_eq!(prompts(&leased), ["a2", "b1"]);

    let both: Vec<_> = leased.iter().map(good).collect();
    let (answers, leased) = report_and_lease(&daemon, &token, &both, &wanted(2)).await;
    assert!(answers.iter().all(|it| it["repeated"] == false), "{answers:?}");
    assert_eq!(prompts(&leased), ["b2"], "the other chain is over");
    let (_, leased) = report_and_lease(&daemon, &token, &[good(&leased[0])], &wanted(2)).await;
    assert!(leased.is_empty(), "{leased:?}");
    for run in [one, other] {
        assert_eq!(daemon.ended(&run).await["output"], json!([true, true]));
    }
}

#[tokio::test]
async fn no_more_tasks_than_max_are_leased_and_the_others_wait() {
    let (_shell, daemon, token) = started().await;
    chain(&daemon, "a", 2).await;
    chain(&daemon, "b", 2).await;
    let first = lease(&daemon, &token, 2).await;
    let both: Vec<_> = first.iter().map(good).collect();
    let (_, mut leased) = report_and_lease(&daemon, &token, &both, &wanted(1)).await;
    assert_eq!(leased.len(), 1, "{leased:?}");
    leased.extend(lease(&daemon, &token, 1).await);
    assert_eq!(prompts(&leased), ["a2", "b2"]);
}

#[tokio::test]
async fn a_lease_needs_no_results_and_results_need_no_lease() {
    let (_shell, daemon, token) = started().await;
    let (answers, leased) = report_and_lease(&daemon, &token, &[], &wanted(1)).await;
    assert_eq!((answers, leased), (vec![], vec![]), "there is nothing to do yet");
    chain(&daemon, "a", 2).await;
    until_queue_has(&daemon, "/lines/0/waiting", 1).await;
    // Without `wait`, a commit that takes a while would leave it for the next request.
    let mut patient = wanted(1);
    patient["wait"] = json!("30s");
    let (answers, leased) = report_and_lease(&daemon, &token, &[], &patient).await;
    assert_eq!((answers, prompts(&leased)), (vec![], vec!["a1".to_owned()]));

    let asked = daemon.with(&token, Method::POST, "/v1/worker/results");
    let (status, answer) = send(asked.json(&json!({"results": [good(&leased[0])]}))).await;
    assert_eq!((status, &answer["items"][0]["accepted"]), (200, &json!(true)), "{answer}");
    assert_eq!(answer.get("leased"), None, "{answer}");
    assert_eq!(prompts(&lease(&daemon, &token, 1).await), ["a2"]);
}

#[tokio::test]
async fn a_lease_that_cannot_be_refuses_the_request_before_any_result_is_accepted() {
    let (_shell, daemon, token) = started().await;
    let run = chain(&daemon, "a", 1).await;
    let items = [good(&lease(&daemon, &token, 1).await[0])];
    let cases = [
        (json!({"queue": "many", "max": 0}), "invalid_body", "$.lease.max"),
        (json!({"queue": "many", "max": 101}), "invalid_body", "$.lease.max"),
        (json!({"queue": "many", "max": "4"}), "invalid_body", "$.lease.max"),
        (json!({"queue": "many", "wait": "soon"}), "invalid_body", "$.lease.wait"),
        (json!({"queue": "many", "labels": {"a b": "x"}}), "invalid_body", "$.lease.labels"),
        (json!({"queue": "many", "worker": "w".repeat(256)}), "invalid_body", "$.lease.worker"),
        (json!({"queue": "many".repeat(64)}), "invalid_body", "$.lease.queue"),
        (json!({"queue": "many", "limit": 1}), "unknown_field", "$.lease.limit"),
        (json!({"max": 1}), "invalid_body", "$.lease"),
        (json!(["many"]), "invalid_body", "$.lease"),
        (json!(7), "invalid_body", "$.lease"),
    ];
    for (ask, code, path) in cases {
        let (status, problem) = send(combined(&daemon, &token, &items, &ask)).await;
        let said = (status, &problem["code"], &problem["path"]);
        assert_eq!(said, (422, &json!(code), &json!(path)), "{ask}: {problem}");
    }
    let other = combined(&daemon, &token, &items, &json!({"queue": "other"}));
    assert_eq!(refusal(other).await, (403, "forbidden_scope".to_owned()));

    let answers = results(&daemon, &token, items.to_vec()).await;
    assert_eq!(answers[0]["repeated"], false, "none of them was accepted: {answers:?}");
    assert_eq!(daemon.ended(&run).await["output"], json!([true]));
}

#[tokio::test]
async fn a_refused_result_disturbs_neither_the_others_nor_the_lease() {
    let (_shell, daemon, token) = started().await;
    chain(&daemon, "a", 2).await;
    chain(&daemon, "b", 2).await;
    let leased = lease(&daemon, &token, 2).await;
    let next = [0, 1].map(|n: usize| prompts(&leased[n..=n])[0].replace('1', "2"));
    let bad = json!({"handle": leased[0]["handle"], "result": {"output": {"ok": "yes"}}});
    let forged = json!({"handle": "wh_nobody", "result": {"output": 1}});
    let items = [bad, forged, good(&leased[1])];
    let (answers, after) = report_and_lease(&daemon, &token, &items, &wanted(4)).await;
    assert_eq!(answers[0]["problem"]["code"], "invalid_result", "{answers:?}");
    assert_eq!(answers[1]["problem"]["code"], "unauthenticated", "{answers:?}");
    assert_eq!(answers[2]["repeated"], false, "{answers:?}");
    assert_eq!(prompts(&after), [next[1].as_str()]);
    let (answers, after) = report_and_lease(&daemon, &token, &[good(&leased[0])], &wanted(4)).await;
    assert_eq!(answers[0]["repeated"], false, "corrected: {answers:?}");
    assert_eq!(prompts(&after), [next[0].as_str()]);
}

#[tokio::test]
async fn a_wait_is_for_the_first_task_while_the_results_are_already_accepted() {
    let (_shell, daemon, token) = started().await;
    let run = chain(&daemon, "a", 1).await;
    let items = [good(&lease(&daemon, &token, 1).await[0])];
    let ask = json!({"queue": "many", "wait": "60s", "prompts": true});
    let waits = tokio::spawn(send(combined(&daemon, &token, &items, &ask)));
    assert_eq!(daemon.ended(&run).await["output"], json!([true]), "accepted before the answer");
    until_queue_has(&daemon, "/polling", 1).await;
    chain(&daemon, "b", 1).await;
    let (answers, leased) = parts(waits.await.unwrap());
    assert_eq!(answers[0]["repeated"], false, "{answers:?}");
    assert_eq!(prompts(&leased), ["b1"]);
}

#[tokio::test]
async fn a_worker_is_leased_only_tasks_whose_labels_it_has() {
    let (_shell, daemon, token) = started().await;
    let labeled = r#"queue = "many", labels = { gpu = "true" },"#;
    let source = CHAIN.replace(r#"queue = "many","#, labeled);
    daemon.run_source(&source, json!({"name": "a", "steps": 2})).await;
    until_queue_has(&daemon, "/lines/0/waiting", 1).await;
    let (_, leased) = report_and_lease(&daemon, &token, &[], &wanted(4)).await;
    assert!(leased.is_empty(), "{leased:?}");
    let gpu = json!({"queue": "many", "prompts": true, "labels": {"gpu": "true"}});
    let (_, leased) = report_and_lease(&daemon, &token, &[], &gpu).await;
    assert_eq!(prompts(&leased), ["a1"]);

    // Nor what its own result brings about.
    let (answers, none) = report_and_lease(&daemon, &token, &[good(&leased[0])], &wanted(4)).await;
    assert_eq!((&answers[0]["accepted"], none), (&json!(true), vec![]));
    until_queue_has(&daemon, "/lines/0/waiting", 1).await;
    let (_, leased) = report_and_lease(&daemon, &token, &[], &gpu).await;
    assert_eq!(prompts(&leased), ["a2"]);
}

#[tokio::test]
async fn a_worker_that_hung_up_while_it_waited_is_leased_nothing() {
    let shell = Shell::new();
    let daemon = Daemon::start_with(&shell.path("data"), &["--lease".as_ref(), "10m".as_ref()]);
    let token = token(&daemon).await;
    let run = chain(&daemon, "a", 1).await;
    let items = [good(&lease(&daemon, &token, 1).await[0])];
    let ask = json!({"queue": "many", "wait": "60s"});
    let gone = tokio::spawn(send(combined(&daemon, &token, &items, &ask)));
    daemon.ended(&run).await;
    until_queue_has(&daemon, "/polling", 1).await;
    gone.abort();
    // Long before its wait is over.
    let leaves = until_queue_has(&daemon, "/polling", 0);
    tokio::time::timeout(Duration::from_secs(20), leaves).await.expect("it leaves the queue");

    chain(&daemon, "b", 1).await;
    let leased = lease(&daemon, &token, 1).await;
    assert_eq!((prompts(&leased), &leased[0]["prompt"]["attempt"]), (vec!["b1".into()], &json!(1)));
    let answers = results(&daemon, &token, items.to_vec()).await;
    assert_eq!(answers[0]["repeated"], true, "it was accepted: {answers:?}");
}
