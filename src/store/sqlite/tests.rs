use std::{
    env, fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Command,
    sync::{Arc, mpsc},
};

use rusqlite::Connection;
use tempfile::TempDir;

use super::*;
use crate::{
    journal::{Dimension, Ending, Fact, Tally},
    protocol::{RunId, StoreOptions},
    store::{
        Batch, Check, CountedRun, Grain, Loaded, Reader, StatsFilter, StoreError, Upkeep as _,
        Want, Write, Writer,
        conformance::{append, batch, begin, commit, conformance, header, put, resumed, started},
    },
};

fn options() -> Options {
    Options { synchronous: Synchronous::Normal, ..Options::default() }
}

fn reopen(dir: &TempDir) -> Arc<Sqlite> {
    Sqlite::open(&dir.path().join("data"), &options()).unwrap()
}

fn fresh() -> (TempDir, Arc<Sqlite>) {
    let dir = TempDir::new().unwrap();
    let store = reopen(&dir);
    (dir, store)
}

/// Opens the database directly, without the adapter.
fn raw(dir: &TempDir) -> Connection {
    Connection::open(dir.path().join("data/moonswarm.db")).unwrap()
}

fn meta(key: &str) -> Write {
    Write::PutMeta { key: key.to_owned(), value: "1".to_owned() }
}

conformance!(fresh());

#[test]
fn a_second_owner_is_refused_and_hears_who_the_first_is() {
    let (dir, store) = fresh();
    let refused = Sqlite::open(&dir.path().join("data"), &options()).err().unwrap();
    let StoreError::Owned { pid, path } = refused else { panic!("{refused}") };
    assert_eq!(pid, std::process::id().to_string());
    assert!(path.ends_with("data"), "{path}");
    store.close().unwrap();
    reopen(&dir);
}

#[test]
fn only_the_owner_may_look_into_the_data_directory() {
    let (dir, store) = fresh();
    put(&*store, vec![meta("a")]);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let data = dir.path().join("data");
    assert_eq!(mode(&data), 0o700);
    for name in ["moonswarm.db", "moonswarm.db-wal", "lock"] {
        assert_eq!(mode(&data.join(name)), 0o600, "{name}");
    }
}

#[test]
fn what_was_acknowledged_is_there_after_reopening() {
    let (dir, store) = fresh();
    let num = store.next_run();
    let run = begin(&*store, header(num));
    put(&*store, vec![Write::RevokeToken { jti: "t".to_owned(), at_ms: 1 }]);
    drop(store);
    let store = reopen(&dir);
    assert_eq!(store.header(num).unwrap(), Some(run.clone()));
    assert!(store.next_lsn() > run.cursor);
    assert!(store.next_run() > num);
    let refused = commit(&*store, vec![Check::TokenLive("t".to_owned())], None, vec![]);
    assert!(matches!(refused, Err(StoreError::Revoked { .. })));
}

#[test]
fn a_number_that_is_kept_is_never_given_again() {
    let (dir, store) = fresh();
    let num = store.next_run();
    put(&*store, vec![Write::ReserveRun { num }]);
    drop(store);
    assert!(reopen(&dir).next_run() > num);
}

#[test]
fn a_damaged_row_is_named_by_run_and_lsn() {
    let (dir, store) = fresh();
    let run = begin(&*store, header(7));
    raw(&dir).execute("UPDATE journal SET entry = x'01ff'", []).unwrap();
    let error = store.entries(7, 0).unwrap_err();
    let StoreError::Damaged { what, .. } = error else { panic!("{error}") };
    assert_eq!(what, format!("row {} of the journal of run 7", run.cursor));
}

#[test]
fn damaged_counts_of_runs_hold_up_no_run_that_ends() {
    let (dir, store) = fresh();
    let filter =
        StatsFilter { grain: Grain::Day, since_ms: 0, of: Dimension::Blueprint, name: None };
    let end = |num: u64| {
        let mut run = header(num);
        let write = append(&*store, &mut run, vec![started(None)]);
        let counted = CountedRun {
            run: num,
            created_ms: 1,
            ended_ms: 5,
            blueprint: "ship".to_owned(),
            ending: Ending::Completed,
            tally: Tally::default(),
        };
        let counted = Write::CountRun(Box::new(counted));
        commit(&*store, vec![], Some(write), vec![counted]).unwrap();
        let rows = store.stats(&filter).unwrap();
        rows.iter().map(|row| row.measure.count).sum::<u64>()
    };
    assert_eq!(end(1), 1);
    // The next row is the one with which all are folded.
    raw(&dir).execute("INSERT INTO stats_new (id, body) VALUES (255, x'ff')", []).unwrap();
    assert_eq!(end(2), 2);
    let both =
        "UPDATE stats SET body = x'ff'; INSERT INTO stats_new (id, body) VALUES (255, x'ff')";
    raw(&dir).execute_batch(both).unwrap();
    assert_eq!(end(3), 1, "what the damaged sum had is lost");
}

#[test]
fn a_row_of_another_run_or_a_missing_one_is_damage() {
    let (dir, store) = fresh();
    let mut run = begin(&*store, header(1));
    let more = append(&*store, &mut run, vec![resumed()]);
    commit(&*store, vec![], Some(more), vec![]).unwrap();
    raw(&dir).execute("UPDATE journal SET run = 2 WHERE prev_lsn IS NULL", []).unwrap();
    assert!(store.entries(1, 0).unwrap_err().to_string().contains("another run"));
    assert_eq!(store.entries(1, 1).unwrap().len(), 1);
    raw(&dir).execute("DELETE FROM journal WHERE prev_lsn IS NULL", []).unwrap();
    assert!(store.entries(1, 0).unwrap_err().to_string().contains("not there"));
}

#[test]
fn what_queued_during_a_commit_is_acknowledged_in_order() {
    let (_dir, store) = fresh();
    let (go, wait) = mpsc::channel::<()>();
    let hold = Box::new(move |_| wait.recv().unwrap());
    store.submit(Batch { checks: vec![], run: None, writes: vec![], ack: hold });
    let (tell, order) = mpsc::channel();
    for n in 0..600 {
        let tell = tell.clone();
        let writes = vec![Write::PutMeta { key: "last".to_owned(), value: n.to_string() }];
        let ack = Box::new(move |result: Result<(), _>| tell.send((n, result.is_ok())).unwrap());
        store.submit(Batch { checks: vec![], run: None, writes, ack });
    }
    go.send(()).unwrap();
    let heard: Vec<_> = order.iter().take(600).collect();
    assert_eq!(heard, (0..600).map(|n| (n, true)).collect::<Vec<_>>());
    assert_eq!(store.meta("last").unwrap().as_deref(), Some("599"));
}

#[test]
fn closing_commits_what_is_queued_empties_the_log_and_refuses_the_rest() {
    let (dir, store) = fresh();
    let (queued, verdict) = batch(vec![], None, vec![meta("a")]);
    store.submit(queued);
    store.close().unwrap();
    verdict.recv().unwrap().unwrap();
    let wal = fs::metadata(dir.path().join("data/moonswarm.db-wal"));
    assert!(wal.is_err() || wal.unwrap().len() == 0);
    assert!(matches!(commit(&*store, vec![], None, vec![meta("b")]), Err(StoreError::Closed)));
    assert!(matches!(store.meta("a"), Err(StoreError::Closed)));
    store.close().unwrap();
    assert_eq!(reopen(&dir).meta("a").unwrap().as_deref(), Some("1"));
}

#[test]
fn a_store_that_is_let_go_inside_an_ack_still_commits_and_closes() {
    let (_dir, store) = fresh();
    let (tell, closed) = mpsc::channel();
    let last = store.clone();
    let (go, wait) = mpsc::channel::<()>();
    let ack = Box::new(move |result: Result<(), StoreError>| {
        wait.recv().unwrap();
        drop(last);
        tell.send(result).unwrap();
    });
    store.submit(Batch { checks: vec![], run: None, writes: vec![], ack });
    drop(store);
    go.send(()).unwrap();
    closed.recv().unwrap().unwrap();
}

#[test]
fn nothing_is_written_after_a_commit_failed_on_the_disk_until_a_restart() {
    const DATA: &str = "MOONSWARM_TEST_FAILING_DATA";
    if let Some(data) = env::var_os(DATA) {
        return fail_a_commit(Path::new(&data));
    }
    let dir = TempDir::new().unwrap();
    // A file size limit simulates a disk error.
    let script = "trap '' XFSZ; ulimit -f 1024; exec \"$0\" --exact \"$1\"";
    let test = "store::sqlite::tests::\
                nothing_is_written_after_a_commit_failed_on_the_disk_until_a_restart";
    let child = Command::new("sh")
        .args(["-c", script])
        .arg(env::current_exe().unwrap())
        .arg(test)
        .env(DATA, dir.path().join("data"))
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
    let store = reopen(&dir);
    let there = ["before", "with", "after"].map(|key| store.meta(key).unwrap().is_some());
    assert_eq!(there, [true, false, false]);
    put(&*store, vec![meta("again")]);
}

fn fail_a_commit(data: &Path) {
    let store = Sqlite::open(data, &options()).unwrap();
    put(&*store, vec![meta("before")]);
    let blob = Write::PutBlob { hash: "00".to_owned(), data: Arc::from(vec![7; 1_200_000]) };
    let failed = commit(&*store, vec![], None, vec![meta("with"), blob]).unwrap_err();
    let after = commit(&*store, vec![], None, vec![meta("after")]).unwrap_err();
    assert_eq!(after.to_string(), failed.to_string());
    assert!(store.meta("before").unwrap().is_some());
}

#[test]
fn a_copy_is_one_state_with_a_life_of_its_own() {
    let (dir, store) = fresh();
    begin(&*store, header(1));
    let to = dir.path().join("copy.db");
    let size = store.backup(&to).unwrap();
    begin(&*store, header(2));
    assert_eq!(fs::metadata(&to).unwrap().len(), size);
    assert_eq!(fs::metadata(&to).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(store.backup(&to).unwrap_err().to_string().contains("exists"));

    let there = dir.path().join("there");
    let restored = restore(&to, &there).unwrap();
    assert_eq!((restored.ended, restored.open), (0, 1));
    let copy = Sqlite::open(&there, &options()).unwrap();
    assert_eq!(copy.header(1).unwrap().unwrap().epoch, 2, "it has changed hands");
    assert!(copy.header(2).unwrap().is_none());
    assert_eq!(copy.entries(1, 0).unwrap(), store.entries(1, 0).unwrap());
    let again = restore(&to, &there).unwrap_err();
    assert!(matches!(again, StoreError::Owned { .. }), "{again}");
    drop(copy);
    let again = restore(&to, &there).unwrap_err();
    assert!(matches!(again, StoreError::Occupied { .. }), "{again}");
}

#[test]
fn a_restore_that_was_killed_is_done_again() {
    let (dir, store) = fresh();
    begin(&*store, header(1));
    let (copy, there) = (dir.path().join("copy.db"), dir.path().join("there"));
    store.backup(&copy).unwrap();
    fs::create_dir(&there).unwrap();
    let left = ["moonswarm.draft", "moonswarm.draft-wal"].map(|name| there.join(name));
    for file in &left {
        fs::write(file, b"a half").unwrap();
    }
    assert_eq!(restore(&copy, &there).unwrap().open, 1);
    assert!(left.iter().all(|file| !file.exists()));
}

#[test]
fn what_is_no_whole_backup_is_not_restored() {
    let (dir, store) = fresh();
    for n in 1..200 {
        begin(&*store, header(n));
    }
    let (good, bad, to) = ("good.db", "bad.db", dir.path().join("there"));
    let (good, bad) = (dir.path().join(good), dir.path().join(bad));
    store.backup(&good).unwrap();
    let bytes = fs::read(&good).unwrap();

    fs::write(&bad, &bytes[..bytes.len() / 2]).unwrap();
    assert!(restore(&bad, &to).is_err());
    fs::write(&bad, b"").unwrap();
    assert!(restore(&bad, &to).unwrap_err().to_string().contains("not a database of moonswarm"));
    fs::copy(&good, &bad).unwrap();
    Connection::open(&bad).unwrap().pragma_update(None, "user_version", 99).unwrap();
    assert!(matches!(restore(&bad, &to), Err(StoreError::Newer { found: 99, .. })));
    assert!(!to.exists(), "nothing was made");
    restore(&good, &to).unwrap();
}

mod erase;
mod formats;
mod trust;
