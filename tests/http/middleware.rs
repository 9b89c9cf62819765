//! Middleware by configuration and by blueprint: a real daemon, its database, its audit log.

use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    feed::Feed,
    support::{Daemon, Shell, needs_sqlite, refusal, send},
};

/// A daemon with this configuration.
fn daemon(shell: &Shell, config: &str) -> Daemon {
    let file = shell.write("moonswarm.toml", config);
    Daemon::start_with(&shell.path("data"), &["--config".as_ref(), file.as_ref()])
}

fn echoing(middleware: &str, flow: &str) -> String {
    format!(
        "local swarm = require(\"swarm\")\nreturn swarm.blueprint {{ name = \"wrapped\",\n  \
         agents = {{ e = {{ operator = \"echo\" }}, q = {{ operator = \"queue\", queue = \"q\" }} \
         }},\n  middleware = {{ {middleware} }},\n  flow = function(ctx, input)\n{flow}\n  end }}"
    )
}

async fn failed(daemon: &Daemon, source: &str, input: Value) -> Value {
    let run = daemon.run_source(source, input).await;
    let ended = daemon.ended(&run).await;
    assert_eq!(ended["status"], "failed", "{ended}");
    ended["error"].clone()
}

async fn output(daemon: &Daemon, source: &str, input: Value) -> Value {
    let run = daemon.run_source(source, input).await;
    let ended = daemon.ended(&run).await;
    assert_eq!(ended["status"], "completed", "{ended}");
    ended["output"].clone()
}

async fn lease(daemon: &Daemon) -> String {
    let body = json!({"queue": "q", "wait": "30s", "max": 1});
    let (status, leased) = send(daemon.post("/v1/worker/lease", &body)).await;
    assert_eq!(status, 200, "{leased}");
    leased[0]["handle"].as_str().unwrap().to_owned()
}

async fn report(daemon: &Daemon, handle: &str, result: Value) {
    let request = daemon.with(handle, Method::POST, "/v1/worker/result").json(&result);
    let (status, body) = send(request).await;
    assert_eq!(status, 200, "{body}");
}

async fn events(daemon: &Daemon, run: &str, kind: &str) -> Vec<Value> {
    let answer = daemon.get(&format!("/v1/runs/{run}/events")).send().await.unwrap();
    let text = answer.text().await.unwrap();
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let events = data.filter_map(|data| serde_json::from_str::<Value>(data).ok());
    events.filter(|event| event["type"] == kind).map(|it| it["data"]["event"].clone()).collect()
}

#[tokio::test]
async fn a_guard_of_the_host_refuses_what_it_does_not_name_and_a_blueprint_cannot_widen_it() {
    let shell = Shell::new();
    let config = "[[middleware]]\nkind = \"guard\"\noperators = [\"echo\"]\n\
                  predicate = \"type(task.input) ~= 'table' or task.input.n ~= 13\"\n";
    let daemon = daemon(&shell, config);
    let wide = "swarm.middleware.guard { operators = { \"*\" } }";
    let error = failed(&daemon, &echoing(wide, "return ctx:run('q', 1)"), json!({})).await;
    assert_eq!((&error["kind"], &error["data"]["code"]), (&json!("refused"), &json!("guarded")));
    let run = echoing("", "return ctx:run('e', { n = input.n })");
    assert_eq!(output(&daemon, &run, json!({"n": 12})).await, json!({"n": 12}));
    let error = failed(&daemon, &run, json!({"n": 13})).await;
    assert!(error["message"].as_str().unwrap().contains("does not agree"), "{error}");
}

#[tokio::test]
async fn a_refused_task_of_a_queue_is_never_leased() {
    let shell = Shell::new();
    let daemon = daemon(&shell, "[[middleware]]\nkind = \"guard\"\noperators = [\"echo\"]\n");
    failed(&daemon, &echoing("", "return ctx:run('q', 1)"), json!({})).await;
    let body = json!({"queue": "q", "wait": "0s", "max": 1});
    assert_eq!(send(daemon.post("/v1/worker/lease", &body)).await.0, 204);
}

#[tokio::test]
async fn a_budget_counts_what_workers_report_and_halts_and_tells_both() {
    let shell = Shell::new();
    let daemon = daemon(&shell, "");
    let flow = "ctx:run('q', 1) local ok, err = pcall(ctx.run, ctx, 'e', 2) return err.data";
    let source = echoing("swarm.middleware.budget { usd = \"1.00\" }", flow);
    let run = daemon.run_source(&source, json!({})).await;
    let handle = lease(&daemon).await;
    report(&daemon, &handle, json!({"output": 1, "usage": {"input": 10, "cost": "1.25"}})).await;
    let ended = daemon.ended(&run).await;
    assert_eq!(ended["output"]["code"], "budget_exceeded", "{ended}");
    assert_eq!(ended["output"]["spent"], "1.25");
    let told = events(&daemon, &run, "lifecycle.budget").await;
    let kinds: Vec<_> = told.iter().map(|it| it["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["cost_incurred", "budget_warning", "budget_action"], "{told:?}");
    assert_eq!(told[0]["cost"], "1.25");
    assert_eq!(told[2]["action"], "halt_workflow");
}

#[tokio::test]
async fn a_request_for_more_rests_the_run_and_a_resume_grants_it() {
    let shell = Shell::new();
    let daemon = daemon(&shell, "");
    let layer = "swarm.middleware.budget { tokens = 10, on_exceeded = \"request_increase\", \
                 increase = \"100\" }";
    let source = echoing(layer, "ctx:run('q', 1) return ctx:run('e', 2)");
    let run = daemon.run_source(&source, json!({})).await;
    let handle = lease(&daemon).await;
    report(&daemon, &handle, json!({"output": 1, "usage": {"input": 10, "output": 1}})).await;
    let rests = until_event(&daemon, &run, "run.paused").await;
    assert!(rests.to_string().contains("resume the run to grant 100 more"), "{rests}");
    let (status, _) = send(daemon.post(&format!("/v1/runs/{run}/resume"), &json!({}))).await;
    assert_eq!(status, 200);
    assert_eq!(daemon.ended(&run).await["output"], 2);
}

/// Follows the events of a run until one of this kind, and gives its data.
async fn until_event(daemon: &Daemon, run: &str, kind: &str) -> Value {
    let answer = daemon.get(&format!("/v1/runs/{run}/events")).send().await.unwrap();
    let mut feed = Feed::of(answer);
    while let Some(event) = feed.next().await {
        if event["type"] == kind {
            return event["data"].clone();
        }
    }
    panic!("run {run} ended without {kind}");
}

#[tokio::test]
async fn a_cached_answer_outlives_the_daemon() {
    let shell = Shell::new();
    let source = echoing("swarm.middleware.cache { agents = { \"q\" } }", "return ctx:run('q', 7)");
    let first = daemon(&shell, "");
    let run = first.run_source(&source, json!({})).await;
    report(&first, &lease(&first).await, json!({"output": "worked"})).await;
    assert_eq!(first.ended(&run).await["output"], "worked");
    first.stop();
    let second = daemon(&shell, "");
    assert_eq!(output(&second, &source, json!({})).await, "worked");
}

#[tokio::test]
async fn results_are_redacted_before_they_are_stored() {
    let shell = Shell::new();
    let config = "[[middleware]]\nkind = \"redact\"\npatterns = [\"sk-[a-z]+\"]\n";
    let daemon = daemon(&shell, config);
    let run = daemon.run_source(&echoing("", "return ctx:run('q', 1)"), json!({})).await;
    report(&daemon, &lease(&daemon).await, json!({"output": {"say": "sk-violet"}})).await;
    assert_eq!(daemon.ended(&run).await["output"], json!({"say": "[redacted]"}));
    daemon.stop();
    if needs_sqlite("the bytes of the database's file") {
        return;
    }
    let database = std::fs::read(shell.path("data").join("moonswarm.db")).unwrap();
    // The answer to a repeated report is kept as a hash; nothing has the secret itself.
    assert!(!database.windows(9).any(|it| it == b"sk-violet"));
}

#[tokio::test]
async fn the_audit_log_is_a_chain_that_a_change_breaks() {
    let shell = Shell::new();
    let config = "[[middleware]]\nkind = \"audit\"\n";
    let daemon = daemon(&shell, config);
    let url = daemon.get("/").build().unwrap().url().as_str().trim_end_matches('/').to_owned();
    output(&daemon, &echoing("", "ctx.state:set('k', 1) return ctx:run('e', 1)"), json!({})).await;
    let at = ["--server", &url, "--token", &daemon.token];
    let audit = |args: &[&str]| shell.run(&[&["audit"], args, &at[..]].concat());
    let listed = audit(&["ls"]).ok().stdout;
    for event in ["dispatch.dispatched", "dispatch.settled", "store.write"] {
        assert!(listed.contains(event), "{event} is not in {listed}");
    }
    let verified = audit(&["verify", "--json"]).ok().json();
    assert!(verified["lines"].as_u64().unwrap() >= 3, "{verified}");
    let head = verified["head"].as_str().unwrap().to_owned();
    audit(&["verify", "--head", &head]).ok();
    audit(&["verify", "--head", "00ff"]).exits(1).says(&["not there"]);
    let worker = json!({"role": "operator", "ttl": "1h"});
    let (_, token) = send(daemon.post("/v1/tokens", &worker)).await;
    let request = daemon.with(token["token"].as_str().unwrap(), Method::GET, "/v1/audit");
    assert_eq!(refusal(request).await, (403, "forbidden_verb".to_owned()));
    daemon.stop();
    if needs_sqlite("an audit log that is changed in the database's file") {
        return;
    }

    // The database itself refuses a change; whoever removes that first is found by the hashes.
    let db = rusqlite_open(&shell);
    let change = "UPDATE audit SET line = replace(line, 'echo', 'eche')";
    let refused = db.execute(change, []).unwrap_err().to_string();
    assert!(refused.contains("never changed"), "{refused}");
    assert!(db.execute("DELETE FROM audit", []).is_err());
    db.execute_batch("DROP TRIGGER audit_is_never_changed").unwrap();
    db.execute(change, []).unwrap();
    drop(db);
    let again = self::daemon(&shell, config);
    let url = again.get("/").build().unwrap().url().as_str().trim_end_matches('/').to_owned();
    let at = ["audit", "verify", "--server", &url, "--token", &again.token];
    shell.run(&at).exits(1).says(&["audit log", "was changed"]);
}

fn rusqlite_open(shell: &Shell) -> rusqlite::Connection {
    rusqlite::Connection::open(shell.path("data").join("moonswarm.db")).unwrap()
}

#[tokio::test]
async fn the_stack_is_shown_in_its_order() {
    let shell = Shell::new();
    let daemon = daemon(&shell, "[[middleware]]\nkind = \"rate_limit\"\nrate = \"100/s\"\n");
    let source = echoing("swarm.middleware.cache {}", "return ctx:run('e', 1)");
    let run = daemon.run_source(&source, json!({})).await;
    daemon.ended(&run).await;
    let url = daemon.get("/").build().unwrap().url().as_str().trim_end_matches('/').to_owned();
    let at = ["--server", &url, "--token", &daemon.token, "--json"];
    let names = |args: &[&str]| {
        let listed = shell.run(&[args, &at[..]].concat()).ok().json();
        let layers = listed.as_array().unwrap().iter();
        let dispatch = layers.filter(|it| it["boundary"] == "dispatch");
        dispatch.map(|it| it["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&["show", "--stack"]), ["tracing", "gate", "rate_limit"]);
    let of_run = names(&["show", &run, "--stack"]);
    assert_eq!(of_run, ["tracing", "gate", "rate_limit", "wrapped/cache"]);
}

#[tokio::test]
async fn a_layer_that_cannot_be_is_found_by_check_and_by_the_start() {
    let shell = Shell::new();
    shell.write("bad.lua", echoing("swarm.middleware.budget { usd = \"-1\" }", "return 1"));
    let found = shell.run(&["check", "bad.lua"]).exits(3);
    assert!(found.stdout.contains("MS-B028") && found.stdout.contains("less than nothing"));
    shell.write("bad.toml", "[[middleware]]\nkind = \"budgte\"\n");
    let told = shell.run(&["serve", "--config", "bad.toml"]).exits(2);
    told.says(&["bad.toml:2:8", "did you mean `budget`?"]);
}
