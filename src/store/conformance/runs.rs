//! Runs: headers, histories, conditions.

use super::{append, batch, begin, commit, header, put, resumed, seqs, started};
use crate::{
    journal::{Decision, Fact},
    protocol::Json,
    store::{
        Check, Header, IdempotencyRow, PAGE_BYTES, PAGE_ENTRIES, RunFilter, RunStatus, Store,
        StoreError, Write,
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
    // The header stands, and says where the run is.
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
    put(store, vec![Write::ExpireIdempotency { before_ms: 10 }]);
    assert!(use_it("POST /v1/runs").is_err());
    put(store, vec![Write::ExpireIdempotency { before_ms: 11 }]);
    use_it("POST /v1/runs").unwrap();
}

pub fn lists_are_filtered_and_paged_newest_first(store: &dyn Store) {
    for (num, status) in (1..).zip(RunStatus::ALL) {
        let blueprint = if num % 2 == 0 { "even" } else { "odd" }.to_owned();
        begin(store, Header { status, blueprint, ..header(num) });
    }
    let list = |filter: RunFilter| nums(&store.headers(&filter).unwrap());
    assert_eq!(list(all()), [8, 7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(list(RunFilter { limit: 2, before: Some(7), ..all() }), [6, 5]);
    assert_eq!(list(RunFilter { blueprint: Some("odd".to_owned()), ..all() }), [7, 5, 3, 1]);
    assert_eq!(list(RunFilter { since_ms: Some(1006), ..all() }), [8, 7, 6]);
    let failed = vec![RunStatus::Failed, RunStatus::Queued];
    assert_eq!(list(RunFilter { status: failed, ..all() }), [7, 1]);
    let ended = vec![RunStatus::Completed, RunStatus::Failed];
    assert_eq!(list(RunFilter { status: ended, ..all() }), [7, 6]);
}

pub fn due_runs_come_soonest_first_and_only_of_their_shard(store: &dyn Store) {
    for (num, wake_at_ms) in [(1, Some(30)), (2, Some(10)), (3, Some(0)), (4, None), (5, Some(99))]
    {
        begin(store, Header { wake_at_ms, ..header(num) });
    }
    assert_eq!(store.due(0, 1, 30, 10).unwrap(), [(3, 0), (2, 10), (1, 30)]);
    assert_eq!(store.due(1, 2, 99, 10).unwrap(), [(3, 0), (1, 30), (5, 99)]);
    assert_eq!(store.due(0, 2, 99, 10).unwrap(), [(2, 10)]);
    assert_eq!(store.due(0, 1, u64::MAX, 1).unwrap(), [(3, 0)]);
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
