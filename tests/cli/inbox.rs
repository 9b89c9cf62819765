//! The inbox by the command line: what is shown, what is sent, and what is refused.

use std::{io::Write as _, process::Stdio};

use crate::support::{Daemon, Shell};

const ASKS: &str = r#"local swarm = require("swarm")
local s = swarm.schema
return swarm.blueprint { name = "asks",
  agents = { review = { operator = "human", remind = "1h", output = s.object {
    verdict = s.enum { "pass", "blocked" }, rounds = s.integer { default = 2, minimum = 1 },
    note = s.string { optional = true, description = "for the author" } } } },
  flow = function(ctx) return ctx:run("review", { title = "Review it" }) end }"#;

/// Starts a run that asks somebody; the task's id.
fn ask(shell: &Shell, daemon: &Daemon) -> (String, String) {
    shell.write("asks.lua", ASKS);
    let at = ["--server", &daemon.url, "--token", &daemon.token];
    let run = [&["run", "asks.lua", "--no-wait", "--json"], &at[..]].concat();
    let run = shell.run(&run).exits(9).json()["id"].as_str().unwrap().to_owned();
    let list = shell.run(&[&["inbox", "--json"], &at[..]].concat()).ok().json();
    (run, list[0]["id"].as_str().unwrap().to_owned())
}

#[test]
fn a_task_is_shown_with_its_form_and_an_answer_to_another_revision_is_refused() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let (run, task) = ask(&shell, &daemon);
    let at = ["--server", &daemon.url, "--token", &daemon.token];
    let verb = |args: &[&str]| shell.run(&[args, &at[..]].concat());
    let shown = verb(&["show", &task]).ok().stdout;
    for part in [
        "verdict: pass | blocked",
        "rounds: integer [2]",
        "note: string (may be left out) - for the author",
        "revision ",
    ] {
        assert!(shown.contains(part), "{part:?} is not in {shown}");
    }
    let stale = ["answer", &task, r#"{"verdict":"pass"}"#, "--revision", "0000000000000000"];
    verb(&stale).exits(6).says(&["stale_task", "moonswarm show TASK"]);
    verb(&["answer", &task]).exits(2).says(&["give the output as JSON"]);
    verb(&["answer", &task, r#"{"verdict":"pass"}"#]).ok().says(&["answered"]);
    let output = verb(&["result", &run, "--json"]).ok().json();
    assert_eq!(output["rounds"], 2, "{output}");
}

#[test]
fn on_a_terminal_an_answer_is_asked_for_field_by_field() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let (run, task) = ask(&shell, &daemon);
    // util-linux's `script` gives the program a terminal.
    let line = format!(
        "{} answer {task} --server {} --token {}",
        env!("CARGO_BIN_EXE_moonswarm"),
        daemon.url,
        daemon.token
    );
    let started = std::process::Command::new("script")
        .args(["-qec", &line, "/dev/null"])
        .current_dir(shell.path("."))
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut child) = started else {
        crate::support::skip("the inbox in a terminal", "there is no `script` of util-linux");
        return;
    };
    // The order of the fields is the schema's: every line fits every field but the choice.
    let fields = shell
        .run(&["show", &task, "--json", "--server", &daemon.url, "--token", &daemon.token])
        .ok()
        .json();
    let mut typed = String::new();
    for field in fields["form"]["fields"].as_array().unwrap() {
        typed.push_str(match field["name"].as_str().unwrap() {
            "verdict" => "perhaps\nblocked\n",
            "rounds" => "0\n3\n",
            _ => "\n",
        });
    }
    child.stdin.take().unwrap().write_all(typed.as_bytes()).unwrap();
    let done = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{said}");
    assert!(said.contains("it is one of the 2 choices"), "{said}");
    let output =
        shell.run(&["result", &run, "--json", "--server", &daemon.url, "--token", &daemon.token]);
    let output = output.ok().json();
    assert_eq!((&output["verdict"], &output["rounds"]), (&"blocked".into(), &3.into()));
    assert!(output.get("note").is_none(), "{output}");
}

#[test]
fn a_task_is_expired_by_its_id() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let (run, task) = ask(&shell, &daemon);
    let at = ["--server", &daemon.url, "--token", &daemon.token];
    let verb = |args: &[&str]| shell.run(&[args, &at[..]].concat());
    verb(&["expire", &task]).ok().says(&["expired"]);
    verb(&["result", &run]).exits(7);
    verb(&["expire", &task]).exits(6);
}

#[test]
fn the_newest_open_task_is_named_last() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let (run, task) = ask(&shell, &daemon);
    let at = ["--server", &daemon.url, "--token", &daemon.token];
    let verb = |args: &[&str]| shell.run(&[args, &at[..]].concat());
    let shown = verb(&["inbox", "last"]).ok().stdout;
    assert!(shown.contains(&task) && shown.matches("Review it").count() == 2, "{shown}");
    verb(&["answer", &run, "1"]).exits(2).says(&["is a run, and no task", "moonswarm show RUN"]);
    verb(&["answer", "first", "1"]).exits(2).says(&["`last` stands for the newest"]);
    verb(&["advise", "last", "1"]).exits(4).says(&["no worker waits"]);
    verb(&["answer", "last", r#"{"verdict":"pass"}"#]).ok().says(&["answered", &task]);
    for words in [&["answer", "last", "1"][..], &["approve", "last"], &["reject", "last"]] {
        verb(words).exits(4).says(&["no open task asks you", "moonswarm inbox"]);
    }
    verb(&["expire", "last"]).exits(4).says(&["no open task is for people"]);
}

#[test]
fn answers_are_listed_and_each_person_finds_their_own() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let (run, task) = ask(&shell, &daemon);
    let at = ["--server", &daemon.url, "--token", &daemon.token];
    let verb = |args: &[&str]| shell.run(&[args, &at[..]].concat());
    verb(&["inbox", "--answered"]).ok().says(&["no answers in the last 30 days"]);
    let found = verb(&["inbox", "--text", "review", "--json"]).ok().json();
    assert_eq!(found[0]["id"], task, "{found}");
    verb(&["inbox", "-q", "sign"]).ok().says(&["nothing to answer"]);
    let mint = ["token", "mint", "--role", "approver", "--name", "ann"];
    let ann = verb(&mint).ok().stdout.trim().to_owned();
    let by_ann = ["--server", &daemon.url, "--token", &ann];
    let answer = ["answer", &task, r#"{"verdict":"pass"}"#];
    shell.run(&[&answer[..], &by_ann].concat()).ok();
    let shown = verb(&["inbox", "--answered"]).ok().stdout;
    for part in [task.as_str(), "answered", "ann", &run] {
        assert!(shown.contains(part), "{part:?} is not in {shown}");
    }
    let own = ["inbox", "--answered", "--mine", "--json"];
    let list = shell.run(&[&own[..], &by_ann].concat()).ok().json();
    assert_eq!(list[0]["id"], task, "{list}");
    assert_eq!(verb(&own).ok().json(), serde_json::json!([]), "the admin answered nothing");
    verb(&["inbox", "--answered", "--all"]).exits(2);
    verb(&["inbox", &task, "--answered"]).exits(2);
}
