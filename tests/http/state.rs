//! State and dispatches, over HTTP and from the command line.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Daemon, Shell, refusal, send};

async fn ok(request: reqwest::RequestBuilder, status: u16) -> Value {
    let (got, body) = send(request).await;
    assert_eq!(got, status, "{body}");
    body
}

#[tokio::test]
async fn a_value_is_written_read_changed_found_linked_and_deleted() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let at = "/v1/state/custom:notes/harbour%2Fnorth";
    let body =
        json!({"value": {"text": "quiet in winter"}, "ttl": "1h", "content_kind": "semantic"});
    assert_eq!(ok(daemon.put(at, &body), 200).await["revision"], 1);
    let read = ok(daemon.get(at), 200).await;
    assert_eq!(
        (&read["key"], &read["value"]["text"]),
        (&json!("harbour/north"), &json!("quiet in winter"))
    );
    assert!(read["expires_at"].is_string() && read["content_kind"] == "semantic", "{read}");

    let stale = json!({"value": 1, "if_revision": 7});
    assert_eq!(refusal(daemon.put(at, &stale)).await, (409, "revision_mismatch".into()));
    let sum = json!({"value": 1, "reduce": "sum"});
    assert_eq!(refusal(daemon.put(at, &sum)).await, (422, "state_refused".into()));
    let merged = ok(daemon.put(at, &json!({"value": {"depth": 4}, "reduce": "merge"})), 200).await;
    assert_eq!(merged, json!({"revision": 2, "value": {"text": "quiet in winter", "depth": 4}}));

    let ops = json!({"ops": [
        {"op": "put", "scope": "custom:notes", "key": "light", "value": "a quiet light"},
        {"op": "sum", "scope": "global", "key": "n", "value": 2},
        {"op": "link", "scope": "custom:notes", "key": "harbour/north", "to": "light", "relation": "near"},
    ]});
    let results = ok(daemon.post("/v1/state/batch", &ops), 200).await;
    assert_eq!(results["results"][1], json!({"revision": 1, "value": 2}));
    let torn = json!({"ops": [
        {"op": "sum", "scope": "global", "key": "n", "value": 2},
        {"op": "append", "scope": "global", "key": "n", "value": 2},
    ]});
    assert_eq!(refusal(daemon.post("/v1/state/batch", &torn)).await.0, 422);
    assert_eq!(ok(daemon.get("/v1/state/global/n"), 200).await["value"], 2);

    let keys = async |query: &str| {
        let page = ok(daemon.get(&format!("/v1/state/custom:notes?{query}")), 200).await;
        let items = page["items"].as_array().unwrap().clone();
        items.into_iter().map(|it| it["key"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(keys("").await, ["harbour/north", "light"]);
    assert_eq!(keys("limit=1&cursor=harbour/north").await, ["light"]);
    assert_eq!(keys("q=quiet%20winter").await, ["harbour/north"]);
    assert_eq!(keys("from=harbour/north&relation=near").await, ["light"]);
    ok(daemon.delete(at), 204).await;
    assert_eq!(refusal(daemon.get(at)).await, (404, "not_found".into()));
    assert!(keys("from=harbour/north").await.is_empty());
    for wrong in ["/v1/state/nowhere/k", "/v1/state/custom:%2520x%20/k"] {
        assert_eq!(refusal(daemon.get(wrong)).await, (400, "bad_id".into()));
    }
}

#[tokio::test]
async fn a_token_sees_the_keys_that_its_scopes_name() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    for key in ["mine/a", "yours"] {
        ok(
            daemon.put(
                &format!("/v1/state/global/{}", key.replace('/', "%2F")),
                &json!({"value": "x"}),
            ),
            200,
        )
        .await;
    }
    let body = json!({"role": "operator", "scopes": ["state:global/mine/"], "ttl": "1h"});
    let minted = ok(daemon.post("/v1/tokens", &body), 201).await;
    let token = minted["token"].as_str().unwrap();
    let get = |path: &str| daemon.with(token, Method::GET, path);
    ok(get("/v1/state/global/mine%2Fa"), 200).await;
    ok(get("/v1/state/global?prefix=mine/"), 200).await;
    ok(get("/v1/state/global?prefix=mine/&q=x"), 200).await;
    for path in [
        "/v1/state/global/yours",
        "/v1/state/global",
        "/v1/state/global?q=x",
        "/v1/state/global?from=mine/a",
        "/v1/state/custom:x/mine%2Fa",
    ] {
        assert_eq!(refusal(get(path)).await, (403, "forbidden_scope".into()), "{path}");
    }
    let write =
        daemon.with(token, Method::PUT, "/v1/state/global/yours").json(&json!({"value": 1}));
    assert_eq!(refusal(write).await.1, "forbidden_scope");
    let ops = json!({"ops": [
        {"op": "put", "scope": "global", "key": "mine/b", "value": 1},
        {"op": "delete", "scope": "global", "key": "yours"},
    ]});
    let batch = daemon.with(token, Method::POST, "/v1/state/batch").json(&ops);
    assert_eq!(refusal(batch).await.1, "forbidden_scope");
    assert_eq!(refusal(daemon.get("/v1/state/global/mine%2Fb")).await.0, 404);
}

#[tokio::test]
async fn dispatches_have_an_answer_or_a_slot_each() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let one = json!({"operator": "echo", "input": {"n": 1}});
    let done = ok(daemon.post("/v1/dispatch", &one), 200).await;
    assert_eq!((&done["status"], &done["output"]), (&json!("completed"), &json!({"n": 1})));
    ok(daemon.get(&format!("/v1/runs/{}", done["run"].as_str().unwrap())), 200).await;
    let many = json!([one, {"operator": "nobody"}, {"operator": "echo", "input": "last"},
        {"operator": "human", "input": {"title": "?"}, "wait": "10ms"}]);
    let slots = ok(daemon.post("/v1/dispatch", &many), 200).await;
    assert_eq!(slots.as_array().unwrap().len(), 4);
    assert_eq!(slots[1]["problem"]["code"], "not_found");
    assert_eq!(slots[2]["dispatch"]["output"], "last");
    assert_ne!(slots[3]["dispatch"]["status"], "completed");
    assert_eq!(ok(daemon.post("/v1/dispatch", &json!([])), 200).await, json!([]));
    assert_eq!(refusal(daemon.post("/v1/dispatch", &json!({"operator": "nobody"}))).await.0, 404);
}

#[test]
fn the_command_line_has_every_verb_of_state() {
    let shell = Shell::new();
    let _daemon = Daemon::start(&shell.path(".moonswarm"));
    let state = |args: &[&str]| shell.run(&[&["state", "-s", "custom:n"], args].concat());
    state(&["set", "a", r#"{"t":"amber light"}"#]).ok();
    state(&["set", "n", "2", "--reduce", "sum"]).ok();
    assert_eq!(state(&["set", "n", "3", "--reduce", "sum"]).ok().json(), 5);
    state(&["set", "n", "1", "--if-revision", "1"]).exits(6);
    assert_eq!(state(&["set", "below", "-5", "--reduce", "sum"]).ok().json(), -5);
    state(&["delete", "below"]).ok();
    state(&["link", "a", "n", "counts"]).ok();
    assert_eq!(state(&["get", "a"]).ok().json(), json!({"t": "amber light"}));
    assert_eq!(state(&["ls", "--json"]).ok().json()[1]["revision"], 2);
    assert_eq!(state(&["search", "light", "--json"]).ok().json()[0]["key"], "a");
    assert_eq!(state(&["links", "a", "--json"]).ok().json()[0]["key"], "n");
    state(&["unlink", "a", "n", "counts"]).ok();
    state(&["delete", "a"]).ok();
    state(&["get", "a"]).exits(4);
}

#[tokio::test]
async fn scopes_are_listed_with_their_sizes_as_far_as_the_token_reaches() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&dir.path().join("data"));
    for (path, value) in
        [("custom:a/one", json!("x")), ("custom:a/two", json!(2)), ("global/k", json!([1]))]
    {
        let (status, body) =
            send(daemon.put(&format!("/v1/state/{path}"), &json!({ "value": value }))).await;
        assert_eq!(status, 200, "{body}");
    }
    let a = json!({ "scope": "custom:a", "keys": 2, "bytes": 10, "more": false });
    let global = json!({ "scope": "global", "keys": 1, "bytes": 4, "more": false });
    let (_, list) = send(daemon.get("/v1/state")).await;
    assert_eq!(list, json!({ "items": [a, global], "next_cursor": null }));
    let (_, first) = send(daemon.get("/v1/state?limit=1")).await;
    assert_eq!(first, json!({ "items": [a], "next_cursor": "custom:a" }));
    let (_, rest) = send(daemon.get("/v1/state?limit=1&cursor=custom:a")).await;
    assert_eq!(rest["items"], json!([global]));
    let (_, custom) = send(daemon.get("/v1/state?prefix=custom:")).await;
    assert_eq!(custom["items"], json!([a]));

    let mint = async |body: Value| {
        let (_, minted) = send(daemon.post("/v1/tokens", &body)).await;
        minted["token"].as_str().unwrap().to_owned()
    };
    let narrow =
        mint(json!({ "role": "observer", "ttl": "1h", "scopes": ["state:custom:a/"] })).await;
    let (_, list) = send(daemon.with(&narrow, Method::GET, "/v1/state")).await;
    assert_eq!(list["items"], json!([a]));
    let part =
        mint(json!({ "role": "observer", "ttl": "1h", "scopes": ["state:custom:a/on"] })).await;
    let (_, list) = send(daemon.with(&part, Method::GET, "/v1/state")).await;
    assert_eq!(list["items"], json!([]), "it does not reach the whole scope");
    let approver = mint(json!({ "role": "approver", "ttl": "1h" })).await;
    let refused = refusal(daemon.with(&approver, Method::GET, "/v1/state")).await;
    assert_eq!(refused, (403, "forbidden_verb".to_owned()));
}

#[tokio::test]
async fn every_scope_is_on_a_page_however_large_the_pages_are() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path(".moonswarm"));
    let put = |n: u32| {
        let scope = format!("custom:{n:04}");
        json!({ "op": "put", "scope": scope, "key": "k", "value": 1 })
    };
    let ops: Vec<Value> = (0..600).map(put).collect();
    ok(daemon.post("/v1/state/batch", &json!({ "ops": ops })), 200).await;
    for limit in [70, 100, 500] {
        let (mut found, mut cursor) = (Vec::new(), String::new());
        loop {
            let path = format!("/v1/state?limit={limit}&cursor={cursor}");
            let page = ok(daemon.get(&path), 200).await;
            let items = page["items"].as_array().unwrap();
            found.extend(items.iter().map(|it| it["scope"].as_str().unwrap().to_owned()));
            let Some(next) = page["next_cursor"].as_str() else { break };
            next.clone_into(&mut cursor);
        }
        let all: Vec<String> = (0..600).map(|n| format!("custom:{n:04}")).collect();
        assert_eq!(found, all, "{limit}");
    }
    let listed = shell.run(&["state", "scopes", "--json"]).ok().json();
    assert_eq!(listed.as_array().unwrap().len(), 600);
}
