//! Deletion and erasure: nothing of what was deleted is left in the files.

use super::*;

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

fn file(run: u64, n: u32, text: &str, size: u64) -> [Write; 2] {
    let hash = blake3::hash(text.as_bytes()).to_hex().to_string();
    let data = Arc::from(text.as_bytes());
    let row = crate::store::ArtifactRow {
        run,
        n,
        name: "f".to_owned(),
        hash: hash.clone(),
        size,
        created_ms: 6,
        step: 1,
        attempt: 1,
        published: true,
    };
    [Write::PutBlob { hash, data }, Write::PutArtifact(row)]
}

/// Returns the numbers of entries, files and blobs.
fn counts(dir: &TempDir) -> (u32, u32, u32) {
    let of = |table: &str| -> u32 {
        let sql = format!("SELECT count(*) FROM {table}");
        raw(dir).query_row(&sql, [], |row| row.get(0)).unwrap()
    };
    (of("journal"), of("artifacts"), of("blobs"))
}

#[test]
fn many_files_of_a_deleted_run_go_a_part_at_a_time_and_a_shared_blob_stays() {
    let (dir, store) = fresh();
    begin(&*store, ended(header(1), 5));
    begin(&*store, ended(header(2), 5));
    let files = (1..=1_000).flat_map(|n| file(1, n, &n.to_string(), 4));
    put(&*store, files.chain(file(2, 1, "7", 4)).collect());
    assert_eq!(counts(&dir), (2, 1_001, 1_000));
    put(&*store, vec![Write::DeleteRun { run: 1 }]);
    assert_eq!(store.header(1).unwrap(), None);
    assert!(store.space().unwrap().debris);
    assert_eq!(counts(&dir), (1, 873, 873));
    assert_eq!(store.meta("debris:1").unwrap().as_deref(), Some(""));
    drop(store);
    let store = reopen(&dir);
    let mut before = counts(&dir);
    while store.space().unwrap().debris {
        put(&*store, vec![Write::Tidy { rows: 2_048, pages: 0 }]);
        let after = counts(&dir);
        assert!(after.1 < before.1, "{before:?} {after:?}");
        before = after;
    }
    assert_eq!(before, (1, 1, 1));
    let shared = blake3::hash(b"7").to_hex().to_string();
    assert_eq!(store.blob(&shared).unwrap().as_deref(), Some(&b"7"[..]));
    put(&*store, vec![Write::DeleteRun { run: 2 }]);
    assert_eq!(counts(&dir), (0, 0, 0));
}

#[test]
fn large_files_of_a_deleted_run_go_a_few_at_a_time() {
    let (dir, store) = fresh();
    begin(&*store, ended(header(1), 5));
    // Their sizes are as of large files.
    put(&*store, (1..=5).flat_map(|n| file(1, n, &n.to_string(), 6 << 20)).collect());
    put(&*store, vec![Write::DeleteRun { run: 1 }]);
    assert_eq!((counts(&dir), store.space().unwrap().debris), ((0, 3, 3), true));
    for (left, debris) in [(1, true), (0, false), (0, false)] {
        // Retention deletes nothing more for the size before all of it is gone.
        assert!(!store.space().unwrap().debris || store.retained_bytes(0).unwrap() == 0);
        put(&*store, vec![Write::Tidy { rows: 2_048, pages: 0 }]);
        assert_eq!((counts(&dir), store.space().unwrap().debris), ((0, left, left), debris));
    }
}

#[test]
fn what_several_deleted_runs_left_is_cleared_together() {
    let (dir, store) = fresh();
    for num in 1..=3 {
        let mut run = ended(header(num), 5);
        let mut facts = vec![started(None)];
        facts.extend(std::iter::repeat_with(resumed).take(3_000));
        let write = append(&*store, &mut run, facts);
        commit(&*store, vec![], Some(write), file(num, 1, &num.to_string(), 4).to_vec()).unwrap();
    }
    put(&*store, [1, 2, 3].map(|run| Write::DeleteRun { run }).to_vec());
    assert_eq!(counts(&dir), (3 * 953, 3, 3));
    // Deleting it again goes on where the first time stopped.
    put(&*store, vec![Write::DeleteRun { run: 1 }]);
    assert_eq!(counts(&dir), (2 * 953, 2, 2));
    put(&*store, vec![Write::Tidy { rows: 1_000, pages: 0 }]);
    assert_eq!(counts(&dir), (2 * 953 - 999, 1, 1));
    put(&*store, vec![Write::Tidy { rows: 1_000, pages: 0 }]);
    assert_eq!((counts(&dir), store.space().unwrap().debris), ((0, 0, 0), false));
}
