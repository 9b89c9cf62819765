//! From a step of a run to a session and back.

use reqwest::Method;
use serde_json::json;

use crate::{
    client::{Opened, blueprint, open, open_with},
    support::{Daemon, Shell, send},
};

#[tokio::test]
async fn a_session_gets_a_spawn_reports_and_the_next_step_follows() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let session = open(&daemon).await;
    let mut socket = session.connect(&daemon).await;
    let source = blueprint(
        r#"local a = ctx:run("writer", { what = "one" })
           local b = ctx:run("writer", { what = "two " .. a.text })
           return ctx:run("note", b)"#,
    );
    let run = daemon.run_source(&source, json!({})).await;

    let first = socket.until("task/spawn").await;
    let spawn = &first["params"];
    assert_eq!(
        (&first["seq"], &spawn["run"], &spawn["attempt"]),
        (&json!(1), &json!(run), &json!(1))
    );
    assert_eq!(spawn["worker"], json!({"subagent_type": "writer", "tools": ["Read", "Edit"]}));
    assert!(spawn.get("prompt").is_none(), "the thin road has no prompt: {spawn}");
    let handle = spawn["handle"].as_str().unwrap();
    let (status, prompt) = send(daemon.with(handle, Method::GET, "/v1/worker/prompt")).await;
    assert_eq!((status, &prompt["prompt"]), (200, &json!("Write one.")), "{prompt}");
    let told = send(daemon.get(&format!("/v1/tasks/{}", spawn["task"].as_str().unwrap()))).await.1;
    assert_eq!((&told["state"], &told["worker"]), (&json!("processing"), &json!(session.id)));
    let done = daemon.with(handle, Method::POST, "/v1/worker/result");
    let (status, accepted) = send(done.json(&json!({"output": {"text": "A"}}))).await;
    assert_eq!(status, 200, "{accepted}");

    let second = socket.until("task/spawn").await;
    assert_eq!(second["seq"], 2);
    let task = second["params"]["task"].clone();
    socket.ask("task/accept", json!({"task": task})).await;
    let result = json!({"task": task, "output": {"text": "B"}, "usage": {"input": 7}});
    assert_eq!(socket.ask("task/result", result.clone()).await["repeated"], false);
    assert_eq!(socket.ask("task/result", result).await["repeated"], true);
    let other = json!({"task": task, "output": {"text": "C"}});
    assert_eq!(socket.refused("task/result", other).await, "already_accepted");
    let view = daemon.ended(&run).await;
    assert_eq!(view["output"], json!({"text": "B"}), "{view}");
    socket.ask("ack", json!({"seq": 2})).await;
    let (_, look) = send(daemon.get(&format!("/v1/sessions/{}", session.id))).await;
    assert_eq!((&look["open_tasks"], &look["unacknowledged"]), (&json!(0), &json!(0)), "{look}");
}

#[tokio::test]
async fn the_direct_road_has_the_prompts_in_the_frame() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let session = open_with(&daemon, json!({"direct": true, "ttl": "2h"})).await;
    let mut socket = session.connect(&daemon).await;
    let source = blueprint(r#"return ctx:run("writer", { what = "it" })"#);
    let run = daemon.run_source(&source, json!({})).await;
    let spawn = socket.until("task/spawn").await["params"].clone();
    assert_eq!((&spawn["system"], &spawn["prompt"]), (&json!("You write."), &json!("Write it.")));
    socket.ask("task/result", json!({"task": spawn["task"], "output": 1})).await;
    assert_eq!(daemon.ended(&run).await["output"], 1);
}

#[tokio::test]
async fn a_declined_task_comes_again_as_another_attempt_until_there_are_no_more() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let mut socket = open(&daemon).await.connect(&daemon).await;
    let run = daemon.run_source(&blueprint(r#"return ctx:run("coder", {})"#), json!({})).await;
    for attempt in 1..=3 {
        let spawn = socket.until("task/spawn").await["params"].clone();
        assert_eq!(spawn["attempt"], attempt);
        let no = json!({"task": spawn["task"], "reason": "no hands free"});
        socket.ask("task/decline", no).await;
    }
    let view = daemon.ended(&run).await;
    assert_eq!(view["error"]["kind"], "operator_unavailable", "{view}");
    assert!(view["error"]["message"].as_str().unwrap().contains("no hands free"), "{view}");
}

#[tokio::test]
async fn a_canceled_run_takes_its_tasks_back_and_refuses_their_results() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let mut socket = open(&daemon).await.connect(&daemon).await;
    let run = daemon.run_source(&blueprint(r#"return ctx:run("coder", {})"#), json!({})).await;
    let task = socket.until("task/spawn").await["params"]["task"].clone();
    let cancel = daemon.post(&format!("/v1/runs/{run}/cancel"), &json!({"reason": "not today"}));
    assert_eq!(send(cancel).await.0, 200);
    let canceled = socket.until("task/cancel").await;
    assert_eq!((&canceled["seq"], &canceled["params"]["task"]), (&json!(2), &task));
    assert_eq!(canceled["params"]["reason"], "the run was canceled");
    let late = json!({"task": task, "output": 1});
    assert_eq!(socket.refused("task/result", late).await, "run_closed");
}

#[tokio::test]
async fn a_result_that_breaks_its_schema_is_refused_and_may_be_mended() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let mut socket = open(&daemon).await.connect(&daemon).await;
    let run = daemon.run_source(&blueprint(r#"return ctx:run("strict", {})"#), json!({})).await;
    let task = socket.until("task/spawn").await["params"]["task"].clone();
    let answer = socket.call("task/result", json!({"task": task, "output": {"ok": "yes"}})).await;
    let data = &answer["error"]["data"];
    assert_eq!(
        (&data["code"], &data["status"]),
        (&json!("invalid_result"), &json!(422)),
        "{answer}"
    );
    assert_eq!(data["path"], "$.ok", "{answer}");
    socket.ask("task/result", json!({"task": task, "output": "{\"ok\": true}"})).await;
    assert_eq!(daemon.ended(&run).await["output"], json!({"ok": true}));
}

#[tokio::test]
async fn a_time_begins_with_the_delivery_and_its_end_is_told() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let mut socket = open(&daemon).await.connect(&daemon).await;
    let run = daemon.run_source(&blueprint(r#"return ctx:run("timed", {})"#), json!({})).await;
    let spawn = socket.until("task/spawn").await;
    assert!(spawn["params"]["deadline"].is_string(), "{spawn}");
    let waits = send(daemon.get(&format!("/v1/runs/{run}"))).await.1;
    assert_eq!(waits["status"], "waiting", "nobody has said to have it: {waits}");
    socket.ask("ack", json!({"seq": spawn["seq"]})).await;
    let works = send(daemon.get(&format!("/v1/runs/{run}"))).await.1;
    assert_eq!(works["status"], "running", "{works}");
    let task = &spawn["params"]["task"];
    let progress = json!({"task": task, "text": "half", "percent": 50});
    socket.ask("task/progress", progress).await;
    let wrong = json!({"task": task, "percent": 500});
    assert_eq!(socket.refused("task/progress", wrong).await, "invalid_body");
}

#[tokio::test]
async fn an_agent_without_a_binding_is_refused_when_it_is_compiled() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let source = r#"local swarm = require("swarm")
        return swarm.blueprint { name = "bare", agents = { a = { operator = "main-ai" } },
          flow = function(ctx) return ctx:run("a", {}) end }"#;
    let (status, problem) = send(daemon.post("/v1/runs", &json!({"source": source}))).await;
    assert_eq!((status, &problem["code"]), (422, &json!("blueprint_invalid")), "{problem}");
    assert!(problem["findings"][0]["message"].as_str().unwrap().contains("worker"), "{problem}");
}

#[tokio::test]
async fn what_a_session_has_no_room_for_waits_and_comes_as_others_end() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let session = open(&daemon).await;
    let mut socket = session.connect(&daemon).await;
    let source = blueprint(
        r#"local items = {}
           for i = 1, 300 do items[i] = i end
           local all = ctx:map(items, function(i) return ctx:run("coder", { n = i }) end)
           return #all"#,
    );
    let run = daemon.run_source(&source, json!({})).await;
    let mut first = Vec::new();
    for _ in 0..256 {
        first.push(socket.until("task/spawn").await);
    }
    let (_, look) = send(daemon.get(&format!("/v1/sessions/{}", session.id))).await;
    assert_eq!(look["open_tasks"], 256, "{look}");
    for spawn in first {
        socket.ask("task/result", json!({"task": spawn["params"]["task"], "output": 1})).await;
    }
    for _ in 256..300 {
        let spawn = socket.until("task/spawn").await;
        socket.ask("task/result", json!({"task": spawn["params"]["task"], "output": 1})).await;
    }
    assert_eq!(daemon.ended(&run).await["output"], 300);
}

#[tokio::test]
async fn the_kind_of_an_operator_is_read_as_its_name_wherever_one_is_written() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let (status, opened) = send(daemon.post("/v1/operators/main_ai/sessions", &json!({}))).await;
    assert_eq!(status, 201, "{opened}");
    let text = |name: &str| opened[name].as_str().unwrap().to_owned();
    let session = Opened { id: text("session"), token: text("token") };
    let mut socket = session.connect(&daemon).await;
    let source =
        blueprint(r#"return ctx:run("writer", { what = "it" }, { operator = "main_ai" })"#);
    let source = source.replace("\"main-ai\"", "\"main_ai\"");
    let start = json!({"files": {"main.lua": source}, "seats": {"main_ai": session.id}});
    let (status, run) = send(daemon.post("/v1/runs", &start)).await;
    assert_eq!(status, 201, "{run}");
    let spawn = socket.until("task/spawn").await["params"].clone();
    for query in ["operator=main_ai", "operator=main-ai", "kind=main-ai", "kind=main_ai"] {
        let (_, tasks) = send(daemon.get(&format!("/v1/tasks?{query}"))).await;
        assert_eq!(tasks["items"][0]["id"], spawn["task"], "{query}: {tasks}");
    }
    let result = json!({"task": spawn["task"], "output": "done"});
    socket.ask("task/result", result).await;
    assert_eq!(daemon.ended(run["id"].as_str().unwrap()).await["output"], "done");
    let mint = json!({"role": "operator", "scopes": ["operator:main_ai"], "ttl": "1h"});
    let (_, minted) = send(daemon.post("/v1/tokens", &mint)).await;
    let (_, who) =
        send(daemon.with(minted["token"].as_str().unwrap(), Method::GET, "/v1/whoami")).await;
    assert_eq!(who["scopes"], json!(["operator:main-ai"]), "{who}");
}

#[tokio::test]
async fn the_event_of_a_completed_step_lists_the_files_of_its_worker() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let mut socket = open(&daemon).await.connect(&daemon).await;
    let source =
        blueprint(r#"local got = ctx:run("writer", { what = "it" }) ctx:wait("go") return got"#);
    let run = socket.ask("run/start", json!({"source": source})).await["id"].clone();
    let run = run.as_str().unwrap();
    socket.ask("run/subscribe", json!({"run": run})).await;
    let spawn = socket.until("task/spawn").await["params"].clone();
    let path = "/v1/worker/artifact?name=notes.md";
    let handle = spawn["handle"].as_str().unwrap();
    let (_, file) = send(daemon.with(handle, Method::POST, path).body("# notes")).await;
    socket.ask("task/result", json!({"task": spawn["task"], "output": 1})).await;
    let wanted = json!([{"id": file["id"], "name": "notes.md", "hash": file["hash"], "size": 7}]);
    let told = loop {
        let event = socket.until("event").await["params"]["event"].clone();
        if event["type"] == "step.completed" {
            break event;
        }
    };
    assert_eq!(told["data"]["artifacts"], wanted, "{told}");

    // The journal has it: another process says the same, in the past of the run and of the host.
    daemon.kill();
    let daemon = Daemon::start(&shell.path("data"));
    let page = daemon.get(&format!("/v1/runs/{run}/events?format=json"));
    let page = send(page).await.1;
    let again = page["items"].as_array().unwrap().iter().find(|it| it["type"] == "step.completed");
    assert_eq!(again, Some(&told), "{page}");
    let feed = daemon.get("/v1/events?since=first&types=task.completed");
    let (mut feed, mut text) = (feed.send().await.unwrap(), String::new());
    while !text.contains("artifacts") {
        let chunk = feed.chunk().await.unwrap().expect("the feed goes on");
        text.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    assert!(text.contains(&wanted[0]["id"].to_string()), "{text}");
    let bytes = daemon.get(&format!("/v1/artifacts/{}", file["id"].as_str().unwrap()));
    assert_eq!(send(bytes).await, (200, json!("# notes")));
    send(daemon.post(&format!("/v1/runs/{run}/signals/go"), &json!(1))).await;
    assert_eq!(daemon.ended(run).await["output"], 1);

    // A fork has a reference to its own copy.
    let fork = daemon.post(&format!("/v1/runs/{run}/fork"), &json!({"from_step": 2}));
    let (status, fork) = send(fork).await;
    assert_eq!(status, 201, "{fork}");
    let page = format!("/v1/runs/{}/events?format=json", fork["id"].as_str().unwrap());
    let page = send(daemon.get(&page)).await.1;
    let events = page["items"].as_array().unwrap();
    let copied = events.iter().find(|it| it["type"] == "step.completed").unwrap();
    let copied = copied["data"]["artifacts"][0]["id"].as_str().unwrap();
    assert_ne!(copied, file["id"]);
    let bytes = daemon.get(&format!("/v1/artifacts/{copied}"));
    assert_eq!(send(bytes).await, (200, json!("# notes")));
}
