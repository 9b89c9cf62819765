//! Tests of batches that are on their way at the same time, for runs of many partitions.

use std::collections::BTreeSet;

use super::fixture::{Acked, append, batch, begin, commit, header, put, resumed, started};
use crate::{
    journal::{Dimension, Ending, Measure, Tally},
    protocol::StoreOptions,
    store::{
        Answers, ArtifactRow, Check, CountedRun, Grain, Header, IdempotencyRow, Reducer, RunWrite,
        StateAct, StateBatch, StateChange, StatsFilter, Store, StoreError, Write,
    },
};

/// The runs of these tests: each in a partition of its own.
const RUNS: std::ops::RangeInclusive<u64> = 1..=40;

fn submit(
    store: &dyn Store,
    checks: Vec<Check>,
    run: Option<RunWrite>,
    writes: Vec<Write>,
) -> Acked {
    let (batch, acked) = batch(checks, run, writes);
    store.submit(batch);
    acked
}

fn starting(store: &dyn Store, run: u64) -> RunWrite {
    append(store, &mut header(run), vec![started(None)])
}

fn going_on(store: &dyn Store, header: &mut Header) -> RunWrite {
    append(store, header, vec![resumed()])
}

pub fn a_key_is_taken_by_one_of_many_runs_at_once(store: &dyn Store) {
    let taking = |run: u64, key: &str, route: &str| {
        let (principal, route, key) = ("ann".to_owned(), route.to_owned(), key.to_owned());
        let check =
            Check::KeyFree { principal: principal.clone(), route: route.clone(), key: key.clone() };
        let answer = run.to_string();
        let row =
            IdempotencyRow { principal, route, key, body: String::new(), answer, created_ms: 5 };
        (check, Write::PutIdempotency(row))
    };
    let mut acked = Vec::new();
    for run in RUNS {
        // In opposite orders, so that lanes that wait for each other would never end.
        let mut keys = [taking(run, "one", "start"), taking(run, "two", "start")];
        if run.is_multiple_of(2) {
            keys.reverse();
        }
        let own = taking(run, &format!("own {run}"), "start");
        let (checks, writes) = keys.into_iter().chain([own]).unzip();
        acked.push((run, submit(store, checks, Some(starting(store, run)), writes)));
    }
    let mut taken = Vec::new();
    for (run, acked) in acked {
        match acked.recv().unwrap() {
            Ok(()) => taken.push(run),
            Err(StoreError::KeyUsed { .. }) => assert_eq!(store.header(run).unwrap(), None),
            Err(error) => panic!("{error}"),
        }
    }
    let [first] = taken[..] else { panic!("{taken:?} have the same key") };
    for key in ["one", "two"] {
        let row = store.idempotent("ann", "start", key).unwrap().unwrap();
        assert_eq!(row.answer, first.to_string());
    }
    let with_own = RUNS
        .filter(|run| store.idempotent("ann", "start", &format!("own {run}")).unwrap().is_some());
    assert_eq!(with_own.collect::<Vec<_>>(), [first]);
}

pub fn what_many_runs_do_to_a_value_at_once_is_all_done_once(store: &dyn Store) {
    let put_one = |key: &str, reducer, value: &str, if_revision| StateChange {
        scope: "global".to_owned(),
        key: key.to_owned(),
        if_revision,
        act: StateAct::Put { value: value.to_owned(), reducer, hints: StoreOptions::default() },
    };
    let changing = |run: u64, changes: Vec<StateChange>| {
        let receipt = Some((run, 1));
        let answers = Answers::default();
        let batch =
            StateBatch { changes, at_ms: 9, most: 4_096, receipt, answers: answers.clone() };
        (Write::ChangeState(Box::new(batch)), answers)
    };
    let mut acked = Vec::new();
    for run in RUNS {
        let mut changes = vec![
            put_one("sum", Reducer::Sum, "1", None),
            put_one("list", Reducer::Append, &run.to_string(), None),
        ];
        if run.is_multiple_of(2) {
            changes.reverse();
        }
        let (write, answers) = changing(run, changes);
        // A second time, as after an answer that was lost.
        let again = Write::ChangeState(match &write {
            Write::ChangeState(batch) => batch.clone(),
            _ => unreachable!("it is a change"),
        });
        let mut own = header(run);
        let first = append(store, &mut own, vec![started(None)]);
        acked.push((submit(store, vec![], Some(first), vec![write]), answers));
        let second = going_on(store, &mut own);
        acked.push((submit(store, vec![], Some(second), vec![again]), Answers::default()));
    }
    let mut sums = BTreeSet::new();
    for (acked, answers) in acked {
        acked.recv().unwrap().unwrap();
        let sum = |value: &String| value.parse::<u64>().ok();
        sums.extend(answers.get().iter().filter_map(|it| it.value.as_ref().and_then(sum)));
    }
    let runs = RUNS.count() as u64;
    assert_eq!(sums, (1..=runs).collect(), "each saw what the ones before had left");
    let value = |key: &str| store.state_value("global", key).unwrap().unwrap();
    assert_eq!((value("sum").value, value("sum").revision), (runs.to_string(), runs));
    let list: Vec<u64> = serde_json::from_str(&value("list").value).unwrap();
    assert_eq!(list.len() as u64, runs);
    assert_eq!(list.into_iter().collect::<BTreeSet<_>>(), RUNS.collect());
    // Of those who have seen that a value is not there, one makes it.
    let acked: Vec<Acked> = RUNS
        .map(|run| {
            let make = put_one("made", Reducer::Overwrite, &run.to_string(), Some(0));
            let (write, _) = changing(run + 256, vec![make]);
            submit(store, vec![], Some(starting(store, run + 256)), vec![write])
        })
        .collect();
    let results: Vec<_> = acked.iter().map(|acked| acked.recv().unwrap()).collect();
    assert_eq!(results.iter().filter(|it| it.is_ok()).count(), 1, "{results:?}");
    assert!(results.iter().all(|it| matches!(it, Ok(()) | Err(StoreError::Revision { .. }))));
    assert_eq!(value("made").revision, 1);
}

pub fn after_a_revocation_no_run_is_written_with_the_token(store: &dyn Store) {
    let live = || vec![Check::TokenLive("t".to_owned())];
    let mut runs: Vec<Header> = RUNS.map(|run| begin(store, header(run))).collect();
    let before: Vec<_> = runs
        .iter_mut()
        .map(|run| submit(store, live(), Some(going_on(store, run)), vec![]))
        .collect();
    let revoke = vec![Write::RevokeToken { jti: "t".to_owned(), at_ms: 5 }];
    let revoked = submit(store, vec![], None, revoke);
    revoked.recv().unwrap().unwrap();
    for mut run in RUNS.map(|run| store.header(run).unwrap().unwrap()) {
        let refused = commit(store, live(), Some(going_on(store, &mut run)), vec![]);
        assert!(matches!(refused, Err(StoreError::Revoked { .. } | StoreError::Moved { .. })));
    }
    for (run, acked) in RUNS.zip(before) {
        let result = acked.recv().unwrap();
        let entries = store.entries(run, 0).unwrap().len();
        match result {
            Ok(()) => assert_eq!(entries, 2),
            Err(StoreError::Revoked { .. }) => assert_eq!(entries, 1),
            Err(error) => panic!("{error}"),
        }
    }
}

pub fn a_run_that_is_deleted_while_it_goes_on_leaves_nothing(store: &dyn Store) {
    let mut runs: Vec<Header> = RUNS.map(|run| begin(store, header(run))).collect();
    let mut acked = Vec::new();
    for run in &mut runs {
        let num = run.num;
        let write = going_on(store, run);
        let held = vec![Check::RunAt { run: num, cursor: write.header.cursor }];
        let evidence = Write::PutState {
            scope: format!("run:{}", run.id()),
            key: "k".to_owned(),
            value: "1".to_owned(),
            hints: StoreOptions::default(),
            expires_ms: None,
            at_ms: 1,
        };
        acked.push((num, submit(store, vec![], Some(write), vec![])));
        acked.push((num, submit(store, vec![], None, vec![Write::DeleteRun { run: num }])));
        acked.push((num, submit(store, held, None, vec![evidence])));
    }
    for (num, acked) in acked {
        let result = acked.recv().unwrap();
        let is_moved = matches!(result, Err(StoreError::Moved { run }) if run == num);
        assert!(result.is_ok() || is_moved, "{result:?}");
    }
    for run in runs {
        assert_eq!(store.header(run.num).unwrap(), None);
        assert_eq!(store.all_entries(run.num, 0).unwrap(), []);
        assert_eq!(store.state(&format!("run:{}", run.id())).unwrap(), []);
    }
    let (after, upto) = (0, store.last_lsn());
    assert_eq!(store.feed(after, upto, 1_000, 1 << 20).unwrap().len(), 0);
}

pub fn a_blob_stays_while_a_file_of_some_run_has_it(store: &dyn Store) {
    let file = |run: u64, name: &str| {
        let hash = blake3::hash(name.as_bytes()).to_hex().to_string();
        let data: std::sync::Arc<[u8]> = name.as_bytes().into();
        let blob = Write::PutBlob { hash: hash.clone(), data };
        let row = ArtifactRow {
            run,
            n: 1,
            name: name.to_owned(),
            hash,
            size: 1,
            created_ms: 1,
            step: 1,
            attempt: 1,
            published: true,
        };
        (blob, row)
    };
    for run in RUNS {
        begin(store, header(run));
        let (blob, row) = file(run, &format!("of {}", run / 2));
        put(store, vec![blob, Write::PutArtifact(row)]);
    }
    let mut acked = Vec::new();
    for run in RUNS.filter(|run| run.is_multiple_of(2)) {
        let other = 1_000 + run;
        let (blob, row) = file(other, &format!("of {}", run / 2));
        let writes = vec![blob, Write::PutArtifact(row)];
        acked.push(submit(store, vec![], None, vec![Write::DeleteRun { run }]));
        acked.push(submit(store, vec![], Some(starting(store, other)), writes));
        acked.push(submit(store, vec![], None, vec![Write::DeleteRun { run: run + 1 }]));
    }
    acked.into_iter().for_each(|acked| acked.recv().unwrap().unwrap());
    for run in RUNS.filter(|run| run.is_multiple_of(2)) {
        let row = &store.artifacts(1_000 + run).unwrap()[0];
        let blob = store.blob(&row.hash).unwrap();
        assert_eq!(blob.as_deref(), Some(row.name.as_bytes()), "of run {run}");
    }
}

pub fn runs_that_end_at_once_are_all_counted_once(store: &dyn Store) {
    // More than are folded at a time, in the lanes of many partitions.
    let ended: Vec<Acked> = (1..=700)
        .map(|run| {
            let counted = CountedRun {
                run,
                created_ms: 1,
                ended_ms: 5,
                blueprint: "ship".to_owned(),
                ending: Ending::Completed,
                tally: Tally::default(),
            };
            let write = Write::CountRun(Box::new(counted));
            submit(store, vec![], Some(starting(store, run)), vec![write])
        })
        .collect();
    ended.into_iter().for_each(|acked| acked.recv().unwrap().unwrap());
    let filter =
        StatsFilter { grain: Grain::Day, since_ms: 0, of: Dimension::Blueprint, name: None };
    let mut sum = Measure::default();
    store.stats(&filter).unwrap().iter().for_each(|row| sum.add(&row.measure));
    assert_eq!(sum.count, 700);
}

pub fn the_batches_of_a_run_are_committed_in_their_order(store: &dyn Store) {
    let mut runs: Vec<Header> = RUNS.map(header).collect();
    let mut acked = Vec::new();
    for n in 0..20 {
        for run in &mut runs {
            let write =
                if n == 0 { append(store, run, vec![started(None)]) } else { going_on(store, run) };
            acked.push(submit(store, vec![], Some(write), vec![]));
        }
    }
    acked.into_iter().for_each(|acked| acked.recv().unwrap().unwrap());
    for run in runs {
        assert_eq!(store.header(run.num).unwrap().unwrap().seq, 20);
        assert_eq!(store.entries(run.num, 0).unwrap().len(), 20);
    }
}
