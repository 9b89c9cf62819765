//! Working on a blueprint: files that are watched, versions that come and go, and a line at a time.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::PathBuf,
    process::Stdio,
};

use rustix::{
    fs::{CWD, RenameFlags, renameat_with},
    process::{Pid, Signal, kill_process},
};
use serde_json::{Value, json};

use crate::support::{
    Daemon, Done, Shell, eventually, eventually_blocking, repository, send, skip, when,
};

const SORTER: &str = r#"local swarm = require("swarm")
return swarm.blueprint {
  name = "sorter",
  agents = { cat = { operator = "process", command = { "cat", "{{ path }}" }, check = false } },
  on = { { watch = "inbox/*.txt", settle = "100ms" } },
  flow = function(ctx)
    local texts = ctx:map(ctx.trigger.changes, function(it)
      return { [it.path] = ctx:run("cat", { path = it.path }).stdout }
    end)
    return { texts = texts, missed = ctx.trigger.missed }
  end,
}
"#;

fn daemon(shell: &Shell) -> Daemon {
    let blueprints = shell.path("blueprints");
    Daemon::start_with(
        &shell.path("data"),
        &["--blueprints".as_ref(), blueprints.as_os_str(), "--log".as_ref(), "info".as_ref()],
    )
}

/// Waits until a blueprint has had so many runs, and gives the output of the latest, ended.
async fn outputs(daemon: &Daemon, blueprint: &str, count: usize) -> Value {
    let what = format!("run {count} of {blueprint}");
    let latest = eventually(&what, async || {
        let (_, page) = send(daemon.get(&format!("/v1/runs?blueprint={blueprint}"))).await;
        let runs = page["items"].as_array().unwrap();
        assert!(runs.len() <= count, "{page}");
        let latest = runs.first().and_then(|run| run["id"].as_str()).map(str::to_owned);
        latest.filter(|_| runs.len() == count).ok_or_else(|| daemon.log())
    });
    daemon.ended(&latest.await).await["output"].clone()
}

/// Waits until the log has a line with this in it.
fn until_log(shell: &Shell, part: &str) -> String {
    eventually_blocking(&format!("{part:?} in the log"), || {
        let log = fs::read_to_string(shell.path("data.log")).unwrap_or_default();
        log.lines().find(|line| line.contains(part)).map(str::to_owned).ok_or(log)
    })
}

#[tokio::test]
async fn files_that_change_start_a_run_also_those_that_changed_while_no_daemon_ran() {
    let shell = Shell::new();
    shell.write("blueprints/sorter.lua", SORTER);
    shell.write("blueprints/inbox/old.txt", "was there before");
    let first = daemon(&shell);
    let shown = shell.run(&["blueprints", "--data", "data"]).ok();
    assert!(shown.stdout.contains("watch inbox/*.txt in /"), "{shown:?}");
    until_seen(&shell, "inbox/old.txt");
    shell.write("blueprints/inbox/new.txt", "hello");
    let output = outputs(&first, "sorter", 1).await;
    assert_eq!(output, json!({"texts": [{"inbox/new.txt": "hello"}], "missed": false}));
    assert_eq!(first.stop(), Some(0));

    shell.write("blueprints/inbox/old.txt", "changed while nobody looked");
    shell.write("blueprints/inbox/other.md", "not meant");
    let second = daemon(&shell);
    let output = outputs(&second, "sorter", 2).await;
    let text = "changed while nobody looked";
    assert_eq!(output, json!({"texts": [{"inbox/old.txt": text}], "missed": true}));
    second.kill();
    let third = daemon(&shell);
    shell.write("blueprints/inbox/third.txt", "3");
    let output = outputs(&third, "sorter", 3).await;
    assert_eq!(output["texts"], json!([{"inbox/third.txt": "3"}]));
}

/// Waits until the host has noted a file: a watch begins with what is there.
fn until_seen(shell: &Shell, file: &str) {
    let has = |name: &str| {
        let bytes = fs::read(shell.path(&format!("data/{name}"))).unwrap_or_default();
        bytes.windows(file.len()).any(|window| window == file.as_bytes())
    };
    eventually_blocking(&format!("a look at {file}"), || {
        when(has("moonswarm.db-wal") || has("moonswarm.db"), "it is not in the database")
    });
}

#[tokio::test]
async fn a_directory_of_the_configuration_is_watched_for_a_blueprint_that_came_over_the_api() {
    let shell = Shell::new();
    fs::create_dir(shell.path("drop")).unwrap();
    let config = format!("[watch]\ndrop = {:?}\n", shell.path("drop"));
    let config = shell.write("swarm.toml", config);
    let looked = shell.run(&["doctor", "--config", "swarm.toml"]);
    assert!(looked.stdout.contains("watch: drop is /"), "{looked:?}");
    let daemon =
        Daemon::start_with(&shell.path("data"), &["--config".as_ref(), config.as_os_str()]);
    let put = async |watch: &str| {
        let source = SORTER.replace("watch = \"inbox/*.txt\"", watch);
        let (status, view) =
            send(daemon.put("/v1/blueprints/sorter", &json!({"source": source}))).await;
        assert_eq!(status, 200, "{view}");
        send(daemon.get("/v1/blueprints")).await.1["items"][0]["on"][0].clone()
    };
    let nowhere = put("watch = \"*.txt\"").await;
    assert!(nowhere["problem"].as_str().unwrap().contains("`root`"), "{nowhere}");
    let unknown = put("watch = \"*.txt\", root = \"other\"").await;
    assert!(unknown["problem"].as_str().unwrap().contains("`other`"), "{unknown}");
    shell.write("drop/was-here.txt", "before");
    let fine = put("watch = \"*.txt\", root = \"drop\"").await;
    assert_eq!(fine["problem"], Value::Null, "{fine}");
    until_seen(&shell, "was-here.txt");
    shell.write("drop/new.txt", "dropped");
    let output = outputs(&daemon, "sorter", 1).await;
    assert_eq!(output["texts"], json!([{"new.txt": "dropped"}]));
}

const FLOW: &str = r#"{ "agents": { "e": { "operator": "echo" } },
  "flow": { "kind": "step", "agent": "e", "input": { "version": 1 } } }"#;

#[tokio::test]
async fn a_watched_flow_as_json_has_its_files_name_and_is_taken_over_when_it_changes() {
    let shell = Shell::new();
    shell.write("blueprints/tiny.flow.json", FLOW);
    shell.write("blueprints/data.json", "{}");
    let daemon = daemon(&shell);
    let (_, all) = send(daemon.get("/v1/blueprints")).await;
    let names: Vec<_> = all["items"].as_array().unwrap().iter().map(|it| &it["name"]).collect();
    assert_eq!(names, ["tiny"]);
    let run = || shell.run(&["run", "tiny", "--data", "data"]).ok().json();
    assert_eq!(run(), json!({"version": 1}));

    shell.write("blueprints/tiny.flow.json", FLOW.replace("echo", "ecko"));
    let line = until_log(&shell, "MS-B020");
    assert!(line.contains("left the last good version in place"), "{line}");
    assert!(line.contains("tiny.flow.json:1:"), "{line}");
    assert_eq!(run(), json!({"version": 1}), "the last good version stays");
    shell.write("blueprints/tiny.flow.json", FLOW.replace("\"version\": 1", "\"version\": 2"));
    let hash = |all: &Value| all["items"][0]["hash"].as_str().unwrap().to_owned();
    let before = hash(&all);
    eventually("the new version", async || {
        when(hash(&send(daemon.get("/v1/blueprints")).await.1) != before, daemon.log())
    })
    .await;
    assert_eq!(run(), json!({"version": 2}));
}

#[tokio::test]
async fn a_version_that_does_not_compile_leaves_the_last_good_one_and_is_named_once() {
    let shell = Shell::new();
    let good = SORTER.replace("on = {", "-- on = {").replace("ctx.trigger.changes", "{}");
    shell.write("blueprints/sorter.lua", &good);
    let daemon = daemon(&shell);
    let run = || shell.run(&["run", "sorter", "--data", "data"]).ok().json()["texts"].clone();
    assert_eq!(run(), json!([]));
    shell.write("blueprints/sorter.lua", good.replace("name = \"sorter\",", "name = \"sorter\""));
    let line = until_log(&shell, "MS-B001");
    assert!(line.contains("sorter.lua:4"), "{line}");
    // Another file that changes says nothing again about this one.
    shell.write("blueprints/more.lua", good.replace("\"sorter\"", "\"more\""));
    until_log(&shell, "name=\"more\"");
    let log = fs::read_to_string(shell.path("data.log")).unwrap();
    assert_eq!(log.matches("MS-B001").count(), 1, "{log}");
    assert_eq!(run(), json!([]));
    drop(daemon);
}

const GREET: &str = r#"local swarm = require("swarm")
return swarm.blueprint {
  name = "greet",
  agents = { e = { operator = "echo" } },
  flow = function(ctx) return ctx:run("e", "one") end,
}
"#;

#[test]
fn run_watch_runs_every_version_that_compiles_and_cancels_one_that_changes() {
    let shell = Shell::new();
    shell.write("greet.lua", GREET);
    let mut run = shell.start(&["run", "greet.lua", "--watch"]);
    run.until("run completed");
    run.until("waiting for a change");
    shell.write("greet.lua", GREET.replace("ctx:run(\"e\"", "ctx:run(\"f\""));
    run.until("greet.lua:5:");
    run.until("the last good version stays");
    shell.write("greet.lua", GREET.replace("return ctx:run", "ctx:wait(\"never\") return ctx:run"));
    run.until("never");
    shell.write("greet.lua", GREET.replace("one", "two"));
    run.until("changed: the run was canceled");
    run.until("run completed");
    run.until("waiting for a change");
    run.signal(Signal::INT);
    let done = run.end().ok();
    assert_eq!(done.stdout, "one\ntwo\n");
}

#[test]
fn a_line_at_a_time_is_a_run_each_with_the_agents_of_a_blueprint() {
    let shell = Shell::new();
    shell.write("greet.lua", GREET);
    let mut repl = shell
        .command(&["repl", "greet.lua"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = repl.stdin.take().unwrap();
    let mut printed = BufReader::new(repl.stdout.take().unwrap()).lines();
    let mut line = |line: &str, expected: &str| {
        writeln!(input, "{line}").unwrap();
        // What is wrong is only said.
        if !expected.is_empty() {
            assert_eq!(printed.next().unwrap().unwrap(), expected, "{line}");
        }
    };
    line("1 + 2", "3");
    line("ctx:run(\"e\", \"hi\")", "hi");
    line("_ .. \"!\"", "hi!");
    line("x = ctx:run(\"e\", 20)", "20");
    line("for i = 1, 2 do x = x + i end return x", "23");
    line("return local", "");
    line("ctx:run(\"f\")", "");
    line("x * 2", "40");
    drop(input);
    let done: crate::support::Done = repl.wait_with_output().unwrap().into();
    done.ok().says(&["each line of Lua", "Expected", "`f`"]);
}

#[test]
fn a_ctrl_c_at_the_prompt_ends_the_lines_after_one_that_ran() {
    let shell = Shell::new();
    let mut repl = shell
        .command(&["repl"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = repl.stdin.take().unwrap();
    let mut printed = BufReader::new(repl.stdout.take().unwrap()).lines();
    writeln!(input, "1 + 2").unwrap();
    assert_eq!(printed.next().unwrap().unwrap(), "3");
    kill_process(Pid::from_child(&repl), Signal::INT).unwrap();
    // Its input stays open: only the signal can have ended it.
    let status = repl.wait().unwrap();
    drop(input);
    assert_eq!(status.code(), Some(0));
}

#[test]
fn tests_say_which_lines_never_ran_for_people_and_as_lcov() {
    let shell = Shell::new();
    shell.run(&["init", "hello"]).ok();
    let text = fs::read_to_string(shell.path("hello.lua")).unwrap();
    let more = text.replace(
        "    local day",
        "    if input.who == \"nobody\" then\n      swarm.fail(\"nobody\")\n    end\n    local day",
    );
    shell.write("hello.lua", &more);
    let missed = more.lines().position(|line| line.contains("swarm.fail")).unwrap() + 1;
    let done = shell.run(&["test", "--coverage", "--lcov", "lines.info"]).ok();
    let row = done.stdout.lines().find(|line| line.trim().starts_with("hello.lua")).unwrap();
    assert!(row.trim_end().ends_with(&format!(" {missed}")), "{done:?}");
    let lcov = fs::read_to_string(shell.path("lines.info")).unwrap();
    assert!(lcov.starts_with("TN:\nSF:hello.lua\nDA:"), "{lcov}");
    assert!(lcov.contains(&format!("\nDA:{missed},0\n")), "{lcov}");
    let json = shell.run(&["test", "--coverage", "--json"]).ok().json();
    assert_eq!(json["coverage"][0]["missed"], json!([[missed, missed]]));
    assert_eq!(json["files"][0]["tests"][0]["passed"], true);
}

#[test]
fn where_no_test_ran_nothing_has_passed() {
    let shell = Shell::new();
    shell.run(&["init", "hello"]).ok();
    let none = shell.run(&["test", "--filter", "nobody"]).exits(4);
    none.says(&["0 passed", "no test has \"nobody\" in its name"]);
    shell.write("empty_test.lua", "local t = require(\"swarm.test\")\n");
    shell.run(&["test", "empty_test.lua"]).exits(4).says(&["no file has a test"]);
    shell.run(&["test"]).ok();
}

fn named(name: &str, returns: &str) -> String {
    format!(
        "local swarm = require(\"swarm\")\nreturn swarm.blueprint {{ name = \"{name}\", \
         flow = function(ctx) return {returns} end }}\n"
    )
}

/// Waits until the daemon lists a problem of a file, and gives it.
async fn problem_of(daemon: &Daemon, file: &str) -> Value {
    eventually("a problem", async || {
        let (_, all) = send(daemon.get("/v1/blueprints")).await;
        let problems = all["problems"].as_array().unwrap();
        problems.iter().find(|it| it["file"] == file).cloned().ok_or_else(|| all.to_string())
    })
    .await
}

#[tokio::test]
async fn a_file_that_never_compiled_is_listed_with_its_finding_and_a_run_of_it_repeats_that() {
    let shell = Shell::new();
    shell.write("blueprints/fine.lua", named("fine", "1"));
    let daemon = daemon(&shell);
    shell.write("blueprints/newbad.lua", named("newbad", "1").replace("name", "nmae"));
    let problem = problem_of(&daemon, "newbad.lua").await;
    assert_eq!(problem["name"], "newbad", "{problem}");
    assert_eq!(problem["findings"][1]["code"], "MS-B010", "{problem}");
    shell.write("blueprints/broken.lua", "return swarm.blueprint {");
    assert_eq!(problem_of(&daemon, "broken.lua").await["findings"][0]["code"], "MS-B001");
    let listed = shell.run(&["blueprints", "--data", "data"]).ok();
    assert!(listed.stdout.contains("newbad  -"), "{listed:?}");
    assert!(listed.stdout.contains("not served: newbad.lua: newbad.lua:2:"), "{listed:?}");
    shell.run(&["run", "newbad", "--data", "data"]).exits(3).says(&["MS-B010", "newbad.lua:2:"]);
    shell.run(&["run", "fine", "--data", "data"]).ok();
}

#[tokio::test]
async fn of_two_files_with_one_name_the_second_is_refused_until_the_first_is_gone() {
    let shell = Shell::new();
    shell.write("blueprints/b.lua", named("same", "\"b\""));
    let daemon = daemon(&shell);
    let run = || shell.run(&["run", "same", "--data", "data"]);
    assert_eq!(run().ok().stdout.trim(), "b");
    shell.write("blueprints/a.lua", named("same", "\"a\""));
    let problem = problem_of(&daemon, "a.lua").await;
    assert_eq!(problem["message"], "b.lua declares the name `same` already");
    assert_eq!(run().ok().stdout.trim(), "b");
    assert_eq!(daemon.stop(), Some(0));
    let daemon = self::daemon(&shell);
    assert_eq!(run().ok().stdout.trim(), "b", "the one that is served stays so over a restart");
    fs::remove_file(shell.path("blueprints/b.lua")).unwrap();
    eventually("the other file", async || {
        let said = run().ok().stdout;
        when(said.trim() == "a", said)
    })
    .await;
    drop(daemon);
}

#[tokio::test]
async fn a_directory_that_is_replaced_is_watched_and_one_that_is_missing_archives_nothing() {
    let shell = Shell::new();
    let write = |returns: &str| {
        shell.write("blueprints/nested/main.lua", named("nested", returns));
    };
    write("\"first\"");
    let daemon = daemon(&shell);
    let run = || shell.run(&["run", "nested", "--data", "data"]);
    let until = async |word: &str| {
        eventually(word, async || {
            let done = run();
            when(done.stdout.trim() == word, format!("{done:?}"))
        })
        .await;
    };
    shell.write("fresh/main.lua", named("nested", "\"second\""));
    let (fresh, served) = (shell.path("fresh"), shell.path("blueprints/nested"));
    renameat_with(CWD, &fresh, CWD, &served, RenameFlags::EXCHANGE).unwrap();
    until("second").await;
    write("\"third\"");
    until("third").await;
    fs::rename(shell.path("blueprints"), shell.path("away")).unwrap();
    until_log(&shell, "its blueprints stay as they are");
    assert_eq!(run().ok().stdout.trim(), "third");
    fs::rename(shell.path("away"), shell.path("blueprints")).unwrap();
    write("\"fourth\"");
    until("fourth").await;
    let log = fs::read_to_string(shell.path("data.log")).unwrap();
    assert!(!log.contains("its file is gone"), "{log}");
    drop(daemon);
}

#[tokio::test]
async fn an_empty_directory_in_the_place_of_another_one_archives_nothing() {
    let shell = Shell::new();
    shell.write("blueprints/one.lua", named("one", "\"first\""));
    let run = || shell.run(&["run", "one", "--data", "data"]);
    let until = async |what: &str, is_so: fn(&Done) -> bool| {
        eventually(what, async || {
            let done = run();
            when(is_so(&done), format!("{done:?}"))
        })
        .await;
    };
    let daemon = daemon(&shell);
    run().ok();
    // As a mount point is without its disk.
    let (away, served) = (shell.path("away"), shell.path("blueprints"));
    let exchange = || renameat_with(CWD, &away, CWD, &served, RenameFlags::EXCHANGE).unwrap();
    fs::create_dir(&away).unwrap();
    exchange();
    until_log(&shell, "its blueprints stay as they are");
    run().ok();
    assert_eq!(daemon.stop(), Some(0));
    let daemon = self::daemon(&shell);
    run().ok();
    exchange();
    shell.write("blueprints/one.lua", named("one", "\"second\""));
    until("the disk", |done| done.stdout.trim() == "second").await;
    fs::remove_file(shell.path("blueprints/one.lua")).unwrap();
    until("the end of the name", |done| done.code == 4).await;
    drop(daemon);
}

#[tokio::test]
async fn a_removed_file_archives_its_name_and_keeps_its_runs() {
    let shell = Shell::new();
    shell.write("blueprints/gone.lua", named("gone", "1"));
    shell.write("blueprints/later.lua", named("later", "1"));
    let first = daemon(&shell);
    let run = |name: &str| shell.run(&["run", name, "--data", "data"]);
    run("gone").ok();
    fs::remove_file(shell.path("blueprints/gone.lua")).unwrap();
    eventually("the end of the name", async || {
        let done = run("gone");
        when(done.code == 4, format!("{done:?}"))
    })
    .await;
    run("gone").exits(4).says(&["its file was removed", "gone@"]);
    let runs = shell.run(&["ps", "--blueprint", "gone", "--data", "data", "--json"]).ok().json();
    assert!(!runs.as_array().unwrap().is_empty());
    assert_eq!(first.stop(), Some(0));
    // What was removed while nobody looked is archived as well.
    fs::remove_file(shell.path("blueprints/later.lua")).unwrap();
    let again = self::daemon(&shell);
    run("later").exits(4).says(&["its file was removed"]);
    shell.write("blueprints/later.lua", named("later", "1"));
    eventually("the name again", async || {
        let done = run("later");
        when(done.code == 0, format!("{done:?}"))
    })
    .await;
    drop(again);
}

#[test]
fn check_denies_warnings_if_asked_and_a_comment_with_a_reason_allows_one() {
    let shell = Shell::new();
    let source = |comment: &str| {
        format!(
            "local swarm = require(\"swarm\")\n\
             return swarm.blueprint {{ name = \"w\", edition = 2, flow = function(ctx, input)\n\
             {comment}\n  return input, 1\nend }}\n"
        )
    };
    shell.write("w.lua", source(""));
    shell.run(&["check", "w.lua"]).ok();
    let denied = shell.run(&["check", "w.lua", "--deny", "warnings"]).exits(3);
    assert!(denied.stdout.contains("MS-B087"), "{denied:?}");
    shell.write("w.lua", source("  -- allow MS-B087"));
    let denied = shell.run(&["check", "w.lua", "--deny", "warnings"]).exits(3);
    assert!(denied.stdout.contains("an allowance has a reason"), "{denied:?}");
    shell.write("w.lua", source("  -- allow MS-B087: the second is for later"));
    shell.run(&["check", "w.lua", "--deny", "notes"]).ok().says(&["no findings"]);
}

#[test]
fn files_that_are_no_bundle_are_a_finding_beside_those_of_other_blueprints() {
    let shell = Shell::new();
    let source = |file: &str| {
        format!(
            "local swarm = require(\"swarm\")\n\
             return swarm.blueprint {{ name = \"n\", edition = 2, flow = require(\"./{file}\") }}\n"
        )
    };
    shell.write("bp/a.lua", source("link"));
    shell.write("bp/b.lua", source("flow"));
    shell.write("bp/flow.lua", "return function(ctx, input) return input end\n");
    std::os::unix::fs::symlink("/etc/hostname", shell.path("bp/link.lua")).unwrap();
    let done = shell.run(&["check", "bp"]).exits(3);
    assert!(done.stdout.contains("MS-B004") && done.stdout.contains("a.lua:1:1"), "{done:?}");
    done.says(&["bp/a.lua: 1 finding(s)", "bp/b.lua: no findings", "bp/link.lua: 1 finding(s)"]);
    let found = shell.run(&["check", "bp", "--json"]).exits(3).json();
    assert_eq!((&found[0]["path"], &found[0]["file"]), (&json!("bp/a.lua"), &json!("a.lua")));
    assert_eq!((&found[0]["code"], &found[2]), (&json!("MS-B004"), &Value::Null));
    // A link that is named like a blueprint is left out, and says so.
    assert_eq!(
        (&found[1]["path"], &found[1]["severity"]),
        (&json!("bp/link.lua"), &json!("warning"))
    );
    shell.run(&["run", "bp/a.lua"]).exits(3).says(&["bp/a.lua: ", "symbolic link"]);
    // The name of the link ends like that of the file.
    shell.write("a.lua", source("data"));
    std::os::unix::fs::symlink("/etc/hostname", shell.path("data.lua")).unwrap();
    shell.run(&["run", "a.lua"]).exits(3).says(&["a.lua: cannot add \"data.lua\""]);
}

#[test]
fn a_directory_is_checked_with_blueprints_that_are_too_large_or_no_text() {
    let shell = Shell::new();
    shell.write("bp/a.lua", GREET);
    shell.write("bp/large.lua", vec![b' '; (1 << 20) + 1]);
    shell.write("bp/other.lua", b"return swarm.blueprint { -- \xff\n}");
    shell.write("bp/module.luau", "return {}\n");
    let done = shell.run(&["check", "bp"]).exits(3);
    done.says(&["bp/a.lua: no findings", "bp/large.lua: 1 finding", "bp/other.lua: 1 finding"]);
    let found = shell.run(&["check", "bp", "--json"]).exits(3).json();
    let errors = found.as_array().unwrap().iter().filter(|it| it["severity"] == "error");
    let codes: Vec<_> = errors.map(|it| (&it["path"], &it["code"])).collect();
    let code = &json!("MS-B004");
    assert_eq!(codes, [(&json!("bp/large.lua"), code), (&json!("bp/other.lua"), code)]);
}

#[test]
fn check_of_a_directory_warns_of_links_that_lead_out_of_it() {
    let shell = Shell::new();
    shell.write("bp/a.lua", GREET);
    shell.write("shared/main.lua", GREET);
    for (to, link) in
        [("shared", "bp/whole"), ("shared/main.lua", "bp/one.lua"), ("bp/a.lua", "bp/own.lua")]
    {
        std::os::unix::fs::symlink(shell.path(to), shell.path(link)).unwrap();
    }
    let found = shell.run(&["check", "bp", "--json"]).ok().json();
    let found = found.as_array().unwrap().iter().filter(|it| it["code"] == "MS-B004");
    let places: Vec<_> = found.map(|it| (&it["path"], &it["severity"])).collect();
    let warning = &json!("warning");
    assert_eq!(places, [(&json!("bp/one.lua"), warning), (&json!("bp/whole/main.lua"), warning)]);
    shell.run(&["check", "bp", "--deny", "warnings"]).exits(3).says(&["bp/a.lua: no findings"]);
    shell.write("links/x.txt", "");
    std::os::unix::fs::symlink(shell.path("shared"), shell.path("links/whole")).unwrap();
    shell.run(&["check", "links"]).exits(4).says(&["no blueprints here", "links/whole/main.lua"]);
}

/// The command of a language server, which `scripts/test.sh` installs below `target/tools/`.
fn language_server() -> PathBuf {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository("target"), PathBuf::from);
    target.join("tools/bin/emmylua_check")
}

#[test]
fn an_editor_has_nothing_to_say_about_any_blueprint_of_the_repository() {
    let server = language_server();
    if !server.exists() {
        skip("the stubs in a language server", &format!("{} is not there", server.display()));
        return;
    }
    let shell = Shell::new();
    shell.run(&["init", "--stubs"]).ok();
    let copied = std::process::Command::new("cp")
        .arg("-r")
        .args([repository("blueprints"), shell.path("blueprints")])
        .status();
    assert!(copied.unwrap().success());
    let looked = |severity: &str| {
        let done = std::process::Command::new(&server)
            .args([".", "--severity", severity, "--warnings-as-errors"])
            .current_dir(shell.path(""))
            .output()
            .unwrap();
        (done.status.success(), String::from_utf8_lossy(&done.stdout).into_owned())
    };
    let (is_clean, text) = looked("warn");
    assert!(is_clean, "{text}");
    // It does look: a mistake is found.
    shell.write(
        "wrong.lua",
        "local swarm = require(\"swarm\")\nreturn swarm.blueprint { name = 1, flow = nil }\n\
         , swarm.schema.objekt {}\n",
    );
    let (is_clean, text) = looked("warn");
    assert!(!is_clean && text.contains("objekt"), "{text}");
}
