//! What somebody meets in the first hour: texts, hints and small questions.

use reqwest::Method;
use serde_json::json;

use crate::support::{Daemon, Shell, send};

/// A flow with a body.
fn flow(body: &str) -> String {
    format!(
        "local swarm = require(\"swarm\")\nreturn swarm.blueprint {{ name = \"first\", edition = 2,\n\
         agents = {{ echo = {{ operator = \"echo\" }}, w = {{ operator = \"queue\", queue = \"q\" }},\n\
         nap = {{ operator = \"process\", command = {{ \"sleep\", \"0.01\" }} }} }},\n\
         on = {{ {{ signal = \"opened\" }} }},\n\
         flow = function(ctx, input) {body} end }}\n"
    )
}

#[test]
fn one_step_is_shown_as_text_and_as_json() {
    let shell = Shell::new();
    shell.write("first.lua", flow(r#"return ctx:run("echo", { text = "two\nlines" })"#));
    shell.run(&["run", "first.lua"]).ok();
    let text = shell.run(&["show", "last", "--step", "1"]).ok().stdout;
    assert!(text.starts_with("#1 ✓ echo"), "{text}");
    for part in
        ["kind      task", "worker    wrk_", "scheduled 20", "request:\n  {\n", "response:\n  {\n"]
    {
        assert!(text.contains(part), "{part:?}: {text}");
    }
    let shown = shell.run(&["show", "last", "--step", "1", "--json"]).ok().json();
    assert_eq!((&shown["seq"], &shown["name"]), (&json!(1), &json!("echo")));
    shell.run(&["show", "last", "--step", "9"]).exits(4).says(&["moonswarm show RUN --all"]);
}

#[test]
fn the_repl_names_the_agents_that_there_are() {
    let shell = Shell::new();
    let alone = shell.run(&["repl"]).ok();
    for part in ["agents: echo", "`moonswarm repl FILE`"] {
        assert!(alone.stderr.contains(part), "{part:?}: {alone:?}");
    }
    shell.write("first.lua", flow("return 1"));
    let based = shell.run(&["repl", "first.lua"]).ok();
    assert!(based.stderr.contains("agents: echo, nap, w\n"), "{based:?}");
}

#[test]
fn state_of_a_run_that_is_not_there_is_no_empty_list() {
    let shell = Shell::new();
    shell.write("first.lua", flow("return 1"));
    shell.run(&["run", "first.lua"]).ok();
    let run = shell.run(&["ps", "--json"]).ok().json()[0]["id"].as_str().unwrap().to_owned();
    shell.run(&["state", "-s", &format!("run:{run}"), "ls"]).ok();
    shell.run(&["state", "-s", "run:nope", "ls"]).exits(4).says(&["run nope", "moonswarm ps"]);
    shell.run(&["state", "-s", "run:nope", "search", "word"]).exits(4);
    shell.run(&["state", "-s", "custom:nope", "ls"]).ok();
    shell.run(&["state", "get", "nothing"]).exits(4).says(&["moonswarm state -s SCOPE ls"]);
}

#[test]
fn programs_of_the_host_have_no_usage_to_report() {
    let shell = Shell::new();
    shell.write("first.lua", flow(r#"return ctx:run("nap")"#));
    let run = shell.run(&["run", "first.lua", "--json"]).ok().json();
    assert!(run["usage"].is_null(), "{run}");
}

#[tokio::test]
async fn a_question_to_a_senior_is_in_the_inbox() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path(".moonswarm"));
    let run = daemon.run_source(&flow(r#"return ctx:run("w")"#), json!({})).await;
    let (_, leased) =
        send(daemon.post("/v1/worker/lease", &json!({"queue": "q", "wait": "20s"}))).await;
    let handle = leased[0]["handle"].as_str().unwrap();
    shell.run(&["inbox"]).ok().says(&["nothing to answer"]);
    shell.run(&["advise", "last", "1"]).exits(4).says(&["no worker waits", "moonswarm inbox"]);
    let asks = daemon.with(handle, Method::POST, "/v1/worker/escalate");
    assert_eq!(send(asks.json(&json!({"question": "Tabs or spaces?"}))).await.0, 204);
    let listed = shell.run(&["inbox"]).ok().stdout;
    assert!(listed.contains("asks: Tabs or spaces? (moonswarm advise)"), "{listed}");
    let shown = shell.run(&["show", &run]).ok().stdout;
    assert!(shown.contains("waiting for a senior's answer"), "{shown}");
    let task = leased[0]["task"].as_str().unwrap();
    let stale = ["advise", task, "\"tabs\"", "--revision", "0000"];
    shell.run(&stale).exits(6).says(&["stale_task", "moonswarm show TASK"]);
    let told = shell.run(&["logs", &run]).ok().stdout;
    assert!(told.contains("asks a senior: Tabs or spaces?\n"), "{told}");
    shell.run(&["advise", "last", "\"spaces\""]).ok().says(&[task, "goes on with the answer"]);
    let prompt = daemon.with(handle, Method::GET, "/v1/worker/prompt");
    assert_eq!(send(prompt).await.1["advice"]["answer"], "spaces");
}

#[tokio::test]
async fn a_signal_that_nothing_waits_for_names_those_that_start_a_run() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path(".moonswarm"));
    let bundle = json!({"files": {"first.lua": flow("return input")}});
    assert_eq!(send(daemon.put("/v1/blueprints/first", &bundle)).await.0, 200);
    shell
        .run(&["signal", "first", "nope", "--blueprint"])
        .exits(4)
        .says(&["the signals of first are opened", "moonswarm blueprints"]);
}

const WRONG: &str = r#"local swarm = require("swarm")
return swarm.blueprint { name = "wrong", edition = 2,
  agents = { idle = { operator = "echo" }, a = { operator = "nobody" } },
  flow = function(ctx) return ctx:run("a") end }
"#;

#[test]
fn a_run_that_cannot_begin_lists_errors_and_no_warnings() {
    let shell = Shell::new();
    shell.write("wrong.lua", WRONG);
    let checked = shell.run(&["check", "wrong.lua"]).exits(3).stdout;
    assert!(checked.contains("MS-B081") && checked.contains("MS-B020"), "{checked}");
    let run = shell.run(&["run", "wrong.lua"]).exits(3).stderr;
    assert!(!run.contains("MS-B081") && run.contains("MS-B020"), "{run}");
}

#[test]
fn an_agent_that_answers_as_a_model_needs_no_flow() {
    let shell = Shell::new();
    shell.write(
        "desk.lua",
        WRONG
            .replace("\"nobody\"", "\"echo\"")
            .replace("idle = { operator = \"echo\" }", "idle = { operator = \"model\" }"),
    );
    shell.write(
        "moonswarm.toml",
        "[operators.model]\nkind = \"llm\"\napi = \"anthropic\"\nmodel = \"m\"\n\
         key = { env = \"NO_KEY\" }\n",
    );
    let checked = shell.run(&["check", "desk.lua"]).ok().stdout;
    assert!(!checked.contains("MS-B081"), "{checked}");
}

#[test]
fn the_gallery_ends_with_how_an_example_is_run() {
    let shell = Shell::new();
    let listed = shell.run(&["init", "--list"]).ok();
    for part in
        ["moonswarm init mine --from", "moonswarm test mine_test.lua", "moonswarm run mine.lua"]
    {
        assert!(listed.stderr.contains(part), "{part:?}: {listed:?}");
    }
    shell.run(&["init", "mine", "--from", "migration"]).ok();
    shell.run(&["test", "mine_test.lua"]).ok();
}
