use std::sync::Arc;

use tempfile::TempDir;

use super::*;
use crate::store::{
    Check, Memory, RunWrite, Synchronous, Write,
    conformance::{self, append, header, resumed, started},
    sqlite::{
        connection::{create, writable},
        header::high_water,
        meta,
        value::uint,
    },
};

type Parts = (Vec<Check>, Vec<Write>);

fn committer() -> (TempDir, Committer) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("test.db");
    create(&path).unwrap();
    let conn = writable(&path, Synchronous::Normal).unwrap();
    let place = StorePath::of(dir.path(), &["test.db"]);
    let mark = MarkFile::open(dir.path(), false).unwrap();
    (dir, Committer::new(conn, place, mark, Duration::ZERO).unwrap())
}

/// Commits a group and returns the result of each batch.
fn verdicts(committer: &mut Committer, group: Vec<Parts>) -> Vec<Result<(), StoreError>> {
    commit(committer, group.into_iter().map(|(checks, writes)| (checks, None, writes)).collect())
}

/// Commits a group with the writes of runs and returns the result of each batch.
fn commit(
    committer: &mut Committer,
    group: Vec<(Vec<Check>, Option<RunWrite>, Vec<Write>)>,
) -> Vec<Result<(), StoreError>> {
    let (batches, verdicts): (Vec<_>, Vec<_>) = group
        .into_iter()
        .map(|(checks, run, writes)| conformance::batch(checks, run, writes))
        .unzip();
    committer.commit(batches);
    verdicts.into_iter().map(|verdict| verdict.try_recv().unwrap()).collect()
}

/// Returns the number and the run of each row of the journal.
fn rows(committer: &Committer) -> Vec<(u64, u64)> {
    let mut rows = committer.conn.prepare("SELECT lsn, run FROM journal ORDER BY lsn").unwrap();
    let rows = rows.query_map([], |row| Ok((uint(row, 0)?, uint(row, 1)?))).unwrap();
    rows.map(Result::unwrap).collect()
}

fn put_meta(key: &str) -> Write {
    Write::PutMeta { key: key.to_owned(), value: "1".to_owned() }
}

fn blob(size: usize) -> Write {
    Write::PutBlob { hash: "00".to_owned(), data: Arc::from(vec![7; size]) }
}

fn revoke(jti: &str) -> Write {
    Write::RevokeToken { jti: jti.to_owned(), at_ms: 1 }
}

fn live(jti: &str) -> Check {
    Check::TokenLive(jti.to_owned())
}

fn limit_pages(committer: &Committer, pages: u32) {
    committer.conn.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(())).unwrap();
}

fn stored(committer: &Committer, key: &str) -> bool {
    meta::one(&committer.conn, key).unwrap().is_some()
}

#[test]
fn a_full_disk_fails_the_whole_group_and_later_batches_go_on() {
    let (_dir, mut committer) = committer();
    limit_pages(&committer, 1);
    let group = vec![(vec![], vec![put_meta("a")]), (vec![], vec![blob(1 << 20)])];
    for verdict in verdicts(&mut committer, group) {
        assert!(matches!(verdict, Err(StoreError::Full)), "{verdict:?}");
    }
    assert!(!stored(&committer, "a"));
    limit_pages(&committer, 1 << 20);
    let group = vec![(vec![], vec![put_meta("b"), blob(1 << 20)])];
    assert!(verdicts(&mut committer, group)[0].is_ok());
    assert!(stored(&committer, "b"));
}

#[test]
fn a_revocation_counts_for_the_batches_behind_it_in_the_same_group() {
    let (_dir, mut committer) = committer();
    let group = vec![
        (vec![live("t")], vec![put_meta("before")]),
        (vec![], vec![revoke("t")]),
        (vec![live("t")], vec![put_meta("after")]),
    ];
    let verdicts = verdicts(&mut committer, group);
    assert!(verdicts[0].is_ok() && verdicts[1].is_ok());
    assert!(matches!(verdicts[2], Err(StoreError::Revoked { .. })));
    assert!(stored(&committer, "before") && !stored(&committer, "after"));
}

#[test]
fn a_revocation_that_was_rolled_back_does_not_count() {
    let (_dir, mut committer) = committer();
    limit_pages(&committer, 1);
    let failed = verdicts(&mut committer, vec![(vec![], vec![revoke("t"), blob(1 << 20)])]);
    assert!(matches!(failed[0], Err(StoreError::Full)));
    limit_pages(&committer, 1 << 20);
    assert!(verdicts(&mut committer, vec![(vec![live("t")], vec![])])[0].is_ok());
}

#[test]
fn a_run_that_is_deleted_in_the_group_of_its_start_leaves_no_row_and_its_numbers_stay_used() {
    let (_dir, mut committer) = committer();
    let (numbers, mut stays, mut gone) = (Memory::default(), header(1), header(2));
    let kept = append(&numbers, &mut stays, vec![started(None)]);
    let deleted = append(&numbers, &mut gone, vec![started(None), resumed()]);
    let delete = Write::DeleteRun { run: 2 };
    // The batch with the larger numbers comes first.
    let mut group: Vec<_> = [deleted, kept].map(|run| (vec![], Some(run), vec![])).into();
    group.push((vec![], None, vec![delete]));
    assert!(commit(&mut committer, group).iter().all(Result::is_ok));
    assert_eq!(rows(&committer), [(1, 1)]);
    assert_eq!(high_water(&committer.conn).unwrap(), (2, 3));
}

#[test]
fn of_a_refused_batch_no_row_is_inserted() {
    let (_dir, mut committer) = committer();
    let (numbers, mut run) = (Memory::default(), header(1));
    let first = append(&numbers, &mut run, vec![started(None)]);
    let mut stale = header(1);
    let other = append(&numbers, &mut stale, vec![started(None)]);
    let next = append(&numbers, &mut run, vec![resumed()]);
    let group = [first, other, next].map(|run| (vec![], Some(run), vec![]));
    let verdicts = commit(&mut committer, group.into());
    assert!(verdicts[0].is_ok() && verdicts[2].is_ok());
    assert!(matches!(verdicts[1], Err(StoreError::Moved { run: 1 })));
    assert_eq!(rows(&committer), [(1, 1), (3, 1)]);
}

#[test]
fn a_row_that_cannot_be_read_fails_the_batch_that_needs_it_and_no_other() {
    let (_dir, mut committer) = committer();
    let damaged =
        "INSERT INTO charges (run, jti, bytes, tokens, nano_usd) VALUES (7, 't', -1, 1, 1)";
    committer.conn.execute(damaged, []).unwrap();
    let delete = Write::DeleteRun { run: 7 };
    let group = [put_meta("a"), delete, put_meta("b")].map(|write| (vec![], vec![write]));
    let verdicts = verdicts(&mut committer, group.into());
    assert!(verdicts[0].is_ok() && verdicts[2].is_ok(), "{verdicts:?}");
    assert!(matches!(verdicts[1], Err(StoreError::Damaged { .. })), "{verdicts:?}");
    assert!(stored(&committer, "a") && stored(&committer, "b"));
}

#[test]
fn a_row_that_cannot_be_inserted_fails_the_whole_group_and_later_batches_go_on() {
    let (_dir, mut committer) = committer();
    let (numbers, mut run, mut other) = (Memory::default(), header(1), header(2));
    let first = append(&numbers, &mut run, vec![started(None)]);
    let mut twin = append(&numbers, &mut other, vec![started(None)]);
    twin.entries[0].lsn = 1;
    let group = [first.clone(), twin].map(|run| (vec![], Some(run), vec![]));
    assert!(commit(&mut committer, group.into()).iter().all(Result::is_err));
    assert!(rows(&committer).is_empty());
    assert!(commit(&mut committer, vec![(vec![], Some(first), vec![])])[0].is_ok());
    assert_eq!(rows(&committer), [(1, 1)]);
}
