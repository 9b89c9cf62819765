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
    let tasks = shell.run(&["inbox", "--json"]).ok().says(&["attached to"]).json();
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
    let tasks = shell.run(&["inbox", "--json"]).ok().says(&["attached to"]).json();
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
    let attached = shell.run(&["run", &blueprint("hello.lua"), "who=Ada"]).ok().says(&[
        "attached to",
        &daemon.url,
        &format!("pid {}", daemon.pid()),
    ]);
    assert_eq!(attached.stdout, alone.stdout);
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
