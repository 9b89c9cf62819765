//! Lists of runs, and what is done with runs as a whole.

use serde_json::{Value, json};

use crate::support::{Daemon, Shell, refusal, send};

const SOURCE: &str = r#"local swarm = require("swarm")
return swarm.blueprint {
  name = "lister", agents = { e = { operator = "echo" }, ask = { operator = "human" } },
  on = { { signal = "opened", tags = { source = "tracker" } } },
  flow = function(ctx, input)
    if input == "fail" then ctx:status("looking at the disk") error({ kind = "disk", message = "it is full" }) end
    if input == "wait" then return ctx:wait("go") end
    if input == "call" then return ctx:call("lister", 1, { tags = { from = "parent" } }) end
    return ctx:run("e", input)
  end,
}"#;

pub async fn ok(request: reqwest::RequestBuilder, status: u16) -> Value {
    let (got, body) = send(request).await;
    assert_eq!(got, status, "{body}");
    body
}

async fn start(daemon: &Daemon, input: &str, tags: Value) -> Value {
    let wait = if input == "wait" { "0s" } else { "30s" };
    let body = json!({"blueprint": "lister", "input": input, "tags": tags, "wait": wait});
    ok(daemon.post("/v1/runs", &body), 201).await
}

async fn ids(daemon: &Daemon, query: &str) -> Vec<String> {
    let page = ok(daemon.get(&format!("/v1/runs?{query}")), 200).await;
    assert_eq!(page["partial"], false, "{page}");
    let items = page["items"].as_array().unwrap();
    items.iter().map(|run| run["id"].as_str().unwrap().to_owned()).collect()
}

async fn lister() -> (Shell, Daemon) {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    ok(daemon.put("/v1/blueprints/lister", &json!({"source": SOURCE})), 200).await;
    (shell, daemon)
}

fn id(run: &Value) -> &str {
    run["id"].as_str().unwrap()
}

#[tokio::test]
async fn runs_are_found_by_their_tags_wherever_they_were_started() {
    let (_shell, daemon) = lister().await;
    let one = start(&daemon, "1", json!({"customer": "acme", "env": "a,b"})).await;
    let two = start(&daemon, "call", json!({"customer": "acme"})).await;
    let three = ok(daemon.post("/v1/blueprints/lister/signals/opened", &json!("3")), 201).await;
    assert_eq!(one["tags"], json!({"customer": "acme", "env": "a,b"}));
    assert_eq!(ids(&daemon, "tag=customer=acme").await, [id(&two), id(&one)]);
    assert_eq!(ids(&daemon, "tag=customer=acme&tag=env=a,b").await, [id(&one)]);
    assert_eq!(ids(&daemon, "tag=source").await, [id(&three)]);
    let child = ids(&daemon, "tag=from=parent").await;
    assert_eq!(child.len(), 1);
    assert_eq!(ids(&daemon, &format!("parent={}", id(&two))).await, child);

    let bad = json!({"blueprint": "lister", "tags": {"a b": "c"}});
    let (status, problem) = send(daemon.post("/v1/runs", &bad)).await;
    assert_eq!(
        (status, &problem["code"], &problem["path"]),
        (422, &json!("invalid_body"), &json!("$.tags"))
    );
    assert!(problem["detail"].as_str().unwrap().contains("ASCII letters"), "{problem}");
}

#[tokio::test]
async fn runs_are_found_by_words_errors_waits_and_times() {
    let (_shell, daemon) = lister().await;
    let failed = start(&daemon, "fail", json!({})).await;
    let waits = start(&daemon, "wait", json!({})).await;
    let done = start(&daemon, "1", json!({})).await;
    daemon.waits(id(&waits), "signal").await;
    assert_eq!(ids(&daemon, "q=full").await, [id(&failed)]);
    assert_eq!(ids(&daemon, "q=LOOKING+dis*").await, [id(&failed)]);
    assert_eq!(ids(&daemon, "q=looking+tape").await, [""; 0]);
    assert_eq!(ids(&daemon, &format!("q={}", id(&waits))).await, [id(&waits)]);
    assert_eq!(ids(&daemon, "kind=disk").await, [id(&failed)]);
    assert_eq!(ids(&daemon, "error=disk").await, [id(&failed)], "the same by another name");
    assert_eq!(ids(&daemon, "waiting_on=signal").await, [id(&waits)]);
    assert_eq!(ids(&daemon, "waiting_on=go&blueprint=lister").await, [id(&waits)]);
    assert_eq!(ids(&daemon, "agent=e").await, [id(&done)]);
    assert_eq!(ids(&daemon, "started_by=admin&status=completed").await, [id(&done)]);
    let at = failed["ended_at"].as_str().unwrap();
    assert!(ids(&daemon, &format!("ended_until={at}")).await.is_empty());
    let ended = ids(&daemon, &format!("ended_since={at}")).await;
    assert_eq!(ended, [id(&done), id(&failed)]);
    let until = waits["created_at"].as_str().unwrap();
    assert_eq!(ids(&daemon, &format!("until={until}")).await, [id(&failed)]);
    let page = ok(daemon.get("/v1/runs?limit=1"), 200).await;
    let item = &page["items"][0];
    assert!(item["duration_ms"].is_u64() && item.get("input").is_none(), "{item}");
    for query in ["q=*", "tag=%20", "since=now", "parent=1", "ended_until=x"] {
        let (status, code) = refusal(daemon.get(&format!("/v1/runs?{query}"))).await;
        assert!(status == 400 && code.starts_with("bad_"), "{query}: {status} {code}");
    }
}

#[tokio::test]
async fn a_run_is_started_again_with_its_input_and_its_tags() {
    let (_shell, daemon) = lister().await;
    let first = start(&daemon, "1", json!({"customer": "acme"})).await;
    let path = format!("/v1/runs/{}/rerun", id(&first));
    let rerun =
        |body: Value| daemon.post(&path, &body).header("idempotency-key", body.to_string().len());
    let again = ok(rerun(json!({})), 201).await;
    assert_eq!(ok(rerun(json!({})), 201).await["id"], again["id"], "once for a key");
    let again = daemon.ended(id(&again)).await;
    assert_eq!(
        (&again["input"], &again["output"], &again["tags"]),
        (&first["input"], &first["output"], &first["tags"])
    );
    assert_eq!(again["trigger"], json!({"kind": "rerun", "run": first["id"]}));

    let newer = SOURCE.replace("return ctx:run(\"e\", input)", "return \"newer\"");
    ok(daemon.put("/v1/blueprints/lister", &json!({"source": newer})), 200).await;
    let same = ok(daemon.post(&path, &json!({"version": "same"})), 201).await;
    assert_eq!(daemon.ended(id(&same)).await["output"], "1");
    let newest = ok(daemon.post(&path, &json!({"version": "newest"})), 201).await;
    assert_eq!(daemon.ended(id(&newest)).await["output"], "newer");

    let (status, code) = refusal(daemon.post(&path, &json!({"version": "other"}))).await;
    assert_eq!((status, code.as_str()), (422, "invalid_body"));
    let nobody = format!("/v1/runs/run_{}/rerun", "a".repeat(26));
    assert_eq!(refusal(daemon.post(&nobody, &json!({}))).await.0, 404);
}

#[tokio::test]
async fn the_view_of_a_run_has_its_limits_its_calls_and_what_the_token_may() {
    let (_shell, daemon) = lister().await;
    let caller = start(&daemon, "call", json!({})).await;
    let view = ok(daemon.get(&format!("/v1/runs/{}", id(&caller))), 200).await;
    assert_eq!(view["children"].as_array().map(Vec::len), Some(1), "{view}");
    assert_eq!(view["children"][0]["step"], 1);
    let limits = view["limits"].as_array().unwrap();
    let steps = limits.iter().find(|it| it["name"] == "steps").unwrap();
    assert_eq!(steps["used"], "1");
    assert!(view["can"].as_array().unwrap().contains(&json!("run.cancel")), "{view}");

    let body = json!({"role": "observer", "ttl": "1h"});
    let token =
        ok(daemon.post("/v1/tokens", &body), 201).await["token"].as_str().unwrap().to_owned();
    let path = format!("/v1/runs/{}", id(&caller));
    let seen = ok(daemon.with(&token, reqwest::Method::GET, &path), 200).await;
    let can = seen["can"].as_array().unwrap();
    assert!(can.contains(&json!("run.read")) && !can.contains(&json!("run.cancel")), "{seen}");
    let rerun =
        daemon.with(&token, reqwest::Method::POST, &format!("{path}/rerun")).json(&json!({}));
    assert_eq!(refusal(rerun).await.0, 403);
    let page = ok(daemon.get("/v1/runs?limit=1"), 200).await;
    assert!(page["items"][0].get("limits").is_none() && page["items"][0].get("can").is_none());
}

#[tokio::test]
async fn many_runs_are_acted_on_after_a_dry_run_that_still_holds() {
    let (_shell, daemon) = lister().await;
    let done = start(&daemon, "1", json!({"batch": "x"})).await;
    let waits = [
        start(&daemon, "wait", json!({"batch": "x"})).await,
        start(&daemon, "wait", json!({"batch": "x"})).await,
    ];
    for run in &waits {
        daemon.waits(id(run), "signal").await;
    }
    let bulk = |body: Value| daemon.post("/v1/runs/bulk", &body);
    let cancel = json!({"action": "cancel", "filter": {"tag": ["batch=x"]}});
    let (status, problem) = send(bulk(cancel.clone())).await;
    assert_eq!((status, &problem["path"]), (422, &json!("$.digest")), "{problem}");
    let mut dry = cancel.clone();
    dry["dry_run"] = true.into();
    let planned = ok(bulk(dry.clone()), 200).await;
    assert_eq!((&planned["eligible"], &planned["dry_run"]), (&json!(2), &json!(true)));
    let results = |view: &Value| -> Vec<String> {
        let items = view["items"].as_array().unwrap();
        items.iter().map(|item| item["result"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(results(&planned), ["eligible", "eligible", "run_closed"]);

    let path = format!("/v1/runs/{}/pause", id(&waits[0]));
    ok(daemon.post(&path, &json!({})), 200).await;
    let mut act = cancel.clone();
    act["digest"] = planned["digest"].clone();
    assert_eq!(refusal(bulk(act.clone())).await, (409, "selection_changed".to_owned()));
    act["digest"] = ok(bulk(dry), 200).await["digest"].clone();
    let canceled = ok(bulk(act), 200).await;
    assert_eq!(results(&canceled), ["done", "done", "run_closed"]);
    for run in &waits {
        assert_eq!(daemon.ended(id(run)).await["status"], "canceled");
    }

    let ids = json!([id(&done), format!("run_{}", id(&done).trim_start_matches("run_"))]);
    let mut rerun = json!({"action": "rerun", "ids": ids, "dry_run": true});
    let planned = ok(bulk(rerun.clone()), 200).await;
    assert_eq!(planned["items"].as_array().map(Vec::len), Some(1), "an id counts once");
    rerun["dry_run"] = false.into();
    rerun["digest"] = planned["digest"].clone();
    let again = ok(bulk(rerun), 200).await;
    let started = again["items"][0]["started"].as_str().unwrap();
    assert_eq!(daemon.ended(started).await["output"], "1");

    let token = ok(daemon.post("/v1/tokens", &json!({"role": "observer", "ttl": "1h"})), 201).await;
    let token = token["token"].as_str().unwrap().to_owned();
    let path = "/v1/runs/bulk";
    let dry = json!({"action": "delete", "filter": {}, "dry_run": true});
    let asked = daemon.with(&token, reqwest::Method::POST, path).json(&dry);
    assert_eq!(refusal(asked).await, (403, "forbidden_verb".to_owned()));
    for body in [json!({"action": "delete", "dry_run": true}), json!({"action": "burn", "ids": []})]
    {
        assert_eq!(refusal(bulk(body)).await, (422, "invalid_body".to_owned()));
    }
}

#[tokio::test]
async fn a_fork_is_compared_with_its_origin_step_by_step() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let source = r#"local swarm = require("swarm")
return swarm.blueprint {
  name = "pair", agents = { e = { operator = "echo" } },
  flow = function(ctx, input)
    local a = ctx:run("e", "first")
    return ctx:run("e", a .. input.word)
  end,
}"#;
    ok(daemon.put("/v1/blueprints/pair", &json!({"source": source})), 200).await;
    let body = json!({"blueprint": "pair", "input": {"word": "one"}, "wait": "30s"});
    let origin = ok(daemon.post("/v1/runs", &body), 201).await;
    let fork = json!({"from_step": 2, "input_patch": {"word": "two"}});
    let fork = ok(daemon.post(&format!("/v1/runs/{}/fork", id(&origin)), &fork), 201).await;
    daemon.ended(id(&fork)).await;
    let path = format!("/v1/runs/{}/diff/{}", id(&origin), id(&fork));
    let diff = ok(daemon.get(&path), 200).await;
    assert_eq!((&diff["forked_at"], &diff["same_input"]), (&json!(2), &json!(false)), "{diff}");
    assert_eq!((&diff["same_version"], &diff["differing"]), (&json!(true), &json!(1)));
    assert_eq!((&diff["first"]["a"], &diff["first"]["difference"]), (&json!(2), &json!("request")));
    assert_eq!(diff["items"][0]["difference"], "same");
    let page = ok(daemon.get(&format!("{path}?limit=1")), 200).await;
    assert_eq!(
        (page["items"].as_array().map(Vec::len), &page["next_cursor"]),
        (Some(1), &json!("1"))
    );
    let own = format!("/v1/runs/{0}/diff/{0}", id(&origin));
    // A dry run makes nothing, and names the value that an edit got wrong.
    let path = format!("/v1/runs/{}/fork", id(&origin));
    let plan = json!({"from_step": 2, "step_input": "x", "dry_run": true});
    let plan = ok(daemon.post(&path, &plan), 200).await;
    assert_eq!((&plan["kept"], &plan["redone"]), (&json!(2), &json!(0)), "{plan}");
    assert_eq!(plan["steps"][1]["fate"], "edited_input");
    let edited = json!({"from_step": 2, "outputs": {"1": "new "}});
    let edited = ok(daemon.post(&path, &edited), 201).await;
    assert_eq!(daemon.ended(id(&edited)).await["output"], "new one");
    let late = json!({"from_step": 2, "outputs": {"2": 1}, "dry_run": true});
    assert_eq!(refusal(daemon.post(&path, &late)).await, (400, "bad_request".to_owned()));
    let words = json!({"from_step": 2, "outputs": {"two": 1}});
    assert_eq!(refusal(daemon.post(&path, &words)).await.0, 422);
    assert_eq!(ok(daemon.get(&own), 200).await["first"], Value::Null);
    // A plan shows the history, so it takes the right to read the run.
    let forker = json!({"role": "operator", "verbs": ["run.fork"], "ttl": "1h"});
    let forker = ok(daemon.post("/v1/tokens", &forker), 201).await;
    let ask = |body: Value| {
        let token = forker["token"].as_str().unwrap();
        daemon.with(token, reqwest::Method::POST, &path).json(&body)
    };
    let plan = ask(json!({"from_step": 2, "dry_run": true}));
    assert_eq!(refusal(plan).await, (403, "forbidden_verb".to_owned()));
    ok(ask(json!({"from_step": 2})), 201).await;
    let nobody = format!("/v1/runs/{}/diff/run_{}", id(&origin), "a".repeat(26));
    assert_eq!(refusal(daemon.get(&nobody)).await.0, 404);
}
