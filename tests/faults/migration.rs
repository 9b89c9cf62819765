//! The way from the format before, and from one that is too new.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use reqwest::Method;
use rusqlite::Connection;
use serde_json::json;

use crate::{
    shim::Shim,
    support::{Daemon, Shell, program, repository, send},
};

/// The runs of the golden file: one completed, one waits for the signal `go`.
const DONE: &str = "run_agq7y6sxnzyadaaaaaaaiaaaaa";
const OPEN: &str = "run_agq7y6sxsfyadaaaaaaaqaaaaa";

/// The newest format: the number of the migrations.
fn newest() -> u32 {
    let migrations = fs::read_dir(repository("src/store/sqlite/migrations")).unwrap();
    u32::try_from(migrations.count()).unwrap()
}

/// A data directory as the first release left it.
fn golden(data: &Path) {
    fs::create_dir(data).unwrap();
    fs::copy(repository("tests/golden/format-1.db"), data.join("moonswarm.db")).unwrap();
}

fn number(data: &Path, pragma: &str) -> u32 {
    let db = Connection::open(data.join("moonswarm.db")).unwrap();
    db.pragma_query_value(None, pragma, |row| row.get(0)).unwrap()
}

/// What the old release stored is there, and its open run goes on to its end.
async fn goes_on(data: &Path) {
    let daemon = Daemon::start(data);
    let done = daemon.ended(DONE).await;
    assert_eq!(done["output"]["said"], json!({ "n": 1 }), "{done}");
    let signal = daemon.post(&format!("/v1/runs/{OPEN}/signals/go"), &json!("on"));
    assert_eq!(send(signal).await.0, 204);
    let ask = json!({ "queue": "q", "wait": "10s" });
    let (_, leased) = send(daemon.post("/v1/worker/lease", &ask)).await;
    let handle = leased[0]["handle"].as_str().unwrap();
    let result =
        daemon.with(handle, Method::POST, "/v1/worker/result").json(&json!({ "output": 7 }));
    assert_eq!(send(result).await.0, 200);
    let view = daemon.ended(OPEN).await;
    let expected = json!({ "payload": "on", "done": 7, "text": "written by format 1" });
    assert_eq!(view["output"], expected, "{view}");
    assert_eq!(daemon.stop(), Some(0));
    // Since format 2 free pages are given back a few at a time.
    assert_eq!((number(data, "user_version"), number(data, "auto_vacuum")), (newest(), 2));
}

#[tokio::test]
async fn a_database_of_the_format_before_goes_on() {
    let shell = Shell::new();
    let data = shell.path("data");
    golden(&data);
    goes_on(&data).await;
}

/// Of the golden file of format 6: a completed run, one with a task that a worker has, and the
/// worker's handle, made with [`HANDLE_KEY`].
const SIX: [&str; 2] = ["run_agragtltynyadaaaaaaaiaaaaa", "run_agragtlt2byadaaaaaaaqaaaaa"];
const HANDLE_OF_SIX: &str = "wh_aiaqcuwjhlaim7cqe6vxqix3mspvdji";
const HANDLE_KEY: [u8; 32] = [7; 32];

#[tokio::test]
async fn a_database_of_format_6_goes_on_and_a_worker_keeps_the_handle_it_has() {
    let shell = Shell::new();
    let data = shell.path("data");
    fs::create_dir(&data).unwrap();
    fs::copy(repository("tests/golden/format-6.db"), data.join("moonswarm.db")).unwrap();
    fs::write(data.join("handle.key"), HANDLE_KEY).unwrap();
    fs::set_permissions(data.join("handle.key"), fs::Permissions::from_mode(0o600)).unwrap();
    let daemon = Daemon::start(&data);
    let [done, open] = SIX;
    assert_eq!(daemon.ended(done).await["output"]["said"], json!({ "n": 1 }));
    let result = |handle: &str, output| {
        let post = daemon.with(handle, Method::POST, "/v1/worker/result");
        send(post.json(&json!({ "output": output })))
    };
    let (status, accepted) = result(HANDLE_OF_SIX, 7).await;
    assert_eq!(status, 200, "{accepted}");
    let ask = json!({ "queue": "q", "wait": "10s" });
    let (_, leased) = send(daemon.post("/v1/worker/lease", &ask)).await;
    assert_eq!(result(leased[0]["handle"].as_str().unwrap(), 8).await.0, 200, "{leased}");
    let expected = json!({ "done": 7, "after": 8, "text": "written by format 6" });
    assert_eq!(daemon.ended(open).await["output"], expected);
    assert_eq!(daemon.stop(), Some(0));
    assert_eq!(number(&data, "user_version"), newest());
}

#[tokio::test]
async fn a_migration_that_is_killed_half_way_goes_on_at_the_next_start() {
    for at in ["store.rewrite#1", "store.rewritten#1", "store.migrate#1", "store.migrated#1"] {
        let shell = Shell::new();
        let data = shell.path("data");
        golden(&data);
        assert!(Daemon::launch(&data, &[("MOONSWARM_KILL_AT", at)]).is_none(), "{at}");
        let format = if at == "store.migrated#1" { 2 } else { 1 };
        assert_eq!(number(&data, "user_version"), format, "{at}");
        goes_on(&data).await;
    }
}

#[tokio::test]
async fn a_migration_without_room_says_so_and_goes_on_once_there_is() {
    for at in [1, 10, 40] {
        let shell = Shell::new();
        let data = shell.path("data");
        golden(&data);
        let shim = Shim::build(shell.path("").as_path(), "moonswarm.db");
        let how = format!("full {at}");
        shim.fail(&how);
        assert!(Daemon::launch(&data, &shim.env()).is_none(), "{how}");
        assert!(shim.has_hit(&how), "{how}");
        let said = fs::read_to_string(data.with_extension("log")).unwrap();
        assert!(said.contains("the disk is full"), "{said}");
        goes_on(&data).await;
    }
}

#[test]
fn a_newer_format_is_refused_with_what_to_do_and_left_as_it_is() {
    let shell = Shell::new();
    let data = shell.path("data");
    golden(&data);
    let db = Connection::open(data.join("moonswarm.db")).unwrap();
    db.pragma_update(None, "user_version", 99).unwrap();
    drop(db);
    let before = fs::read(data.join("moonswarm.db")).unwrap();
    let done = program().args(["serve", "--data"]).arg(&data).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_ne!(done.status.code(), Some(0), "{said}");
    let known = format!("knows formats up to {}", newest());
    for part in ["its format is 99", known.as_str(), "use the release that wrote it"] {
        assert!(said.contains(part), "{part:?} is not in: {said}");
    }
    assert_eq!(fs::read(data.join("moonswarm.db")).unwrap(), before);
}
