//! Tokens: narrower than their parents, worthless when they are revoked, of another host or damaged.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Daemon, Shell, eventually, refusal, send, when};

async fn mint(daemon: &Daemon, by: &str, body: Value) -> Value {
    let (status, minted) = send(daemon.with(by, Method::POST, "/v1/tokens").json(&body)).await;
    assert_eq!(status, 201, "{minted}");
    minted
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

#[tokio::test]
async fn a_token_does_what_its_role_and_scopes_allow_and_nothing_else() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let watcher = mint(&daemon, &daemon.token, json!({"role": "observer", "ttl": "1h"})).await;
    let as_watcher = |method, path| daemon.with(text(&watcher["token"]), method, path);
    assert_eq!(send(as_watcher(Method::GET, "/v1/runs")).await.0, 200);
    let start = as_watcher(Method::POST, "/v1/runs").json(&json!({"blueprint": "x"}));
    assert_eq!(refusal(start).await, (403, "forbidden_verb".to_owned()));
    let scoped = json!({"role": "operator", "scopes": ["blueprint:a"], "ttl": "1h"});
    let scoped = mint(&daemon, &daemon.token, scoped).await;
    let get = |path| daemon.with(text(&scoped["token"]), Method::GET, path);
    assert_eq!(refusal(get("/v1/blueprints/b")).await, (403, "forbidden_scope".to_owned()));
    assert_eq!(refusal(get("/v1/blueprints/a")).await, (404, "not_found".to_owned()));
    let verbs = json!({"role": "operator", "verbs": ["run.read"], "ttl": "1h"});
    let verbs = mint(&daemon, &daemon.token, verbs).await;
    let list = daemon.with(text(&verbs["token"]), Method::GET, "/v1/blueprints");
    assert_eq!(refusal(list).await, (403, "forbidden_verb".to_owned()));
}

#[tokio::test]
async fn a_child_token_is_never_wider_than_its_parent() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let scoped = json!({"role": "operator", "scopes": ["run:*", "blueprint:a"], "ttl": "1h"});
    let parent = mint(&daemon, &daemon.token, scoped).await;
    for wider in [
        json!({"role": "admin", "ttl": "1m"}),
        json!({"role": "operator", "scopes": ["blueprint:b"], "ttl": "1m"}),
        json!({"role": "operator", "scopes": ["queue:q"], "ttl": "1m"}),
    ] {
        let asked = daemon.with(text(&parent["token"]), Method::POST, "/v1/tokens").json(&wider);
        assert_eq!(refusal(asked).await, (403, "token_widens".to_owned()), "{wider}");
    }
    let child = json!({"role": "operator", "scopes": ["run:*"], "ttl": "9h"});
    let child = mint(&daemon, text(&parent["token"]), child).await;
    assert!(text(&child["expires_at"]) <= text(&parent["expires_at"]), "it ends with its parent");
}

#[tokio::test]
async fn a_revoked_token_takes_its_children_with_it_also_after_a_restart() {
    let shell = Shell::new();
    let data = shell.path("data");
    let mut daemon = Daemon::start(&data);
    let parent = mint(&daemon, &daemon.token, json!({"role": "operator", "ttl": "1h"})).await;
    let child = json!({"role": "operator", "verbs": ["run.read"], "ttl": "1h"});
    let child = mint(&daemon, text(&parent["token"]), child).await;
    let (_, listed) = send(daemon.get("/v1/tokens")).await;
    let jtis: Vec<_> = listed["items"].as_array().unwrap().iter().map(|t| &t["jti"]).collect();
    assert!(jtis.contains(&&parent["jti"]) && jtis.contains(&&child["jti"]));
    assert!(!listed.to_string().contains(text(&parent["token"])), "no list has a secret");

    let gone = daemon.delete(&format!("/v1/tokens/{}", text(&parent["jti"])));
    assert_eq!(send(gone).await.0, 204);
    for restarted in [false, true] {
        if restarted {
            daemon.kill();
            daemon = Daemon::start(&data);
        }
        for token in [&parent, &child] {
            let asked = daemon.with(text(&token["token"]), Method::GET, "/v1/runs");
            assert_eq!(refusal(asked).await, (401, "token_revoked".to_owned()), "{restarted}");
        }
    }
    let unknown = daemon.delete("/v1/tokens/nobody");
    assert_eq!(refusal(unknown).await, (404, "not_found".to_owned()));
}

#[tokio::test]
async fn a_token_that_is_missing_damaged_or_foreign_is_nobodys() {
    let (ours, theirs) = (Shell::new(), Shell::new());
    let (daemon, other) = (Daemon::start(&ours.path("data")), Daemon::start(&theirs.path("data")));
    let mut damaged = daemon.token.clone();
    let last = if damaged.pop() == Some('A') { 'B' } else { 'A' };
    damaged.insert(damaged.len() - 20, last);
    for token in ["x", "a.b.c", "wh_aaaaaaaa", &damaged, &other.token] {
        let asked = daemon.with(token, Method::GET, "/v1/runs");
        assert_eq!(refusal(asked).await, (401, "unauthenticated".to_owned()), "{token}");
    }
    let asked = daemon.bare(Method::GET, "/v1/runs");
    assert_eq!(refusal(asked).await, (401, "unauthenticated".to_owned()));
    let brief = mint(&daemon, &daemon.token, json!({"role": "observer", "ttl": "1h"})).await;
    let claims = claims_of(text(&brief["token"]));
    let life = claims["exp"].as_u64().unwrap() - claims["iat"].as_u64().unwrap();
    assert!((3_599..=3_601).contains(&life), "{claims}");
    let forever = daemon.post("/v1/tokens", &json!({"role": "observer", "ttl": "0s"}));
    assert!(refusal(forever).await.0 < 500);
}

/// What a token says of itself.
fn claims_of(token: &str) -> Value {
    Shell::new().run(&["token", "inspect", token]).ok().json()
}

#[tokio::test]
async fn a_token_is_told_what_it_is_and_what_it_can_do() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&dir.path().join("data"));
    let body = json!({ "role": "approver", "ttl": "1h", "name": "ann", "scopes": ["task:*"] });
    let (_, minted) = send(daemon.post("/v1/tokens", &body)).await;
    let token = minted["token"].as_str().unwrap();
    let (status, own) = send(daemon.with(token, Method::GET, "/v1/tokens/self")).await;
    assert_eq!(status, 200, "{own}");
    assert_eq!((&own["subject"], &own["role"]), (&json!("ann"), &json!("approver")));
    assert_eq!((&own["jti"], &own["scopes"]), (&minted["jti"], &json!(["task:*"])));
    assert!(own["parent"].is_string() && own["last_used_at"].is_string(), "{own}");
    let may: Vec<_> = own["may"].as_array().unwrap().iter().filter_map(|it| it.as_str()).collect();
    assert!(may.contains(&"task.answer") && !may.contains(&"run.start"), "{may:?}");
    assert!(!own.to_string().contains(token), "the token itself is in no answer");
    let nobody = refusal(daemon.with("wh_nothing", Method::GET, "/v1/tokens/self")).await;
    assert_eq!(nobody, (401, "unauthenticated".to_owned()));
}

#[tokio::test]
async fn a_request_that_waits_hears_nothing_after_its_token_was_revoked() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let flow = r#"
local swarm = require("swarm")
return swarm.blueprint { name = "waits", flow = function(ctx) ctx:wait("go") end }"#;
    let run = daemon.run_source(flow, json!({})).await;
    let watcher = json!({"role": "observer", "ttl": "1h"});
    let watcher = mint(&daemon, &daemon.token, watcher).await;
    let worker = json!({"role": "queue", "scopes": ["queue:later"], "ttl": "1h"});
    let worker = mint(&daemon, &daemon.token, worker).await;
    let watches =
        daemon.with(text(&watcher["token"]), Method::GET, &format!("/v1/runs/{run}?wait=60s"));
    let polls = daemon.with(text(&worker["token"]), Method::POST, "/v1/worker/lease");
    let polls = polls.json(&json!({"queue": "later", "wait": "60s"}));
    let ends = async {
        for minted in [&watcher, &worker] {
            let jti = text(&minted["jti"]);
            eventually("a request with the token", async || {
                let (_, listed) = send(daemon.get("/v1/tokens")).await;
                let mut items = listed["items"].as_array().unwrap().iter();
                let is_used = items.any(|it| it["jti"] == jti && it["last_used_at"].is_string());
                when(is_used, listed)
            })
            .await;
            let revoke = daemon.delete(&format!("/v1/tokens/{jti}"));
            assert_eq!(send(revoke).await.0, 204);
        }
    };
    let (watched, polled, ()) = tokio::join!(refusal(watches), refusal(polls), ends);
    for refused in [watched, polled] {
        assert_eq!(refused, (401, "token_revoked".to_owned()));
    }
}
