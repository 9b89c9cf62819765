//! What the tools do, and who sees which.

use serde_json::{Value, json};

use crate::{
    client::{Agent, mint, operator},
    support::{DEMO, Daemon, Shell, send},
};

#[tokio::test]
async fn a_blueprint_is_written_and_its_run_followed_with_tools_alone() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let agent = Agent::http(&daemon, &daemon.token).await;
    let found = agent.ok("search_docs", json!({"query": "ctx wait signal"})).await;
    assert!(!found["sections"].as_array().unwrap().is_empty(), "{found}");
    let bad = agent.ok("check_blueprint", json!({"source": "return 1"})).await;
    assert_eq!(bad["ok"], false, "{bad}");
    let said = agent.refused("save_blueprint", json!({"name": "demo", "source": "return 1"})).await;
    assert!(said.contains("blueprint_invalid") && said.contains("main.lua"), "{said}");
    let saved = agent.ok("save_blueprint", json!({"name": "demo", "source": DEMO})).await;
    let listed = agent.ok("list_blueprints", json!({})).await;
    assert_eq!(listed["items"][0]["hash"], saved["hash"]);
    let shown = agent.ok("get_blueprint", json!({"name": "demo", "source": true})).await;
    assert_eq!(shown["files"]["main.lua"], DEMO);

    let start = json!({"blueprint": "demo", "input": {}, "idempotency_key": "k"});
    let run = agent.ok("start_run", start.clone()).await;
    assert_eq!(agent.ok("start_run", start).await["id"], run["id"], "the key makes it one run");
    let id = run["id"].clone();
    daemon.waits(id.as_str().unwrap(), "signal").await;
    let asked = agent.ok("query_run", json!({"run": id, "name": "seen", "argument": 7})).await;
    assert_eq!(asked["value"], json!({"seen": 0, "by": 7}));
    let signal = json!({"run": id, "action": "signal", "signal": "go", "payload": 3});
    agent.ok("control_run", signal).await;
    let until = json!({"run": id, "wait_seconds": 45, "until": "people"});
    let waits = agent.ok("get_run", until).await;
    assert_eq!(waits["waiting_on"][0]["kind"], "task", "{waits}");
    let inbox = agent.ok("list_inbox", json!({"run": id})).await;
    let task = inbox["items"][0]["id"].clone();
    // The admin is a person, and answers what the run asks.
    agent.ok("answer_task", json!({"task": task, "output": "fine"})).await;
    let ended = agent.ok("get_run", json!({"run": id, "wait_seconds": 45})).await;
    assert_eq!(ended["output"], json!({"seen": 3, "answer": "fine"}), "{ended}");
    let steps = agent.ok("list_steps", json!({"run": id})).await;
    let last = steps["items"].as_array().unwrap().last().unwrap()["seq"].clone();
    assert_eq!(agent.ok("get_step", json!({"run": id, "step": last})).await["name"], "echo");
    let files = agent.ok("get_artifact", json!({"run": id})).await;
    let file = agent.ok("get_artifact", json!({"artifact": files["items"][0]["id"]})).await;
    assert_eq!(file["text"], "hello");
    let fork = agent.ok("fork_run", json!({"run": id, "from_step": last})).await;
    let forked = agent.ok("get_run", json!({"run": fork["id"], "wait_seconds": 45})).await;
    assert_eq!(forked["output"], ended["output"]);
    let all = agent.ok("list_runs", json!({"status": "completed"})).await;
    assert_eq!(all["items"].as_array().unwrap().len(), 2);
    let set = json!({"scope": "global", "key": "k", "value": {"a": 1}});
    agent.ok("set_state", set).await;
    let get = agent.ok("get_state", json!({"scope": "global", "key": "k"})).await;
    assert_eq!(get["value"], json!({"a": 1}));
    let keys = agent.ok("search_state", json!({"scope": "global", "prefix": "k"})).await;
    assert_eq!(keys["items"][0]["key"], "k");
    let host = agent.ok("doctor", json!({})).await;
    assert_eq!((&host["host"]["status"], &host["you"]["role"]), (&json!("ready"), &json!("admin")));
}

#[tokio::test]
async fn a_token_sees_the_tools_of_its_verbs_and_no_others() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let all = Agent::http(&daemon, &daemon.token).await.names().await;
    assert!(all.len() >= 25, "{all:?}");
    let observer = mint(&daemon, json!({"role": "observer", "ttl": "1h"})).await;
    let observer = Agent::http(&daemon, &observer).await;
    let seen = observer.names().await;
    for tool in ["get_run", "list_blueprints", "search_docs"] {
        assert!(seen.iter().any(|it| it == tool), "{tool} is not in {seen:?}");
    }
    for tool in ["start_run", "save_blueprint", "control_run", "set_state", "report_task"] {
        assert!(seen.iter().all(|it| it != tool), "{tool} is in {seen:?}");
    }
    for tool in observer.tools().await {
        assert_eq!(tool.annotations.unwrap().read_only_hint, Some(true), "{}", tool.name);
    }
    // What is not listed is refused as well, by the API.
    let said = observer.refused("start_run", json!({"blueprint": "x"})).await;
    assert!(said.contains("forbidden_verb"), "{said}");
    let reads = json!({"role": "operator", "verbs": ["run.read"], "ttl": "1h"});
    let narrow = Agent::http(&daemon, &mint(&daemon, reads).await).await.names().await;
    assert_eq!(narrow, ["list_runs", "get_run", "list_steps", "get_step", "search_docs"]);
}

#[tokio::test]
async fn a_refusal_says_what_happened_and_what_to_do() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let agent = Agent::http(&daemon, &operator(&daemon).await).await;
    let cases = [
        ("get_run", json!({"run": "run_aaaaaaaaaaaaaaaaaaaaaaaaaa"}), "not_found"),
        ("get_run", json!({"run": "7"}), "bad_id"),
        ("get_run", json!({}), "missing field `run`"),
        ("get_run", json!({"run": "7", "extra": 1}), "unknown field `extra`"),
        ("get_run", json!({"run": 7}), "run: invalid type"),
        ("control_run", json!({"run": "7", "action": "signal"}), "a signal needs `signal`"),
        ("get_artifact", json!({}), "give `run` or `artifact`"),
        ("next_task", json!({}), "open_session opens one"),
        ("next_task", json!({"session": "ses_none"}), "wrong_seat"),
        ("report_task", json!({"session": "x", "task": "y"}), "give `output`, or `error`"),
        ("start_run", json!({"source": "return 1"}), "run.source"),
    ];
    for (tool, arguments, part) in cases {
        let said = agent.refused(tool, arguments).await;
        assert!(said.contains(part), "{tool}: {part:?} is not in {said:?}");
    }
}

#[tokio::test]
async fn an_agent_never_answers_the_approvals_of_its_own_runs() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let flow = r#"local swarm = require("swarm")
        return swarm.blueprint { name = "ship", flow = function(ctx)
            return ctx:approve { title = "Ship it?" } end }"#;
    assert_eq!(send(daemon.put("/v1/blueprints/ship", &json!({"source": flow}))).await.0, 200);
    // It may answer tasks for people, but not those of its own runs.
    let may = json!({"role": "operator", "extra_verbs": ["task.answer"], "name": "agent",
        "ttl": "1h"});
    let token = mint(&daemon, may).await;
    let agent = Agent::http(&daemon, &token).await;
    let run = agent.ok("start_run", json!({"blueprint": "ship"})).await;
    let until = json!({"run": run["id"], "wait_seconds": 45, "until": "people"});
    agent.ok("get_run", until).await;
    let inbox = agent.ok("list_inbox", json!({})).await;
    let answer = json!({"task": inbox["items"][0]["id"], "output": {"approved": true}});
    let said = agent.refused("answer_task", answer.clone()).await;
    assert!(said.contains("self_approval") && said.contains("a person answers"), "{said}");
    // Nor by HTTP, nor with a token or a session made from its own.
    let path = format!("/v1/tasks/{}/answer", answer["task"].as_str().unwrap());
    let body = json!({"output": {"approved": true}});
    let own = daemon.with(&token, reqwest::Method::POST, &path).json(&body);
    assert_eq!(send(own).await.1["code"], "self_approval");
    let child = json!({"role": "operator", "extra_verbs": ["task.answer"], "ttl": "30m"});
    let child = daemon.with(&token, reqwest::Method::POST, "/v1/tokens").json(&child);
    let child = send(child).await.1["token"].as_str().unwrap().to_owned();
    let second = Agent::http(&daemon, &child).await;
    assert!(second.refused("answer_task", answer.clone()).await.contains("self_approval"));
    let opened = json!({"extra_verbs": ["task.answer"]});
    let opened =
        daemon.with(&token, reqwest::Method::POST, "/v1/operators/main-ai/sessions").json(&opened);
    let session = send(opened).await.1["token"].as_str().unwrap().to_owned();
    let third = Agent::http(&daemon, &session).await;
    assert!(third.refused("answer_task", answer).await.contains("self_approval"));
    let view: Value = agent.ok("get_run", json!({"run": run["id"]})).await;
    assert_eq!(view["ended_at"], Value::Null, "it waits for a person");
    assert_eq!(send(daemon.post(&path, &body)).await.0, 200);
    let ended = agent.ok("get_run", json!({"run": run["id"], "wait_seconds": 45})).await;
    assert_eq!(ended["status"], "completed");
}
