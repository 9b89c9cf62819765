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
    journal::Fact,
    protocol::{RunId, StoreOptions},
    store::{
        Batch, Check, Loaded, Reader, StoreError, Upkeep as _, Want, Write, Writer,
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

/// Returns true if a file of a data directory contains some bytes.
fn is_on_disk(dir: &TempDir, text: &str) -> bool {
    let finder = memchr::memmem::Finder::new(text);
    std::fs::read_dir(dir.path().join("data"))
        .unwrap()
        .any(|entry| finder.find(&std::fs::read(entry.unwrap().path()).unwrap()).is_some())
}

#[test]
fn after_a_rewrite_no_byte_of_what_was_deleted_is_left() {
    let (dir, store) = fresh();
    let word = "zachariasquux";
    let value = |value: String| Write::PutState {
        scope: "global".to_owned(),
        key: "k".to_owned(),
        value,
        hints: crate::protocol::StoreOptions::default(),
        expires_ms: None,
        at_ms: 1,
    };
    // In the index of words as well, in a page of its own, and in the log.
    for n in 0..50 {
        put(&*store, vec![value(format!("\"{word}{n} {}\"", "x".repeat(9_000)))]);
    }
    put(&*store, vec![value("1".to_owned())]);
    let mut failed = header(1);
    failed.status_text = Some(format!("{word} is here"));
    (failed.ended_ms, failed.status) = (Some(5), crate::store::RunStatus::Failed);
    begin(&*store, failed);
    put(&*store, vec![Write::DeleteRun { run: 1 }]);
    assert!(is_on_disk(&dir, word));
    put(&*store, vec![Write::Rewrite]);
    assert!(!is_on_disk(&dir, word));
    // It goes on, and is whole.
    put(&*store, vec![value("2".to_owned())]);
    assert_eq!(store.state_value("global", "k").unwrap().unwrap().value, "2");
    store.close().unwrap();
    drop(store);
    assert_eq!(reopen(&dir).state_value("global", "k").unwrap().unwrap().value, "2");
    assert!(!is_on_disk(&dir, word));
}

#[test]
fn copies_of_any_format_say_what_they_hold_of_a_target() {
    let (dir, store) = fresh();
    begin(&*store, header(1));
    let target = |text: &str| crate::store::ErasureTarget {
        text: Some(text.to_owned()),
        ..Default::default()
    };
    let traces = store.traces(&target("building")).unwrap();
    let data = dir.path().join("data");
    store.backup(&data.join("copy.db")).unwrap();
    std::fs::write(data.join("other.db"), "no database").unwrap();
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/format-1.db");
    std::fs::copy(golden, data.join("old.db")).unwrap();
    let copies = store.copies(&target("building"), &traces.runs).unwrap();
    let held: Vec<_> =
        copies.iter().map(|it| (&*it.file, it.runs, it.problem.as_deref())).collect();
    assert_eq!(held, [("copy.db", 1, None), ("old.db", 0, None)]);
    assert!(copies[0].rows > 0, "{copies:?}");
}

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
fn a_newer_format_is_refused_and_left_as_it_is() {
    let (dir, store) = fresh();
    drop(store);
    raw(&dir).pragma_update(None, "user_version", 99).unwrap();
    let refused = Sqlite::open(&dir.path().join("data"), &options()).err().unwrap();
    assert!(matches!(refused, StoreError::Newer { found: 99, .. }), "{refused}");
    let version: u32 = raw(&dir).pragma_query_one(None, "user_version").unwrap();
    assert_eq!(version, 99);
}

#[test]
fn values_of_the_format_before_are_found_once_their_words_have_their_scope() {
    let dir = TempDir::new().unwrap();
    fs::create_dir(dir.path().join("data")).unwrap();
    let mut before = raw(&dir);
    super::format::migrate_to(&mut before, 0, 5).unwrap();
    before
        .execute_batch(
            "INSERT INTO state (scope, key, revision, updated_ms, value)
                 VALUES ('global', 'note', 1, 1, '\"a quick fox\"'), ('custom:x', 'k', 1, 1, '\"quick\"');
             INSERT INTO state_text (rowid, scope, key, text) SELECT id, hex(scope), key, value FROM state;",
        )
        .unwrap();
    drop(before);
    let store = reopen(&dir);
    let search = crate::store::StateSearch {
        scope: "global".to_owned(),
        query: "quick".to_owned(),
        limit: 9,
        ..Default::default()
    };
    let hits = store.search_state(&search).unwrap();
    assert_eq!(hits.len(), 1);
    assert_eq!((hits[0].key.as_str(), hits[0].snippet.as_str()), ("note", "\"a [quick] fox\""));
}

#[test]
fn a_database_of_the_first_format_is_brought_to_this_one_with_what_it_has() {
    let dir = TempDir::new().unwrap();
    fs::create_dir(dir.path().join("data")).unwrap();
    let first = raw(&dir);
    first.execute_batch(include_str!("migrations/0001_initial.sql")).unwrap();
    first
        .execute_batch(
            "PRAGMA application_id = 0x6d6f6f6e; PRAGMA user_version = 1;
             INSERT INTO tasks (run, step, attempt, epoch, agent, operator, kind, phase,
                 scheduled_ms, opened_ms, prompt)
             VALUES (1, 2, 1, 1, 'a', 'human', 'human', 'pending', 3, 4, '{}');
             INSERT INTO runs (num, cursor, seq, steps, steps_done, updated_ms, created_ms, status,
                 epoch, blueprint, hash, principal)
             VALUES (1, 2, 2, 0, 0, 1, 1, 'running', 1, 'b', 'h', 'ann'),
                    (2, 3, 1, 0, 0, 1, 1, 'running', 1, 'b', 'h', 'ann');
             INSERT INTO journal (lsn, run, entry)
             VALUES (1, 1, zeroblob(40)), (2, 1, zeroblob(60)), (3, 2, zeroblob(5));
             INSERT INTO artifacts (run, n, name, hash, size, created_ms, step, attempt, published)
             VALUES (1, 1, 'f', 'h', 1000, 1, 1, 1, 1);",
        )
        .unwrap();
    drop(first);
    let store = reopen(&dir);
    let task = store.task(1, 2).unwrap().unwrap();
    assert_eq!((task.agent.as_str(), task.question), ("a", None));
    assert!(store.sessions().unwrap().is_empty());
    let bytes = [1, 2].map(|run| store.header(run).unwrap().unwrap().bytes);
    assert_eq!(bytes, [1_100, 5], "what is stored of a run is summed once");
}

/// Creates a data directory from the golden file of a format.
fn golden(dir: &TempDir, format: u32) {
    let data = dir.path().join("data");
    fs::create_dir(&data).unwrap();
    let file = format!("{}/tests/golden/format-{format}.db", env!("CARGO_MANIFEST_DIR"));
    fs::copy(file, data.join("moonswarm.db")).unwrap();
}

/// A database with something in every table that a run has, as this program writes it.
fn write_golden(dir: &TempDir) {
    let store = Sqlite::open(&dir.path().join("data"), &options()).unwrap();
    let mut run = header(store.next_run());
    let begins = append(&*store, &mut run, vec![started(None), resumed()]);
    commit(&*store, vec![], Some(begins), vec![]).unwrap();
    let again = append(&*store, &mut run, vec![started(Some(2)), resumed()]);
    let state = Write::PutState {
        scope: format!("run:{}", RunId::new(run.num, run.created_ms)),
        key: "k".to_owned(),
        value: "[1]".to_owned(),
        hints: StoreOptions::default(),
        expires_ms: None,
        at_ms: 5,
    };
    commit(&*store, vec![], Some(again), vec![state, meta("a")]).unwrap();
}

#[test]
fn a_database_of_this_format_is_opened_as_it_is() {
    let format = super::format::known();
    let dir = TempDir::new().unwrap();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        write_golden(&dir);
        let to = format!("{}/tests/golden/format-{format}.db", env!("CARGO_MANIFEST_DIR"));
        fs::copy(dir.path().join("data/moonswarm.db"), to).unwrap();
        return;
    }
    golden(&dir, format);
    let store = reopen(&dir);
    assert_eq!(store.migrated(), None, "a release that changes the format counts it up");
    let want = Want { rows: &|_| true, most: 1 << 20 };
    let Loaded { header, rows } = store.load(1, &want).unwrap().unwrap();
    let rows = rows.unwrap();
    assert_eq!((header.seq, rows.entries.len()), (4, 2));
    assert_eq!(rows.state.unwrap()[0].value, "[1]");
    assert_eq!(store.all_entries(1, 0).unwrap().len(), 4);
}

#[test]
fn entries_of_version_1_are_read_and_go_on_in_version_2() {
    let dir = TempDir::new().unwrap();
    golden(&dir, 7);
    let store = reopen(&dir);
    // The run started two new histories. Each refers to a row of the one before.
    let all = store.all_entries(2, 0).unwrap();
    assert_eq!(all.iter().map(|entry| entry.seq).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(store.entries(2, 0).unwrap(), all[4..]);
    let mut header = store.header(2).unwrap().unwrap();
    let continues: Vec<_> = all
        .iter()
        .filter_map(|entry| match &entry.fact {
            Fact::RunStarted(started) => Some(started.continues),
            _ => None,
        })
        .collect();
    assert_eq!(continues, [None, Some(2), Some(4)]);

    let write = append(&*store, &mut header, vec![resumed(), started(Some(8)), resumed()]);
    commit(&*store, vec![], Some(write), vec![]).unwrap();
    assert_eq!(store.all_entries(2, 0).unwrap().len(), 10);
    assert_eq!(store.entries(2, 0).unwrap().len(), 2);
    let versions: Vec<u8> = raw(&dir)
        .prepare("SELECT substr(entry, 1, 1) FROM journal WHERE run = 2 ORDER BY lsn")
        .unwrap()
        .query_map([], |row| Ok(row.get_ref(0)?.as_blob()?[0]))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    assert_eq!(versions, [1, 1, 1, 1, 1, 1, 1, 2, 2, 2]);
}

#[test]
fn a_database_of_another_program_is_refused() {
    let dir = TempDir::new().unwrap();
    fs::create_dir(dir.path().join("data")).unwrap();
    raw(&dir).execute_batch("CREATE TABLE theirs (a)").unwrap();
    let refused = Sqlite::open(&dir.path().join("data"), &options()).err().unwrap();
    assert!(refused.to_string().contains("not a database of moonswarm"), "{refused}");
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
fn the_numbers_of_a_deleted_run_are_never_given_again() {
    let (dir, store) = fresh();
    let num = store.next_run();
    let mut run = begin(&*store, header(num));
    let continues = started(Some(run.seq.into()));
    let fresh = append(&*store, &mut run, vec![continues, resumed()]);
    commit(&*store, vec![], Some(fresh), vec![]).unwrap();
    put(&*store, vec![Write::DeleteRun { run: num }]);
    drop(store);
    let rows: u32 =
        raw(&dir).query_row("SELECT count(*) FROM journal", [], |row| row.get(0)).unwrap();
    assert_eq!(rows, 0);
    let store = reopen(&dir);
    assert!(store.next_run() > num);
    assert!(store.next_lsn() > run.cursor);
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

fn ended(mut header: crate::store::Header, at_ms: u64) -> crate::store::Header {
    header.status = crate::store::RunStatus::Completed;
    header.ended_ms = Some(at_ms);
    header.parent = None;
    header
}

#[test]
fn a_long_history_is_deleted_in_bounded_steps_and_the_file_shrinks() {
    let (dir, store) = fresh();
    let mut run = ended(header(1), 5);
    let mut facts = vec![started(None)];
    facts.extend(std::iter::repeat_with(resumed).take(5_000));
    let write = append(&*store, &mut run, facts);
    commit(&*store, vec![], Some(write), vec![]).unwrap();
    let rows = |dir: &TempDir| -> u32 {
        raw(dir).query_row("SELECT count(*) FROM journal", [], |row| row.get(0)).unwrap()
    };
    let full = store.space().unwrap();
    put(&*store, vec![Write::DeleteRun { run: 1 }]);
    assert!(store.header(1).unwrap().is_none());
    assert!(store.space().unwrap().debris);
    let left = rows(&dir);
    assert!(left > 0 && left < 5_001, "{left}");
    put(&*store, vec![Write::Tidy { rows: 1_000, pages: 0 }]);
    assert_eq!(rows(&dir), left - 1_000);
    drop(store);
    let store = reopen(&dir);
    while store.space().unwrap().debris {
        put(&*store, vec![Write::Tidy { rows: 1_000, pages: 8 }]);
    }
    assert_eq!(rows(&dir), 0);
    while store.space().unwrap().free > 0 {
        put(&*store, vec![Write::Tidy { rows: 0, pages: 8 }]);
    }
    assert!(store.space().unwrap().used < full.used);
    store.close().unwrap();
    let size = fs::metadata(dir.path().join("data/moonswarm.db")).unwrap().len();
    assert!(size < full.used, "{size} of {full:?}");
}

/// Returns the files beside the database.
fn beside(dir: &TempDir) -> Vec<String> {
    let files = fs::read_dir(dir.path().join("data")).unwrap().flatten();
    let names = files.map(|file| file.file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| name.starts_with("backup")).collect();
    names.sort();
    names
}

#[test]
fn a_migration_keeps_a_copy_from_before_and_makes_another_only_of_another_state() {
    let dir = TempDir::new().unwrap();
    golden(&dir, 7);
    let path = dir.path().join("data/moonswarm.db");
    let store = reopen(&dir);
    let backup = dir.path().join("data/backup-format-7.db");
    let to = super::format::known();
    let migrated = crate::store::Migrated { from: 7, to, backup: backup.clone() };
    assert_eq!(store.migrated(), Some(migrated));
    drop(store);
    let format = |path: &Path| -> u32 {
        Connection::open(path)
            .unwrap()
            .pragma_query_value(None, "user_version", |row| row.get(0))
            .unwrap()
    };
    assert_eq!((format(&path), format(&backup)), (to, 7));
    assert_eq!(fs::metadata(&backup).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(reopen(&dir).migrated(), None);
    assert_eq!(beside(&dir), ["backup-format-7.db"]);

    // Restores the old state by hand, and then opens it again: it is the same state.
    let back = |from: &Path| {
        for name in ["moonswarm.db-wal", "moonswarm.db-shm", "mark"] {
            let _ = fs::remove_file(dir.path().join("data").join(name));
        }
        fs::copy(from, &path).unwrap();
    };
    back(&backup);
    drop(reopen(&dir));
    assert_eq!(beside(&dir), ["backup-format-7.db"]);
    // The state has changed meanwhile, so it is another one.
    back(&backup);
    Connection::open(&path).unwrap().execute("UPDATE high_water SET run = 90", []).unwrap();
    drop(reopen(&dir));
    assert_eq!(beside(&dir), ["backup-format-7-2.db", "backup-format-7.db"]);
}

#[test]
fn a_survey_says_what_a_migration_takes_and_changes_nothing() {
    let dir = TempDir::new().unwrap();
    golden(&dir, 7);
    let data = dir.path().join("data");
    let before = fs::read(data.join("moonswarm.db")).unwrap();
    let survey = crate::store::survey(&data).unwrap();
    assert_eq!((survey.format, survey.size), (7, before.len() as u64));
    assert!(survey.needs > survey.size && survey.free > 0, "{survey:?}");
    assert_eq!(fs::read(data.join("moonswarm.db")).unwrap(), before);
    drop(reopen(&dir));
    assert_eq!(crate::store::survey(&data).unwrap().format, super::format::known());
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

mod trust;

#[test]
fn runs_of_format_8_are_listed_and_found_by_their_words() {
    let dir = TempDir::new().unwrap();
    fs::create_dir(dir.path().join("data")).unwrap();
    let mut before = raw(&dir);
    super::format::migrate_to(&mut before, 0, 8).unwrap();
    before
        .execute_batch(
            r#"INSERT INTO runs (num, cursor, seq, steps, steps_done, updated_ms, created_ms,
                   status, ended_ms, epoch, blueprint, hash, principal, error)
               VALUES (1, 1, 1, 0, 0, 1, 9, 'failed', 10, 1, 'b', 'h', 'ann',
                       '{"kind":"worker","message":"the disk is full","retryable":false}'),
                      (2, 2, 1, 0, 0, 1, 5, 'running', NULL, 1, 'b', 'h', 'ann', NULL);"#,
        )
        .unwrap();
    super::header::seal_format_8(&before).unwrap();
    drop(before);
    let store = reopen(&dir);
    let list = |filter: crate::store::RunFilter| -> Vec<u64> {
        store.headers(&filter).unwrap().iter().map(|header| header.num).collect()
    };
    let all = || crate::store::RunFilter { limit: 9, ..Default::default() };
    assert_eq!(list(all()), [1, 2], "in the order of creation");
    assert_eq!(list(crate::store::RunFilter { text: Some("disk".into()), ..all() }), [1]);
}

#[test]
fn a_deleted_run_leaves_no_tag_and_no_word() {
    let (dir, store) = fresh();
    let tags = crate::protocol::Tags::parse(["a=1", "b=2"]).unwrap();
    let text = Some("some words".to_owned());
    begin(&*store, ended(crate::store::Header { tags, status_text: text, ..header(1) }, 5));
    let count = || -> (u32, u32) {
        let of = |sql: &str| raw(&dir).query_row(sql, [], |row| row.get(0)).unwrap();
        (
            of("SELECT count(*) FROM run_tags"),
            of("SELECT count(*) FROM run_text WHERE run_text MATCH 'words'"),
        )
    };
    assert_eq!(count(), (2, 1));
    put(&*store, vec![Write::DeleteRun { run: 1 }]);
    assert_eq!(count(), (0, 0));
}
