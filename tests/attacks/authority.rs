//! Authority: what a token may bring, call, signal, link and answer.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Daemon, Shell, refusal, send};

#[path = "../sessions/client.rs"]
#[expect(dead_code, reason = "the attacks need a part of it")]
mod client;

use client::Opened;

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_else(|| panic!("{name} in {value}"))
}

/// A token as the admin gives it.
async fn token(daemon: &Daemon, body: Value) -> String {
    token_by(daemon, &daemon.token, body).await
}

async fn token_by(daemon: &Daemon, by: &str, mut body: Value) -> String {
    body["ttl"] = json!("1h");
    let (status, minted) = send(daemon.with(by, Method::POST, "/v1/tokens").json(&body)).await;
    assert_eq!(status, 201, "{minted}");
    text(&minted, "token").to_owned()
}

/// A session as whoever has a token opens it.
async fn session(daemon: &Daemon, by: &str, body: Value) -> Opened {
    let path = "/v1/operators/main-ai/sessions";
    let (status, opened) = send(daemon.with(by, Method::POST, path).json(&body)).await;
    assert_eq!(status, 201, "{opened}");
    Opened { id: text(&opened, "session").to_owned(), token: text(&opened, "token").to_owned() }
}

async fn publish(daemon: &Daemon, by: &str, name: &str, source: &str) -> String {
    let path = format!("/v1/blueprints/{name}");
    let put = daemon.with(by, Method::PUT, &path).json(&json!({ "source": source }));
    let (status, view) = send(put).await;
    assert_eq!(status, 200, "{view}");
    text(&view, "hash").to_owned()
}

async fn starts(daemon: &Daemon, by: &str, body: Value) -> (u16, Value) {
    send(daemon.with(by, Method::POST, "/v1/runs").json(&body)).await
}

/// A program that leaves a mark where it ran.
fn marks(mark: &std::path::Path) -> String {
    format!(
        r#"local swarm = require("swarm")
return swarm.blueprint {{ name = "safe",
  agents = {{ p = {{ operator = "process", command = {{ "touch", {mark:?} }} }} }},
  flow = function(ctx) ctx:run("p", {{}}) return "ran" end }}"#
    )
}

const SAFE: &str = r#"local swarm = require("swarm")
return swarm.blueprint { name = "safe", flow = function(ctx) return "safe" end }"#;

const FORBIDDEN: (u16, &str) = (403, "forbidden_verb");

fn is_forbidden((status, code): (u16, String)) {
    assert_eq!((status, code.as_str()), FORBIDDEN);
}

#[tokio::test]
async fn whoever_may_start_a_blueprint_brings_no_code_under_its_name() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let mark = shell.path("mark");
    let code = marks(&mark);
    publish(&daemon, &daemon.token, "safe", SAFE).await;
    let scopes = json!(["blueprint:safe", "run:*", "operator:*"]);
    let narrow = token(&daemon, json!({ "role": "operator", "scopes": scopes })).await;
    let (status, run) =
        starts(&daemon, &narrow, json!({ "blueprint": "safe", "wait": "20s" })).await;
    assert_eq!((status, &run["output"]), (201, &json!("safe")), "{run}");

    let flow = json!({ "kind": "seq" });
    let agents = json!({ "p": { "operator": "process", "command": ["touch", mark] } });
    for body in [
        json!({ "source": code }),
        json!({ "files": { "main.lua": code } }),
        json!({ "flow": flow, "agents": agents }),
        json!({ "blueprint": "safe", "workdir": "/" }),
    ] {
        let start = daemon.with(&narrow, Method::POST, "/v1/runs").json(&body);
        is_forbidden(refusal(start).await);
    }
    let fork = format!("/v1/runs/{}/fork", text(&run, "id"));
    let fork = |body: Value| daemon.with(&narrow, Method::POST, &fork).json(&body);
    is_forbidden(refusal(fork(json!({ "from_step": 1, "source": code }))).await);
    assert_eq!(send(fork(json!({ "from_step": 1 }))).await.0, 201, "its own program is no new one");

    let opened = session(&daemon, &narrow, json!({})).await;
    let mut socket = opened.connect(&daemon).await;
    assert_eq!(socket.refused("run/start", json!({ "source": code })).await, "forbidden_verb");
    let run = socket.ask("run/start", json!({ "blueprint": "safe", "wait": "20s" })).await;
    assert_eq!(run["output"], "safe");

    let import = daemon.with(&narrow, Method::POST, "/v1/runs/import").body("{}");
    is_forbidden(refusal(import).await);
    let check = daemon.with(&narrow, Method::POST, "/v1/check").json(&json!({ "source": code }));
    assert_eq!(send(check).await.0, 200, "nothing runs in a check");
    assert!(!mark.exists(), "nothing of that ran");
}

#[tokio::test]
async fn what_was_only_posted_is_no_blueprint_of_its_name() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    let mark = shell.path("mark");
    let scopes = json!(["blueprint:safe", "run:*", "operator:*"]);
    let narrow = token(&daemon, json!({ "role": "operator", "scopes": scopes })).await;
    // Somebody who may, runs it once: it is kept by its hash, under the name that it gives itself.
    let (status, run) = starts(&daemon, &daemon.token, json!({ "source": marks(&mark) })).await;
    assert_eq!(status, 201, "{run}");
    assert_eq!(daemon.ended(text(&run, "id")).await["output"], "ran");
    std::fs::remove_file(&mark).unwrap();
    let hash = text(&run, "hash").to_owned();
    daemon.kill();
    let daemon = Daemon::start(&data);
    for reference in [format!("safe@{hash}"), format!("safe@{}", &hash[..8])] {
        let start = daemon.with(&narrow, Method::POST, "/v1/runs");
        is_forbidden(refusal(start.json(&json!({ "blueprint": reference }))).await);
    }
    let fork = format!("/v1/runs/{}/fork", text(&run, "id"));
    let fork = daemon.with(&narrow, Method::POST, &fork).json(&json!({ "from_step": 1 }));
    is_forbidden(refusal(fork).await);
    assert!(!mark.exists(), "nothing of that ran");
    // An admin runs it by its hash, and whoever was given the right to bring code.
    let start = json!({ "blueprint": format!("safe@{hash}"), "wait": "20s" });
    assert_eq!(starts(&daemon, &daemon.token, start).await.1["output"], "ran");
}

#[tokio::test]
async fn the_right_to_bring_code_is_given_on_purpose() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let posted = || json!({ "source": SAFE, "wait": "20s" });
    let author = json!({ "role": "operator", "extra_verbs": ["run.source"] });
    let author = token(&daemon, author).await;
    assert_eq!(starts(&daemon, &author, posted()).await.1["output"], "safe");
    // What is made from it has the right only where that is asked for.
    let child =
        token_by(&daemon, &author, json!({ "role": "operator", "verbs": ["run.start"] })).await;
    assert_eq!(starts(&daemon, &child, posted()).await.0, 403);
    let opened = session(&daemon, &author, json!({})).await;
    assert_eq!(starts(&daemon, &opened.token, posted()).await.0, 403);
    let asked = session(&daemon, &author, json!({ "extra_verbs": ["run.source"] })).await;
    assert_eq!(starts(&daemon, &asked.token, posted()).await.1["output"], "safe");
    // Nobody gives what they do not have, and no role what it never has.
    let plain = token(&daemon, json!({ "role": "operator" })).await;
    let wider = json!({ "role": "operator", "ttl": "1h", "extra_verbs": ["run.source"] });
    let mint = daemon.with(&plain, Method::POST, "/v1/tokens").json(&wider);
    assert_eq!(refusal(mint).await, (403, "token_widens".to_owned()));
    let wider = json!({ "extra_verbs": ["run.source"] });
    let open = daemon.with(&plain, Method::POST, "/v1/operators/main-ai/sessions").json(&wider);
    assert_eq!(refusal(open).await, (403, "token_widens".to_owned()));
    let never = json!({ "role": "observer", "ttl": "1h", "extra_verbs": ["run.source"] });
    assert_eq!(refusal(daemon.post("/v1/tokens", &never)).await.0, 400);
}

#[tokio::test]
async fn nobody_answers_a_run_through_a_token_or_session_that_they_made() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let asks = r#"local swarm = require("swarm")
return swarm.blueprint { name = "asks", flow = function(ctx)
  return ctx:approve { title = "Delete prod?" } end }"#;
    publish(&daemon, &daemon.token, "asks", asks).await;
    let extra = json!({ "extra_verbs": ["task.answer", "task.expire"] });
    let agent = json!({ "role": "operator", "name": "agent", "extra_verbs": extra["extra_verbs"] });
    let agent = token(&daemon, agent).await;
    let root = daemon.token.clone();
    // A main agent that kept its token, and one whose session a person opened.
    for opener in [&agent, &root] {
        let first = session(&daemon, opener, extra.clone()).await;
        let start = json!({ "blueprint": "asks" });
        let (status, run) = starts(&daemon, &first.token, start).await;
        assert_eq!(status, 201, "{run}");
        daemon.waits(text(&run, "id"), "task").await;
        let (_, tasks) = send(daemon.get("/v1/tasks?kind=human")).await;
        let task = format!("/v1/tasks/{}", text(&tasks["items"][0], "id"));
        let second = session(&daemon, &first.token, extra.clone()).await;
        let third = session(&daemon, &second.token, extra.clone()).await;
        let ann = json!({ "role": "operator", "name": "ann", "extra_verbs": ["task.answer"] });
        let minted = token_by(&daemon, &second.token, ann.clone()).await;
        let mut own = vec![first.token.clone(), second.token, third.token, minted];
        if *opener == agent {
            own.push(agent.clone());
            own.push(token_by(&daemon, &agent, ann).await);
            let mut other_case = json!({ "role": "operator", "name": "Agent" });
            other_case["extra_verbs"] = json!(["task.answer"]);
            own.push(token(&daemon, other_case).await);
            own.push(session(&daemon, &agent, extra.clone()).await.token);
        }
        let yes = json!({ "output": { "approved": true } });
        for (n, own) in own.iter().enumerate() {
            let answer = daemon.with(own, Method::POST, &format!("{task}/answer")).json(&yes);
            assert_eq!(refusal(answer).await, (403, "self_approval".to_owned()), "{n}");
        }
        let expire = daemon.with(&own[1], Method::POST, &format!("{task}/expire"));
        assert_eq!(refusal(expire).await, (403, "self_approval".to_owned()));
        let plain = session(&daemon, &root, json!({})).await;
        let answer = daemon.with(&plain.token, Method::POST, &format!("{task}/answer")).json(&yes);
        is_forbidden(refusal(answer).await);
        let approver = token(&daemon, json!({ "role": "approver", "name": "eve" })).await;
        let answer = daemon.with(&approver, Method::POST, &format!("{task}/answer")).json(&yes);
        assert_eq!(send(answer).await.0, 200);
        assert_eq!(daemon.ended(text(&run, "id")).await["output"]["approved"], true);
    }
}

#[tokio::test]
async fn a_posted_flow_reaches_no_more_than_its_starter_and_a_published_one_its_publisher() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let other = SAFE.replace("\"safe\"", "\"other\"");
    publish(&daemon, &daemon.token, "other", &other).await;
    let waits = r#"local swarm = require("swarm")
return swarm.blueprint { name = "waits", flow = function(ctx) return ctx:wait("go") end }"#;
    let target = daemon.run_source(waits, Value::Null).await;
    let reaches = r#"local swarm = require("swarm")
return swarm.blueprint { name = "mine", flow = function(ctx, input)
  local function kind(fn) local ok, err = pcall(fn) return ok and "ok" or err.kind end
  local notes = ctx:scope { custom = "n" }
  return {
    kind(function() ctx:call("other") end),
    kind(function() ctx:signal(input.to, "go", "evil") end),
    kind(function() notes:link("a/x", "secret/y", "near") end),
  } end }"#;
    let scopes = json!(["blueprint:mine", "operator:*", "state:custom:n/a"]);
    let verbs = json!(["run.source"]);
    let narrow = json!({ "role": "operator", "scopes": scopes, "extra_verbs": verbs });
    let narrow = token(&daemon, narrow).await;
    let run = async |body: Value| {
        let (status, made) = starts(&daemon, &narrow, body).await;
        assert_eq!((status, made.as_object().unwrap().len()), (201, 1), "its id alone: {made}");
        daemon.ended(text(&made, "id")).await["output"].clone()
    };
    let input = json!({ "to": target });
    let refused = json!(["refused", "refused", "refused"]);
    assert_eq!(run(json!({ "source": reaches, "input": input })).await, refused);
    let publisher = token(&daemon, json!({ "role": "admin", "scopes": scopes })).await;
    publish(&daemon, &publisher, "mine", reaches).await;
    assert_eq!(run(json!({ "blueprint": "mine", "input": input })).await, refused);
    let (_, view) = send(daemon.get(&format!("/v1/runs/{target}"))).await;
    assert!(view["ended_at"].is_null(), "{view}");
    publish(&daemon, &daemon.token, "mine", reaches).await;
    let done = run(json!({ "blueprint": "mine", "input": input })).await;
    assert_eq!(done, json!(["ok", "ok", "ok"]));
    assert_eq!(daemon.ended(&target).await["output"], "evil");
}

#[tokio::test]
async fn both_ends_of_a_link_must_be_within_the_tokens_prefix() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let scopes = json!(["state:custom:n/a"]);
    let narrow = token(&daemon, json!({ "role": "operator", "scopes": scopes })).await;
    let batch = |op: &str, from: &str, to: &str| {
        let op = json!({ "op": op, "scope": "custom:n", "key": from, "to": to, "relation": "r" });
        let path = "/v1/state/batch";
        daemon.with(&narrow, Method::POST, path).json(&json!({ "ops": [op] }))
    };
    for op in ["link", "unlink"] {
        for (from, to) in [("a/x", "secret"), ("secret", "a/x")] {
            let refused = refusal(batch(op, from, to)).await;
            assert_eq!(refused, (403, "forbidden_scope".to_owned()), "{op} {from} {to}");
        }
        assert_eq!(send(batch(op, "a/x", "a/y")).await.0, 200, "{op}");
    }
}

#[tokio::test]
async fn a_token_sees_the_operators_that_it_reaches() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let names = async |token: &str| {
        let (status, list) = send(daemon.with(token, Method::GET, "/v1/operators")).await;
        assert_eq!(status, 200, "{list}");
        let items = list["items"].as_array().unwrap().iter();
        items.map(|item| text(item, "name").to_owned()).collect::<Vec<_>>()
    };
    assert!(names(&daemon.token).await.len() > 2);
    for (scopes, seen) in [(json!(["run:*"]), vec![]), (json!(["operator:echo"]), vec!["echo"])] {
        let narrow = token(&daemon, json!({ "role": "operator", "scopes": scopes })).await;
        assert_eq!(names(&narrow).await, seen);
    }
}

#[tokio::test]
async fn a_start_that_may_not_be_read_is_answered_with_its_id_and_starts_once() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    publish(&daemon, &daemon.token, "safe", SAFE).await;
    let body = json!({ "role": "operator", "scopes": ["blueprint:safe"] });
    let narrow = token(&daemon, body).await;
    let start = |body: Value| {
        let start = daemon.with(&narrow, Method::POST, "/v1/runs").json(&body);
        send(start.header("idempotency-key", "k"))
    };
    let (status, made) = start(json!({ "blueprint": "safe" })).await;
    assert_eq!((status, made.as_object().unwrap().len()), (201, 1), "{made}");
    assert_eq!(start(json!({ "blueprint": "safe" })).await.1, made);
    let read = daemon.with(&narrow, Method::GET, &format!("/v1/runs/{}", text(&made, "id")));
    assert_eq!(refusal(read).await, (403, "forbidden_scope".to_owned()));
    let (_, list) = send(daemon.get("/v1/runs")).await;
    assert_eq!(list["items"].as_array().unwrap().len(), 1, "{list}");

    // The command line chooses no directory that the token may not choose.
    let at = ["--server", &daemon.url, "--token", &narrow];
    let id = shell.run(&[&["run", "safe", "--detach"], &at[..]].concat()).ok().stdout;
    assert_eq!(daemon.ended(id.trim()).await["output"], "safe");
    let watched = shell.run(&[&["run", "safe"], &at[..]].concat());
    watched.exits(5).says(&["was started, and this token may not read it"]);
}
