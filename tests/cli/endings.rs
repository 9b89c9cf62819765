//! Every exit code, and what is said with it.

use rustix::process::Signal;

use crate::support::{Daemon, Shell, repository};

const BROKEN: &str = r#"local swarm = require("swarm")
return swarm.blueprint {
  name = "broken",
  agents = { a = { operator = "nope", colour = 1 } },
  flow = function(ctx) return ctx:run("b") end,
}
"#;

/// A blueprint around the body of its flow.
fn flow(body: &str) -> String {
    format!(
        r#"local swarm = require("swarm")
return swarm.blueprint {{
  name = "test",
  agents = {{
    echo = {{ operator = "echo" }},
    sh = {{ operator = "process", command = {{ "sh", "-c", "{{{{ input }}}}" }} }},
    slow = {{ operator = "process", command = {{ "sleep", "60" }}, timeout = "100ms" }},
  }},
  flow = function(ctx, input)
    {body}
  end,
}}
"#
    )
}

fn hello() -> String {
    repository("blueprints/hello.lua").display().to_string()
}

#[test]
fn a_command_line_that_makes_no_sense_is_usage() {
    let shell = Shell::new();
    for args in
        [&["run"][..], &["dance"], &["run", "x.lua", "novalue"], &["worker", "--queue", "q"]]
    {
        shell.run(args).exits(2);
    }
    shell.write("moonswarm.toml", "colour = 1\n");
    shell.run(&["ps"]).exits(2).says(&["moonswarm.toml", "`colour`"]);
}

#[test]
fn an_input_that_breaks_its_schema_is_usage_and_names_the_place() {
    let shell = Shell::new();
    shell.run(&["run", &hello(), "-i", r#"{"who":5}"#]).exits(2).says(&["$.who"]);
    shell.run(&["run", &hello(), "hwo=Ada"]).exits(2).says(&["hwo"]);
    shell.run(&["run", &hello(), "-i", "{"]).exits(2);
    let runs = shell.run(&["ps", "--json"]).ok().json();
    assert_eq!(runs.as_array().unwrap().len(), 0, "nothing was begun");
}

#[test]
fn an_invalid_blueprint_shows_every_finding_in_its_place() {
    let shell = Shell::new();
    shell.write("broken.lua", BROKEN);
    let findings = ["broken.lua:4:31", "nope", "broken.lua:4:39", "colour", "broken.lua:5:39"];
    shell.run(&["run", "broken.lua"]).exits(3).says(&findings);
    let checked = shell.run(&["check", "broken.lua", "--json"]).exits(3).json();
    let places: Vec<_> = checked
        .as_array()
        .unwrap()
        .iter()
        .map(|found| (found["line"].as_u64().unwrap(), found["column"].as_u64().unwrap()))
        .collect();
    assert_eq!(places, [(4, 31), (4, 39), (5, 39)]);
    shell.write("torn.lua", "return {");
    shell.run(&["run", "torn.lua"]).exits(3).says(&["torn.lua:1:"]);
}

#[test]
fn what_is_not_there_is_not_found() {
    let shell = Shell::new();
    shell.run(&["ps"]).exits(4).says(&["no data directory"]);
    shell.run(&["run", "missing.lua"]).exits(4).says(&["missing.lua"]);
    shell.run(&["run", "nobody"]).exits(4).says(&["nobody"]);
    for verb in ["show", "logs", "result", "cancel", "pause", "resume"] {
        shell.run(&[verb, "run_agq7x4hfunyadaaaaaaaiaaaaa"]).exits(4);
    }
    shell.run(&["artifacts", "list", "run_agq7x4hfunyadaaaaaaaiaaaaa"]).exits(4);
    shell.run(&["approve", "task_agq7x6kjgfyafaaaaaaaiaaabe"]).exits(4);
}

#[test]
fn a_failed_run_is_one_and_says_what_failed_and_what_next() {
    let shell = Shell::new();
    shell.write("fail.lua", flow(r#"swarm.fail("blocked", "no way through")"#));
    shell.run(&["run", "fail.lua"]).exits(1).says(&[
        "blocked",
        "no way through",
        "moonswarm show run_",
    ]);
    shell.write("exit.lua", flow(r#"return ctx:run("sh", "echo ouch >&2; exit 3")"#));
    shell.run(&["run", "exit.lua"]).exits(1).says(&["process", "ouch"]);
    shell.write("missing.lua", flow(r#"return ctx:run("sh", "nosuchprogram")"#));
    shell.run(&["run", "missing.lua"]).exits(1);
}

#[test]
fn a_timeout_is_seven_and_a_broken_limit_ten() {
    let shell = Shell::new();
    shell.write("slow.lua", flow(r#"return ctx:run("slow")"#));
    shell.run(&["run", "slow.lua"]).exits(7).says(&["timeout"]);
    shell.write("loop.lua", flow("while true do end"));
    shell.run(&["run", "loop.lua"]).exits(10).says(&["limit"]);
    shell.write("wait.lua", flow(r#"return ctx:wait("go")"#));
    shell.run(&["run", "wait.lua", "--wait", "100ms"]).exits(7).says(&["has not ended yet"]);
}

#[test]
fn a_run_that_only_a_signal_can_move_is_nine_and_says_which() {
    let shell = Shell::new();
    shell.write("wait.lua", flow(r#"return ctx:wait("go")"#));
    shell.run(&["run", "wait.lua"]).exits(9).says(&[
        "waits for signal \"go\"",
        "go '<json>'",
        "once it has that",
    ]);
}

#[test]
fn a_run_that_only_an_absent_worker_or_session_can_move_is_nine_and_says_which() {
    let shell = Shell::new();
    let source = |agent: &str| {
        format!(
            "return require(\"swarm\").blueprint {{ name = \"away\", agents = {{ a = {agent} }},\n\
             flow = function(ctx) return ctx:run(\"a\", {{}}) end }}"
        )
    };
    shell.write("queue.lua", source(r#"{ operator = "queue", queue = "builds" }"#));
    shell
        .run(&["run", "queue.lua", "--no-wait"])
        .exits(9)
        .says(&["which no worker takes", "moonswarm worker --queue builds -- <command>"]);
    shell.write("ai.lua", source(r#"{ operator = "main-ai", worker = { subagent_type = "x" } }"#));
    shell.run(&["run", "ai.lua", "--no-wait"]).exits(9).says(&["moonswarm sessions open main-ai"]);
}

#[test]
fn a_canceled_run_is_eight_for_who_watches_it() {
    let shell = Shell::new();
    shell.write("wait.lua", flow(r#"return ctx:wait("go")"#));
    let mut run = shell.start(&["run", "wait.lua", "--wait", "60s"]);
    run.until("waiting");
    let runs = shell.run(&["ps", "--json"]).ok().json();
    shell.run(&["cancel", runs[0]["id"].as_str().unwrap()]).ok();
    run.end().exits(8);
}

#[test]
fn an_interrupted_run_of_its_own_is_canceled() {
    let shell = Shell::new();
    shell.write("wait.lua", flow(r#"return ctx:wait("go")"#));
    let mut run = shell.start(&["run", "wait.lua", "--wait", "60s"]);
    run.until("waiting");
    run.signal(Signal::INT);
    run.end().exits(130);
    let runs = shell.run(&["ps", "--json"]).ok().json();
    assert_eq!(runs[0]["status"], "canceled");
}

#[test]
fn an_interrupted_watcher_leaves_the_run_to_the_daemon() {
    let shell = Shell::new();
    let _daemon = Daemon::start(&shell.path(".moonswarm"));
    shell.write("wait.lua", flow(r#"return ctx:wait("go")"#));
    let mut watcher = shell.start(&["run", "wait.lua", "--wait", "60s"]);
    watcher.until("waiting");
    watcher.signal(Signal::INT);
    watcher.end().exits(130).says(&["detached from run"]);
    let runs = shell.run(&["ps", "--json"]).ok().json();
    let run = runs[0]["id"].as_str().unwrap();
    assert_eq!(runs[0]["status"], "waiting");
    shell.run(&["signal", run, "go", "7"]).ok();
    let logs = shell.start(&["logs", run, "-f"]);
    assert!(logs.end().ok().stdout.contains("run completed: 7"));
    assert_eq!(shell.run(&["result", run]).ok().stdout.trim(), "7");
    shell.run(&["cancel", run]).exits(6);
    shell.run(&["signal", run, "go"]).exits(6);
}

#[test]
fn a_token_that_may_not_is_denied_and_no_daemon_is_unavailable() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path(".moonswarm"));
    let ask =
        |token: &str| shell.run(&["--server", &daemon.url, "--token", token, "run", &hello()]);
    ask("nonsense").exits(5).says(&["unauthenticated"]);
    let minted = shell.run(&["token", "mint", "--role", "observer", "--ttl", "5m"]).ok();
    ask(minted.stdout.trim()).exits(5).says(&["forbidden"]);
    let url = daemon.url.clone();
    drop(daemon);
    shell.run(&["--server", &url, "--token", "x", "ps"]).exits(69).says(&["cannot be reached"]);
    shell.run(&["run", &hello(), "--detach"]).exits(69).says(&["moonswarm serve"]);
}
