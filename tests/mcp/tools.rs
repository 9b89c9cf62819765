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
async fn a_blueprint_is_tested_before_it_is_saved() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let token = operator(&daemon).await;
    let agent = Agent::http(&daemon, &token).await;
    let source = "local swarm = require(\"swarm\")\nreturn swarm.blueprint { name = \"double\",\n\
                  flow = function(ctx, input) return input * 2 end }";
    let tests = |expected: u32| {
        let text = format!(
            "local t = require(\"swarm.test\")\nt.test(\"it doubles\", function()\n\
             t.equal(t.start(\"main.lua\", 2):finish(), {expected})\nend)"
        );
        json!({"source": source, "tests": {"main_test.lua": text}})
    };
    let passed = agent.ok("run_tests", tests(4)).await;
    assert_eq!((&passed["ok"], &passed["passed"]), (&json!(true), &json!(1)), "{passed}");
    let failed = agent.ok("run_tests", tests(5)).await;
    let failure = &failed["files"][0]["tests"][0]["failure"];
    assert_eq!((&failure["file"], &failure["line"]), (&json!("main_test.lua"), &json!(3)));
    let said = agent.refused("run_tests", json!({"source": source, "tests": {"a.lua": ""}})).await;
    assert!(said.contains("_test.lua") && said.contains("correct the arguments"), "{said}");
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
    assert_eq!(
        narrow,
        ["list_runs", "get_run", "list_steps", "get_step", "diff_runs", "search_docs"]
    );
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
        ("report_task", json!({"session": "x", "task": "y"}), "give `output`, `error` or `skip`"),
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
    let said = agent.call("get_run", until).await.text;
    assert!(said.contains("; waits for ") && said.contains("(human)"), "{said}");
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

#[tokio::test]
async fn runs_steps_artifacts_and_pages_are_resources() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let flow = r#"local swarm = require("swarm")
        return swarm.blueprint { name = "filed", edition = 2,
            agents = { echo = { operator = "echo" } },
            flow = function(ctx)
                ctx:artifact("notes.txt", "words")
                ctx:artifact("raw.bin", "\255\254")
                return ctx:run("echo", { text = string.rep("x", 10000) })
            end }"#;
    assert_eq!(send(daemon.put("/v1/blueprints/filed", &json!({"source": flow}))).await.0, 200);
    let agent = Agent::http(&daemon, &operator(&daemon).await).await;
    let uris = agent.resources().await;
    for uri in ["moonswarm://docs/flows.md", "moonswarm://schema/flow.json"] {
        assert!(uris.iter().any(|it| it == uri), "{uris:?}");
        assert!(agent.read(uri).await.unwrap()["text"].as_str().unwrap().len() > 500);
    }
    let run = agent.ok("start_run", json!({"blueprint": "filed", "wait_seconds": 45})).await;
    let id = run["id"].as_str().unwrap();
    let read = agent.read(&format!("moonswarm://runs/{id}")).await.unwrap();
    assert_eq!(read["mimeType"], "application/json");
    let view: Value = serde_json::from_str(read["text"].as_str().unwrap()).unwrap();
    assert_eq!(view["status"], "completed");
    let steps = agent.ok("list_steps", json!({"run": id})).await;
    let seq = steps["items"].as_array().unwrap().iter().find(|it| it["name"] == "echo").unwrap();
    let seq = seq["seq"].as_u64().unwrap();
    let read = agent.read(&format!("moonswarm://runs/{id}/steps/{seq}")).await.unwrap();
    assert!(read["text"].as_str().unwrap().contains("xxxx"));
    let shown = agent.ok("get_artifact", json!({"run": id})).await;
    for file in shown["items"].as_array().unwrap() {
        let uri = format!("moonswarm://artifacts/{}", file["id"].as_str().unwrap());
        let read = agent.read(&uri).await.unwrap();
        match file["name"].as_str().unwrap() {
            "notes.txt" => assert_eq!(read["text"], "words"),
            name => assert_eq!((name, &read["blob"]), ("raw.bin", &json!("//4="))),
        }
    }
    // What the token may not read is no resource of it, and a path stays in its place.
    let other = json!({"role": "operator", "verbs": ["blueprint.read"], "ttl": "1h"});
    let other = Agent::http(&daemon, &mint(&daemon, other).await).await;
    let refused = other.read(&format!("moonswarm://runs/{id}")).await.unwrap_err();
    assert!(refused.contains("forbidden_verb"), "{refused}");
    for uri in ["moonswarm://runs/..%2Ftokens", "moonswarm://tokens", "file:///etc/passwd"] {
        assert!(agent.read(uri).await.is_err(), "{uri}");
    }
}

#[tokio::test]
async fn prompts_begin_common_work() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let agent = Agent::http(&daemon, &operator(&daemon).await).await;
    let names = ["new-blueprint", "debug-run", "work-the-queue", "review-diff"];
    assert_eq!(agent.prompts().await, names);
    let text = agent.prompt("debug-run", json!({"run": "run_x"})).await.unwrap();
    assert!(text.contains("the moonswarm run run_x failed"), "{text}");
    // Each tool that a prompt names is one that there is. The agent may not see all of them.
    let tools = Agent::http(&daemon, &daemon.token).await.names().await;
    for (name, given) in [
        ("new-blueprint", json!({"goal": "g"})),
        ("debug-run", json!({"run": "r"})),
        ("work-the-queue", json!({})),
        ("review-diff", json!({"blueprint": "b", "source": "s"})),
    ] {
        let text = agent.prompt(name, given).await.unwrap();
        let words = text.split(|c: char| !(c.is_ascii_lowercase() || c == '_'));
        for word in words.filter(|word| word.contains('_')) {
            let is_data = ["wait_seconds", "output_schema"].contains(&word);
            assert!(is_data || tools.iter().any(|it| it == word), "{name}: {word}");
        }
    }
    let missing = agent.prompt("debug-run", json!({})).await.unwrap_err();
    assert!(missing.contains("run is missing"), "{missing}");
}

const CLEAN: &str = r#"local swarm = require("swarm")
local s = swarm.schema
return swarm.blueprint { name = "clean-up", edition = 2,
    description = "Cleans a directory up.", mcp = { destructive = true },
    input = s.object { path = s.string },
    flow = function(ctx, input)
        if input.path == "/" then swarm.fail("refused", "not that one") end
        if input.path == "wait" then ctx:status("waiting for go"); ctx:wait("go") end
        return { cleaned = input.path }
    end }"#;

#[tokio::test]
async fn a_blueprint_is_a_tool_if_whoever_published_it_may_bring_code() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let agent = Agent::http(&daemon, &operator(&daemon).await).await;
    let own = agent.names().await.len();
    // What an agent saves is no tool.
    let writes =
        json!({"role": "admin", "verbs": ["blueprint.write", "blueprint.read"], "ttl": "1h"});
    let writer = mint(&daemon, writes).await;
    let path = "/v1/blueprints/clean-up";
    let saved = daemon.with(&writer, reqwest::Method::PUT, path).json(&json!({"source": CLEAN}));
    let (status, view) = send(saved).await;
    assert_eq!((status, view.get("tool")), (200, None), "{view}");
    assert_eq!(agent.names().await.len(), own);

    assert_eq!(send(daemon.put(path, &json!({"source": CLEAN}))).await.0, 200);
    let wide = CLEAN
        .replace("clean-up", "wide")
        .replace("{ destructive = true }", "{ name = \"doctor\" }");
    let wide =
        wide.replace("s.object { path = s.string }", "s.string").replace("input.path", "input");
    assert_eq!(send(daemon.put("/v1/blueprints/wide", &json!({"source": wide}))).await.0, 200);
    let tools = agent.tools().await;
    let shown: Vec<Value> = tools[own..].iter().map(|tool| json!(tool)).collect();
    let names: Vec<_> = shown.iter().map(|tool| &tool["name"]).collect();
    assert_eq!(names, ["clean-up", "run_doctor"], "a name that is taken has run_ before it");
    assert_eq!(shown[0]["description"], "Cleans a directory up.");
    assert_eq!(shown[0]["annotations"]["destructiveHint"], true);
    assert_eq!(shown[0]["inputSchema"]["required"], json!(["path"]));
    assert_eq!(shown[1]["inputSchema"]["required"], json!(["input"]), "arguments are an object");

    let done = agent.ok("clean-up", json!({"path": "tmp"})).await;
    assert_eq!((&done["status"], &done["output"]["cleaned"]), (&json!("completed"), &json!("tmp")));
    let done = agent.ok("run_doctor", json!({"input": "tmp"})).await;
    assert_eq!(done["output"]["cleaned"], "tmp");
    let said = agent.call("clean-up", json!({"path": "/"})).await;
    assert!(said.is_error && said.text.contains("not that one"), "{said:?}");
    assert_eq!(said.value["status"], "failed");
    assert!(agent.refused("clean-up", json!({"path": 7})).await.contains("invalid_input"));
    // A token that may start nothing sees no such tool.
    let reads = json!({"role": "operator", "verbs": ["run.read", "blueprint.read"], "ttl": "1h"});
    let names = Agent::http(&daemon, &mint(&daemon, reads).await).await.names().await;
    assert!(!names.iter().any(|name| name == "clean-up"), "{names:?}");
}
