//! Several lanes of one database: what one must not see of another, and must not miss.
//!
//! A transaction of a lane that is open at a certain moment is played by a connection of the test.

use super::{
    super::{DatabaseAddress, session::Session, wire::Wire},
    Home,
};
use crate::{
    protocol::StoreOptions,
    store::{
        Answers, Check, Health, IdempotencyRow, Reader as _, Reducer, StateAct, StateBatch,
        StateChange, StoreError, Write, Writer as _,
        conformance::{Acked, append, batch, begin, commit, header, put, resumed, started},
        postgres::place,
    },
};

/// Another connection, with an open transaction in which `sql` was executed.
fn beside(home: &Home, sql: &str) -> Session {
    let wire = Wire::new(DatabaseAddress::parse(&home.database.url()).unwrap()).unwrap();
    let session = wire.starter().unwrap();
    session.batch("BEGIN").unwrap();
    session.batch(sql).unwrap();
    // It keeps the runtime of its connection.
    std::mem::forget(wire);
    session
}

/// Waits until a connection of the store waits for a lock.
fn until_one_waits(home: &Home) {
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'
                   AND datname = current_database()";
    while home.database.sql(waiting).trim() == "0" {
        std::thread::yield_now();
    }
}

fn submit(store: &super::Postgres, checks: Vec<Check>, run: u64, writes: Vec<Write>) -> Acked {
    let write = append(store, &mut header(run), vec![started(None)]);
    let (batch, acked) = batch(checks, Some(write), writes);
    store.submit(batch);
    acked
}

#[test]
fn a_revocation_waits_for_the_open_transactions_of_all_lanes_and_none_begins_before_its_end() {
    let Some(home) = Home::new() else { return };
    let store = home.open();
    begin(&*store, header(2));
    let open = beside(&home, "SELECT 1 FROM moonswarm.lanes WHERE lane = 3 FOR UPDATE");
    let revoke = Write::RevokeToken { jti: "t".to_owned(), at_ms: 5 };
    let (revoke, revoked) = batch(vec![], None, vec![revoke]);
    store.submit(revoke);
    until_one_waits(&home);
    assert!(revoked.try_recv().is_err(), "a transaction of lane 3 may still commit");
    // Run 1 is in lane 2, which was locked before lane 3.
    let late = submit(&store, vec![Check::TokenLive("t".to_owned())], 1, vec![]);
    open.batch("COMMIT").unwrap();
    revoked.recv().unwrap().unwrap();
    assert!(matches!(late.recv().unwrap(), Err(StoreError::Revoked { .. })));
    assert_eq!(store.header(1).unwrap(), None);
}

#[test]
fn a_key_that_another_lane_takes_first_is_used() {
    let Some(home) = Home::new() else { return };
    let store = home.open();
    let place: String =
        place::of(&["ann", "start", "k"]).iter().map(|byte| format!("{byte:02x}")).collect();
    let open = beside(
        &home,
        &format!(
            "INSERT INTO moonswarm.idempotency
             VALUES ('\\x{place}', 'ann', 'start', 'k', 5, '', 'the first')"
        ),
    );
    let [principal, route, key] = ["ann", "start", "k"].map(str::to_owned);
    let check =
        Check::KeyFree { principal: principal.clone(), route: route.clone(), key: key.clone() };
    let (body, answer) = (String::new(), "the second".to_owned());
    let row = IdempotencyRow { principal, route, key, body, answer, created_ms: 5 };
    let second = submit(&store, vec![check], 1, vec![Write::PutIdempotency(row)]);
    let beside_it = submit(&store, vec![], 5, vec![]);
    until_one_waits(&home);
    assert!(second.try_recv().is_err());
    open.batch("COMMIT").unwrap();
    assert!(matches!(second.recv().unwrap(), Err(StoreError::KeyUsed { .. })));
    beside_it.recv().unwrap().unwrap();
    assert_eq!(store.idempotent("ann", "start", "k").unwrap().unwrap().answer, "the first");
    assert_eq!(store.header(1).unwrap(), None);
    assert!(store.header(5).unwrap().is_some());
}

#[test]
fn a_value_that_another_lane_makes_or_changes_first_is_what_a_reducer_adds_to() {
    let Some(home) = Home::new() else { return };
    let store = home.open();
    let add = |receipt| {
        let (reducer, hints) = (Reducer::Sum, StoreOptions::default());
        let act = StateAct::Put { value: "1".to_owned(), reducer, hints };
        let (scope, key) = ("global".to_owned(), "n".to_owned());
        let changes = vec![StateChange { scope, key, if_revision: None, act }];
        let answers = Answers::default();
        let batch = StateBatch { changes, at_ms: 9, most: 64, receipt, answers };
        Write::ChangeState(Box::new(batch))
    };
    let place: String =
        place::of(&["global", "n"]).iter().map(|byte| format!("{byte:02x}")).collect();
    let made = format!(
        "INSERT INTO moonswarm.state (place, scope, key, revision, updated_ms, session_bound, value)
         VALUES ('\\x{place}', 'global', 'n', 1, 1, false, '40')"
    );
    let changed = "UPDATE moonswarm.state SET value = '90', revision = revision + 1".to_owned();
    for (run, sql, expected) in [(1, made, ("41", 2)), (2, changed, ("91", 4))] {
        let open = beside(&home, &sql);
        let acked = submit(&store, vec![], run, vec![add(Some((run, 1)))]);
        until_one_waits(&home);
        open.batch("COMMIT").unwrap();
        acked.recv().unwrap().unwrap();
        let row = store.state_value("global", "n").unwrap().unwrap();
        assert_eq!((row.value.as_str(), row.revision), expected);
    }
}

#[test]
fn an_ended_host_writes_in_none_of_its_lanes() {
    let Some(home) = Home::new() else { return };
    let store = home.open();
    let mut runs: Vec<_> = (1..=8).map(|run| begin(&*store, header(run))).collect();
    assert_eq!(home.database.sql("SELECT count(*) FROM moonswarm.lanes").trim(), "5");
    home.database.sql("DELETE FROM moonswarm.lanes WHERE lane = 2");
    // The lane without a row ends the host, and with it the others.
    let mut results = Vec::new();
    for run in &mut runs {
        let write = append(&*store, run, vec![resumed()]);
        results.push(commit(&*store, vec![], Some(write), vec![]));
    }
    assert!(matches!(results.last(), Some(Err(StoreError::Fenced))), "{results:?}");
    assert!(matches!(store.health(), Health::Lost(StoreError::Fenced)));
    let token = Write::RevokeToken { jti: "t".to_owned(), at_ms: 5 };
    assert!(matches!(commit(&*store, vec![], None, vec![token]), Err(StoreError::Fenced)));
}

#[test]
fn a_lane_that_waits_holds_no_other_up() {
    let Some(home) = Home::new() else { return };
    let store = home.open();
    let open = beside(&home, "SELECT 1 FROM moonswarm.lanes WHERE lane = 2 FOR UPDATE");
    let waiting = submit(&store, vec![], 1, vec![]);
    for run in [2, 3, 4] {
        submit(&store, vec![], run, vec![]).recv().unwrap().unwrap();
    }
    put(&*store, vec![Write::PutMeta { key: "k".to_owned(), value: "1".to_owned() }]);
    assert!(waiting.try_recv().is_err());
    open.batch("COMMIT").unwrap();
    waiting.recv().unwrap().unwrap();
    let marks = "SELECT string_agg(seq::text, ' ' ORDER BY lane) FROM moonswarm.marks";
    assert_eq!(home.database.sql(marks).trim(), "1 1 1 1 1", "each lane counts its own groups");
}
