//! Requests for many attempts, as somebody sends them who has some of the credentials, or wants to use
//! up the host.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Daemon, Shell, refusal, send};

const FLOW: &str = r#"local swarm = require("swarm")
return swarm.blueprint { name = "many",
  agents = { mine = { operator = "queue", queue = "mine" }, theirs = { operator = "queue", queue = "theirs" } },
  flow = function(ctx, input)
    local all = {}
    for n = 1, input.tasks do all[n] = n end
    return #ctx:map(all, function(n) return ctx:run(input.agent, n) end)
  end }"#;

async fn token(daemon: &Daemon, queue: &str) -> (String, String) {
    let body = json!({"role": "queue", "scopes": [format!("queue:{queue}")], "ttl": "1h"});
    let (status, minted) = send(daemon.post("/v1/tokens", &body)).await;
    assert_eq!(status, 201, "{minted}");
    let text = |name: &str| minted[name].as_str().unwrap().to_owned();
    (text("token"), text("jti"))
}

async fn leased(daemon: &Daemon, queue: &str, tasks: usize) -> Vec<String> {
    let mut handles = Vec::new();
    while handles.len() < tasks {
        let body = json!({"queue": queue, "wait": "30s", "max": 100});
        let (status, leased) = send(daemon.post("/v1/worker/lease", &body)).await;
        assert_eq!(status, 200, "{leased}");
        let items = leased.as_array().unwrap().iter();
        handles.extend(items.map(|it| it["handle"].as_str().unwrap().to_owned()));
    }
    handles
}

fn result(handle: &str) -> Value {
    json!({"handle": handle, "result": {"output": 1}})
}

async fn report(daemon: &Daemon, token: &str, items: &[Value]) -> (u16, Value) {
    let asked = daemon.with(token, Method::POST, "/v1/worker/results");
    send(asked.json(&json!({ "results": items }))).await
}

fn codes(answer: &Value) -> Vec<String> {
    let items = answer["items"].as_array().unwrap().iter();
    let code = |it: &Value| it["problem"]["code"].as_str().unwrap_or("accepted").to_owned();
    items.map(code).collect()
}

#[tokio::test]
async fn a_batch_reaches_nothing_that_its_token_could_not_lease() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let (token, _) = token(&daemon, "mine").await;
    daemon.run_source(FLOW, json!({"agent": "mine", "tasks": 2})).await;
    let theirs = daemon.run_source(FLOW, json!({"agent": "theirs", "tasks": 1})).await;
    let mine = leased(&daemon, "mine", 2).await;
    let stolen = leased(&daemon, "theirs", 1).await;
    let mint = |handle: &str, verbs: Value| {
        daemon.with(handle, Method::POST, "/v1/worker/token").json(&json!({ "verbs": verbs }))
    };
    let (_, narrow) = send(mint(&mine[0], json!(["worker.progress"]))).await;
    let narrow = narrow["token"].as_str().unwrap().to_owned();
    let items = [
        result(&stolen[0]),
        result(&narrow),
        result(&token),
        result(&daemon.token),
        result(&"w".repeat(100_000)),
        result(&mine[1]),
    ];
    let (status, answer) = report(&daemon, &token, &items).await;
    assert_eq!(status, 200, "{answer}");
    let forbidden = "forbidden_verb";
    let expected =
        ["forbidden_scope", forbidden, forbidden, forbidden, "unauthenticated", "accepted"];
    assert_eq!(codes(&answer), expected, "{answer}");
    let beats = daemon.with(&token, Method::POST, "/v1/worker/heartbeats");
    let (_, answer) = send(beats.json(&json!({"handles": [stolen[0], narrow, mine[0]]}))).await;
    assert_eq!(codes(&answer), ["forbidden_scope", forbidden, "accepted"], "{answer}");
    // Whoever holds an attempt, or any other token, leases nothing and carries nothing.
    let (_, run) = send(daemon.get(&format!("/v1/runs/{theirs}"))).await;
    assert_eq!((&run["steps"], &run["steps_done"]), (&json!(1), &json!(0)), "{run}");
    for bearer in [&mine[0], &narrow] {
        let asked = daemon.with(bearer, Method::POST, "/v1/worker/results");
        let refused = refusal(asked.json(&json!({ "results": [result(&mine[0])] }))).await;
        assert_eq!(refused, (403, forbidden.to_owned()));
    }
}

#[tokio::test]
async fn a_batch_is_bounded_in_number_size_and_depth() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let (token, _) = token(&daemon, "mine").await;
    let run = daemon.run_source(FLOW, json!({"agent": "mine", "tasks": 1})).await;
    let mine = leased(&daemon, "mine", 1).await;
    let many = vec![result(&mine[0]); 10_000];
    let asked = daemon.with(&token, Method::POST, "/v1/worker/results");
    let refused = refusal(asked.json(&json!({ "results": many }))).await;
    assert_eq!(refused, (422, "invalid_body".to_owned()));
    let huge = json!({"handle": mine[0], "result": {"output": "x".repeat(9 << 20)}});
    let asked = daemon.with(&token, Method::POST, "/v1/worker/results");
    let refused = refusal(asked.json(&json!({ "results": [huge] }))).await;
    assert_eq!(refused, (413, "too_large".to_owned()));
    let post = |body: String| {
        let asked = daemon.with(&token, Method::POST, "/v1/worker/results");
        asked.header("content-type", "application/json").body(body)
    };
    for body in
        ["", "[]", "7", "{}", r#"{"results":7}"#, r#"{"results":[],"x":1}"#, r#"{"results":["#]
    {
        let (status, code) = refusal(post(body.to_owned())).await;
        assert!([400, 422].contains(&status), "{body}: {status} {code}");
    }
    let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
    let body = format!(
        r#"{{"results":[{{"handle":"{0}","result":{{"output":{deep}}}}},{deep},{1}]}}"#,
        mine[0],
        result(&mine[0])
    );
    let (status, answer) = send(post(body)).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(codes(&answer), ["invalid_body", "invalid_body", "accepted"], "{answer}");
    assert_eq!(daemon.ended(&run).await["output"], 1);
}

#[tokio::test]
async fn nothing_of_a_batch_is_stored_after_its_token_was_revoked() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    for round in 0..6 {
        let (token, jti) = token(&daemon, "mine").await;
        let run = daemon.run_source(FLOW, json!({"agent": "mine", "tasks": 100})).await;
        let handles = leased(&daemon, "mine", 100).await;
        let items: Vec<_> = handles.iter().map(|handle| result(handle)).collect();
        let revoke = async {
            for _ in 0..round * 200 {
                tokio::task::yield_now().await;
            }
            daemon.delete(&format!("/v1/tokens/{jti}")).send().await.unwrap().status()
        };
        let ((status, answer), revoked) = tokio::join!(report(&daemon, &token, &items), revoke);
        assert!(revoked.is_success(), "{revoked}");
        let said = if status == 200 { codes(&answer) } else { vec!["token_revoked".into(); 100] };
        // What stood behind a batch that was refused was not stored either.
        let known = ["accepted", "token_revoked", "storage"];
        assert!(said.iter().all(|it| known.contains(&it.as_str())), "{said:?}");
        assert_eq!(report(&daemon, &token, &items).await.0, 401);
        // The handles are good, and what was accepted is not accepted a second time.
        let again = daemon.with(&daemon.token, Method::POST, "/v1/worker/results");
        let (_, again) = send(again.json(&json!({ "results": items }))).await;
        for (n, before) in said.iter().enumerate() {
            let it = &again["items"][n];
            assert_eq!(it["repeated"], before == "accepted", "round {round}, {n}: {before} {it}");
        }
        assert_eq!(daemon.ended(&run).await["output"], 100);
    }
}
