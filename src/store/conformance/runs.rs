//! Tests of runs: headers, histories, conditions; and of the store as a whole.

use std::sync::Arc;

use super::{
    fixture::{append, batch, begin, commit, header, put, resumed, seqs, started},
    tables::task,
};
use crate::{
    journal::{Decision, Fact, Outcome},
    protocol::{Json, RunId, StoreOptions},
    store::{
        ArtifactRow, ChargeRow, Check, Checked, Errand, Header, IdempotencyRow, Loaded, OutboxRow,
        PAGE_BYTES, PAGE_ENTRIES, Partition, RunFilter, RunStatus, Store, StoreError, Want, Write,
        read_in_pages,
    },
};

fn all() -> RunFilter {
    RunFilter { limit: 100, ..RunFilter::default() }
}

fn nums(headers: &[Header]) -> Vec<u64> {
    headers.iter().map(|header| header.num).collect()
}

pub fn what_was_appended_is_read_back(store: &dyn Store) {
    let mut run = header(1);
    let first = append(store, &mut run, vec![started(None), resumed()]);
    commit(store, vec![], Some(first), vec![]).unwrap();
    let second = append(store, &mut run, vec![resumed()]);
    commit(store, vec![], Some(second), vec![]).unwrap();
    assert_eq!(store.header(1).unwrap(), Some(run));
    let entries = store.entries(1, 0).unwrap();
    assert_eq!(seqs(&entries), [1, 2, 3]);
    assert_eq!((&entries[0].fact, &entries[2].fact), (&started(None), &resumed()));
    assert_eq!(seqs(&store.entries(1, 2).unwrap()), [3]);
    assert_eq!(store.entries(1, 3).unwrap(), []);
    assert_eq!(store.entries(2, 0).unwrap(), []);
    assert_eq!(store.header(2).unwrap(), None);
}

pub fn a_value_in_a_journal_that_is_no_json_is_damage(store: &dyn Store) {
    let mut run = header(1);
    let Fact::RunStarted(mut begun) = started(None) else { panic!("a start") };
    begun.input = Json::from_trusted(r#"{"a":"b}"#);
    let first = append(store, &mut run, vec![Fact::RunStarted(begun)]);
    commit(store, vec![], Some(first), vec![]).unwrap();
    let error = store.entries(1, 0).unwrap_err();
    assert!(
        matches!(&error, StoreError::Damaged { what, reason }
            if what.contains("journal of run 1") && reason.contains("no JSON")),
        "{error}"
    );
    store.all_entries(1, 0).unwrap_err();
    // The header is unchanged and still has the position of the run.
    assert_eq!(store.header(1).unwrap(), Some(run));
}

pub fn a_plain_write_changes_cursor_and_counters_and_a_whole_one_the_rest(store: &dyn Store) {
    let mut run = begin(store, header(1));
    run.status = RunStatus::Failed;
    run.steps = 9;
    let plain = append(store, &mut run, vec![resumed()]);
    commit(store, vec![], Some(plain), vec![]).unwrap();
    let stored = store.header(1).unwrap().unwrap();
    assert_eq!((stored.status, stored.steps, stored.seq), (RunStatus::Running, 9, 2));
    run.ended_ms = Some(7);
    run.error = Some("{}".to_owned());
    run.wake_at_ms = Some(0);
    run.hash = "cd".repeat(32);
    run.waiting_on = None;
    run.progress = None;
    let mut whole = append(store, &mut run, vec![resumed()]);
    whole.whole = true;
    commit(store, vec![], Some(whole), vec![]).unwrap();
    assert_eq!(store.header(1).unwrap(), Some(run));
}

pub fn a_continued_run_has_a_current_history_and_all_of_them(store: &dyn Store) {
    let mut run = begin(store, header(1));
    let more = append(store, &mut run, vec![resumed()]);
    commit(store, vec![], Some(more), vec![]).unwrap();
    let continues = started(Some(run.seq.into()));
    let fresh = append(store, &mut run, vec![continues, resumed()]);
    commit(store, vec![], Some(fresh), vec![]).unwrap();
    assert_eq!(seqs(&store.entries(1, 0).unwrap()), [3, 4]);
    assert_eq!(seqs(&store.all_entries(1, 0).unwrap()), [1, 2, 3, 4]);
    assert_eq!(seqs(&store.all_entries(1, 1).unwrap()), [2, 3, 4]);
}

fn everything(store: &dyn Store, run: u64) -> Loaded {
    store.load(run, &Want { rows: &|_| true, most: 1 << 20 }).unwrap().unwrap()
}

pub fn a_run_is_loaded_with_everything_that_it_is_taken_up_from(store: &dyn Store) {
    let run = begin(store, header(1));
    let other = begin(store, header(2));
    let state = |num: u64, key: &str| Write::PutState {
        scope: format!("run:{}", RunId::new(num, 1000 + num)),
        key: key.to_owned(),
        value: "1".to_owned(),
        hints: StoreOptions::default(),
        expires_ms: None,
        at_ms: 5,
    };
    let file = |run: u64, n: u32| {
        let (name, hash) = (format!("{n}.txt"), "ab".repeat(32));
        let (created_ms, size, step, attempt) = (5, 1, 3, 1);
        let published = n == 1;
        let file = ArtifactRow { run, n, name, hash, size, created_ms, step, attempt, published };
        Write::PutArtifact(file)
    };
    let tasks = [task(1, 3), task(1, 4), task(2, 3)].map(|row| Write::PutTask(Box::new(row)));
    let mut writes = vec![state(1, "b"), state(1, "a"), state(2, "c")];
    writes.extend([file(1, 1), file(1, 2), file(2, 1)]);
    writes.extend(tasks);
    writes.push(Write::PutCharge(ChargeRow::new(1, "jti")));
    put(store, writes);
    let Loaded { header, rows } = everything(store, 1);
    let rows = rows.unwrap();
    assert_eq!(header, run);
    assert_eq!(rows.entries, store.entries(1, 0).unwrap());
    assert_eq!(rows.tasks.iter().map(|row| row.step).collect::<Vec<_>>(), [3, 4]);
    assert_eq!(rows.files, store.artifacts(1).unwrap());
    assert_eq!(rows.files.len(), 2);
    assert_eq!(rows.charge, Some(ChargeRow::new(1, "jti")));
    let state = rows.state.unwrap();
    assert_eq!(state.iter().map(|row| &*row.key).collect::<Vec<_>>(), ["a", "b"]);
    let rest = everything(store, 2);
    assert_eq!((rest.header, rest.rows.unwrap().charge), (other, None));
    assert!(store.load(3, &Want { rows: &|_| true, most: 1 << 20 }).unwrap().is_none());
}

pub fn of_a_run_is_loaded_what_is_wanted_and_no_more_than_there_is_room_for(store: &dyn Store) {
    let mut run = header(1);
    let begins = append(store, &mut run, vec![started(None), resumed()]);
    commit(store, vec![], Some(begins), vec![]).unwrap();
    let only = |header: &Header| header.num != 1;
    let loaded = store.load(1, &Want { rows: &only, most: 1 << 20 }).unwrap().unwrap();
    assert_eq!((loaded.header, loaded.rows.is_none()), (run.clone(), true));
    let bytes = store.history_bytes(1).unwrap();
    let wants = |most: u64| store.load(1, &Want { rows: &|_| true, most });
    assert!(wants(bytes).unwrap().unwrap().rows.is_some());
    let refused = wants(bytes - 1).map(|_| ());
    assert!(matches!(refused, Err(StoreError::TooLarge { run: 1, .. })), "{refused:?}");
    // State that is too large is told when it is asked for, and the run goes on without it.
    let (scope, key) = (format!("run:{}", RunId::new(1, 1001)), "k".to_owned());
    let value = format!("\"{}\"", "x".repeat(2 * usize::try_from(bytes).unwrap()));
    let (hints, expires_ms, at_ms) = (StoreOptions::default(), None, 5);
    put(store, vec![Write::PutState { scope, key, value, hints, expires_ms, at_ms }]);
    let rows = wants(bytes).unwrap().unwrap().rows.unwrap();
    assert!(matches!(rows.state, Err(StoreError::TooLarge { run: 1, .. })), "{:?}", rows.state);
    assert_eq!(rows.entries.len(), 2);
}

pub fn a_history_is_read_in_pages_that_are_bounded(store: &dyn Store) {
    let mut run = begin(store, header(1));
    let large = |bytes: usize| {
        Fact::Decided(Decision::Pause { by: "ann".to_owned(), reason: "r".repeat(bytes) })
    };
    let some = (0..300).map(|_| resumed()).chain([large(PAGE_BYTES * 2), large(PAGE_BYTES / 2)]);
    let more = append(store, &mut run, some.collect());
    commit(store, vec![], Some(more), vec![]).unwrap();
    let continues = started(Some(run.seq.into()));
    let rest = (0..6).map(|_| large(PAGE_BYTES / 3));
    let fresh = append(store, &mut run, std::iter::once(continues).chain(rest).collect());
    commit(store, vec![], Some(fresh), vec![]).unwrap();
    for after in [0, 1, 40, 300, 303, 309, 310, 400] {
        let pages = store.pages(1, after).unwrap();
        let mut seen = Vec::new();
        for page in &pages {
            let entries = store.page(1, page).unwrap();
            let bytes: usize = entries.iter().map(|entry| entry.encode(1).len()).sum();
            assert_eq!((page.bytes, page.upto - page.after), (bytes, entries.len() as u32));
            assert!(bytes <= PAGE_BYTES || entries.len() == 1, "{page:?}");
            assert!(entries.len() <= PAGE_ENTRIES as usize, "{page:?}");
            seen.extend(seqs(&entries));
        }
        assert_eq!(seen, seqs(&store.all_entries(1, after).unwrap()), "after {after}");
        let mut current = Vec::new();
        read_in_pages(store, 1, after, |entry| current.push(entry.seq)).unwrap();
        assert_eq!(current, seqs(&store.entries(1, after).unwrap()), "after {after}");
    }
    let pages = store.pages(1, 0).unwrap();
    put(store, vec![Write::DeleteRun { run: 1 }]);
    assert_eq!(store.page(1, &pages[0]).unwrap(), []);
    assert_eq!(store.pages(1, 0).unwrap(), []);
}

pub fn a_batch_whose_run_has_moved_is_refused_alone(store: &dyn Store) {
    let mut mine = begin(store, header(1));
    let mut stale = mine.clone();
    let mut other = begin(store, header(2));
    let meta = |key: &str| vec![Write::PutMeta { key: key.to_owned(), value: "1".to_owned() }];
    let verdicts: Vec<_> = [
        (append(store, &mut mine, vec![resumed()]), meta("a")),
        (append(store, &mut stale, vec![resumed()]), meta("b")),
        (append(store, &mut stale, vec![resumed()]), meta("c")),
        (append(store, &mut other, vec![resumed()]), meta("d")),
    ]
    .into_iter()
    .map(|(run, writes)| {
        let (batch, verdict) = batch(vec![], Some(run), writes);
        store.submit(batch);
        verdict
    })
    .collect();
    let results: Vec<_> = verdicts.into_iter().map(|verdict| verdict.recv().unwrap()).collect();
    assert!(results[0].is_ok() && results[3].is_ok(), "{results:?}");
    assert!(matches!(results[1], Err(StoreError::Moved { run: 1 })), "{results:?}");
    assert!(matches!(results[2], Err(StoreError::Moved { run: 1 })), "{results:?}");
    let kept = ["a", "b", "c", "d"].map(|key| store.meta(key).unwrap().is_some());
    assert_eq!(kept, [true, false, false, true]);
    let one = Some("1".to_owned());
    let keys = ["d", "c", "a", "a"].map(str::to_owned);
    assert_eq!(store.metas(&keys).unwrap(), [one.clone(), None, one.clone(), one]);
    assert_eq!(seqs(&store.entries(1, 0).unwrap()), [1, 2]);
    assert_eq!(store.header(1).unwrap(), Some(mine));
}

pub fn a_run_is_created_once(store: &dyn Store) {
    let first = begin(store, header(1));
    let again = append(store, &mut header(1), vec![started(None)]);
    let refused = commit(store, vec![], Some(again), vec![]).unwrap_err();
    assert!(matches!(refused, StoreError::Moved { run: 1 }));
    assert_eq!(store.header(1).unwrap(), Some(first));
}

pub fn writes_that_rest_on_a_row_fall_with_it(store: &dyn Store) {
    let mut run = begin(store, header(1));
    let meta = |key: &str| vec![Write::PutMeta { key: key.to_owned(), value: "1".to_owned() }];
    let at = |cursor| vec![Check::RunAt { run: 1, cursor }];
    commit(store, at(run.cursor), None, meta("a")).unwrap();
    let before = run.cursor;
    let more = append(store, &mut run, vec![resumed()]);
    commit(store, vec![], Some(more), vec![]).unwrap();
    let refused = commit(store, at(before), None, meta("b")).unwrap_err();
    assert!(matches!(refused, StoreError::Moved { run: 1 }));
    let unknown = vec![Check::RunAt { run: 2, cursor: before }];
    assert!(matches!(commit(store, unknown, None, meta("b")), Err(StoreError::Moved { run: 2 })));
    assert_eq!((store.meta("a").unwrap().is_some(), store.meta("b").unwrap()), (true, None));
}

pub fn nothing_is_written_with_a_revoked_token(store: &dyn Store) {
    let live = || vec![Check::TokenLive("t1".to_owned())];
    let mut run = header(1);
    let first = append(store, &mut run, vec![started(None)]);
    commit(store, live(), Some(first), vec![]).unwrap();
    put(store, vec![Write::RevokeToken { jti: "t1".to_owned(), at_ms: 5 }]);
    let second = append(store, &mut run, vec![resumed()]);
    let refused = commit(store, live(), Some(second), vec![]).unwrap_err();
    assert!(matches!(refused, StoreError::Revoked { jti } if jti == "t1"));
    assert_eq!(seqs(&store.entries(1, 0).unwrap()), [1]);
}

pub fn an_idempotency_key_is_used_once_until_it_expires(store: &dyn Store) {
    let row = IdempotencyRow {
        principal: "ann".to_owned(),
        route: "POST /v1/runs".to_owned(),
        key: "k".to_owned(),
        body: "00".to_owned(),
        answer: "{}".to_owned(),
        created_ms: 10,
    };
    let use_it = |route: &str| {
        let row = IdempotencyRow { route: route.to_owned(), ..row.clone() };
        let (principal, route, key) = (row.principal.clone(), row.route.clone(), row.key.clone());
        let free = vec![Check::KeyFree { principal, route, key }];
        commit(store, free, None, vec![Write::PutIdempotency(row)])
    };
    use_it("POST /v1/runs").unwrap();
    let refused = use_it("POST /v1/runs").unwrap_err();
    assert!(matches!(refused, StoreError::KeyUsed { key } if key == "k"));
    use_it("POST /v1/signals").unwrap();
    assert_eq!(store.idempotent("ann", "POST /v1/runs", "k").unwrap(), Some(row.clone()));
    assert_eq!(store.idempotent("bob", "POST /v1/runs", "k").unwrap(), None);
    put(store, vec![Write::ExpireIdempotency { before_ms: 10, rows: 9 }]);
    assert!(use_it("POST /v1/runs").is_err());
    put(store, vec![Write::ExpireIdempotency { before_ms: 11, rows: 9 }]);
    use_it("POST /v1/runs").unwrap();
}

pub fn lists_are_filtered_and_paged_newest_first(store: &dyn Store) {
    for (num, status) in (1..).zip(RunStatus::ALL) {
        let blueprint = if num % 2 == 0 { "even" } else { "odd" }.to_owned();
        begin(store, Header { status, blueprint, ..header(num) });
    }
    let list = |filter: RunFilter| nums(&store.headers(&filter).unwrap());
    assert_eq!(list(all()), [8, 7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(list(RunFilter { limit: 2, before: Some(RunId::new(7, 1007)), ..all() }), [6, 5]);
    assert_eq!(list(RunFilter { blueprint: Some("odd".to_owned()), ..all() }), [7, 5, 3, 1]);
    assert_eq!(list(RunFilter { since_ms: Some(1006), ..all() }), [8, 7, 6]);
    let failed = vec![RunStatus::Failed, RunStatus::Queued];
    assert_eq!(list(RunFilter { status: failed, ..all() }), [7, 1]);
    let ended = vec![RunStatus::Completed, RunStatus::Failed];
    assert_eq!(list(RunFilter { status: ended, ..all() }), [7, 6]);
}

pub fn due_runs_come_soonest_first_and_only_of_their_partitions(store: &dyn Store) {
    let wakes = [(1, Some(30)), (2, Some(10)), (3, Some(0)), (4, None), (5, Some(99))];
    for (num, wake_at_ms) in wakes.into_iter().chain([(257, Some(40)), (512, Some(50))]) {
        begin(store, Header { wake_at_ms, ..header(num) });
    }
    let all: Vec<Partition> = Partition::all().collect();
    assert_eq!(store.due(&all, 30, 10).unwrap(), [(3, 0), (2, 10), (1, 30)]);
    assert_eq!(store.due(&all, u64::MAX, 1).unwrap(), [(3, 0)]);
    let of = |runs: &[u64]| runs.iter().map(|run| Partition::of(*run)).collect::<Vec<_>>();
    assert_eq!(store.due(&of(&[1, 5]), 99, 10).unwrap(), [(1, 30), (257, 40), (5, 99)]);
    assert_eq!(store.due(&of(&[0, 2]), 99, 10).unwrap(), [(2, 10), (512, 50)]);
    assert_eq!(store.due(&of(&[513]), 99, 1).unwrap(), [(1, 30)]);
    assert_eq!(store.due(&[], 99, 10).unwrap(), []);
}

pub fn open_runs_without_a_nonce_are_found_and_a_nonce_is_kept(store: &dyn Store) {
    begin(store, header(1));
    begin(store, Header { nonce: 0, epoch: 7, ..header(2) });
    begin(store, Header { nonce: 0, status: RunStatus::Canceled, ..header(3) });
    assert_eq!(store.runs_without_nonce().unwrap(), [(2, 7)]);
    assert_eq!(store.header(1).unwrap().unwrap().nonce, u64::MAX - 1);
}

pub fn only_open_children_are_listed(store: &dyn Store) {
    begin(store, Header { parent: Some((9, 1)), ..header(1) });
    begin(store, Header { parent: Some((9, 2)), status: RunStatus::Failed, ..header(2) });
    begin(store, Header { parent: Some((8, 2)), ..header(3) });
    begin(store, Header { parent: None, ..header(4) });
    begin(store, Header { parent: Some((9, 3)), status: RunStatus::Queued, ..header(5) });
    assert_eq!(nums(&store.children(9).unwrap()), [1, 5]);
}

pub fn a_batch_is_seen_by_every_reader_once_it_is_acknowledged(store: &dyn Store) {
    std::thread::scope(|threads| {
        for _ in 0..8 {
            threads.spawn(|| {
                let mut run = begin(store, header(store.next_run()));
                for seq in 2..20 {
                    let more = append(store, &mut run, vec![resumed()]);
                    commit(store, vec![], Some(more), vec![]).unwrap();
                    assert_eq!(seqs(&store.entries(run.num, seq - 1).unwrap()), [seq]);
                    assert_eq!(store.header(run.num).unwrap().as_ref(), Some(&run));
                }
            });
        }
    });
    assert_eq!(store.headers(&all()).unwrap().len(), 8);
}

pub fn numbers_only_grow(store: &dyn Store) {
    assert_eq!((store.next_run(), store.next_run()), (1, 2));
    let lsn = store.next_lsn();
    assert!(store.next_lsn() > lsn);
}

pub fn a_number_that_was_taken_is_given_to_nobody(store: &dyn Store) {
    assert_eq!(store.last_run(), 0);
    assert!(store.reserve_run(5));
    assert!(!store.reserve_run(5) && !store.reserve_run(4));
    assert_eq!((store.last_run(), store.next_run(), store.last_run()), (5, 6, 6));
}

fn ended(num: u64, at_ms: u64) -> Header {
    Header { status: RunStatus::Completed, ended_ms: Some(at_ms), parent: None, ..header(num) }
}

pub fn only_what_nothing_open_needs_is_retired(store: &dyn Store) {
    begin(store, Header { parent: None, ..header(1) });
    begin(store, Header { parent: Some((1, 2)), ..ended(2, 9) });
    begin(store, ended(3, 7));
    begin(store, ended(4, 8));
    begin(store, Header { parent: Some((4, 1)), ..header(5) });
    begin(store, ended(6, 8));
    let errand = Errand::Signal { name: "go".to_owned(), payload: "1".to_owned() };
    put(store, vec![Write::PutOutbox(OutboxRow { run: 6, step: 1, to: 1, errand })]);
    let nums = |after, limit| -> Vec<u64> {
        store.retired(after, limit).unwrap().into_iter().map(|run| run.num).collect()
    };
    assert_eq!(nums(0, 10), [3]);
    assert_eq!(store.ended_runs().unwrap(), 4);
    put(store, vec![Write::DeleteOutbox { run: 6, step: 1 }]);
    assert_eq!((nums(0, 10), nums(0, 1), nums(3, 10)), (vec![3, 6], vec![3], vec![6]));
    let first = store.retired(0, 1).unwrap()[0];
    assert_eq!((first.created_ms, first.ended_ms), (1003, 7));
}

pub fn the_bytes_of_a_run_are_its_entries_and_its_files(store: &dyn Store) {
    let run = begin(store, header(1));
    assert_eq!(store.run_bytes(1).unwrap(), run.bytes);
    put(
        store,
        vec![Write::PutArtifact(ArtifactRow {
            run: 1,
            n: 1,
            name: "a".to_owned(),
            hash: "00".to_owned(),
            size: 1_000,
            created_ms: 1,
            step: 1,
            attempt: 1,
            published: true,
        })],
    );
    assert_eq!(store.run_bytes(1).unwrap(), run.bytes + 1_000);
    assert_eq!(store.run_bytes(2).unwrap(), 0);
}

pub fn what_retention_counts_is_less_after_each_deletion(store: &dyn Store) {
    let counted = || store.upkeep().retained_bytes(0).unwrap();
    let before = counted();
    for num in [1, 2] {
        let mut run = ended(num, 9);
        let output = Json::from_trusted(format!("\"{}\"", "x".repeat(200_000)));
        let end = Fact::RunEnded(Outcome::Completed(output));
        let write = append(store, &mut run, vec![started(None), end]);
        commit(store, vec![], Some(write), vec![]).unwrap();
    }
    let both = counted();
    assert!(both >= before + 400_000, "{before} {both}");
    put(store, vec![Write::DeleteRun { run: 1 }]);
    let one = counted();
    assert!(one + 190_000 <= both, "{both} {one}");
    put(store, vec![Write::DeleteRun { run: 2 }]);
    assert!(counted() + 190_000 <= one, "{one}");
}

pub fn room_is_measured_and_everything_is_checked(store: &dyn Store) {
    let before = store.upkeep().space().unwrap();
    let mut run = ended(1, 9);
    let end = Fact::RunEnded(Outcome::Completed(Json::null()));
    let write = append(store, &mut run, vec![started(None), end]);
    commit(store, vec![], Some(write), vec![]).unwrap();
    let data: Arc<[u8]> = Arc::from(vec![7; 100_000]);
    let hash = blake3::hash(&data).to_hex().to_string();
    put(store, vec![Write::PutBlob { hash, data: Arc::clone(&data) }]);
    let after = store.upkeep().space().unwrap();
    assert!(after.used >= before.used + 90_000, "{before:?} {after:?}");
    let check = || {
        let mut lines = Vec::new();
        let mut tell = |line| {
            lines.push(line);
            true
        };
        store.upkeep().check(&mut tell).unwrap();
        lines
    };
    let done =
        |damaged| Checked::Done { runs: 1, entries: 2, state: 0, blobs: 1 + damaged, damaged };
    assert_eq!(check().last(), Some(&done(0)));
    put(store, vec![Write::PutBlob { hash: "no hash of it".to_owned(), data }]);
    let found = check();
    assert_eq!(found.last(), Some(&done(1)));
    assert!(
        found.iter().any(
            |line| matches!(line, Checked::Damaged { what, .. } if what == "blob no hash of it")
        ),
        "{found:?}"
    );
}

fn keep(key: &str, value: &str) -> Vec<Write> {
    vec![Write::PutMeta { key: key.to_owned(), value: value.to_owned() }]
}

fn is(key: &str, value: Option<String>) -> Vec<Check> {
    vec![Check::MetaIs { key: key.to_owned(), value }]
}

pub fn a_value_of_the_host_is_changed_by_who_has_seen_it(store: &dyn Store) {
    commit(store, is("k", None), None, keep("k", "1")).unwrap();
    for stale in [None, Some("2".to_owned())] {
        let refused = commit(store, is("k", stale), None, keep("k", "3")).unwrap_err();
        assert!(matches!(&refused, StoreError::Changed { key } if key == "k"), "{refused}");
        assert!(refused.is_about_the_change());
    }
    commit(store, is("k", Some("1".to_owned())), None, keep("k", "2")).unwrap();
    assert_eq!(store.meta("k").unwrap().as_deref(), Some("2"));
}

pub fn two_writers_of_a_value_of_the_host_lose_nothing(store: Arc<impl Store + 'static>) {
    const EACH: u64 = 40;
    let count = || {
        loop {
            let seen = store.meta("count").unwrap();
            let next = seen.as_deref().map_or(0, |it| it.parse::<u64>().unwrap()) + 1;
            match commit(&*store, is("count", seen), None, keep("count", &next.to_string())) {
                Ok(()) => break,
                Err(StoreError::Changed { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| (0..EACH).for_each(|_| count()));
        }
    });
    assert_eq!(store.meta("count").unwrap(), Some((2 * EACH).to_string()));
}

pub fn a_window_of_a_long_history_is_read_by_its_numbers(store: &dyn Store) {
    let mut run = begin(store, header(1));
    for _ in 0..3 {
        let some = (0..250).map(|_| resumed());
        let fresh = started(Some(run.seq.into()));
        let write = append(store, &mut run, some.chain([fresh]).collect());
        commit(store, vec![], Some(write), vec![]).unwrap();
    }
    assert_eq!(run.seq, 754);
    for (after, upto) in
        [(0, 1), (0, 256), (10, 300), (255, 257), (250, 252), (500, 754), (753, 900)]
    {
        let found = seqs(&store.window(1, after, upto).unwrap());
        let expected: Vec<u32> = (after + 1..=upto.min(754)).collect();
        assert_eq!(found, expected, "{after} to {upto}");
    }
    for (after, upto) in [(754, 800), (9, 9), (9, 3)] {
        assert_eq!(store.window(1, after, upto).unwrap(), []);
    }
    assert_eq!(store.history_start(1).unwrap(), 754);
    let other = begin(store, header(2));
    assert_eq!((store.history_start(2).unwrap(), store.history_start(3).unwrap()), (1, 1));
    put(store, vec![Write::DeleteRun { run: 1 }]);
    assert_eq!(store.window(1, 0, 9).unwrap(), []);
    assert_eq!(store.window(2, 0, 9).unwrap().len(), other.seq as usize);
}

pub fn the_rows_of_all_runs_are_read_in_their_order_and_bounded(store: &dyn Store) {
    assert_eq!(store.feed(0, u64::MAX, 9, 9_999).unwrap(), []);
    let mut runs = [1, 2].map(|num| begin(store, header(num)));
    for _ in 0..3 {
        for run in &mut runs {
            let write = append(store, run, vec![resumed(), resumed()]);
            commit(store, vec![], Some(write), vec![]).unwrap();
        }
    }
    let last = store.last_lsn();
    let all = store.feed(0, last, 100, usize::MAX).unwrap();
    assert_eq!(all.len(), 14);
    assert!(all.is_sorted_by(|a, b| a.lsn < b.lsn) && all[13].lsn == last);
    for run in [1, 2] {
        let own: Vec<_> = all.iter().filter(|row| row.run == run).collect();
        assert_eq!(own.iter().map(|row| row.entry.seq).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7]);
        assert!(own.iter().all(|row| row.bytes > 8));
    }
    assert_eq!(store.feed(all[3].lsn, all[9].lsn, 100, usize::MAX).unwrap(), all[4..=9]);
    assert_eq!(store.feed(0, last, 3, usize::MAX).unwrap(), all[..3]);
    let size = all[0].bytes + all[1].bytes;
    assert_eq!(store.feed(0, last, 100, size).unwrap(), all[..2]);
    assert_eq!(store.feed(0, last, 100, 1).unwrap(), all[..1], "one row at least");
    assert_eq!(store.feed(last, last, 100, 1).unwrap(), []);
}
