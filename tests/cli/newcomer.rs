//! The way of somebody who has just installed it.

use serde_json::json;

use crate::support::{Daemon, Shell, repository, send};

fn blueprint(name: &str) -> String {
    repository("blueprints").join(name).display().to_string()
}

#[test]
fn the_blueprint_that_init_writes_runs_at_once() {
    let shell = Shell::new();
    shell.run(&["init", "first"]).ok().says(&["wrote first.lua", "moonswarm run first.lua"]);
    shell.run(&["check", "first.lua"]).ok().says(&["no findings"]);
    shell.run(&["test", "--crash"]).ok().says(&["1 passed, 0 failed"]);
    let done = shell.run(&["run", "first.lua", "who=moon"]).ok();
    let expected = "Hello, moon! Olá, moon! Moin, moon! It is ";
    assert!(done.stdout.starts_with(expected), "{done:?}");
    shell.run(&["init", "first"]).exits(6).says(&["already there"]);
}

#[test]
fn the_hello_of_the_repository_is_the_one_that_init_writes() {
    let shell = Shell::new();
    shell.run(&["init"]).ok();
    for file in ["hello.lua", "hello_test.lua"] {
        let written = std::fs::read_to_string(shell.path(file)).unwrap();
        assert_eq!(written, std::fs::read_to_string(blueprint(file)).unwrap(), "{file}");
    }
    let done = shell.run(&["run", &blueprint("hello.lua"), "who=Ada"]).ok();
    assert!(done.stdout.starts_with("Hello, Ada! Olá, Ada! Moin, Ada! It is "), "{done:?}");
}

#[test]
fn a_person_ships_what_the_review_loop_made_from_another_terminal() {
    let shell = Shell::new();
    let file = blueprint("review-loop.lua");
    let mut run = shell.start(&["run", &file, "issue=crash on empty file", "--wait", "60s"]);
    run.until("Ship it?");
    let tasks = shell.run(&["inbox", "--json"]).ok().json();
    let task = tasks[0]["id"].as_str().unwrap();
    assert_eq!((&tasks[0]["agent"], &tasks[0]["kind"]), (&json!("ship"), &json!("human")));
    shell.run(&["approve", task]).ok();
    let done = run.end().ok();
    assert_eq!(done.json(), json!({"shipped": [{"diff": "fixed"}]}));
}

#[test]
fn a_rejected_run_failed_and_says_why() {
    let shell = Shell::new();
    let mut run = shell.start(&["run", &blueprint("review-loop.lua"), "issue=x", "--wait", "60s"]);
    run.until("Ship it?");
    let tasks = shell.run(&["inbox", "--json"]).ok().json();
    shell.run(&["reject", tasks[0]["id"].as_str().unwrap(), "not on a Friday"]).ok();
    run.end().exits(1).says(&["human_rejected"]);
}

#[tokio::test]
async fn a_run_that_was_left_to_people_goes_on_with_the_next_daemon() {
    let shell = Shell::new();
    let left = shell.run(&["run", &blueprint("review-loop.lua"), "issue=x", "--json"]).exits(9);
    let run = left.json();
    assert_eq!(run["status"], "waiting");
    assert_eq!(run["waiting_on"][0]["subject"]["name"], "ship");

    let daemon = Daemon::start(&shell.path(".moonswarm"));
    let tasks = shell.run(&["inbox", "--json"]).ok().json();
    shell.run(&["approve", tasks[0]["id"].as_str().unwrap()]).ok();
    let ended = daemon.ended(run["id"].as_str().unwrap()).await;
    assert_eq!(ended["output"], json!({"shipped": [{"diff": "fixed"}]}));
    let (_, again) = send(daemon.get("/v1/tasks")).await;
    assert_eq!(again["items"], json!([]));
}

#[test]
fn a_run_beside_a_daemon_attaches_and_has_the_same_result() {
    let shell = Shell::new();
    let alone = shell.run(&["run", &blueprint("hello.lua"), "who=Ada"]).ok();
    let daemon = Daemon::start(&shell.path(".moonswarm"));
    let attached = shell.run(&["run", &blueprint("hello.lua"), "who=Ada"]).ok();
    assert_eq!(attached.stdout, alone.stdout);
    // Whose daemon it is, is said to people only.
    assert!(!attached.stderr.contains("attached to"), "{attached:?}");
    let runs = shell.run(&["ps", "--json"]).ok().json();
    assert_eq!(runs.as_array().unwrap().len(), 2);
    assert_eq!(daemon.stop(), Some(0));
}

#[test]
fn a_directory_is_the_blueprint_of_its_main_file_or_those_that_lie_in_it() {
    let shell = Shell::new();
    shell.run(&["check", "."]).exits(4).says(&["no blueprints here", "moonswarm init"]);
    shell.run(&["init", "first"]).ok();
    shell.run(&["check", "."]).ok().says(&["first.lua: no findings"]);
    shell.run(&["run", "."]).exits(4).says(&["no main.lua in .", "first.lua"]);
    let text = std::fs::read_to_string(shell.path("first.lua")).unwrap();
    shell.write("whole/main.lua", text);
    shell
        .run(&["check", "."])
        .ok()
        .says(&["first.lua: no findings", "whole/main.lua: no findings"]);
    shell.run(&["check", "whole"]).ok().says(&["whole/main.lua: no findings"]);
    assert!(shell.run(&["run", "whole", "who=moon"]).ok().stdout.contains("Hello, moon!"));
    shell.run(&["run", "whole", "woh=moon"]).exits(2).says(&["has no woh", "did you mean who=…"]);
}

#[test]
fn serve_needs_no_flag_where_there_are_blueprints_and_a_name_is_run_at_once() {
    let shell = Shell::new();
    shell.run(&["init"]).ok();
    shell.run(&["check", "hello.lua"]).ok();
    shell.run(&["run", "hello", "who=moon"]).exits(4).says(&["moonswarm run hello.lua"]);
    let mut daemon = shell.start(&["serve", "--listen", "127.0.0.1:0"]);
    daemon.until("blueprints  . (watched)");
    daemon.until("Ctrl-C stops it");
    let done = shell.run(&["run", "hello", "who=moon"]).ok();
    assert!(done.stdout.starts_with("Hello, moon!"), "{done:?}");
}

#[test]
fn a_directory_that_is_not_there_is_named_with_the_command_that_makes_it() {
    let shell = Shell::new();
    shell
        .run(&["serve", "--blueprints", "nope"])
        .exits(2)
        .says(&["there is no directory nope to watch", "mkdir nope"]);
}

#[test]
fn an_address_that_is_in_use_is_said_once_with_what_helps() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let address = daemon.url.trim_start_matches("http://");
    let done = shell.run(&["serve", "--listen", address, "--data", "other"]).exits(6);
    assert_eq!(
        done.stderr,
        format!(
            "moonswarm: another program listens on {address} already\n  next: `--listen 127.0.0.1:0` \
             takes a free port\n"
        )
    );
    assert!(!shell.path("other").exists(), "nothing was begun");
    let same = shell.run(&["serve", "--listen", address, "--data", "data"]).exits(6);
    same.says(&["another process has it", "it listens at"]);
}

const ASKS_MODEL: &str = r#"local swarm = require("swarm")
return swarm.blueprint {
  name = "asks",
  agents = { a = { operator = "model" } },
  flow = function(ctx) return ctx:run("a") end,
}
"#;

#[test]
fn operators_are_found_beside_the_blueprint_and_a_file_of_another_name_is_named() {
    let shell = Shell::new();
    shell.write("bp/asks.lua", ASKS_MODEL);
    let declared = "[operators.model]\nkind = \"echo\"\n";
    shell.write("bp/models.toml", declared);
    let missing = shell.run(&["check", "bp/asks.lua"]).exits(3);
    assert!(missing.stdout.contains("bp/models.toml declares `model`"), "{missing:?}");
    shell.write("bp/moonswarm.toml", declared);
    shell.run(&["check", "bp/asks.lua"]).ok();
    shell.run(&["check", "bp"]).ok();
    shell.run(&["run", "bp/asks.lua"]).ok();
    shell.run(&["--config", "bp/models.toml", "check", "bp/asks.lua"]).ok();
    shell.write("empty.toml", "");
    shell.run(&["--config", "empty.toml", "check", "bp/asks.lua"]).exits(3);
}

#[test]
fn a_kind_that_is_named_as_an_operator_is_shown_with_its_declaration() {
    let shell = Shell::new();
    shell.write("asks.lua", ASKS_MODEL.replace("\"model\"", "\"llm\""));
    let done = shell.run(&["check", "asks.lua"]).exits(3);
    for part in ["`llm` is a kind of operator", "[operators.model]", "kind = \"llm\""] {
        assert!(done.stdout.contains(part), "{part}: {}", done.stdout);
    }
}

#[tokio::test]
async fn an_approvers_token_works_beside_the_daemon() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path(".moonswarm"));
    let source = std::fs::read_to_string(blueprint("review-loop.lua")).unwrap();
    let run = daemon.run_source(&source, json!({"issue": "x"})).await;
    let minted = shell.run(&["token", "mint", "--role", "approver", "--name", "ann"]).ok();
    let ann = minted.stdout.trim();
    let task = crate::support::eventually("the question", async || {
        let tasks = shell.run(&["--token", ann, "inbox", "--json"]).ok().json();
        tasks[0]["id"].as_str().map(str::to_owned).ok_or(tasks)
    })
    .await;
    shell.run(&["--token", ann, "approve", &task]).ok();
    assert_eq!(daemon.ended(&run).await["status"], "completed");
    shell.run(&["--token", ann, "state", "ls", "global"]).exits(5).says(&["may not state.read"]);
}

#[test]
fn with_json_failures_are_json_as_well() {
    let shell = Shell::new();
    let error = |args: &[&str], code: i32| {
        let done = shell.run(args).exits(code);
        let line = done.stderr.lines().last().unwrap_or_default().to_owned();
        let shown: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(shown["error"]["exit"], code, "{line}");
        shown["error"].clone()
    };
    let missing = error(&["run", "nobody", "--json"], 4);
    assert_eq!(missing["code"], "not_found");
    assert!(missing["next"].as_str().unwrap().contains("moonswarm blueprints"), "{missing}");
    assert_eq!(error(&["run", "--json", "--nonsense"], 2)["code"], "usage");
    assert_eq!(error(&["run", "x.lua", "-i", "@none.json", "--json"], 2)["code"], "usage");
    shell.run(&["run", "x.lua", "-i", "@none.json"]).exits(2).says(&["none.json"]);
    shell.run(&["token", "revoke", "nope"]).exits(4).says(&["token ls"]);
    shell.run(&["state", "get", "nothing"]).exits(4).says(&["moonswarm state -s SCOPE ls"]);
}

const FAILS: &str = r#"local swarm = require("swarm")
return swarm.blueprint {
  name = "fails",
  agents = { no = { operator = "process", command = { "sleep", "600" }, timeout = "100ms",
    retry = { max_attempts = 2, backoff = "10ms" } } },
  flow = function(ctx) return ctx:run("no") end,
}
"#;

#[tokio::test]
async fn the_log_of_the_daemon_tells_what_happens_to_runs() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start_with(&data, &["--log-format".as_ref(), "json".as_ref()]);
    let run = daemon.run_source(FAILS, json!({})).await;
    assert_eq!(daemon.ended(&run).await["status"], "failed");
    assert_eq!(daemon.stop(), Some(0));
    let log = std::fs::read_to_string(data.with_extension("log")).unwrap();
    for line in log.lines() {
        let read = serde_json::from_str::<serde_json::Value>(line);
        assert!(read.is_ok(), "{line}");
    }
    let of = |message: &str| -> Vec<&str> {
        let said = format!("\"message\":\"{message}\"");
        log.lines().filter(|line| line.contains(&said) && line.contains(&run)).collect()
    };
    assert_eq!(of("run started").len(), 1, "{log}");
    let failed = of("attempt failed");
    assert!(failed[0].contains("\"WARN\"") && failed[0].contains("\"kind\":\"timeout\""), "{log}");
    let ended = of("run ended");
    assert!(ended[0].contains("\"status\":\"failed\"") && ended.len() == 1, "{log}");
}

#[tokio::test]
async fn after_a_kill_the_log_counts_the_attempts_that_were_interrupted() {
    let shell = Shell::new();
    let source = FAILS.replace("100ms", "1h");
    let source = source.replace(
        "return ctx:run(\"no\")",
        "ctx:all { function() ctx:run(\"no\") end, function() ctx:run(\"no\") end }",
    );
    let daemon = Daemon::start(&shell.path("data"));
    let run = daemon.run_source(&source, json!({})).await;
    let path = format!("/v1/runs/{run}/steps");
    crate::support::eventually("two children", async || {
        let (_, steps) = send(daemon.get(&path)).await;
        let items = steps["items"].as_array().unwrap();
        let busy = items.iter().filter(|it| it["state"] == "processing").count();
        crate::support::when(busy == 2, steps.to_string())
    })
    .await;
    daemon.kill();
    let daemon = Daemon::start(&shell.path("data"));
    crate::support::eventually("the line", async || {
        let log = daemon.log();
        crate::support::when(
            log.contains("attempts interrupted") && log.contains("attempts=2"),
            log,
        )
    })
    .await;
}

#[test]
fn a_token_says_whose_it_is_and_one_that_could_do_nothing_is_not_made() {
    let shell = Shell::new();
    let _daemon = Daemon::start(&shell.path(".moonswarm"));
    let who = shell.run(&["whoami"]).ok().stdout;
    assert!(who.starts_with("admin (admin)\n"), "{who}");
    let minted = shell.run(&["token", "mint", "--role", "approver", "--name", "ann"]).ok();
    let ann = minted.stdout.trim();
    let who = shell.run(&["--token", ann, "whoami", "--json"]).ok().json();
    assert_eq!((&who["subject"], &who["role"]), (&json!("ann"), &json!("approver")));
    assert!(who["verbs"].as_array().unwrap().contains(&json!("task.answer")), "{who}");
    let listed = shell.run(&["token", "ls", "--json"]).ok().json();
    let row = listed.as_array().unwrap().iter().find(|it| it["subject"] == "ann").unwrap();
    assert!(row["last_used_at"].is_string(), "{row}");
    let inspected = shell.run(&["token", "inspect"]).ok().json();
    assert_eq!(inspected["sub"], "admin");
    let mint = |args: &[&str]| shell.run(&[&["token", "mint", "--role", "queue"], args].concat());
    mint(&[]).exits(2).says(&["names its queues: `queue:builds`"]);
    mint(&["--scope", "queue:q", "--verb", "run.start"])
        .exits(2)
        .says(&["the role queue never has the verb run.start; it has worker.lease"]);
    mint(&["--scope", "queue:q", "--verb", "worker.lease"]).ok();
}

#[test]
fn the_first_run_of_the_readme_is_one_paste() {
    let readme = std::fs::read_to_string(repository("README.md")).unwrap();
    let from = readme.find("moonswarm init").unwrap();
    let paste = &readme[from..from + readme[from..].find("```").unwrap()];
    let shell = Shell::new();
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_moonswarm"));
    let path = format!(
        "{}:{}",
        program.parent().unwrap().display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let serve = "moonswarm serve --listen 127.0.0.1:0";
    let script = format!("set -e\n{}\nkill $!\n", paste.replace("moonswarm serve", serve));
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &script]).current_dir(shell.path("")).env("PATH", path);
    let done: crate::support::Done = command.output().unwrap().into();
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(done.stdout.matches("Hello, moon!").count(), 2, "{done:?}");
}
