//! The worker protocol, as a client without any library speaks it.

use std::time::{SystemTime, UNIX_EPOCH};

use moonswarm::token::{Claims, KeyRing, SigningKey, TokenKind};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use crate::support::{Daemon, Shell, numbered_events, refusal, send};

const FLOW: &str = r#"local swarm = require("swarm")
local s = swarm.schema
return swarm.blueprint { name = "reviews",
  agents = { review = { operator = "queue", queue = "reviews", prompt = "Review {{ what }}.",
    output = s.object { ok = s.boolean } } },
  flow = function(ctx, input)
    local got = ctx:run("review", { what = "the code" })
    ctx:wait("done")
    return got
  end }"#;

async fn queue_token(daemon: &Daemon) -> String {
    let body = json!({"role": "queue", "scopes": ["queue:reviews"], "ttl": "1h"});
    let (status, minted) = send(daemon.post("/v1/tokens", &body)).await;
    assert_eq!(status, 201, "{minted}");
    minted["token"].as_str().unwrap().to_owned()
}

async fn lease(daemon: &Daemon, token: &str, wait: &str) -> (u16, Value) {
    let body = json!({"queue": "reviews", "wait": wait, "max": 1, "worker": "box-7"});
    send(daemon.with(token, Method::POST, "/v1/worker/lease").json(&body)).await
}

/// A worker that holds a handle.
struct Worker<'a> {
    daemon: &'a Daemon,
    handle: String,
}

impl Worker<'_> {
    fn get(&self, path: &str) -> RequestBuilder {
        self.daemon.with(&self.handle, Method::GET, &format!("/v1/worker/{path}"))
    }

    fn post(&self, path: &str, body: &Value) -> RequestBuilder {
        self.daemon.with(&self.handle, Method::POST, &format!("/v1/worker/{path}")).json(body)
    }
}

#[tokio::test]
async fn a_worker_leases_reads_works_and_reports_once() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let token = queue_token(&daemon).await;
    assert_eq!(lease(&daemon, &token, "50ms").await.0, 204, "there is nothing to do yet");
    let long = lease(&daemon, &token, "30s");
    let (leased, run) = tokio::join!(long, daemon.run_source(FLOW, json!({})));
    assert_eq!(leased.0, 200, "{leased:?}");
    let handle = leased.1[0]["handle"].as_str().unwrap().to_owned();
    assert!(handle.starts_with("wh_"));
    let worker = Worker { daemon: &daemon, handle };

    let (_, prompt) = send(worker.get("prompt")).await;
    assert_eq!((&prompt["prompt"], &prompt["attempt"]), (&json!("Review the code."), &json!(1)));
    assert_eq!((&prompt["run"], &prompt["input"]), (&json!(run), &json!({"what": "the code"})));
    let said = json!({"text": "half", "percent": 50});
    assert_eq!(send(worker.post("progress", &said)).await.0, 204);
    assert_eq!(send(worker.post("heartbeat", &Value::Null)).await.1["cancel"], false);
    let file = worker.post("artifact?name=notes.md", &Value::Null).body("# notes");
    let (status, file) = send(file).await;
    assert_eq!((status, &file["size"]), (200, &json!(7)), "{file}");

    let (status, problem) = send(worker.post("result", &json!({"output": {"ok": "yes"}}))).await;
    assert_eq!((status, &problem["code"]), (422, &json!("invalid_result")), "{problem}");
    assert_eq!(problem["path"], "$.ok", "{problem}");
    let good = json!({"output": {"ok": true}, "usage": {"input": 5}});
    let (status, accepted) = send(worker.post("result", &good)).await;
    assert_eq!((status, &accepted["repeated"]), (200, &json!(false)), "{accepted}");
    let (status, accepted) = send(worker.post("result", &good)).await;
    assert_eq!((status, &accepted["repeated"]), (200, &json!(true)), "{accepted}");
    let other = worker.post("result", &json!({"output": {"ok": false}}));
    assert_eq!(refusal(other).await, (409, "already_accepted".to_owned()));

    send(daemon.post(&format!("/v1/runs/{run}/signals/done"), &json!(true))).await;
    assert_eq!(daemon.ended(&run).await["output"], json!({"ok": true}));
    let (_, files) = send(daemon.get(&format!("/v1/runs/{run}/artifacts"))).await;
    assert_eq!(files["items"][0]["name"], "notes.md", "published with the result");
}

#[tokio::test]
async fn a_raw_report_skips_by_its_verdict() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let token = queue_token(&daemon).await;
    let run = daemon.run_source(FLOW, json!({})).await;
    let (_, leased) = lease(&daemon, &token, "30s").await;
    let handle = leased[0]["handle"].as_str().unwrap().to_owned();
    let worker = Worker { daemon: &daemon, handle };
    let submit = |query: &str, body: &'static str| {
        worker.post(&format!("submit{query}"), &Value::Null).body(body)
    };
    assert_eq!(refusal(submit("?verdict=maybe", "x")).await.0, 400);
    let (status, accepted) = send(submit("?verdict=skip", "no code was changed\n")).await;
    assert_eq!((status, &accepted["repeated"]), (200, &json!(false)), "{accepted}");
    let (_, accepted) = send(submit("?verdict=skip", "no code was changed\n")).await;
    assert_eq!(accepted["repeated"], true, "{accepted}");
    let other = refusal(submit("", "no code was changed\n")).await;
    assert_eq!(other, (409, "already_accepted".to_owned()));
    send(daemon.post(&format!("/v1/runs/{run}/signals/done"), &json!(true))).await;
    assert_eq!(daemon.ended(&run).await["output"], Value::Null);
    let (_, steps) = send(daemon.get(&format!("/v1/runs/{run}/steps"))).await;
    let reason = &steps["items"][0]["effects"][0]["data"]["reason"];
    assert_eq!(reason, "no code was changed", "{steps}");
}

#[tokio::test]
async fn a_lease_and_its_handle_outlive_a_daemon_that_is_killed() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    let token = queue_token(&daemon).await;
    let run = daemon.run_source(FLOW, json!({})).await;
    let (_, leased) = lease(&daemon, &token, "30s").await;
    let handle = leased[0]["handle"].as_str().unwrap().to_owned();
    daemon.kill();

    let daemon = Daemon::start(&data);
    let worker = Worker { daemon: &daemon, handle };
    assert_eq!(send(worker.get("prompt")).await.1["attempt"], 1);
    let good = json!({"output": {"ok": true}});
    assert_eq!(send(worker.post("result", &good)).await.1["repeated"], false);
    send(daemon.post(&format!("/v1/runs/{run}/signals/done"), &json!(true))).await;
    assert_eq!(daemon.ended(&run).await["output"], json!({"ok": true}));
    assert_eq!(send(worker.post("result", &good)).await.1["repeated"], true, "also afterwards");
}

#[tokio::test]
async fn a_report_to_a_closed_run_is_refused_and_three_bad_ones_end_the_attempt() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let token = queue_token(&daemon).await;
    let run = daemon.run_source(FLOW, json!({})).await;
    let (_, leased) = lease(&daemon, &token, "30s").await;
    let worker =
        Worker { daemon: &daemon, handle: leased[0]["handle"].as_str().unwrap().to_owned() };
    send(worker.get("prompt")).await;
    send(daemon.post(&format!("/v1/runs/{run}/cancel"), &json!({}))).await;
    let late = worker.post("result", &json!({"output": {"ok": true}}));
    assert_eq!(refusal(late).await, (409, "run_closed".to_owned()));

    let run = daemon.run_source(FLOW, json!({})).await;
    let (_, leased) = lease(&daemon, &token, "30s").await;
    let worker =
        Worker { daemon: &daemon, handle: leased[0]["handle"].as_str().unwrap().to_owned() };
    for bad in 1..=3 {
        let report = worker.post("result", &json!({"output": {"ok": bad}}));
        let (status, problem) = send(report).await;
        assert_eq!((status, &problem["code"]), (422, &json!("invalid_result")), "{bad}");
        let is_last = problem["detail"].as_str().unwrap().contains("the last result");
        assert_eq!(is_last, bad == 3, "{problem}");
    }
    let ended = daemon.ended(&run).await;
    assert_eq!(
        (&ended["status"], &ended["error"]["kind"]),
        (&json!("failed"), &json!("invalid_result"))
    );
}

#[tokio::test]
async fn a_bearer_of_one_sort_is_not_taken_for_another() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let token = queue_token(&daemon).await;
    daemon.run_source(FLOW, json!({})).await;
    let (_, leased) = lease(&daemon, &token, "30s").await;
    let handle = leased[0]["handle"].as_str().unwrap();
    let forbidden = (403, "forbidden_verb".to_owned());
    assert_eq!(refusal(daemon.with(handle, Method::GET, "/v1/runs")).await, forbidden);
    assert_eq!(refusal(daemon.get("/v1/worker/prompt")).await, forbidden);
    let other = json!({"queue": "builds"});
    let asked = daemon.with(&token, Method::POST, "/v1/worker/lease").json(&other);
    assert_eq!(refusal(asked).await, (403, "forbidden_scope".to_owned()));
    let mut forged = handle.to_owned();
    let last = if forged.pop() == Some('a') { 'b' } else { 'a' };
    forged.push(last);
    let asked = daemon.with(&forged, Method::GET, "/v1/worker/prompt");
    assert_eq!(refusal(asked).await.0, 401);
}

#[tokio::test]
async fn a_command_works_for_a_queue() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path(".moonswarm"));
    let run = daemon.run_source(&FLOW.replace("ctx:wait(\"done\")", ""), json!({})).await;
    let script = r#"grep -q 'the code' && echo '{"ok":true}'"#;
    let mut worker = shell.start(&["worker", "--queue", "reviews", "--", "sh", "-c", script]);
    worker.until("done");
    assert_eq!(daemon.ended(&run).await["output"], json!({"ok": true}));
    worker.signal(rustix::process::Signal::TERM);
}

#[tokio::test]
async fn a_child_process_reports_over_http_with_the_handle_in_its_environment() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let flow = r#"local swarm = require("swarm")
return swarm.blueprint { name = "child",
  agents = { child = { operator = "process", command = { "python3", "-c", [[
import json, os, urllib.request
def call(method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(os.environ["MOONSWARM_URL"] + "/v1/worker/" + path, data, method=method,
      headers={"Authorization": "Bearer " + os.environ["MOONSWARM_HANDLE"], "Content-Type": "application/json"})
    return urllib.request.urlopen(request).read()
prompt = json.loads(call("GET", "prompt"))
call("POST", "result", {"output": {"double": prompt["input"]["n"] * 2}})
]] } } },
  flow = function(ctx, input) return ctx:run("child", { n = 21 }) end }"#;
    let run = daemon.run_source(flow, json!({})).await;
    let ended = daemon.ended(&run).await;
    assert_eq!(ended["output"], json!({"double": 42}), "{ended}");
}

#[tokio::test]
async fn files_of_a_child_are_published_also_where_its_result_is_what_it_prints() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let flow = r#"local swarm = require("swarm")
return swarm.blueprint { name = "prints",
  agents = { child = { operator = "process", command = { "python3", "-c", [[
import os, urllib.request
for n in range(2):
    request = urllib.request.Request(os.environ["MOONSWARM_URL"] + "/v1/worker/artifact?name=%d.md" % n, b"file %d" % n,
      method="POST", headers={"Authorization": "Bearer " + os.environ["MOONSWARM_HANDLE"]})
    urllib.request.urlopen(request).read()
print(7)
]] } } },
  flow = function(ctx) return ctx:run("child", {}) end }"#;
    let run = daemon.run_source(flow, json!({})).await;
    assert_eq!(daemon.ended(&run).await["output"], 7);
    let (_, page) = send(daemon.get(&format!("/v1/runs/{run}/events?format=json"))).await;
    let items = page["items"].as_array().unwrap();
    let done = items.iter().find(|it| it["type"] == "step.completed").unwrap();
    let names = |files: &Value| -> Vec<Value> {
        files.as_array().unwrap().iter().map(|file| file["name"].clone()).collect()
    };
    assert_eq!(names(&done["data"]["artifacts"]), ["0.md", "1.md"], "{page}");
    let stream = daemon.get(&format!("/v1/runs/{run}/events")).send().await.unwrap();
    let stream = numbered_events(&stream.text().await.unwrap());
    let streamed = stream.iter().find(|it| it["type"] == "step.completed");
    assert_eq!(streamed, Some(done), "the stream and the page say the same");
    let (_, files) = send(daemon.get(&format!("/v1/runs/{run}/artifacts"))).await;
    assert_eq!(names(&files["items"]), ["0.md", "1.md"], "{files}");
}

#[tokio::test]
async fn a_worker_and_its_run_share_the_runs_state() {
    const SHARED: &str = r#"local swarm = require("swarm")
return swarm.blueprint { name = "shared",
  agents = { review = { operator = "queue", queue = "reviews" } },
  flow = function(ctx)
    ctx.state:set("asked", { by = "the run" })
    ctx:run("review", {})
    return ctx.state:get("found")
  end }"#;
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let token = queue_token(&daemon).await;
    let run = daemon.run_source(SHARED, json!({})).await;
    let (_, leased) = lease(&daemon, &token, "30s").await;
    let handle = leased[0]["handle"].as_str().unwrap().to_owned();
    let worker = Worker { daemon: &daemon, handle };

    let (status, asked) = send(worker.get("state/asked")).await;
    assert_eq!((status, &asked), (200, &json!({"by": "the run"})));
    assert_eq!(refusal(worker.get("state/found")).await, (404, "not_found".to_owned()));
    let put = |key: &str, body: &str| {
        let path = format!("/v1/worker/state/{key}");
        daemon.with(&worker.handle, Method::PUT, &path).body(body.to_owned())
    };
    assert_eq!(send(put("found", "[1,2]")).await.0, 204);
    assert_eq!(refusal(put("found", "[1,")).await, (400, "malformed_json".to_owned()));
    let (_, found) = send(worker.get("state/found")).await;
    assert_eq!(found, json!([1, 2]), "its own write is there at once");

    send(worker.post("result", &json!({"output": null}))).await;
    assert_eq!(daemon.ended(&run).await["output"], json!([1, 2]));
    let late = put("found", "3");
    assert_eq!(refusal(late).await.0, 409, "its attempt is over");
}

#[tokio::test]
async fn a_handle_is_changed_for_a_token_that_can_do_less_and_ends_by_itself() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    let token = queue_token(&daemon).await;
    let long = lease(&daemon, &token, "30s");
    let ((_, leased), _run) = tokio::join!(long, daemon.run_source(FLOW, json!({})));
    let handle = leased[0]["handle"].as_str().unwrap().to_owned();
    let worker = Worker { daemon: &daemon, handle };
    let (status, whole) = send(worker.post("token", &json!({}))).await;
    assert_eq!(status, 201, "{whole}");
    let whole = Worker { daemon: &daemon, handle: whole["token"].as_str().unwrap().into() };
    assert_eq!(send(whole.get("prompt")).await.0, 200);
    let (_, beat) = send(whole.post("heartbeat", &Value::Null)).await;
    let fresh = Worker { daemon: &daemon, handle: beat["token"].as_str().unwrap().into() };
    assert_eq!(send(fresh.get("prompt")).await.0, 200, "a heartbeat renews it");

    let narrow = json!({"verbs": ["worker.prompt"], "ttl": "1m"});
    let (_, narrow) = send(whole.post("token", &narrow)).await;
    let narrow = Worker { daemon: &daemon, handle: narrow["token"].as_str().unwrap().into() };
    assert_eq!(send(narrow.get("prompt")).await.0, 200);
    let good = json!({"output": {"ok": true}});
    assert_eq!(refusal(narrow.post("result", &good)).await, (403, "forbidden_verb".to_owned()));
    let wider = json!({"verbs": ["worker.result"]});
    assert_eq!(refusal(narrow.post("token", &wider)).await, (403, "forbidden_verb".to_owned()));
    for (odd, status) in [
        (json!({"verbs": ["worker.fly"]}), 400),
        (json!({"ttl": "2h"}), 400),
        (json!({"ttl": "soon"}), 422),
    ] {
        assert_eq!(send(whole.post("token", &odd)).await.0, status, "{odd}");
    }

    // The host's own key signs a token for the same attempt that ended a minute ago.
    let key = std::fs::read(data.join("signing.key")).unwrap();
    let keys = KeyRing::new(SigningKey::from_pem(&key).unwrap());
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let verified = keys.verify(&whole.handle, &[TokenKind::Task], now_s).unwrap();
    let renewed = keys.verify(&fresh.handle, &[TokenKind::Task], now_s).unwrap();
    assert!(renewed.jti == verified.jti && renewed.exp >= verified.exp);
    let ended = Claims { iat: now_s - 660, nbf: now_s - 660, exp: now_s - 60, ..verified };
    let ended = Worker { daemon: &daemon, handle: keys.sign(&ended).unwrap() };
    let (status, problem) = send(ended.get("prompt")).await;
    assert_eq!((status, &problem["code"]), (401, &json!("unauthenticated")), "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("expired"), "{problem}");

    assert_eq!(send(whole.post("result", &good)).await.0, 200);
    assert_eq!(refusal(whole.post("token", &json!({}))).await.0, 409, "the attempt is over");
}

#[tokio::test]
async fn a_file_is_stored_with_a_run_outside_of_any_task() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let source = r#"return require("swarm").blueprint {
      name = "waits", flow = function(ctx) return ctx:wait("go") end }"#;
    let run = daemon.run_source(source, json!(null)).await;
    let path = format!("/v1/runs/{run}/artifacts?name=notes.md");
    let put = |path: &str| daemon.bare(Method::POST, path).body("# Notes");
    let admin = |path: &str| put(path).bearer_auth(&daemon.token);
    let (status, stored) = send(admin(&path)).await;
    assert_eq!((status, &stored["size"]), (200, &json!(7)), "{stored}");
    let (_, again) = send(admin(&path)).await;
    assert_eq!(again["id"], stored["id"], "the same file is the same artifact");
    let (_, listed) = send(daemon.get(&format!("/v1/runs/{run}/artifacts"))).await;
    assert_eq!(listed["items"].as_array().unwrap().len(), 1, "{listed}");
    let file = daemon.get(&format!("/v1/artifacts/{}", stored["id"].as_str().unwrap()));
    assert_eq!(file.send().await.unwrap().text().await.unwrap(), "# Notes");
    let slash = format!("/v1/runs/{run}/artifacts?name=a/b");
    assert_eq!(refusal(admin(&slash)).await, (400, "bad_request".to_owned()));
    let (_, minted) =
        send(daemon.post("/v1/tokens", &json!({ "role": "observer", "ttl": "1h" }))).await;
    let observer = minted["token"].as_str().unwrap();
    let request = put(&path).bearer_auth(observer);
    assert_eq!(refusal(request).await, (403, "forbidden_verb".to_owned()));
    send(daemon.post(&format!("/v1/runs/{run}/cancel"), &json!({}))).await;
    daemon.ended(&run).await;
    assert_eq!(refusal(admin(&path)).await, (409, "run_closed".to_owned()));
}

/// A queue's task `second` may open what its context names; `secret` is not named.
const CONTEXT: &str = r#"return require("swarm").blueprint { name = "context",
  agents = { plan = { operator = "queue", queue = "reviews" }, secret = { operator = "echo" },
    second = { operator = "queue", queue = "reviews",
      context = { steps = { "pl*" }, artifacts = { "*.md" } } } },
  flow = function(ctx)
    ctx:run("plan", 1)
    ctx:run("secret", "hidden")
    return ctx:run("second", 2)
  end }"#;

async fn next_worker<'a>(daemon: &'a Daemon, token: &str) -> Worker<'a> {
    let (status, leased) = lease(daemon, token, "30s").await;
    assert_eq!(status, 200, "{leased}");
    Worker { daemon, handle: leased[0]["handle"].as_str().unwrap().to_owned() }
}

/// Does the first task: its output, and two files.
async fn planned<'a>(daemon: &'a Daemon, token: &str) -> (String, Worker<'a>) {
    let run = daemon.run_source(CONTEXT, json!({})).await;
    let first = next_worker(daemon, token).await;
    for (name, text) in [("plan.md", "# the plan"), ("key.pem", "hidden")] {
        let path = format!("artifact?name={name}");
        let (status, file) = send(first.post(&path, &Value::Null).body(text)).await;
        assert_eq!(status, 200, "{file}");
    }
    let done = json!({ "output": { "steps": ["a", "b"] } });
    assert_eq!(send(first.post("result", &done)).await.0, 200);
    (run, next_worker(daemon, token).await)
}

#[tokio::test]
async fn a_worker_opens_the_earlier_steps_and_files_that_its_agents_context_names() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let token = queue_token(&daemon).await;
    let (run, second) = planned(&daemon, &token).await;
    let (_, prompt) = send(second.get("prompt")).await;
    assert_eq!(prompt["context"]["open"], "/v1/worker/context", "{prompt}");
    let pointers = &prompt["context"]["steps"];
    assert_eq!(pointers, &json!(["/v1/worker/context/steps/1"]), "only what is named");
    let worker_id = prompt["worker_id"].as_str().unwrap();
    assert!(worker_id.starts_with("wrk_"), "{worker_id}");

    let (status, context) = send(second.get("context")).await;
    assert_eq!(status, 200, "{context}");
    let steps = context["steps"].as_array().unwrap();
    assert_eq!((steps.len(), &steps[0]["output"]), (1, &json!({ "steps": ["a", "b"] })));
    let files = context["artifacts"].as_array().unwrap();
    assert_eq!((files.len(), &files[0]["name"]), (1, &json!("plan.md")), "{context}");
    let (_, step) = send(second.get("context/steps/1")).await;
    assert_eq!(step, steps[0]);
    let href = files[0]["href"].as_str().unwrap().trim_start_matches("/v1/worker/").to_owned();
    let file = second.get(&href).send().await.unwrap();
    assert_eq!((file.status().as_u16(), file.text().await.unwrap().as_str()), (200, "# the plan"));

    let tar = second.get("context?format=tar").send().await.unwrap();
    assert_eq!(tar.headers()["content-type"], "application/x-tar");
    let tar = tar.bytes().await.unwrap();
    let text = String::from_utf8_lossy(&tar);
    assert!(text.contains("steps/0001-plan.json") && text.contains(r#"{"steps":["a","b"]}"#));
    assert!(text.contains("# the plan") && !text.contains("..") && !text.contains("hidden"));

    // The worker's id stands in the events and in the list of steps, too.
    let (_, shown) = send(daemon.get(&format!("/v1/runs/{run}/steps"))).await;
    assert_eq!(shown["items"][2]["worker_id"], worker_id, "{shown}");
    assert_eq!(send(second.post("result", &json!({ "output": 1 }))).await.0, 200);
    daemon.ended(&run).await;
    let events = daemon.get(&format!("/v1/runs/{run}/events")).send().await.unwrap();
    let events = events.text().await.unwrap();
    assert!(events.matches(worker_id).count() >= 2, "scheduled and started: {events}");
    let (status, refused) = send(second.get("context")).await;
    assert_eq!(status, 409, "the attempt is over: {refused}");
}

#[tokio::test]
async fn a_worker_opens_nothing_that_its_context_does_not_name() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let token = queue_token(&daemon).await;
    let (_, one) = planned(&daemon, &token).await;
    // A step that is not named, its own, one that there is not, and numbers that are none.
    for step in ["2", "3", "4", "4294967295"] {
        assert_eq!(send(one.get(&format!("context/steps/{step}"))).await.0, 404, "{step}");
    }
    for step in ["-1", "1%2F..%2F2", "x"] {
        assert_eq!(send(one.get(&format!("context/steps/{step}"))).await.0, 400, "{step}");
    }
    // The file that is not named, by the id that follows from its neighbor's.
    let (_, context) = send(one.get("context")).await;
    let own = context["artifacts"][0]["id"].as_str().unwrap().to_owned();
    let plan: moonswarm::protocol::ArtifactId = own.parse().unwrap();
    let (_, run) = send(one.get("prompt")).await;
    let run: moonswarm::protocol::RunId = run["run"].as_str().unwrap().parse().unwrap();
    let (_, all) = send(daemon.get(&format!("/v1/runs/{run}/artifacts"))).await;
    let hidden = all["items"].as_array().unwrap().iter().find(|it| it["name"] == "key.pem");
    let hidden = hidden.unwrap()["id"].as_str().unwrap().to_owned();
    assert_eq!(send(one.get(&format!("context/artifacts/{hidden}"))).await.0, 404);
    // What another run has, it has not.
    let (_, other) = planned(&daemon, &token).await;
    assert_eq!(send(other.get(&format!("context/artifacts/{own}"))).await.0, 404, "{plan:?}");
    // Nor does the handle open the routes of runs.
    for path in [format!("/v1/runs/{run}/steps/1"), format!("/v1/artifacts/{own}")] {
        let (status, refused) = send(daemon.with(&one.handle, Method::GET, &path)).await;
        assert_eq!(status, 403, "{refused}");
    }
    // A token that may not read files sees none of them.
    let narrow = json!({ "verbs": ["worker.prompt"] });
    let (_, minted) = send(one.post("token", &narrow)).await;
    let narrow = Worker { daemon: &daemon, handle: minted["token"].as_str().unwrap().to_owned() };
    let (_, context) = send(narrow.get("context")).await;
    assert_eq!(
        (context["steps"].as_array().unwrap().len(), &context["artifacts"]),
        (1, &json!([]))
    );
    assert_eq!(send(narrow.get(&format!("context/artifacts/{own}"))).await.0, 403);
}

#[tokio::test]
async fn queues_and_workers_are_listed_with_what_waits_and_who_was_seen() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let list = async |token: &str, path: &str| {
        let (status, list) = send(daemon.with(token, Method::GET, path)).await;
        assert_eq!(status, 200, "{list}");
        list["items"].as_array().unwrap().clone()
    };
    let admin = daemon.token.clone();
    assert!(list(&admin, "/v1/queues").await.is_empty());
    for _ in 0..2 {
        let run = daemon.run_source(FLOW, json!({})).await;
        daemon.waits(&run, "task").await;
    }
    let queue = list(&admin, "/v1/queues").await.remove(0);
    assert_eq!(
        (&queue["queue"], &queue["waiting"], &queue["in_work"]),
        (&json!("reviews"), &json!(2), &json!(0))
    );
    assert_eq!(queue["lines"], json!([{ "labels": {}, "waiting": 2 }]));
    assert!(queue["oldest_at"].is_string() && queue["workers"] == 0, "{queue}");

    let token = queue_token(&daemon).await;
    assert_eq!(lease(&daemon, &token, "30s").await.0, 200);
    let queue = list(&admin, "/v1/queues").await.remove(0);
    assert_eq!(
        (&queue["waiting"], &queue["in_work"], &queue["workers"]),
        (&json!(1), &json!(1), &json!(1))
    );
    let worker = list(&admin, "/v1/workers").await.remove(0);
    assert_eq!(
        (&worker["worker"], &worker["queue"], &worker["tasks"]),
        (&json!("box-7"), &json!("reviews"), &json!(1))
    );
    assert!(worker["last_seen_at"].is_string(), "{worker}");

    let mint = async |body: Value| {
        let (_, minted) = send(daemon.post("/v1/tokens", &body)).await;
        minted["token"].as_str().unwrap().to_owned()
    };
    let other = mint(json!({"role": "observer", "ttl": "1h", "scopes": ["queue:other"]})).await;
    for path in ["/v1/queues", "/v1/workers"] {
        assert!(list(&other, path).await.is_empty(), "{path}");
        let refused = refusal(daemon.with(&token, Method::GET, path)).await;
        assert_eq!(refused, (403, "forbidden_verb".to_owned()), "{path}");
    }
    let data = shell.path("data");
    let cli =
        |what: &str| shell.run(&["--data", data.to_str().unwrap(), "operators", what]).ok().stdout;
    assert!(cli("--queues").contains("reviews") && cli("--workers").contains("box-7"));
}
