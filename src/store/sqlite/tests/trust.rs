//! Files that were changed from outside: flipped bits, removed files, rollbacks.

use super::*;
use crate::{
    journal::{Decision, Fact},
    store::{
        Answers, Checked, Health, StateAct, StateBatch, StateChange, StateFilter,
        conformance::{damage, fill_statistics},
    },
};

fn data(dir: &TempDir) -> std::path::PathBuf {
    dir.path().join("data")
}

fn open(dir: &TempDir) -> Result<Arc<Sqlite>, StoreError> {
    Sqlite::open(&data(dir), &options())
}

/// Returns the directory that a killed host leaves: a copy of the current files.
fn killed(dir: &TempDir) -> TempDir {
    let copy = TempDir::new().unwrap();
    fs::create_dir(data(&copy)).unwrap();
    for file in fs::read_dir(data(dir)).unwrap().flatten() {
        fs::copy(file.path(), data(&copy).join(file.file_name())).unwrap();
    }
    copy
}

fn damaged<T: std::fmt::Debug>(read: Result<T, StoreError>) -> String {
    match read {
        Err(StoreError::Damaged { what, .. }) => what,
        other => panic!("{other:?}"),
    }
}

/// Returns the next number of a deterministic pseudorandom sequence.
fn random(last: &mut u64) -> u64 {
    *last = last.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
    *last >> 24
}

#[test]
fn seventy_random_bits_that_flip_in_entries_are_all_noticed() {
    let (dir, store) = fresh();
    for num in 1..=5 {
        let mut run = header(num);
        let say = |n: u64| {
            let reason = format!("because of {n}");
            Fact::Decided(Decision::Pause { by: "ann".to_owned(), reason })
        };
        let facts = std::iter::once(started(None)).chain((0..9).map(say));
        let write = append(&*store, &mut run, facts.collect());
        commit(&*store, vec![], Some(write), vec![]).unwrap();
        let fresh = started(Some(run.seq.into()));
        let write = append(&*store, &mut run, vec![fresh, resumed()]);
        commit(&*store, vec![], Some(write), vec![]).unwrap();
    }
    let db = raw(&dir);
    let row = |lsn: i64| -> (i64, Vec<u8>) {
        let sql = "SELECT run, entry FROM journal WHERE lsn = ?1";
        db.query_row(sql, [lsn], |row| Ok((row.get(0)?, row.get(1)?))).unwrap()
    };
    let put = |lsn: i64, bytes: &[u8]| {
        let sql = "UPDATE journal SET entry = ?2 WHERE lsn = ?1";
        db.execute(sql, rusqlite::params![lsn, bytes]).unwrap();
    };
    let mut seed = u64::from(std::process::id());
    println!("seed {seed}");
    let mut noticed = 0;
    for _ in 0..70 {
        let lsn = i64::try_from(random(&mut seed) % 60 + 1).unwrap();
        let (owner, sound) = row(lsn);
        let run = u64::try_from(owner).unwrap();
        let mut bytes = sound.clone();
        let bit = usize::try_from(random(&mut seed)).unwrap() % (bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        put(lsn, &bytes);
        let what = damaged(store.all_entries(run, 0));
        noticed += usize::from(what == format!("row {lsn} of the journal of run {run}"));
        put(lsn, &sound);
        assert_eq!(store.all_entries(run, 0).unwrap().len(), 12);
    }
    assert_eq!(noticed, 70);
}

#[test]
fn a_row_that_stands_for_another_is_noticed() {
    let (dir, store) = fresh();
    let mut run = begin(&*store, header(1));
    let write = append(&*store, &mut run, vec![resumed(), resumed(), resumed()]);
    commit(&*store, vec![], Some(write), vec![]).unwrap();
    let fresh = started(Some(run.seq.into()));
    let write = append(&*store, &mut run, vec![fresh]);
    commit(&*store, vec![], Some(write), vec![]).unwrap();
    for (sql, undo) in [
        (
            "UPDATE journal SET prev_lsn = 1 WHERE lsn = 3",
            "UPDATE journal SET prev_lsn = 2 WHERE lsn = 3",
        ),
        (
            "UPDATE journal SET continues = 3 WHERE lsn = 5",
            "UPDATE journal SET continues = 4 WHERE lsn = 5",
        ),
        (
            "UPDATE journal SET continues = NULL WHERE lsn = 5",
            "UPDATE journal SET continues = 4 WHERE lsn = 5",
        ),
        ("UPDATE journal SET entry = (SELECT entry FROM journal WHERE lsn = 2) WHERE lsn = 3", ""),
    ] {
        raw(&dir).execute(sql, []).unwrap();
        let what = damaged(store.all_entries(1, 0));
        assert!(what.contains("of the journal of run 1"), "{sql}: {what}");
        if !undo.is_empty() {
            raw(&dir).execute(undo, []).unwrap();
            assert_eq!(store.all_entries(1, 0).unwrap().len(), 5);
        }
    }
}

#[test]
fn a_bit_that_flips_in_any_value_of_a_header_is_noticed() {
    let (dir, store) = fresh();
    let run = begin(&*store, header(1));
    let db = raw(&dir);
    let numbers = [
        "cursor",
        "seq",
        "steps",
        "steps_done",
        "updated_ms",
        "created_ms",
        "epoch",
        "parent_run",
        "parent_step",
        "nonce",
        "bytes",
        "count_sum",
        "rest_sum",
    ];
    let flip = |column: &str| {
        let sql = format!("UPDATE runs SET {column} = {column} + 1 - 2 * ({column} & 1)");
        db.execute(&sql, []).unwrap();
    };
    for column in numbers {
        flip(column);
        assert_eq!(damaged(store.header(1)), "the header of run 1", "{column}");
        flip(column);
        assert_eq!(store.header(1).unwrap().as_ref(), Some(&run), "{column}");
    }
    for column in ["blueprint", "hash", "principal", "status_text"] {
        let sql = format!("UPDATE runs SET {column} = 'q' || substr({column}, 2)");
        db.execute(&sql, []).unwrap();
        assert_eq!(damaged(store.header(1)), "the header of run 1", "{column}");
        let (was, sql) = match column {
            "blueprint" => (&run.blueprint, "UPDATE runs SET blueprint = ?1"),
            "hash" => (&run.hash, "UPDATE runs SET hash = ?1"),
            "principal" => (&run.principal, "UPDATE runs SET principal = ?1"),
            _ => (run.status_text.as_ref().unwrap(), "UPDATE runs SET status_text = ?1"),
        };
        db.execute(sql, [was]).unwrap();
        assert_eq!(store.header(1).unwrap().as_ref(), Some(&run), "{column}");
    }
    for (sql, undo) in [
        ("progress = 0.25", "progress = 0.5"),
        ("wake_at_ms = 0", "wake_at_ms = NULL"),
        ("ended_ms = 1", "ended_ms = NULL"),
        ("status = 'waiting'", "status = 'running'"),
        (r#"waiting_on = '["tamer"]'"#, r#"waiting_on = '["timer"]'"#),
        (r#"error = '{}'"#, "error = NULL"),
    ] {
        db.execute(&format!("UPDATE runs SET {sql}"), []).unwrap();
        assert_eq!(damaged(store.header(1)), "the header of run 1", "{sql}");
        db.execute(&format!("UPDATE runs SET {undo}"), []).unwrap();
        assert_eq!(store.header(1).unwrap().as_ref(), Some(&run), "{sql}");
    }
}

fn add(scope: &str, key: &str) -> Write {
    let act = StateAct::Put {
        value: "1".to_owned(),
        reducer: crate::store::Reducer::Sum,
        hints: Default::default(),
    };
    let change = StateChange { scope: scope.into(), key: key.into(), if_revision: None, act };
    Write::ChangeState(Box::new(StateBatch {
        changes: vec![change],
        at_ms: 1,
        most: usize::MAX,
        receipt: None,
        answers: Answers::default(),
    }))
}

#[test]
fn a_damaged_value_is_named_and_refuses_only_who_needs_it() {
    let (dir, store) = fresh();
    put(&*store, vec![add("global", "a"), add("global", "b")]);
    raw(&dir).execute("UPDATE state SET value = '{\"x' WHERE key = 'a'", []).unwrap();
    assert_eq!(damaged(store.state_value("global", "a")), r#"state "a" of global"#);
    assert!(store.state_value("global", "b").unwrap().is_some());
    // A list reads no values.
    let filter = StateFilter { scope: "global".into(), limit: 9, ..StateFilter::default() };
    assert_eq!(store.state_page(&filter).unwrap().len(), 2);

    // All three are in one group. The unreadable row of one must not affect the others.
    let verdicts = ["b", "a", "b"].map(|key| {
        let (batch, verdict) = batch(vec![], None, vec![add("global", key)]);
        store.submit(batch);
        verdict
    });
    let [before, refused, after] = verdicts.map(|verdict| verdict.recv().unwrap());
    before.unwrap();
    assert_eq!(damaged(refused), r#"state "a" of global"#);
    after.unwrap();
    assert_eq!(store.state_value("global", "b").unwrap().unwrap().value, "3");
    assert!(matches!(store.health(), Health::Well));
}

#[test]
fn a_header_that_cannot_be_read_is_named_and_does_not_hide_the_others() {
    let (dir, store) = fresh();
    begin(&*store, header(1));
    begin(&*store, header(2));
    begin(&*store, header(3));
    raw(&dir)
        .execute_batch(
            "UPDATE runs SET status = 'runnjng' WHERE num = 1;
             UPDATE runs SET waiting_on = '[' WHERE num = 2;",
        )
        .unwrap();
    assert_eq!(damaged(store.header(1)), "the header of run 1");
    assert_eq!(damaged(store.header(2)), "the header of run 2");
    let all = crate::store::RunFilter { limit: 9, ..Default::default() };
    let listed = store.headers(&all).unwrap();
    assert_eq!(listed.iter().map(|header| header.num).collect::<Vec<_>>(), [3]);
}

#[test]
fn a_check_reads_everything_and_names_what_is_damaged() {
    let (dir, store) = fresh();
    let mut run = begin(&*store, header(1));
    let write = append(&*store, &mut run, vec![resumed(), resumed()]);
    commit(&*store, vec![], Some(write), vec![]).unwrap();
    begin(&*store, header(2));
    let bytes: Arc<[u8]> = Arc::from(vec![7; 9_000]);
    let hash = blake3::hash(&bytes).to_hex().to_string();
    put(&*store, vec![add("global", "a"), Write::PutBlob { hash: hash.clone(), data: bytes }]);
    let check = || {
        let mut lines = Vec::new();
        let mut tell = |line| {
            lines.push(line);
            true
        };
        store.check(&mut tell).unwrap();
        lines
    };
    let of_damage = |lines: &[Checked]| -> Vec<String> {
        let named = lines.iter().filter_map(|line| match line {
            Checked::Damaged { what, .. } => Some(what.clone()),
            _ => None,
        });
        named.filter(|what| !what.starts_with("run ")).collect()
    };
    let sound = check();
    // The blueprint of these runs was never stored, although open runs need it.
    assert!(of_damage(&sound).is_empty(), "{sound:?}");
    assert!(
        sound.iter().any(|line| matches!(line, Checked::Orphan { what } if what.contains(&hash)))
    );
    let Some(Checked::Done { runs: 2, entries: 4, state: 1, blobs: 1, damaged: 2 }) = sound.last()
    else {
        panic!("{:?}", sound.last())
    };

    raw(&dir)
        .execute_batch(
            "UPDATE blobs SET data = zeroblob(9000);
             UPDATE state SET value = 'nul';
             UPDATE journal SET entry = x'01' WHERE lsn = 2;
             UPDATE runs SET seq = 7 WHERE num = 2;",
        )
        .unwrap();
    let found = of_damage(&check());
    for part in ["blob ", "\"a\" of global", "row 2 of the journal of run 1", "the header of run 2"]
    {
        assert!(found.iter().any(|what| what.contains(part)), "{part} is not in {found:?}");
    }
    assert_eq!(found.len(), 4, "{found:?}");
    // A receiver that has stopped gets no further findings.
    let mut told = 0;
    store
        .check(&mut |_| {
            told += 1;
            told < 3
        })
        .unwrap();
    assert!(told < 20, "{told}");
}

#[test]
fn a_check_names_counts_that_cannot_be_decoded() {
    let (dir, store) = fresh();
    fill_statistics(&*store);
    assert_eq!(damage(&*store), [""; 0]);
    raw(&dir)
        .execute_batch(
            "UPDATE stats_new SET body = x'ff';
             UPDATE stats SET body = x'ff' WHERE grain = 0 AND of = 0;
             UPDATE stats SET ending = 9 WHERE grain = 1 AND of = 0;
             UPDATE stats_costly SET tokens = -1;",
        )
        .unwrap();
    let found = damage(&*store);
    let row = "counts of an ended run, row 1";
    assert_eq!(found, [row, "sum of b1 at 0", "sum of b1 at 3600000", "usage of run 1"]);
}

#[test]
fn a_missing_log_is_refused_until_the_loss_is_accepted() {
    let (dir, store) = fresh();
    put(&*store, vec![meta("first")]);
    let dead = killed(&dir);
    fs::remove_file(data(&dead).join("moonswarm.db-wal")).unwrap();
    for _ in 0..2 {
        let refused = open(&dead).err().unwrap();
        assert!(matches!(refused, StoreError::LogMissing { .. }), "{refused}");
    }
    let accepted = Options { accept_loss: true, ..options() };
    let store = Sqlite::open(&data(&dead), &accepted).unwrap();
    assert_eq!(store.meta("first").unwrap(), None);
    put(&*store, vec![meta("second")]);
    drop(store);
    assert!(open(&dead).unwrap().meta("second").unwrap().is_some());
}

#[test]
fn a_log_that_somebody_wrote_back_is_not_missed() {
    let (dir, store) = fresh();
    put(&*store, vec![meta("first")]);
    let dead = killed(&dir);
    // The program `sqlite3` does this when it closes a database that has no other user.
    let log = data(&dead).join("moonswarm.db-wal");
    drop(raw(&dead).query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())));
    assert!(fs::metadata(&log).map_or(0, |log| log.len()) == 0);
    assert!(open(&dead).unwrap().meta("first").unwrap().is_some());
    // The same holds after the owner itself made the checkpoint at its end.
    store.close().unwrap();
    let _ = fs::remove_file(data(&dir).join("moonswarm.db-wal"));
    open(&dir).unwrap();
}

#[test]
fn a_rolled_back_database_begins_a_life_of_its_own_past_every_number() {
    let (dir, store) = fresh();
    begin(&*store, header(store.next_run()));
    put(&*store, vec![Write::PutMeta { key: "incarnation".into(), value: "7".into() }]);
    store.close().unwrap();
    let path = data(&dir).join("moonswarm.db");
    fs::copy(&path, dir.path().join("snapshot")).unwrap();

    let store = reopen(&dir);
    let later = begin(&*store, header(store.next_run()));
    store.close().unwrap();
    fs::copy(dir.path().join("snapshot"), &path).unwrap();
    let _ = fs::remove_file(data(&dir).join("moonswarm.db-wal"));

    let store = reopen(&dir);
    assert_eq!(store.header(later.num).unwrap(), None);
    assert_eq!(store.header(1).unwrap().unwrap().epoch, header(1).epoch + 1, "it changes hands");
    assert_eq!(store.meta("incarnation").unwrap(), None);
    assert!(store.next_run() > later.num && store.next_lsn() > later.cursor);
    put(&*store, vec![meta("on")]);
    drop(store);
    // The loss is handled only once.
    assert_eq!(reopen(&dir).header(1).unwrap().unwrap().epoch, header(1).epoch + 1);
}

#[test]
fn files_that_are_gone_lose_the_store_before_anything_is_acknowledged() {
    let (dir, store) = fresh();
    put(&*store, vec![meta("before")]);
    fs::rename(data(&dir), dir.path().join("elsewhere")).unwrap();
    let lost = commit(&*store, vec![], None, vec![meta("after")]).unwrap_err();
    assert!(matches!(lost, StoreError::Gone { .. }), "{lost}");
    assert!(matches!(store.health(), Health::Lost(_)));
}

#[test]
fn a_malformed_page_under_a_write_loses_the_store_and_the_next_start_checks_it() {
    let (dir, store) = fresh();
    store.close().unwrap();
    let path = data(&dir).join("moonswarm.db");
    let root: u32 = raw(&dir)
        .query_row("SELECT rootpage FROM sqlite_schema WHERE name = 'kept'", [], |row| row.get(0))
        .unwrap();
    let sound = fs::read(&path).unwrap();
    let mut bytes = sound.clone();
    let end = root as usize * 4_096;
    bytes[end - 4_096..end].fill(0xee);
    fs::write(&path, bytes).unwrap();

    // That page is not read until something is written to it.
    let store = reopen(&dir);
    put(&*store, vec![meta("on")]);
    let (layer, key, value) = ("l".to_owned(), "k".to_owned(), "1".to_owned());
    let kept = Write::PutKept { layer, key, value, expires_ms: None };
    let lost = commit(&*store, vec![], None, vec![kept]).unwrap_err();
    assert!(matches!(lost, StoreError::Damaged { .. }), "{lost}");
    assert!(matches!(store.health(), Health::Lost(_)));
    commit(&*store, vec![], None, vec![meta("after")]).unwrap_err();
    drop(store);
    for _ in 0..2 {
        let refused = open(&dir).err().unwrap();
        let StoreError::Damaged { reason, .. } = &refused else { panic!("{refused}") };
        assert!(reason.contains("moonswarm restore"), "{reason}");
    }

    fs::write(&path, sound).unwrap();
    let _ = fs::remove_file(data(&dir).join("moonswarm.db-wal"));
    let store = Sqlite::open(&data(&dir), &Options { accept_loss: true, ..options() }).unwrap();
    put(&*store, vec![meta("whole")]);
    drop(store);
    assert!(reopen(&dir).meta("whole").unwrap().is_some());
}

#[test]
fn a_lock_whose_file_was_removed_still_keeps_others_out() {
    let (dir, store) = fresh();
    fs::remove_file(data(&dir).join("lock")).unwrap();
    let refused = open(&dir).err().unwrap();
    assert!(matches!(refused, StoreError::Owned { .. }), "{refused}");
    drop(store);
    open(&dir).unwrap();
}

#[test]
fn a_session_with_a_value_whose_hints_are_damaged_is_closed() {
    let (dir, store) = fresh();
    let scope = crate::protocol::Scope::Session("s".into()).to_string();
    let value = |key: &str, lifetime| Write::PutState {
        scope: scope.clone(),
        key: key.to_owned(),
        value: "1".to_owned(),
        hints: StoreOptions { lifetime, ..StoreOptions::default() },
        expires_ms: None,
        at_ms: 1,
    };
    let bound = Some(crate::protocol::Lifetime::Session);
    put(&*store, vec![value("bound", bound), value("damaged", bound), value("free", None)]);
    raw(&dir).execute("UPDATE state SET hints = '{' WHERE key = 'damaged'", []).unwrap();
    let (session, reason) = ("s".to_owned(), "bye".to_owned());
    put(&*store, vec![Write::CloseSession { session, at_ms: 5, reason }]);
    let rows = store.state(&scope).unwrap();
    let left: Vec<_> = rows.iter().map(|row| row.key.as_str()).collect();
    assert_eq!(left, ["damaged", "free"]);
}
