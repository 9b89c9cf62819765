//! The way from the format before, and from one that is too new.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use reqwest::Method;
use rusqlite::Connection;
use serde_json::json;

use crate::{
    shim::Shim,
    support::{Daemon, Shell, needs_sqlite, program, repository, send},
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
    if needs_sqlite("data directories of earlier releases") {
        return;
    }
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
    if needs_sqlite("data directories of earlier releases") {
        return;
    }
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
    if needs_sqlite("data directories of earlier releases") {
        return;
    }
    for at in [
        "store.backed_up#1",
        "store.rewrite#1",
        "store.rewritten#1",
        "store.migrate#1",
        "store.migrated#1",
    ] {
        let shell = Shell::new();
        let data = shell.path("data");
        golden(&data);
        assert!(Daemon::launch(&data, &[("MOONSWARM_KILL_AT", at)]).is_none(), "{at}");
        // All of it or nothing.
        let format = if at == "store.migrated#1" { newest() } else { 1 };
        assert_eq!(number(&data, "user_version"), format, "{at}");
        goes_on(&data).await;
        assert_eq!(backups(&data), [("backup-format-1.db".to_owned(), 1)], "{at}");
    }
}

#[tokio::test]
async fn a_migration_without_room_says_so_and_goes_on_once_there_is() {
    if needs_sqlite("data directories of earlier releases") {
        return;
    }
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

/// The copies from before migrations, with their formats.
fn backups(data: &Path) -> Vec<(String, u32)> {
    let files = fs::read_dir(data).unwrap().flatten();
    let names = files.map(|file| file.file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| name.starts_with("backup-")).collect();
    names.sort();
    let format = |name: &str| {
        let db = Connection::open(data.join(name)).unwrap();
        db.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap()
    };
    names.into_iter().map(|name| (name.clone(), format(&name))).collect()
}

/// Of the golden file of format 7: a completed run, and one that has begun anew twice and waits for
/// the signal `go`.
const SEVEN: [&str; 2] = ["run_agraiwv2nvyadaaaaaaaiaaaaa", "run_agraiwv2sfyadaaaaaaaqaaaaa"];

fn golden_seven(data: &Path) {
    fs::create_dir(data).unwrap();
    fs::copy(repository("tests/golden/format-7.db"), data.join("moonswarm.db")).unwrap();
}

#[tokio::test]
async fn a_database_of_format_7_goes_on_and_the_copy_from_before_is_named() {
    if needs_sqlite("data directories of earlier releases") {
        return;
    }
    let shell = Shell::new();
    let data = shell.path("data");
    golden_seven(&data);
    let daemon = Daemon::start(&data);
    let said = daemon.log();
    for part in ["a copy from before the migration is kept", "backup-format-7.db"] {
        assert!(said.contains(part), "{part:?} is not in: {said}");
    }
    let [done, open] = SEVEN;
    assert_eq!(daemon.ended(done).await["output"]["said"], json!({ "n": 1 }));
    assert_eq!(
        send(daemon.post(&format!("/v1/runs/{open}/signals/go"), &json!("on"))).await.0,
        204
    );
    let ask = json!({ "queue": "q", "wait": "10s" });
    let (_, leased) = send(daemon.post("/v1/worker/lease", &ask)).await;
    let handle = leased[0]["handle"].as_str().unwrap();
    let result =
        daemon.with(handle, Method::POST, "/v1/worker/result").json(&json!({ "output": 7 }));
    assert_eq!(send(result).await.0, 200);
    let expected = json!({ "n": 2, "done": 7, "text": "written by format 7" });
    assert_eq!(daemon.ended(open).await["output"], expected);
    assert_eq!(daemon.stop(), Some(0));
    assert_eq!(number(&data, "user_version"), newest());
    assert_eq!(backups(&data), [("backup-format-7.db".to_owned(), 7)]);
    // A verb that has its own host says it as well.
    golden_seven(&shell.path("other"));
    let migrated = format!("migrated the database from format 7 to {}; a copy", newest());
    shell.run(&["--data", "other", "ps"]).ok().says(&[&migrated, "other/backup-format-7.db"]);
    // The copy is as good as any.
    let back = ["--data", "back", "restore", "data/backup-format-7.db"];
    shell.run(&back).ok();
    let deep = shell.run(&["--data", "data", "doctor", "--deep"]);
    assert!(deep.stdout.contains("damaged: 0"), "{}", deep.stdout);
}

#[test]
fn a_migration_without_room_for_a_copy_changes_nothing() {
    if needs_sqlite("data directories of earlier releases") {
        return;
    }
    let shell = Shell::new();
    let data = shell.path("data");
    golden_seven(&data);
    let before = fs::read(data.join("moonswarm.db")).unwrap();
    let shim = Shim::build(shell.path("").as_path(), "backup-format");
    for at in [1, 5] {
        shim.fail(&format!("full {at}"));
        let serve = ["serve", "--listen", "127.0.0.1:0", "--data"];
        let done = program().args(serve).arg(&data).envs(shim.env()).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(shim.has_hit(&format!("full {at}")), "{said}");
        assert_eq!(done.status.code(), Some(69), "{said}");
        for part in ["from format 7", "a copy of it is made first", "nothing has been changed"] {
            assert!(said.contains(part), "{part:?} is not in: {said}");
        }
        assert_eq!(fs::read(data.join("moonswarm.db")).unwrap(), before);
        assert_eq!(backups(&data), []);
        shim.heal();
    }
}

#[test]
fn another_release_is_asked_what_it_would_change_and_nothing_is_changed() {
    if needs_sqlite("data directories of earlier releases") {
        return;
    }
    let shell = Shell::new();
    let data = shell.path("data");
    golden_seven(&data);
    let before = fs::read(data.join("moonswarm.db")).unwrap();
    let binary = env!("CARGO_BIN_EXE_moonswarm");
    let asked = shell.run(&["--data", "data", "doctor", "--upgrade", binary]).ok();
    let migrates = format!("from format 7 to {}", newest());
    for part in [&migrates, "backup-format-7.db", "MiB are free", "1 of 1 open runs go on"] {
        assert!(asked.stdout.contains(part), "{part:?} is not in: {}", asked.stdout);
    }
    assert_eq!(fs::read(data.join("moonswarm.db")).unwrap(), before);
    assert_eq!(backups(&data), []);
    let left = fs::read_dir(&data).unwrap().flatten().map(|file| file.file_name());
    let copies = left.filter(|name| name.to_string_lossy().starts_with(".upgrade")).count();
    assert_eq!(copies, 0);

    // A release under which a run goes another way, one that is too old, and no moonswarm at all.
    let other = |name: &str, body: &str| {
        let path = shell.write(name, format!("#!/bin/sh\n{body}\n"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path.display().to_string()
    };
    let [_, open] = SEVEN;
    let divergence = json!({ "message": "the flow asks for another", "step": 1, "at": null,
        "recorded": null, "asked": null });
    let replay = json!({ "run": open, "blueprint": "b@c", "entries": 7, "divergence": divergence });
    let answer = json!([{ "run": open, "replay": replay, "error": null }]);
    let diverging =
        format!("case \"$*\" in *replay*) echo '{answer}'; exit 6;; esac\nexec {binary} \"$@\"");
    let diverging = other("diverging", &diverging);
    let asked = shell.run(&["--data", "data", "doctor", "--upgrade", &diverging]).exits(1);
    for part in [open, "would go another way: the flow asks for another", "0 of 1 open runs"] {
        assert!(asked.stdout.contains(part), "{part:?} is not in: {}", asked.stdout);
    }
    let known = json!({ "program": "0.0.9", "database": { "oldest": 1, "newest": 6 },
        "entry": { "oldest": 1, "newest": 1 }, "found": null });
    let old = other("old", &format!("echo '{known}'"));
    let asked = shell.run(&["--data", "data", "doctor", "--upgrade", &old]).exits(1);
    assert!(asked.stdout.contains("refuses to open it"), "{}", asked.stdout);
    let none = other("none", "echo what >&2; exit 2");
    let asked = shell.run(&["--data", "data", "doctor", "--upgrade", &none]).exits(1);
    assert!(asked.stdout.contains("knows `formats`"), "{}", asked.stdout);
    assert_eq!(fs::read(data.join("moonswarm.db")).unwrap(), before);
}

#[test]
fn a_newer_format_is_refused_with_what_to_do_and_left_as_it_is() {
    if needs_sqlite("data directories of earlier releases") {
        return;
    }
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
