//! Quotas of tokens: open runs, starts, stored bytes, model tokens and money.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Daemon, Shell, eventually, send};

/// Blueprints that an admin stored: what a token may do with them is bounded by its quotas alone.
const STORED: &[(&str, &str)] = &[
    ("waits", "ctx:wait('go') return 1"),
    ("ends", "return 1"),
    ("floods", "while true do ctx:log('info', ('x'):rep(10000)) ctx:run('e', 1) end"),
    (
        "asks",
        "local out = {} for n = 1, 3 do local r, err = ctx:try('q', n) \
              out[n] = r or err.kind end return out",
    ),
    (
        "waits_for_two",
        "local function call() local ok, it = pcall(ctx.call, ctx, 'waits', {}) \
           return if ok then it else { kind = it.kind, quota = it.data.quota.quota } end \
         return ctx:all({ call, call })",
    ),
];

fn source(name: &str, flow: &str) -> String {
    format!(
        "local swarm = require('swarm')\nreturn swarm.blueprint {{ name = '{name}',\n  agents = {{ \
         e = {{ operator = 'echo' }}, q = {{ operator = 'queue', queue = 'q' }} }},\n  \
         flow = function(ctx, input) {flow} end }}"
    )
}

async fn daemon(shell: &Shell) -> Daemon {
    let daemon = Daemon::start(&shell.path("data"));
    for (name, flow) in STORED {
        let put = daemon.with(&daemon.token, Method::PUT, &format!("/v1/blueprints/{name}"));
        let put = put.header("content-type", "text/plain").body(source(name, flow));
        let (status, said) = send(put).await;
        assert!(status < 300, "{status} {said}");
    }
    daemon
}

/// A token that `parent` makes.
async fn mint(daemon: &Daemon, parent: &str, quotas: Value) -> (u16, Value) {
    let body = json!({"role": "operator", "ttl": "1h", "quotas": quotas});
    send(daemon.with(parent, Method::POST, "/v1/tokens").json(&body)).await
}

async fn token(daemon: &Daemon, parent: &str, quotas: Value) -> String {
    let (status, minted) = mint(daemon, parent, quotas).await;
    assert_eq!(status, 201, "{minted}");
    minted["token"].as_str().unwrap().to_owned()
}

async fn start(daemon: &Daemon, token: &str, name: &str) -> (u16, Value) {
    let body = json!({"blueprint": name, "input": {}});
    send(daemon.with(token, Method::POST, "/v1/runs").json(&body)).await
}

async fn started(daemon: &Daemon, token: &str, name: &str) -> String {
    let (status, view) = start(daemon, token, name).await;
    assert_eq!(status, 201, "{view}");
    view["id"].as_str().unwrap().to_owned()
}

/// Starts a run that is refused, and says which quota it was: its word, used, allowed.
async fn refused(daemon: &Daemon, token: &str, name: &str) -> (String, String, String) {
    let (status, problem) = start(daemon, token, name).await;
    assert_eq!((status, &problem["code"]), (429, &json!("quota_exceeded")), "{problem}");
    let word = |name: &str| problem["quota"][name].as_str().unwrap().to_owned();
    (word("quota"), word("used"), word("allowed"))
}

fn quota(word: &str, used: &str, allowed: &str) -> (String, String, String) {
    (word.to_owned(), used.to_owned(), allowed.to_owned())
}

async fn cancel(daemon: &Daemon, run: &str) {
    let (status, said) = send(daemon.post(&format!("/v1/runs/{run}/cancel"), &json!({}))).await;
    assert!(status < 300, "{said}");
    daemon.ended(run).await;
}

#[tokio::test]
async fn open_runs_bind_a_token_its_children_its_sessions_and_their_calls_across_a_kill() {
    let shell = Shell::new();
    let mut daemon = daemon(&shell).await;
    let mine = token(&daemon, &daemon.token, json!({"open_runs": 2})).await;
    // A token that is made of it has no quota of its own: its parent's binds it.
    let child = token(&daemon, &mine, json!({})).await;
    let (status, wider) = mint(&daemon, &mine, json!({"open_runs": 3})).await;
    assert_eq!((status, &wider["code"]), (403, &json!("token_widens")), "{wider}");
    let opened =
        daemon.with(&child, Method::POST, "/v1/operators/main-ai/sessions").json(&json!({}));
    let (status, opened) = send(opened).await;
    assert_eq!(status, 201, "{opened}");
    let session = opened["token"].as_str().unwrap();
    let run = started(&daemon, &child, "waits").await;
    let other = started(&daemon, session, "waits").await;
    for _ in 0..2 {
        for token in [&mine, &child, session] {
            assert_eq!(refused(&daemon, token, "waits").await, quota("open_runs", "2", "2"));
        }
        // Others are not bound by it.
        let free = started(&daemon, &daemon.token, "waits").await;
        cancel(&daemon, &free).await;
        daemon.kill();
        daemon = Daemon::start(&shell.path("data"));
    }
    cancel(&daemon, &run).await;
    cancel(&daemon, &other).await;
    // One calls two: of three runs, the last does not begin.
    let caller = started(&daemon, &mine, "waits_for_two").await;
    let called = eventually("the run that is called", async || {
        let (_, runs) = send(daemon.get("/v1/runs?blueprint=waits&status=waiting")).await;
        runs["items"][0]["id"].as_str().map(str::to_owned).ok_or(runs.to_string())
    })
    .await;
    send(daemon.post(&format!("/v1/runs/{called}/signals/go"), &json!(1))).await;
    let view = daemon.ended(&caller).await;
    // Either of the two may have been the first.
    let output = view["output"].as_array().unwrap();
    assert!(output.contains(&json!(1)), "{view}");
    assert!(output.contains(&json!({"kind": "limit", "quota": "open_runs"})), "{view}");
    let (_, tokens) = send(daemon.get("/v1/tokens")).await;
    let items = tokens["items"].as_array().unwrap();
    let shown: Vec<_> = items.iter().filter(|it| !it["quotas"].is_null()).collect();
    assert_eq!(shown.len(), 1, "{tokens}");
    assert_eq!(
        (&shown[0]["quotas"], &shown[0]["used"]["open_runs"]),
        (&json!({"open_runs": 2}), &json!(0))
    );
}

#[tokio::test]
async fn starts_a_minute_bind_and_a_kill_gives_none_back() {
    let shell = Shell::new();
    let mut daemon = daemon(&shell).await;
    let mine = token(&daemon, &daemon.token, json!({"starts_per_minute": 3})).await;
    for _ in 0..3 {
        let run = started(&daemon, &mine, "ends").await;
        daemon.ended(&run).await;
    }
    for _ in 0..2 {
        let body = json!({"blueprint": "ends", "input": {}});
        let answer = daemon.with(&mine, Method::POST, "/v1/runs").json(&body).send().await.unwrap();
        assert_eq!(answer.status(), 429);
        let after: u64 = answer.headers()["retry-after"].to_str().unwrap().parse().unwrap();
        assert!((1..=20).contains(&after), "{after}");
        assert_eq!(refused(&daemon, &mine, "ends").await, quota("starts_per_minute", "3", "3"));
        daemon.kill();
        daemon = Daemon::start(&shell.path("data"));
    }
}

#[tokio::test]
async fn a_run_that_stores_more_than_its_token_may_ends_and_nothing_more_begins() {
    let shell = Shell::new();
    let mut daemon = daemon(&shell).await;
    let mine = token(&daemon, &daemon.token, json!({"stored_bytes": 300_000})).await;
    let run = started(&daemon, &mine, "floods").await;
    let view = daemon.ended(&run).await;
    assert_eq!(
        (&view["status"], &view["error"]["kind"]),
        (&json!("failed"), &json!("limit")),
        "{view}"
    );
    assert_eq!(view["error"]["data"]["code"], "quota_exceeded", "{view}");
    for _ in 0..2 {
        let (word, used, allowed) = refused(&daemon, &mine, "ends").await;
        assert_eq!((word.as_str(), allowed.as_str()), ("stored_bytes", "300000"));
        let used: u64 = used.parse().unwrap();
        println!("300,000 bytes are allowed, {used} were stored");
        assert!((300_000..2_000_000).contains(&used), "{used}");
        daemon.kill();
        daemon = Daemon::start(&shell.path("data"));
    }
    // What is deleted is free again.
    let (status, _) = send(daemon.delete(&format!("/v1/runs/{run}"))).await;
    assert_eq!(status, 204);
    started(&daemon, &mine, "ends").await;
}

#[tokio::test]
async fn model_tokens_and_money_stay_used_for_the_token_and_its_parents() {
    let shell = Shell::new();
    let mut daemon = daemon(&shell).await;
    let mine = token(&daemon, &daemon.token, json!({"tokens": 1_000, "usd": "0.50"})).await;
    let child = token(&daemon, &mine, json!({"tokens": 100})).await;
    for (token, usage, refusal) in [
        (&child, json!({"input": 90, "output": 30}), quota("tokens", "120", "100")),
        (&mine, json!({"input": 1, "cost": "0.5000001"}), quota("usd", "0.5000001", "0.50")),
    ] {
        let run = started(&daemon, token, "asks").await;
        let asked = json!({"queue": "q", "wait": "30s", "max": 1});
        let (status, leased) = send(daemon.post("/v1/worker/lease", &asked)).await;
        assert_eq!(status, 200, "{leased}");
        let handle = leased[0]["handle"].as_str().unwrap();
        let result = json!({"output": 1, "usage": usage});
        let report = daemon.with(handle, Method::POST, "/v1/worker/result").json(&result);
        let (status, said) = send(report).await;
        assert!(status < 300, "{said}");
        assert_eq!(daemon.ended(&run).await["output"], json!([1, "budget", "budget"]));
        assert_eq!(refused(&daemon, token, "ends").await, refusal);
        // Neither a kill nor the end of the run gives anything back.
        daemon.kill();
        daemon = Daemon::start(&shell.path("data"));
        assert_eq!(refused(&daemon, token, "ends").await, refusal);
        assert_eq!(send(daemon.delete(&format!("/v1/runs/{run}"))).await.0, 204);
        assert_eq!(refused(&daemon, token, "ends").await, refusal);
        daemon.kill();
        daemon = Daemon::start(&shell.path("data"));
        assert_eq!(refused(&daemon, token, "ends").await, refusal);
    }
    let (_, tokens) = send(daemon.get("/v1/tokens")).await;
    let items = tokens["items"].as_array().unwrap();
    let of = |most: u64| items.iter().find(|it| it["quotas"]["tokens"] == most).unwrap();
    assert_eq!(of(1_000)["used"]["tokens"], 121, "{tokens}");
    assert_eq!(of(1_000)["used"]["usd"], "0.5000001", "{tokens}");
    assert_eq!(of(100)["used"]["tokens"], 120, "{tokens}");
}
