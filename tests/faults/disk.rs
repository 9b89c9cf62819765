//! Disks that are full, fail, lie, or cannot be written.

use std::{fs, io::Read as _, path::Path, process::Stdio};

use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    shim::Shim,
    support::{
        Daemon, Shell, eventually, eventually_blocking, needs_sqlite, program, refusal, send, when,
    },
};

const BLUEPRINT: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "steps", agents = { echo = { operator = "echo" } },
  flow = function(ctx, input)
    ctx.state:set("seen", input.n)
    ctx:sleep("1ms")
    return ctx:run("echo", { n = input.n }).n
  end,
}
"#;

async fn put(daemon: &Daemon) {
    let body = json!({ "files": { "main.lua": BLUEPRINT } });
    let (status, answer) = send(daemon.put("/v1/blueprints/steps", &body)).await;
    assert_eq!(status, 200, "{answer}");
}

/// Starts the n-th run, or starts it again; the status and the answer.
async fn start(daemon: &Daemon, n: u64) -> (u16, Value) {
    let body = json!({ "blueprint": "steps", "input": { "n": n } });
    send(daemon.post("/v1/runs", &body).header("idempotency-key", format!("run-{n}"))).await
}

async fn ready(daemon: &Daemon) -> (u16, Value) {
    send(daemon.get("/readyz")).await
}

/// Looks until it is so.
async fn until<F: Future<Output = bool>>(what: &str, daemon: &Daemon, is_so: impl Fn() -> F) {
    eventually(what, async || when(is_so().await, daemon.log())).await;
}

/// Every run up to `count` is there once and completed.
async fn all_completed(daemon: &Daemon, count: u64) {
    let (_, page) = send(daemon.get("/v1/runs?limit=200")).await;
    let runs = page["items"].as_array().unwrap();
    assert_eq!(runs.len() as u64, count, "{page}");
    for run in runs {
        let view = daemon.ended(run["id"].as_str().unwrap()).await;
        assert_eq!(
            (&view["status"], &view["output"]),
            (&json!("completed"), &view["input"]["n"]),
            "{view}"
        );
    }
}

/// Fills the disk at the `at`-th write of a run; false if the run does not write so often.
async fn fill(shim: &Shim, daemon: &Daemon, at: u64) -> bool {
    let how = format!("full {at}");
    shim.fail(&how);
    let (status, answer) = start(daemon, at).await;
    let accepted = match status {
        201 => Some(answer["id"].clone()),
        503 => {
            assert_eq!(answer["code"], "storage_full", "{answer}");
            None
        }
        _ => panic!("{status} {answer}"),
    };
    if let Some(run) = &accepted {
        let run = run.as_str().unwrap();
        until("the full disk, or the run's end", daemon, || async {
            let (_, view) = send(daemon.get(&format!("/v1/runs/{run}"))).await;
            shim.has_hit(&how) || !view["ended_at"].is_null()
        })
        .await;
    }
    let hit = shim.has_hit(&how);
    if hit {
        until("readyz says so", daemon, || async { ready(daemon).await.0 == 503 }).await;
        assert!(ready(daemon).await.1["detail"].as_str().unwrap().contains("full"));
        if let Some(run) = &accepted {
            // A client that waits for the run's end goes on waiting.
            let path = format!("/v1/runs/{}?wait=200ms", run.as_str().unwrap());
            let (status, view) = send(daemon.get(&path)).await;
            assert_eq!((status, &view["ended_at"]), (200, &Value::Null), "{view}");
        }
    }
    shim.heal();
    until("it goes on by itself", daemon, || async { ready(daemon).await.0 == 200 }).await;
    let (status, again) = start(daemon, at).await;
    assert_eq!(status, 201, "{again}");
    assert!(accepted.is_none_or(|run| run == again["id"]), "an acknowledged run is lost");
    let view = daemon.ended(again["id"].as_str().unwrap()).await;
    assert_eq!((&view["status"], &view["output"]), (&json!("completed"), &json!(at)), "{view}");
    hit
}

#[tokio::test]
async fn a_disk_that_is_full_at_any_write_loses_nothing_and_is_waited_for() {
    if needs_sqlite("the disk below the database") {
        return;
    }
    let shell = Shell::new();
    let shim = Shim::build(shell.path("").as_path(), "moonswarm.db");
    let data = shell.path("data");
    let daemon = shim.start(&data);
    put(&daemon).await;
    let mut at = 1;
    while fill(&shim, &daemon, at).await {
        at += 1;
    }
    println!("the disk was full at each of {} writes", at - 1);
    assert!(at > 10, "the shim hits too little");
    daemon.kill();
    all_completed(&Daemon::start(&data), at).await;
}

#[tokio::test]
async fn a_sync_that_fails_ends_the_daemon_and_is_never_tried_again() {
    if needs_sqlite("the disk below the database") {
        return;
    }
    let shell = Shell::new();
    let shim = Shim::build(shell.path("").as_path(), "moonswarm.db");
    let data = shell.path("data");
    let mut daemon = shim.start(&data);
    put(&daemon).await;
    for n in 1..=5 {
        assert_eq!(start(&daemon, n).await.0, 201);
    }
    all_completed(&daemon, 5).await;
    // `.cargo/config.toml` has SQLite built so.
    let synced = shim.notes();
    assert!(synced.iter().filter(|note| *note == "fdatasync").count() >= 5, "{synced:?}");
    assert!(!synced.contains(&"fsync".to_owned()), "a commit syncs with fdatasync: {synced:?}");
    shim.fail("sync 1");
    let answer = daemon
        .post("/v1/runs", &json!({ "blueprint": "steps", "input": { "n": 6 } }))
        .header("idempotency-key", "run-6")
        .send()
        .await;
    assert!(!answer.is_ok_and(|answer| answer.status().is_success()), "it was not synced");
    assert_eq!(daemon.ends(), Some(69), "{}", daemon.log());
    for part in ["failed to write to the database", "check the disk"] {
        assert!(daemon.log().contains(part), "{part:?} is not in: {}", daemon.log());
    }
    let notes = shim.notes();
    let failed = notes.iter().position(|note| note == "sync 1").unwrap();
    assert_eq!(&notes[failed + 1..], [""; 0], "it synced after a failed sync");

    let daemon = Daemon::start(&data);
    assert_eq!(start(&daemon, 6).await.0, 201);
    all_completed(&daemon, 6).await;
}

#[test]
fn a_sync_that_fails_ends_a_run_without_a_daemon_too() {
    if needs_sqlite("the disk below the database") {
        return;
    }
    let shell = Shell::new();
    let shim = Shim::build(shell.path("").as_path(), "moonswarm.db");
    let file = shell.write("waits.lua", BLUEPRINT.replace("1ms", "1m"));
    let mut run = shell.command(&["--data", "data", "run", file.to_str().unwrap(), "n=1"]);
    let mut run =
        run.envs(shim.env()).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let address = shell.path("data").join("server.json");
    // Once the run waits, nothing but the token is written.
    eventually_blocking("a run that waits", || {
        if !fs::read_to_string(&address).is_ok_and(|text| text.contains("url")) {
            return Err("no server.json".to_owned());
        }
        let listed = shell.run(&["--data", "data", "ps", "--json"]).stdout;
        when(listed.contains("\"waiting\""), listed)
    });
    shim.fail("sync 1");
    let mint = ["--data", "data", "token", "mint", "--role", "observer"];
    let refused = shell.run(&mint);
    assert_ne!(refused.code, 0, "{refused:?}");
    let mut said = String::new();
    run.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(69), "{said}");
    assert!(said.contains("check the disk"), "{said}");
}

#[tokio::test]
async fn a_sync_that_fails_while_the_log_is_written_back_ends_the_daemon_too() {
    if needs_sqlite("the disk below the database") {
        return;
    }
    let shell = Shell::new();
    // Commits sync the log alone; the database itself is only synced when the log is written back.
    let shim = Shim::build(shell.path("").as_path(), "moonswarm.db$");
    let data = shell.path("data");
    let mut daemon = shim.start(&data);
    put(&daemon).await;
    shim.fail("sync 1");
    let mut accepted = 0;
    while accepted < 50 {
        let long = "x".repeat(500_000);
        let body = json!({ "blueprint": "steps", "input": { "n": accepted, "long": long } });
        let Ok(answer) = daemon.post("/v1/runs", &body).send().await else { break };
        if !answer.status().is_success() {
            break;
        }
        accepted += 1;
    }
    assert_eq!(daemon.ends(), Some(69), "{}", daemon.log());
    assert!(daemon.log().contains("write the log back"), "{}", daemon.log());
    assert!(shim.has_hit("sync 1") && accepted >= 4, "{accepted} {:?}", shim.notes());
    let daemon = Daemon::start(&data);
    let (_, page) = send(daemon.get("/v1/runs?limit=200")).await;
    let there = page["items"].as_array().unwrap().len();
    assert!((accepted..=accepted + 1).contains(&there), "{there} of {accepted} are there");
    for run in page["items"].as_array().unwrap() {
        assert_eq!(daemon.ended(run["id"].as_str().unwrap()).await["status"], "completed");
    }
}

const SHARES: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "steps", agents = {},
  flow = function(ctx, input)
    ctx:scope("global"):add("sum", 1)
    ctx:scope("global"):append("log", input.n)
    return input.n
  end,
}
"#;

#[tokio::test]
async fn a_change_of_shared_state_waits_for_room_and_is_made_once() {
    if needs_sqlite("the disk below the database") {
        return;
    }
    let shell = Shell::new();
    let shim = Shim::build(shell.path("").as_path(), "moonswarm.db");
    let data = shell.path("data");
    let daemon = shim.start(&data);
    let body = json!({ "files": { "main.lua": SHARES } });
    assert_eq!(send(daemon.put("/v1/blueprints/steps", &body)).await.0, 200);
    let mut at = 1;
    while fill(&shim, &daemon, at).await {
        at += 1;
    }
    println!("the disk was full at each of {} writes", at - 1);
    assert!(at > 10, "the shim hits too little");
    all_completed(&daemon, at).await;
    let (_, sum) = send(daemon.get("/v1/state/global/sum")).await;
    assert_eq!(sum["value"], at, "each change is made once");
    let (_, log) = send(daemon.get("/v1/state/global/log")).await;
    assert_eq!(log["value"], json!((1..=at).collect::<Vec<_>>()));
}

/// What a power cut may leave of a log.
type Tear = fn(&mut Vec<u8>);

#[tokio::test]
async fn a_torn_last_page_takes_the_last_commit_and_nothing_else() {
    if needs_sqlite("the disk below the database") {
        return;
    }
    const RUNS: u64 = 8;
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    put(&daemon).await;
    for n in 0..RUNS {
        let (status, run) = start(&daemon, n).await;
        assert_eq!(status, 201, "{run}");
        daemon.ended(run["id"].as_str().unwrap()).await;
    }
    daemon.kill();
    let tears: [(&str, Tear); 3] = [
        ("cut", |log| log.truncate(log.len() - 2_000)),
        ("flipped", |log| {
            let at = log.len() - 1_000;
            log[at] ^= 0x55;
        }),
        ("zeroed", |log| {
            let at = log.len() - 512;
            log[at..].fill(0);
        }),
    ];
    for (name, tear) in tears {
        let copy = shell.path(name);
        copy_dir(&data, &copy);
        let log = copy.join("moonswarm.db-wal");
        let mut bytes = fs::read(&log).unwrap();
        tear(&mut bytes);
        fs::write(&log, bytes).unwrap();
        let daemon = Daemon::start(&copy);
        // What the last commit held is lost, up to the whole of the last run; its client asks again.
        assert_eq!(start(&daemon, RUNS - 1).await.0, 201);
        all_completed(&daemon, RUNS).await;
        let (status, run) = start(&daemon, RUNS).await;
        assert_eq!(status, 201, "{run}");
        all_completed(&daemon, RUNS + 1).await;
        assert_eq!(daemon.stop(), Some(0));
        let db = rusqlite::Connection::open(copy.join("moonswarm.db")).unwrap();
        let sound: String = db.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
        assert_eq!(sound, "ok", "{name}");
    }
}

fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            copy_dir(&entry.path(), &to.join(entry.file_name()));
        } else if kind.is_file() {
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

#[test]
fn a_directory_that_cannot_be_written_is_named_with_what_to_do() {
    if needs_sqlite("the disk below the database") {
        return;
    }
    let shell = Shell::new();
    let data = shell.path("data");
    fs::create_dir(&data).unwrap();
    let shim = Shim::build(shell.path("").as_path(), data.to_str().unwrap());
    shim.fail("readonly");
    let done = program()
        .args(["serve", "--listen", "127.0.0.1:0", "--data"])
        .arg(&data)
        .envs(shim.env())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(1), "{said}");
    for part in [data.to_str().unwrap(), "Read-only file system", "make it writable", "--data"] {
        assert!(said.contains(part), "{part:?} is not in: {said}");
    }
}

#[tokio::test]
async fn a_refused_write_names_its_code_and_when_to_come_back() {
    if needs_sqlite("the disk below the database") {
        return;
    }
    let shell = Shell::new();
    let shim = Shim::build(shell.path("").as_path(), "moonswarm.db");
    let daemon = shim.start(&shell.path("data"));
    shim.fail("full 1");
    let mint = daemon.post("/v1/tokens", &json!({ "role": "observer", "ttl": "1h" }));
    let answer = mint.send().await.unwrap();
    assert_eq!(answer.headers()["retry-after"], "1");
    let again = daemon.with(&daemon.token, Method::POST, "/v1/tokens");
    let again = again.json(&json!({ "role": "observer", "ttl": "1h" }));
    assert_eq!(refusal(again).await, (503, "storage_full".to_owned()));
    shim.heal();
    until("space is back", &daemon, || async { ready(&daemon).await.0 == 200 }).await;
}
