//! Backup and restore, retention, forks, replays and documents, as somebody types them.

use std::{
    fs,
    io::{ErrorKind, Read as _, Write as _},
    net::TcpListener,
    os::unix::fs::PermissionsExt as _,
};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{
    Daemon, Done, Shell, eventually, eventually_blocking, needs_sqlite, refusal, repository, send,
    when,
};

const WAITS: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "waits",
  agents = { e = { operator = "echo" }, q = { operator = "queue", queue = "q" } },
  flow = function(ctx, input)
    local a = ctx:run("e", input.n)
    local b = ctx:run("q", a)
    return { a, b }
  end,
}
"#;

const HELLO: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "hello",
  agents = { e = { operator = "echo" } },
  flow = function(ctx, input) return ctx:run("e", input.n + 1) end,
}
"#;

async fn lease(daemon: &Daemon) -> Value {
    let body = json!({"queue": "q", "wait": "30s", "max": 1});
    let (status, leased) = send(daemon.post("/v1/worker/lease", &body)).await;
    assert_eq!(status, 200, "{leased}");
    leased[0].clone()
}

async fn report(daemon: &Daemon, handle: &str, output: Value) -> (u16, Value) {
    let result = json!({ "output": output });
    send(daemon.with(handle, reqwest::Method::POST, "/v1/worker/result").json(&result)).await
}

#[tokio::test]
async fn blueprints_are_archived_restored_and_deleted() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path(".moonswarm"));
    let (status, body) =
        send(daemon.put("/v1/blueprints/hello", &json!({ "source": HELLO }))).await;
    assert_eq!(status, 200, "{body}");
    let delete = ["blueprints", "delete", "hello"];
    shell.run(&delete).exits(6).says(&["archive it first"]);
    shell
        .run(&["blueprints", "archive", "hello"])
        .ok()
        .says(&["hello is archived", "restore hello"]);
    assert_eq!(shell.run(&["--json", "blueprints"]).ok().json(), json!([]));
    let archived = shell.run(&["--json", "blueprints", "--archived"]).ok().json();
    assert!(archived[0]["archived_at"].is_string(), "{archived}");
    let hint = "moonswarm blueprints restore hello";
    shell.run(&["run", "hello"]).exits(6).says(&["blueprint hello is archived", hint]);
    shell.run(&["blueprints", "restore", "hello"]).ok().says(&["hello is hello@"]);
    let versions = shell.run(&["--json", "blueprints", "versions", "hello"]).ok().json();
    assert_eq!(
        (versions.as_array().map(Vec::len), &versions[0]["current"]),
        (Some(1), &json!(true))
    );
    shell.run(&["blueprints", "diff", "hello"]).exits(4).says(&["no blueprint hello before"]);
    let second = HELLO.replace("input.n + 1", "input.n + 2");
    send(daemon.put("/v1/blueprints/hello", &json!({ "source": second }))).await;
    let diff = shell.run(&["blueprints", "diff", "hello"]).ok();
    assert!(
        diff.stdout
            .contains("+  flow = function(ctx, input) return ctx:run(\"e\", input.n + 2) end,")
    );
    assert!(shell.run(&["blueprints", "versions", "hello"]).ok().stdout.contains("current"));
    shell.run(&["run", "hello", "--input", r#"{"n":1}"#]).ok();
    shell.run(&["blueprints", "archive", "hello"]).ok();
    shell.run(&delete).exits(6).says(&["its history needs the source"]);
    shell.run(&["blueprints", "delete", "nothing"]).exits(4);
}

#[tokio::test]
async fn a_restored_copy_has_all_that_was_acknowledged_and_nothing_that_was_given_out() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path(".moonswarm"));
    let run = daemon.run_source(WAITS, json!({"n": 7})).await;
    let held = lease(&daemon).await["handle"].as_str().unwrap().to_owned();
    let mut acknowledged = Vec::new();
    for n in 0..20 {
        acknowledged.push(daemon.run_source(HELLO, json!({ "n": n })).await);
    }
    // Others go on while the copy is made.
    let load = async {
        for n in 20..60 {
            daemon.run_source(HELLO, json!({ "n": n })).await;
        }
    };
    let backup = async {
        let mut command = tokio::process::Command::from(shell.command(&["backup", "copy.db"]));
        let done = command.output().await.unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    tokio::join!(load, backup);
    shell.run(&["backup", "copy.db"]).exits(6).says(&["exists", "--force"]);
    shell.run(&["backup", "copy.db", "--force"]).ok();
    let (old_token, old_handle) = (daemon.token.clone(), held);
    // Its own copy forgot nothing: the handle is still good here.
    assert_eq!(report(&daemon, &old_handle, json!("original")).await.0, 200);
    daemon.kill();

    shell.run(&["restore", "copy.db"]).exits(6).says(&["is there", "--data"]);
    let restored = shell.run(&["restore", "copy.db", "--data", "there", "--json"]).ok().json();
    assert_eq!((&restored["open_runs"], &restored["reopened_attempts"]), (&json!(1), &json!(1)));
    let there = Daemon::start(&shell.path("there"));
    for id in &acknowledged {
        assert_eq!(there.ended(id).await["status"], "completed");
    }
    let get = there.with(&old_token, reqwest::Method::GET, "/v1/runs");
    assert_eq!(refusal(get).await, (401, "unauthenticated".to_owned()));
    let result = there.with(&old_handle, reqwest::Method::POST, "/v1/worker/result");
    let refused = refusal(result.json(&json!({"output": "late"}))).await;
    assert_eq!(refused, (401, "unauthenticated".to_owned()));

    let fresh = lease(&there).await;
    let handle = fresh["handle"].as_str().unwrap();
    let (_, prompt) = send(there.with(handle, reqwest::Method::GET, "/v1/worker/prompt")).await;
    assert_eq!(prompt["attempt"], 2, "{prompt}");
    assert_eq!(report(&there, handle, json!("copy")).await.0, 200);
    assert_eq!(there.ended(&run).await["output"], json!([7, "copy"]));
}

#[test]
fn a_directory_without_a_daemon_is_backed_up_as_well() {
    let shell = Shell::new();
    let file = shell.write("hello.lua", HELLO);
    shell.run(&["run", file.to_str().unwrap(), "n=1"]).ok();
    shell.run(&["backup", "copy.db"]).ok();
    shell.run(&["restore", "copy.db", "--data", "there"]).ok().says(&["1 ended and 0 open"]);
    let runs = shell.run(&["--data", "there", "ps", "--json"]).ok().json();
    assert_eq!(runs.as_array().unwrap().len(), 1, "{runs}");
    shell.write("other.db", "something else");
    let done = shell.run(&["restore", "other.db", "--data", "elsewhere"]);
    assert_ne!(done.code, 0);
    assert!(!shell.path("elsewhere").exists());
    shell.run(&["restore", "nothing.db", "--data", "elsewhere"]).exits(4);
    // A daemon with this configuration would not have the runs.
    shell.write("moonswarm.toml", "store = \"postgres://me@127.0.0.1:1/db\"\n");
    let refused = shell.run(&["restore", "copy.db", "--data", "elsewhere"]).exits(2);
    refused.says(&["PostgreSQL", "--config", "moonswarm store copy"]);
    assert!(!shell.path("elsewhere").exists());
}

#[test]
fn a_backup_that_is_interrupted_leaves_nothing_behind() {
    let shell = Shell::new();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", server.local_addr().unwrap());
    let files = || fs::read_dir(shell.path("")).unwrap().count();
    for signal in [Signal::INT, Signal::TERM] {
        let backup = shell.start(&["backup", "copy.db", "--server", &url, "--token", "t"]);
        let (mut client, _) = server.accept().unwrap();
        assert_ne!(client.read(&mut [0; 1 << 12]).unwrap(), 0);
        client.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\npart").unwrap();
        eventually_blocking("the draft", || when(files() == 1, files()));
        backup.signal(signal);
        backup.end().exits(130).says(&["nothing was written"]);
        assert_eq!(files(), 0);
    }
}

const ASKS: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "asks",
  agents = { e = { operator = "own" }, desk = { operator = "human" } },
  flow = function(ctx)
    ctx:run("e", 1)
    return ctx:run("desk", {})
  end,
}
"#;

#[test]
fn a_look_at_an_upgrade_has_the_configuration_and_posts_nothing() {
    let shell = Shell::new();
    let desk = TcpListener::bind("127.0.0.1:0").unwrap();
    desk.set_nonblocking(true).unwrap();
    let address = desk.local_addr().unwrap();
    let config = format!(
        "[operators.own]\nkind = \"echo\"\n[webhooks.desk]\nurl = \"http://{address}/opened\"\n\
         allow_hosts = [\"127.0.0.1\"]\n"
    );
    shell.write("host.toml", config);
    shell.write("asks.lua", ASKS);
    shell.run(&["--config", "host.toml", "run", "asks.lua"]).exits(9);
    // The host of the run may have posted. Nobody has taken it, so it still waits.
    while desk.accept().is_ok() {}
    let binary = env!("CARGO_BIN_EXE_moonswarm");
    let done = shell.run(&["--config", "host.toml", "doctor", "--upgrade", binary]).ok();
    assert!(done.stdout.contains("1 of 1 open runs go on"), "{done:?}");
    assert_eq!(desk.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn a_start_removes_the_copy_of_a_look_at_an_upgrade_that_was_killed() {
    if needs_sqlite("a data directory that is copied") {
        return;
    }
    let shell = Shell::new();
    shell.write("hello.lua", HELLO);
    shell.run(&["run", "hello.lua", "n=1"]).ok();
    let (going, asked) = (shell.write("going", ""), shell.path("asked"));
    let slow = format!(
        "#!/bin/sh\ncase \"$*\" in *replay*) touch '{}'; while [ -e '{}' ]; do sleep 0.1; done; \
         exit 1;; esac\nexec '{}' \"$@\"\n",
        asked.display(),
        going.display(),
        env!("CARGO_BIN_EXE_moonswarm")
    );
    let slow = shell.write("slow", slow);
    fs::set_permissions(&slow, fs::Permissions::from_mode(0o755)).unwrap();
    let doctor = shell.start(&["doctor", "--upgrade", slow.to_str().unwrap()]);
    eventually_blocking("the copy is replayed", || when(asked.exists(), "it was not asked yet"));
    let copies = || {
        let files = fs::read_dir(shell.path(".moonswarm")).unwrap().flatten();
        files.filter(|it| it.file_name().to_string_lossy().starts_with(".upgrade-")).count()
    };
    shell.run(&["run", "hello.lua", "n=2"]).ok();
    assert_eq!(copies(), 1, "it is in use");
    // Dropped, it is killed.
    drop(doctor);
    assert_eq!(copies(), 1);
    shell.run(&["run", "hello.lua", "n=3"]).ok();
    assert_eq!(copies(), 0);
    fs::remove_file(going).unwrap();
}

#[test]
fn the_doctor_says_so_where_it_cannot_look_at_what_is_stored() {
    let shell = Shell::new();
    let binary = env!("CARGO_BIN_EXE_moonswarm");
    for (flags, says) in [
        (&["doctor", "--deep"][..], "nothing was read"),
        (&["doctor", "--upgrade", binary][..], "nothing was checked"),
    ] {
        let mut doctor = shell.command(flags);
        doctor.env("MOONSWARM_STORE", "postgres://me@127.0.0.1:1/db");
        let done = Done::from(doctor.output().unwrap()).exits(1);
        assert!(done.stdout.contains(says), "{done:?}");
    }
}

#[test]
fn old_runs_go_by_policy_and_any_ended_run_by_hand() {
    let shell = Shell::new();
    let file = shell.write("hello.lua", HELLO);
    let mut ids = Vec::new();
    for n in 0..3 {
        let done = shell.run(&["run", file.to_str().unwrap(), &format!("n={n}"), "--json"]).ok();
        ids.push(done.json()["id"].as_str().unwrap().to_owned());
    }
    shell.run(&["gc", "--dry-run"]).ok().says(&["0 run(s) would go"]);
    shell.write("moonswarm.toml", "[retention]\nruns = 2\n");
    let dry = shell.run(&["gc", "--dry-run", "--json"]).ok().json();
    assert_eq!((&dry["runs"], &dry["items"][0]["run"]), (&json!(1), &json!(ids[0])), "{dry}");
    let done = shell.run(&["gc"]).ok().says(&["1 run(s) went", "1 by count"]);
    assert!(done.stdout.contains(&ids[0]), "{}", done.stdout);
    shell.run(&["show", &ids[0]]).exits(4);
    shell.run(&["delete", &ids[1]]).ok().says(&["is gone"]);
    shell.run(&["show", &ids[1]]).exits(4);
    shell.run(&["show", &ids[2]]).ok();
    let doctor = shell.run(&["doctor"]);
    assert!(doctor.stdout.contains("2 runs"), "{}", doctor.stdout);
    shell.write("moonswarm.toml", "[retention]\nsize = \"big\"\n");
    shell.run(&["gc"]).exits(2).says(&["size", "10GiB"]);
}

#[test]
fn a_command_without_a_daemon_goes_by_the_retention_of_the_last_daemon() {
    let shell = Shell::new();
    let file = shell.write("hello.lua", HELLO);
    for n in 0..3 {
        shell.run(&["run", file.to_str().unwrap(), &format!("n={n}")]).ok();
    }
    let serve = |config: &[&str]| {
        let mut daemon = shell.start(&[config, &["serve", "--listen", "127.0.0.1:0"]].concat());
        daemon.until("http://127.0.0.1:");
        daemon.signal(Signal::TERM);
        daemon.end().ok();
    };
    let would_go = || shell.run(&["gc", "--dry-run", "--json"]).ok().json()["runs"].clone();
    shell.write("etc/moonswarm.toml", "[retention]\nruns = 1\n");
    serve(&["--config", "etc/moonswarm.toml"]);
    assert_eq!(would_go(), json!(2));
    let own = shell.write("moonswarm.toml", "[retention]\nruns = 2\n");
    assert_eq!(would_go(), json!(1), "its own configuration has another one");
    shell.write("moonswarm.toml", "[retention]\nruns = 100000\n");
    assert_eq!(would_go(), json!(0), "the default is one as well, if it is written out");
    fs::remove_file(own).unwrap();
    serve(&[]);
    assert_eq!(would_go(), json!(0));
}

#[test]
fn a_text_is_erased_after_a_look_and_backups_say_what_they_hold() {
    let shell = Shell::new();
    let file = shell.write("hello.lua", HELLO);
    let mut ids = Vec::new();
    for tag in ["of=zachariasquux", "of=nobody"] {
        let run = ["run", file.to_str().unwrap(), "n=1", "--tag", tag, "--json"];
        ids.push(shell.run(&run).ok().json()["id"].as_str().unwrap().to_owned());
    }
    std::fs::create_dir(shell.path("old")).unwrap();
    shell.run(&["backup", "old/copy.db"]).ok();
    shell.run(&["erase"]).exits(2).says(&["nothing is named", "--match"]);
    shell.run(&["erase", "--match", "zachariasquux", "--run", &ids[0]]).exits(2);
    let dry = ["erase", "--match", "zachariasquux"];
    let planned = shell.run(&dry).ok().says(&["1 run(s) would go", "nothing was done"]);
    assert!(planned.stdout.contains(&ids[0]) && planned.stdout.contains("eligible"));
    shell.run(&["show", &ids[0]]).ok();
    let done = ["erase", "--match", "zachariasquux", "--yes", "--backups", "old"];
    let said = ["1 run(s) went", "copy copy.db", "holds 1 of these runs", "delete them"];
    shell.run(&done).ok().says(&said);
    shell.run(&["show", &ids[0]]).exits(4);
    shell.run(&["show", &ids[1]]).ok();
    let again = shell.run(&["erase", "--run", &ids[1], "--yes", "--json"]).ok().json();
    assert_eq!(again["runs"][0]["result"], "done", "{again}");
    let audit = shell.run(&["audit", "ls"]).ok().stdout;
    assert!(audit.contains("erased") && !audit.contains("zacharias"), "{audit}");
    shell
        .run(&["erase", "--match", "zachariasquux", "--yes"])
        .ok()
        .says(&["nothing that contains the text is stored", "sessions"]);
    let nobody = shell.run(&["erase", "--subject", "nobody", "--yes"]).ok();
    nobody.says(&["nothing of the subject nobody is stored", "tokens"]);
    shell.run(&["erase", "--match", "abc"]).exits(2).says(&["4 to 1024 bytes"]);
    // Its first 1,026 bytes are a text that could be erased.
    let long = shell.write("long", format!("{}\r\nzacharias", "x".repeat(1_024)));
    let mut command = shell.command(&["erase", "--match", "-"]);
    let done = Done::from(command.stdin(fs::File::open(long).unwrap()).output().unwrap());
    done.exits(2).says(&["more than 1024 bytes"]);
}

#[test]
fn a_fork_goes_on_from_its_step_and_a_replay_says_where_a_source_differs() {
    let shell = Shell::new();
    let two = |second: &str| {
        format!(
            "local swarm = require(\"swarm\")\nreturn swarm.blueprint {{ name = \"two\",
               agents = {{ e = {{ operator = \"echo\" }} }},
               flow = function(ctx, input)
                 local a = ctx:run(\"e\", input.n)
                 return a + ctx:run(\"e\", {second})
               end }}"
        )
    };
    let file = shell.write("two.lua", two("a + 1"));
    let other = shell.write("other.lua", two("a + 100"));
    let (file, other) = (file.to_str().unwrap(), other.to_str().unwrap());
    let run = shell.run(&["run", file, "n=1", "--json"]).ok().json();
    assert_eq!(run["output"], 3);
    let id = run["id"].as_str().unwrap();

    let at = shell.run(&["inspect", id, "--at", "2"]).ok();
    for part in ["step 2: task e", ".lua:6  return a +", "argument  input", "{n: 1}", "a      1"] {
        assert!(at.stdout.contains(part), "{part}: {}", at.stdout);
    }
    let json = shell.run(&["inspect", id, "--at", "2", "--json"]).ok().json();
    assert_eq!(json["branches"][0]["frames"][0]["variables"][2]["value"], 1, "{json}");
    shell.run(&["inspect", id, "--at", "9"]).exits(4).says(&["there is no step"]);

    let same = shell.run(&["replay", id]).ok();
    assert!(same.stdout.contains("entries replayed, no divergence"), "{}", same.stdout);
    let differs = shell.run(&["replay", id, "--against", other]).exits(6);
    assert!(
        differs.stdout.contains("- task \"e\" with 2\n+ task \"e\" with 101"),
        "{}",
        differs.stdout
    );

    let fork = shell.run(&["fork", id, "--from", "2", "--with", other, "--json"]).ok().json();
    assert_eq!((&fork["status"], &fork["output"]), (&json!("completed"), &json!(102)));
    let shown = shell.run(&["show", fork["id"].as_str().unwrap()]).ok().stdout;
    assert!(shown.contains(&format!("forked from {id} at step 2")), "{shown}");
    let set = shell.run(&["fork", id, "--from", "1", "--set", "n=5", "--json"]).ok().json();
    assert_eq!(set["output"], 11);
    let late = shell.run(&["fork", id, "--from", "2", "--set", "n=5"]).exits(6);
    late.says(&["with 1", "with 5", "fork from an earlier one"]);
    shell.run(&["fork", id, "--from", "9"]).exits(4);

    let plan = shell.run(&["fork", id, "--from", "2", "--dry-run", "--json"]).ok().json();
    assert_eq!((&plan["kept"], &plan["redone"]), (&json!(1), &json!(1)), "{plan}");
    assert_eq!(plan["asks"][0]["name"], "e", "{plan}");
    let plan = shell.run(&["fork", id, "--from", "2", "--dry-run"]).ok();
    plan.says(&["the first new step is task e"]);
    let plan = shell.run(&["fork", id, "--from", "2", "--set", "n=5", "--dry-run"]).exits(6);
    assert!(plan.stdout.contains("redone"), "{}", plan.stdout);
    plan.says(&[
        "steps kept: 1, not kept: 1",
        "nothing was stored",
        "the fork would be paused",
        "with 5",
    ]);
    let edited = shell.run(&["fork", id, "--output", "1=40", "--json"]).ok().json();
    assert_eq!(edited["output"], 81, "40 + 41");
    let edited = shell.run(&["fork", id, "--from", "2", "--step-input", "9", "--json"]).ok().json();
    assert_eq!(edited["output"], 10, "1 + 9");
    shell.run(&["fork", id]).exits(2);
    shell.run(&["fork", id, "--output", "one=40"]).exits(2).says(&["not the number of a step"]);
}

#[test]
fn a_run_moves_to_another_directory_as_a_document() {
    let shell = Shell::new();
    let file = shell.write("hello.lua", HELLO);
    let run = shell.run(&["run", file.to_str().unwrap(), "n=1", "--json"]).ok().json();
    let id = run["id"].as_str().unwrap();
    shell.run(&["export", id, "-o", "run.jsonl"]).ok();
    shell.run(&["export", id, "-o", "run.jsonl"]).exits(6);
    let printed = shell.run(&["export", id]).ok().stdout;
    assert_eq!(printed.lines().count(), 6, "{printed}");
    let there = shell.run(&["--data", "there", "import", "run.jsonl"]).ok();
    assert_eq!(there.stdout.trim(), id);
    let result = shell.run(&["--data", "there", "result", id]).ok();
    assert_eq!(result.stdout.trim(), "2");
    let half = &printed[..printed.len() / 2];
    shell.write("half.jsonl", half);
    shell.run(&["--data", "there", "import", "half.jsonl"]).exits(2).says(&["document"]);
}

/// Runs of edition 1 as a release before the editions left them: their loops went through tables in
/// Luau's order, an agent file was a template, the input was changed and a duration had no unit.
#[tokio::test]
async fn runs_of_edition_1_go_on_as_they_began() {
    let shell = Shell::new();
    let id = "run_agraj6n2y5yadaaaaaaaiaaaaa";
    for data in ["open", "done"] {
        let document = repository(&format!("tests/golden/edition-1-{data}.jsonl"));
        shell.run(&["--data", data, "import", document.to_str().unwrap()]).ok();
        let replayed = shell.run(&["--data", data, "replay", id]).ok();
        assert!(replayed.stdout.contains("no divergence"), "{}", replayed.stdout);
    }
    let done = shell.run(&["--data", "done", "result", id]).ok().json();
    assert_eq!(done["list"], json!([99, 2]));
    let daemon = Daemon::start(&shell.path("open"));
    let (status, said) = send(daemon.post(&format!("/v1/runs/{id}/resume"), &json!({}))).await;
    assert!((200..300).contains(&status), "{said}");
    let task = eventually("a task of the run that goes on", async || {
        let (_, tasks) = send(daemon.get("/v1/tasks")).await;
        tasks["items"][0]["id"].as_str().map(str::to_owned).ok_or(tasks)
    })
    .await;
    let answer = json!({ "output": "yes" });
    let (status, said) = send(daemon.post(&format!("/v1/tasks/{task}/answer"), &answer)).await;
    assert!((200..300).contains(&status), "{said}");
    assert_eq!(daemon.ended(id).await["output"], done);
}
