use std::sync::Arc;

use tempfile::TempDir;

use super::*;
use crate::store::{
    Synchronous, Write, conformance,
    sqlite::{
        connection::{create, writable},
        meta,
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
    let (batches, verdicts): (Vec<_>, Vec<_>) =
        group.into_iter().map(|(checks, writes)| conformance::batch(checks, None, writes)).unzip();
    committer.commit(batches);
    verdicts.into_iter().map(|verdict| verdict.try_recv().unwrap()).collect()
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
