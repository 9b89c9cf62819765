//! Storage: flipped bits, vanished files, malformed databases.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use futures::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Daemon, PATIENCE, Shell, eventually, send, when};

const ECHO: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "echoes", agents = { echo = { operator = "echo" } },
  flow = function(ctx, input)
    ctx.state:set("seen", input.text)
    if input.file then ctx:artifact("report.txt", input.file) end
    return ctx:run("echo", { text = input.text })
  end,
}
"#;

const QUEUED: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "queued", agents = { work = { operator = "queue", queue = "jobs" } },
  flow = function(ctx, input) return ctx:run("work", input) end,
}
"#;

fn database(data: &Path) -> PathBuf {
    data.join("moonswarm.db")
}

/// Changes a byte of a file wherever `text` stands: the one at `offset` of it.
fn flip(file: &Path, text: &str, offset: usize, to: u8) {
    let mut bytes = fs::read(file).unwrap();
    let found: Vec<usize> = (0..bytes.len() - text.len())
        .filter(|at| bytes[*at..].starts_with(text.as_bytes()))
        .collect();
    assert!(!found.is_empty(), "{text:?} is not in {}", file.display());
    for at in found {
        bytes[at + offset] = to;
    }
    fs::write(file, bytes).unwrap();
}

async fn echo(daemon: &Daemon, text: &str) -> String {
    let run = daemon.run_source(ECHO, json!({ "text": text })).await;
    assert_eq!(daemon.ended(&run).await["output"]["text"], text);
    run
}

/// Sends a request whatever comes of it; none where nobody answers.
async fn ask(daemon: &Daemon, path: &str) -> Option<(u16, String, String)> {
    let answer = daemon.get(path).timeout(Duration::from_secs(10)).send().await.ok()?;
    let kind = answer.headers().get("content-type").map(|it| it.to_str().unwrap().to_owned());
    Some((answer.status().as_u16(), kind.unwrap_or_default(), answer.text().await.ok()?))
}

#[track_caller]
fn is_damage((status, kind, text): &(u16, String, String)) {
    assert_eq!((*status, kind.as_str()), (500, "application/problem+json"), "{text}");
    assert!(text.contains(r#""code":"damaged""#), "{text}");
}

#[tokio::test]
async fn a_flipped_bit_of_a_file_is_damage_and_never_a_file() {
    const FILE: &str = "moonlight, one hundred and eleven times";
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    let input = json!({ "text": "kept", "file": FILE });
    let run = daemon.run_source(ECHO, input.clone()).await;
    daemon.ended(&run).await;
    let files = send(daemon.get(&format!("/v1/runs/{run}/artifacts"))).await.1;
    let file = format!("/v1/artifacts/{}", files["items"][0]["id"].as_str().unwrap());
    assert_eq!(ask(&daemon, &file).await.unwrap().2, FILE);
    daemon.stop();

    // The journal has it too, as the input: there it is another matter.
    let mut bytes = fs::read(database(&data)).unwrap();
    let hash = files["items"][0]["hash"].as_str().unwrap().as_bytes().to_vec();
    let blob = [hash.as_slice(), FILE.as_bytes()].concat();
    let at = (0..bytes.len() - blob.len()).find(|at| bytes[*at..].starts_with(&blob)).unwrap();
    bytes[at + hash.len() + 5] ^= 0x10;
    fs::write(database(&data), bytes).unwrap();

    let offline = shell.run(&["--data", "data", "doctor", "--deep"]).exits(1);
    for part in ["storage: blob ", "have the hash", "next: bring it back", "damaged: 1"] {
        assert!(offline.stdout.contains(part), "{part:?} is not in: {}", offline.stdout);
    }
    assert!(offline.stderr.contains("checking blobs: 100%"), "{}", offline.stderr);
    let daemon = Daemon::start(&data);
    is_damage(&ask(&daemon, &file).await.unwrap());
    let online = shell.run(&["--data", "data", "doctor", "--deep", "--json"]).exits(1).json();
    let damaged = online.as_array().unwrap().iter().find(|line| {
        line["verdict"] == "fail" && line["says"].as_str().unwrap().contains("have the hash")
    });
    assert!(damaged.is_some(), "{online}");
    // Whoever stores the same bytes once more heals them.
    let again = daemon.run_source(ECHO, input).await;
    daemon.ended(&again).await;
    assert_eq!(ask(&daemon, &file).await.unwrap().2, FILE);
    let healed = shell.run(&["--data", "data", "doctor", "--deep"]);
    assert!(healed.stdout.contains("damaged: 0"), "{}", healed.stdout);
}

#[tokio::test]
async fn a_stored_value_that_is_no_json_is_told_and_not_followed_for_ever() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    let run = echo(&daemon, "crescent-moon-7").await;
    let sound = echo(&daemon, "another").await;
    let (_, stored) =
        send(daemon.put("/v1/state/global/note", &json!({ "value": "gibbous-moon-8" }))).await;
    assert_eq!(stored["revision"], 1, "{stored}");
    daemon.stop();
    for text in ["crescent-moon-7\"", "gibbous-moon-8\""] {
        flip(&database(&data), text, text.len() - 1, b'x');
    }

    let daemon = Daemon::start(&data);
    for path in ["", "/steps", "/steps/1"] {
        is_damage(&ask(&daemon, &format!("/v1/runs/{run}{path}")).await.unwrap());
    }
    is_damage(&ask(&daemon, "/v1/state/global/note").await.unwrap());
    let (status, _, events) = ask(&daemon, &format!("/v1/runs/{run}/events")).await.unwrap();
    assert_eq!(status, 200);
    assert!(
        events.contains("event: problem") && events.contains(r#""code":"damaged""#),
        "{events}"
    );
    for follow in [&["logs", &run][..], &["logs", "--follow", &run]] {
        let said = shell.run(&[&["--data", "data"], follow].concat()).exits(1);
        assert!(said.stderr.contains("[damaged]"), "{}", said.stderr);
    }
    // The others are as they were, and lists stand.
    assert_eq!(daemon.ended(&sound).await["output"]["text"], "another");
    assert_eq!(send(daemon.get("/v1/runs")).await.1["items"].as_array().unwrap().len(), 2);
    let deep = shell.run(&["--data", "data", "doctor", "--deep"]).exits(1);
    for part in ["of the journal of run", "\"note\" of global", "\"seen\" of run:", "no JSON"] {
        assert!(deep.stdout.contains(part), "{part:?} is not in: {}", deep.stdout);
    }
}

#[tokio::test]
async fn bits_that_flip_anywhere_are_told_or_change_nothing_of_the_shape() {
    const FLIPS: u64 = 8;
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    let mut runs = Vec::new();
    for n in 0..12 {
        runs.push(echo(&daemon, &format!("text {n}")).await);
    }
    daemon.stop();
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    for n in 0..FLIPS {
        let copy = shell.path(&format!("copy-{n}"));
        copy_dir(&data, &copy);
        let mut bytes = fs::read(database(&copy)).unwrap();
        let random = (seed.wrapping_add(n) | 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 8;
        let at = usize::try_from(random % bytes.len() as u64).unwrap();
        bytes[at] ^= 1 << (random % 7);
        fs::write(database(&copy), bytes).unwrap();
        let Some(daemon) = Daemon::launch(&copy, &[]) else { continue };
        for run in &runs {
            for path in ["", "/steps/1", "/events"] {
                let Some((status, kind, text)) =
                    ask(&daemon, &format!("/v1/runs/{run}{path}")).await
                else {
                    continue;
                };
                let is_told = kind == "application/problem+json" && status >= 400;
                let is_whole = status == 200
                    && (path == "/events" || serde_json::from_str::<Value>(&text).is_ok());
                assert!(is_told || is_whole, "byte {at}: {status} {kind} {text}");
                let is_over = text.contains("run.ended") || text.contains("event: problem");
                assert!(path != "/events" || is_told || is_over, "byte {at}: {text}");
            }
        }
    }
}

#[tokio::test]
async fn a_malformed_database_ends_its_daemon_and_the_start_after_it_says_what_helps() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    for n in 0..3 {
        echo(&daemon, &format!("text {n}")).await;
    }
    daemon.stop();
    // The bytes that each page is said to keep free: what is on them is found in the wrong places.
    let mut bytes = fs::read(database(&data)).unwrap();
    assert_eq!(bytes[20], 0);
    bytes[20] = 16;
    fs::write(database(&data), bytes).unwrap();

    // A start may read none of it; a write does.
    if let Some(mut daemon) = Daemon::launch(&data, &[]) {
        let since = Instant::now();
        while since.elapsed() < PATIENCE {
            let body = json!({ "source": ECHO, "input": { "text": "more" } });
            let Ok(answer) = daemon.post("/v1/runs", &body).send().await else { break };
            if !answer.status().is_success() {
                break;
            }
        }
        assert_eq!(daemon.ends(), Some(69), "{}", daemon.log());
        assert!(daemon.log().contains("the start checks the database"), "{}", daemon.log());
    }

    let refused = shell.run(&["--data", "data", "serve", "--listen", "127.0.0.1:0"]);
    assert_ne!(refused.code, 0);
    refused.says(&["moonswarm restore", "moonswarm doctor --deep"]);
    let deep = shell.run(&["--data", "data", "doctor", "--deep"]).exits(1);
    assert!(deep.stdout.contains("of the database is damaged"), "{}", deep.stdout);
}

#[tokio::test]
async fn a_data_directory_that_is_taken_away_ends_its_daemon_and_nothing_is_acknowledged_after() {
    for how in ["moved", "deleted"] {
        let shell = Shell::new();
        let (data, kept) = (shell.path("data"), shell.path("kept"));
        let mut daemon = Daemon::start(&data);
        echo(&daemon, "before").await;
        match how {
            "moved" => fs::rename(&data, &kept).unwrap(),
            _ => remove(&data),
        }
        let since = Instant::now();
        // Everything that is committed from here on is committed into files that nobody finds.
        let body = json!({ "source": ECHO, "input": { "text": "after" } });
        if let Ok(answer) = daemon.post("/v1/runs", &body).send().await {
            assert!(!answer.status().is_success(), "{how}: it was acknowledged");
        }
        // Somebody else begins at the same place meanwhile.
        let second = Daemon::launch(&data, &[]).expect("an empty place is free");
        assert_eq!(daemon.ends(), Some(69), "{how}: {}", daemon.log());
        println!("{how}: it ended after {:?}", since.elapsed());
        let server = fs::read_to_string(data.join("server.json")).unwrap();
        assert!(server.contains(&second.url), "{how}: the other's address is gone: {server}");
        echo(&second, "of the second").await;
        drop(second);
        if how == "moved" {
            let daemon = Daemon::start(&kept);
            let runs = send(daemon.get("/v1/runs")).await.1;
            // The last one may have been stored without a word about it; it goes on then.
            let last = runs["items"][0]["id"].as_str().unwrap();
            assert_eq!(daemon.ended(last).await["status"], "completed", "{runs}");
        }
    }
}

#[tokio::test]
async fn an_idle_daemon_notices_within_a_second_that_its_files_are_gone() {
    let shell = Shell::new();
    let data = shell.path("data");
    for file in ["lock", "moonswarm.db-wal", "moonswarm.db"] {
        let mut daemon = Daemon::start(&data);
        let since = Instant::now();
        fs::remove_file(data.join(file)).unwrap();
        assert_eq!(daemon.ends(), Some(69), "{file}: {}", daemon.log());
        println!("{file}: it ended after {:?}", since.elapsed());
        assert!(daemon.log().contains("was deleted, moved or replaced"), "{}", daemon.log());
        drop(daemon);
        remove(&data);
    }
}

#[tokio::test]
async fn a_log_that_was_removed_after_a_kill_is_missed() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    echo(&daemon, "kept").await;
    daemon.stop();
    let daemon = Daemon::start(&data);
    echo(&daemon, "lost").await;
    daemon.kill();
    for file in ["moonswarm.db-wal", "moonswarm.db-shm"] {
        fs::remove_file(data.join(file)).unwrap();
    }

    let serve = ["--data", "data", "serve", "--listen", "127.0.0.1:0"];
    for _ in 0..2 {
        shell.run(&serve).exits(1).says(&["moonswarm.db-wal) is missing", "--accept-loss"]);
    }
    let daemon = Daemon::start_with(&data, &["--accept-loss".as_ref()]);
    let runs = send(daemon.get("/v1/runs")).await.1;
    assert_eq!(runs["items"].as_array().unwrap().len(), 1, "{runs}");
    echo(&daemon, "anew").await;
    daemon.kill();
    // Once it was accepted, nothing is missed any more.
    assert_eq!(Daemon::start(&data).stop(), Some(0));
}

#[tokio::test]
async fn a_database_that_was_rolled_back_is_noticed_and_gives_no_number_and_no_handle_again() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    echo(&daemon, "kept").await;
    daemon.stop();
    fs::copy(database(&data), shell.path("snapshot")).unwrap();
    let daemon = Daemon::start(&data);
    let lost = echo(&daemon, "lost").await;
    let queued = daemon.run_source(QUEUED, json!({})).await;
    daemon.waits(&queued, "task").await;
    let role = json!({ "role": "queue", "scopes": ["queue:jobs"], "ttl": "1h" });
    let minted = send(daemon.post("/v1/tokens", &role)).await.1;
    let token = minted["token"].as_str().unwrap();
    let lease = daemon.with(token, Method::POST, "/v1/worker/lease");
    let (status, leased) =
        send(lease.json(&json!({ "queue": "jobs", "wait": "30s", "max": 1, "worker": "w" }))).await;
    assert_eq!(status, 200, "{leased}");
    let handle = leased[0]["handle"].as_str().unwrap().to_owned();
    let incarnation = server(&data)["incarnation"].clone();
    // The mark is as new as the last checkpoint: this is one.
    daemon.stop();
    fs::copy(shell.path("snapshot"), database(&data)).unwrap();

    let daemon = Daemon::start(&data);
    assert!(daemon.log().contains("lost commits"), "{}", daemon.log());
    assert_ne!(server(&data)["incarnation"], incarnation, "it is another life");
    let (status, _) = send(daemon.with(&handle, Method::GET, "/v1/worker/prompt")).await;
    assert_eq!(status, 401);
    assert_eq!(send(daemon.get(&format!("/v1/runs/{lost}"))).await.0, 404);
    echo(&daemon, "anew").await;
    assert_eq!(daemon.stop(), Some(0));
    assert!(!shell.run(&["--data", "data", "ps"]).ok().stderr.contains("lost commits"));
}

#[tokio::test]
async fn a_neighbour_that_keeps_the_database_locked_is_waited_for_within_bounds() {
    const WAITING: usize = 40;
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    echo(&daemon, "before").await;
    let neighbour = rusqlite::Connection::open(database(&data)).unwrap();
    neighbour.execute_batch("BEGIN IMMEDIATE").unwrap();
    let before = daemon.resident();
    let long = "x".repeat(1 << 20);
    let starts = (0..WAITING).map(|n| {
        let body = json!({ "source": ECHO, "input": { "text": format!("{n}"), "long": long } });
        send(daemon.post("/v1/runs", &body))
    });
    let watch = async {
        eventually("readyz to say that the database is locked", async || {
            let (status, ready) = send(daemon.get("/readyz")).await;
            let is_locked = ready["detail"].as_str().is_some_and(|it| it.contains("locked"));
            when(status == 503 && is_locked, ready)
        })
        .await;
        // Reads go on meanwhile.
        assert_eq!(send(daemon.get("/v1/runs")).await.0, 200);
        let more = daemon.resident().saturating_sub(before) >> 20;
        println!("{WAITING} starts of 1 MiB wait: {more} MiB more");
        assert!(more < 400, "{more} MiB");
        neighbour.execute_batch("ROLLBACK").unwrap();
    };
    let (answers, ()) = tokio::join!(join_all(starts), watch);
    for (status, answer) in answers {
        assert_eq!(status, 201, "{answer}");
        assert_eq!(daemon.ended(answer["id"].as_str().unwrap()).await["status"], "completed");
    }
    assert_eq!(send(daemon.get("/readyz")).await.0, 200);
}

fn server(data: &Path) -> Value {
    serde_json::from_slice(&fs::read(data.join("server.json")).unwrap()).unwrap()
}

/// Removes a directory that somebody may write into meanwhile.
fn remove(dir: &Path) {
    loop {
        match fs::remove_dir_all(dir).map_err(|error| error.kind()) {
            Ok(()) | Err(ErrorKind::NotFound) if !dir.exists() => return,
            Ok(()) | Err(ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty) => {}
            Err(other) => panic!("{other}"),
        }
    }
}

fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        if entry.file_type().unwrap().is_file() {
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

#[tokio::test]
async fn a_run_whose_own_state_is_damaged_rests_and_goes_on_once_it_is_repaired() {
    const WAITS: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "waits", agents = {},
  flow = function(ctx)
    ctx.state:set("seen", "half-moon-9")
    ctx:wait("go")
    local ok, seen = pcall(function() return ctx.state:get("seen") end)
    return { ok = ok, seen = seen }
  end,
}
"#;
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    let run = daemon.run_source(WAITS, json!({})).await;
    daemon.waits(&run, "signal").await;
    daemon.stop();
    let sound = fs::read(database(&data)).unwrap();
    // The row of the state alone: its key stands right before its time and its value, and what the
    // journal has of it is in the request of a step.
    let value = b"\"half-moon-9\"";
    let scope = format!("run:{run}seen");
    let rows = (0..sound.len() - 200).filter(|at| sound[*at..].starts_with(scope.as_bytes()));
    let mut values = rows.filter_map(|row| {
        let rest = &sound[row..row + scope.len() + 64];
        Some(row + rest.windows(value.len()).position(|it| it == value)?)
    });
    let at = values.next().expect("the value stands in the same row");
    let mut bytes = sound.clone();
    bytes[at + 12] = b'x';
    fs::write(database(&data), &bytes).unwrap();

    let daemon = Daemon::start(&data);
    let signal = daemon.post(&format!("/v1/runs/{run}/signals/go"), &json!({}));
    let (status, answer) = send(signal).await;
    assert!(status < 300 || answer["code"] == "damaged", "{status} {answer}");
    let view = daemon.waits(&run, "quarantine").await;
    assert_eq!(view["status"], "paused", "{view}");
    let why = view["waiting_on"][0]["subject"]["reason"].as_str().unwrap();
    assert!(why.contains("\"seen\" of run:") && why.contains("no JSON"), "{why}");
    daemon.stop();

    let mut bytes = fs::read(database(&data)).unwrap();
    let broken = b"\"half-moon-9x";
    let at = (0..bytes.len() - broken.len()).find(|at| bytes[*at..].starts_with(broken)).unwrap();
    bytes[at + 12] = b'"';
    fs::write(database(&data), bytes).unwrap();
    let daemon = Daemon::start(&data);
    assert_eq!(send(daemon.post(&format!("/v1/runs/{run}/resume"), &json!({}))).await.0, 200);
    if status >= 300 {
        send(daemon.post(&format!("/v1/runs/{run}/signals/go"), &json!({}))).await;
    }
    assert_eq!(daemon.ended(&run).await["output"], json!({ "ok": true, "seen": "half-moon-9" }));
}
