//! Every route once, as it is meant to be used.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{DEMO, Daemon, Shell, send};

async fn ok(request: reqwest::RequestBuilder, status: u16) -> Value {
    let (got, body) = send(request).await;
    assert_eq!(got, status, "{body}");
    body
}

#[tokio::test]
async fn what_says_how_the_host_is_answers() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    ok(daemon.bare(Method::GET, "/healthz"), 200).await;
    ok(daemon.get("/readyz"), 200).await;
    let document = ok(daemon.get("/openapi.json"), 200).await;
    for path in ["/v1/runs", "/v1/runs/{run}/events", "/v1/worker/result", "/v1/tokens/{jti}"] {
        assert!(document["paths"].get(path).is_some(), "{path}");
    }
    let committed = std::fs::read_to_string(crate::support::repository("docs/openapi.json"));
    let committed: Value = serde_json::from_str(&committed.unwrap()).unwrap();
    assert_eq!(document["paths"], committed["paths"], "docs/openapi.json is what is served");
    let docs = ok(daemon.get("/docs"), 200).await;
    assert!(docs.as_str().unwrap().contains("<html"), "{docs}");
    let keys = ok(daemon.get("/.well-known/jwks.json"), 200).await;
    assert_eq!(keys["keys"][0]["kty"], "OKP");
    let operators = ok(daemon.get("/v1/operators"), 200).await.to_string();
    for kind in ["echo", "human", "lua", "process", "queue"] {
        assert!(operators.contains(kind), "{operators}");
    }
}

#[tokio::test]
async fn the_first_page_says_where_to_begin_and_sends_a_browser_to_the_dashboard() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let text = ok(daemon.bare(Method::GET, "/").header("accept", "*/*"), 200).await;
    assert!(text.as_str().unwrap().contains("/docs"), "{text}");
    let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none());
    let page = client.build().unwrap().get(format!("{}/", daemon.url));
    let page = page.header("accept", "text/html,*/*").send().await.unwrap();
    assert_eq!(
        (page.status().as_u16(), &page.headers()["location"].to_str().unwrap()),
        (303, &"/ui")
    );
}

#[tokio::test]
async fn a_blueprint_is_stored_shown_and_checked() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let bundle = json!({"files": {"main.lua": DEMO}});
    let stored = ok(daemon.put("/v1/blueprints/demo", &bundle), 200).await;
    let text = daemon
        .with(&daemon.token, Method::PUT, "/v1/blueprints/demo")
        .header("content-type", "text/plain")
        .body(DEMO);
    assert_eq!(ok(text, 200).await["hash"], stored["hash"], "the same files, the same version");
    let hash = stored["hash"].as_str().unwrap();
    let listed = ok(daemon.get("/v1/blueprints"), 200).await;
    assert_eq!(listed["items"][0]["name"], "demo");
    let one = ok(daemon.get(&format!("/v1/blueprints/demo@{}", &hash[..8])), 200).await;
    assert_eq!((&one["hash"], &one["agents"]["ask"]), (&stored["hash"], &json!("human")));
    let source = ok(daemon.get(&format!("/v1/blueprints/demo/{hash}/source")), 200).await;
    assert_eq!(source["files"]["main.lua"], DEMO);
    let bad = json!({"files": {"main.lua": "return 1"}});
    let findings = ok(daemon.post("/v1/check", &bad), 200).await;
    assert!(findings.to_string().contains("main.lua"), "{findings}");
    let (status, problem) = send(daemon.put("/v1/blueprints/demo", &bad)).await;
    assert_eq!((status, &problem["code"]), (422, &json!("blueprint_invalid")));
    assert_eq!(ok(daemon.get("/v1/blueprints/demo"), 200).await["hash"], stored["hash"]);
}

#[tokio::test]
async fn a_run_goes_from_its_start_to_its_deletion() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let begun =
        daemon.post("/v1/runs", &json!({"source": DEMO, "input": {}})).send().await.unwrap();
    assert_eq!(begun.status(), 201);
    let place = begun.headers()["location"].to_str().unwrap().to_owned();
    let run: Value = begun.json().await.unwrap();
    assert_eq!(place, format!("/v1/runs/{}", run["id"].as_str().unwrap()));

    daemon.waits(run["id"].as_str().unwrap(), "signal").await;
    let seen = ok(daemon.get(&format!("{place}/query/seen?argument=7")), 200).await;
    assert_eq!(seen, json!({"seen": 0, "by": 7}));
    let paused = ok(daemon.post(&format!("{place}/pause"), &json!({"reason": "lunch"})), 200).await;
    assert_eq!(paused["status"], "paused");
    ok(daemon.post(&format!("{place}/resume"), &json!({})), 200).await;
    ok(daemon.post(&format!("{place}/signals/go"), &json!(3)), 204).await;
    let asks = ok(daemon.get(&format!("{place}?wait=20s&until=people")), 200).await;
    assert_eq!(asks["waiting_on"][0]["kind"], "task", "{asks}");

    let tasks = ok(daemon.get("/v1/tasks?state=open&kind=human"), 200).await;
    let task = tasks["items"][0]["id"].as_str().unwrap().to_owned();
    let shown = ok(daemon.get(&format!("/v1/tasks/{task}")), 200).await;
    assert_eq!(shown["input"], json!({"title": "Well?"}));
    ok(daemon.post(&format!("/v1/tasks/{task}/answer"), &json!({"output": "fine"})), 200).await;
    let ended = daemon.ended(run["id"].as_str().unwrap()).await;
    assert_eq!(ended["output"], json!({"seen": 3, "answer": "fine"}));
    assert_eq!(ok(daemon.get(&format!("{place}/query/seen")), 200).await["seen"], 3);

    let steps = ok(daemon.get(&format!("{place}/steps?limit=1")), 200).await;
    assert!(!steps["next_cursor"].is_null(), "there are more pages");
    let all = ok(daemon.get(&format!("{place}/steps")), 200).await;
    let last = all["items"].as_array().unwrap().last().unwrap().clone();
    let step = ok(daemon.get(&format!("{place}/steps/{}", last["seq"])), 200).await;
    assert_eq!((&step["name"], &step["response"]), (&json!("echo"), &ended["output"]));
    let files = ok(daemon.get(&format!("{place}/artifacts")), 200).await;
    let file = files["items"][0]["id"].as_str().unwrap();
    assert_eq!(ok(daemon.get(&format!("/v1/artifacts/{file}")), 200).await, "hello");
    // A key that stands there twice, and a list, are the same.
    for status in
        ["completed", "completed&status=failed", "completed,failed", "paused&status=completed"]
    {
        let runs = ok(daemon.get(&format!("/v1/runs?status={status}")), 200).await;
        assert_eq!(runs["items"][0]["id"], run["id"], "{status}");
    }
    ok(daemon.delete(&place), 204).await;
    ok(daemon.get(&place), 404).await;
}

#[tokio::test]
async fn a_canceled_run_compensates_and_takes_nothing_more() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let flow = DEMO.replace(
        "seen = ctx:wait",
        "ctx:defer(function() ctx:run('echo', 1) end)\nseen = ctx:wait",
    );
    let run = daemon.run_source(&flow, json!({})).await;
    let place = format!("/v1/runs/{run}");
    daemon.waits(&run, "signal").await;
    let (status, problem) = send(daemon.delete(&place)).await;
    assert_eq!((status, &problem["code"]), (409, &json!("not_ended")));
    ok(daemon.post(&format!("{place}/cancel"), &json!({"reason": "enough"})), 200).await;
    let ended = daemon.ended(&run).await;
    assert_eq!(ended["status"], "canceled");
    let steps = ok(daemon.get(&format!("{place}/steps")), 200).await;
    let echo = steps["items"].as_array().unwrap().iter().find(|step| step["name"] == "echo");
    assert_eq!(echo.unwrap()["state"], "completed", "the compensation ran");
    for (path, body) in [("cancel", json!({})), ("pause", json!({})), ("signals/go", json!(1))] {
        let (status, problem) = send(daemon.post(&format!("{place}/{path}"), &body)).await;
        assert_eq!((status, &problem["code"]), (409, &json!("run_closed")), "{path}");
    }
}
