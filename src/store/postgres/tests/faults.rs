//! What happens when a connection breaks at a commit, and who owns a database.

use std::net::TcpListener;

use super::{
    super::{DatabaseAddress, Postgres, PostgresOptions},
    Home,
    network::Network,
};
use crate::{
    protocol::StoreOptions,
    store::{
        Health, Reader as _, StoreError, Upkeep as _, Write, Writer as _,
        conformance::{batch, begin, commit, damage, fill_statistics, header, put},
    },
};

/// The statement that breaks the connection it comes over.
const BREAK: &str = "PERFORM pg_terminate_backend(pg_backend_pid())";
/// The statement that fails as one does for which the server has no memory.
const NO_MEMORY: &str = "RAISE EXCEPTION 'out of memory' USING ERRCODE = '53200'";

/// Runs statements before each row of a write, as a part of it. A number of `moonswarm.writes` is
/// taken for good, also by a write that is not committed.
fn before_each(home: &Home, write: &str, statements: &str) {
    home.database.sql(&format!(
        "CREATE SEQUENCE moonswarm.writes;
         CREATE FUNCTION moonswarm.interferes() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN {statements}; RETURN NEW; END $$;
         CREATE TRIGGER interferes BEFORE {write} FOR EACH ROW
             EXECUTE FUNCTION moonswarm.interferes()"
    ));
}

fn counted(value: &str) -> Write {
    Write::PutState {
        scope: "global".to_owned(),
        key: "count".to_owned(),
        value: value.to_owned(),
        hints: StoreOptions::default(),
        expires_ms: None,
        at_ms: 1,
    }
}

#[test]
fn a_commit_whose_answer_is_lost_is_made_once() {
    let Some(home) = Home::new() else { return };
    let network = Network::before(home.database.port());
    let store = home.open_through(&network);
    put(&*store, vec![counted("0")]);
    for (times, is_lost) in [(2, true), (3, false), (4, true)] {
        if is_lost {
            network.lose_answer_to_commit();
        } else {
            network.cut_before_commit();
        }
        put(&*store, vec![counted(&times.to_string())]);
        let row = store.state_value("global", "count").unwrap().unwrap();
        assert_eq!((row.revision, row.value), (times, times.to_string()), "{is_lost}");
    }
    assert_eq!(network.cuts(), 3);
    assert!(matches!(store.health(), Health::Well));
    let run = begin(&*store, header(7));
    network.lose_answer_to_commit();
    put(&*store, vec![counted("5")]);
    assert_eq!(store.header(7).unwrap().unwrap(), run);
}

#[test]
fn a_batch_that_breaks_every_connection_is_refused_and_those_beside_it_are_committed() {
    only_what_does_it_is_refused(BREAK);
}

#[test]
fn a_batch_for_which_there_is_no_memory_is_refused_and_those_beside_it_are_committed() {
    only_what_does_it_is_refused(NO_MEMORY);
}

fn only_what_does_it_is_refused(harm: &str) {
    let Some(home) = Home::new() else { return };
    let store = home.open();
    let deadly = format!("IF NEW.key = 'deadly'::bytea THEN {harm}; END IF");
    before_each(&home, "INSERT ON moonswarm.kept", &deadly);
    let keep = |key: &str| {
        let (layer, key, value) = ("l".to_owned(), key.to_owned(), "1".to_owned());
        batch(vec![], None, vec![Write::PutKept { layer, key, value, expires_ms: None }])
    };
    let ((deadly, refused), (sound, committed)) = (keep("deadly"), keep("sound"));
    store.submit_all(vec![deadly, sound]);
    let refused = refused.recv().unwrap();
    assert!(matches!(refused, Err(StoreError::Away { .. })), "{refused:?}");
    committed.recv().unwrap().unwrap();
    let keys: Vec<_> = store.kept_by("l", "", 9).unwrap().into_iter().map(|it| it.key).collect();
    assert_eq!(keys, ["sound"]);
    assert!(matches!(store.health(), Health::Well), "{:?}", store.health());
}

#[test]
fn in_an_outage_that_breaks_many_connections_nothing_is_refused() {
    nothing_is_refused(BREAK);
}

#[test]
fn while_the_database_has_no_memory_for_anything_nothing_is_refused() {
    nothing_is_refused(NO_MEMORY);
}

fn nothing_is_refused(harm: &str) {
    let Some(home) = Home::new() else { return };
    let store = home.open();
    // The next marks fail, whatever else is written.
    let six = format!("IF nextval('moonswarm.writes') <= 6 THEN {harm}; END IF");
    before_each(&home, "UPDATE ON moonswarm.marks", &six);
    put(&*store, vec![counted("1")]);
    let last = home.database.sql("SELECT last_value FROM moonswarm.writes");
    assert!(last.trim().parse::<u32>().unwrap() > 6, "{last}");
    assert_eq!(store.state_value("global", "count").unwrap().unwrap().revision, 1);
    assert!(matches!(store.health(), Health::Well), "{:?}", store.health());
}

#[test]
fn a_batch_that_is_refused_after_an_outage_does_not_leave_the_host_waiting() {
    let Some(home) = Home::new() else { return };
    let store = home.open();
    // The first connection breaks over it, the next one refuses it.
    let once = "IF nextval('moonswarm.writes') > 1 THEN RAISE EXCEPTION 'refused'; END IF";
    before_each(&home, "INSERT ON moonswarm.kept", &format!("{once}; {BREAK}"));
    let (layer, key, value) = ("l".to_owned(), "k".to_owned(), "1".to_owned());
    let refused =
        commit(&*store, vec![], None, vec![Write::PutKept { layer, key, value, expires_ms: None }]);
    assert!(matches!(refused, Err(StoreError::Database { .. })), "{refused:?}");
    assert!(matches!(store.health(), Health::Well), "{:?}", store.health());
}

#[test]
fn a_database_is_given_up_also_when_the_connections_broke_meanwhile() {
    let Some(home) = Home::new() else { return };
    let store = home.open();
    put(&*store, vec![counted("1")]);
    home.database.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
         WHERE datname = current_database() AND pid <> pg_backend_pid()",
    );
    store.close().unwrap();
    let left = "SELECT count(*) FROM moonswarm.nodes WHERE state <> 'gone'";
    assert_eq!(home.database.sql(left).trim(), "0");
}

#[test]
fn a_check_names_counts_that_cannot_be_decoded() {
    let Some(home) = Home::new() else { return };
    let store = home.open();
    fill_statistics(&*store);
    assert_eq!(damage(&*store), [""; 0]);
    home.database.sql(
        r"UPDATE moonswarm.stats_new SET body = '\xff'::bytea;
          UPDATE moonswarm.stats SET body = '\xff'::bytea WHERE grain = 0 AND of = 0;
          UPDATE moonswarm.stats SET ending = 9 WHERE grain = 1 AND of = 0;
          UPDATE moonswarm.stats_costly SET tokens = -1",
    );
    let mut found = damage(&*store);
    assert!(found.remove(0).starts_with("counts of an ended run, row "), "{found:?}");
    assert_eq!(found, ["sum of b1 at 0", "sum of b1 at 3600000", "usage of run 1"]);
}

#[test]
fn a_connection_for_reads_that_breaks_is_replaced() {
    let Some(home) = Home::new() else { return };
    let store = home.open();
    put(&*store, vec![counted("1")]);
    assert!(store.state_value("global", "count").unwrap().is_some());
    home.database.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
         WHERE datname = current_database() AND pid <> pg_backend_pid()",
    );
    assert!(store.state_value("global", "count").unwrap().is_some());
    put(&*store, vec![counted("2")]);
    assert_eq!(store.state_value("global", "count").unwrap().unwrap().revision, 2);
}

#[test]
fn a_writer_without_its_lane_commits_nothing_and_is_lost() {
    let Some(home) = Home::new() else { return };
    let store = home.open();
    put(&*store, vec![counted("1")]);
    home.database.sql("DELETE FROM moonswarm.lanes");
    let refused = commit(&*store, vec![], None, vec![counted("2")]);
    assert!(matches!(refused, Err(StoreError::Fenced)), "{refused:?}");
    assert!(matches!(store.health(), Health::Lost(StoreError::Fenced)));
    assert_eq!(home.database.sql("SELECT revision FROM moonswarm.state").trim(), "1");
}

#[test]
fn a_database_that_lacks_an_acknowledged_commit_is_not_written_any_more() {
    let Some(home) = Home::new() else { return };
    let store = home.open();
    put(&*store, vec![counted("1")]);
    home.database.sql(
        "UPDATE moonswarm.marks SET seq = 0;
         SELECT pg_terminate_backend(pid) FROM pg_stat_activity
         WHERE datname = current_database() AND pid <> pg_backend_pid()",
    );
    let refused = commit(&*store, vec![], None, vec![counted("2")]);
    assert!(refused.as_ref().is_err_and(|it| it.to_string().contains("went back")), "{refused:?}");
    assert!(matches!(store.health(), Health::Lost(StoreError::Unfit { .. })));
}

#[test]
fn a_database_is_given_to_the_next_host_at_a_close_and_to_no_other_before() {
    let Some(home) = Home::new() else { return };
    let elsewhere = tempfile::tempdir().unwrap();
    let address = DatabaseAddress::parse(&home.database.url()).unwrap();
    let other = || Postgres::open(elsewhere.path(), &PostgresOptions::new(address.clone()));
    let store = home.open();
    put(&*store, vec![counted("1")]);
    let refused = other().err().unwrap();
    assert!(
        matches!(&refused, StoreError::Taken { node, .. } if node.contains("(pid")),
        "{refused}"
    );
    store.close().unwrap();
    assert!(matches!(store.state_value("global", "count"), Err(StoreError::Closed)));
    let next = other().unwrap();
    assert!(!next.owner_died());
    assert_eq!(next.state_value("global", "count").unwrap().unwrap().revision, 1);
    // A host that died is followed at once over its own directory.
    let copies = "UPDATE moonswarm.nodes SET state = 'up', lease_until = now() + interval '1 hour'
                  WHERE node = (SELECT min(node) FROM moonswarm.nodes)";
    next.close().unwrap();
    home.database.sql(copies);
    assert!(home.open().owner_died());
}

#[test]
fn what_is_no_database_of_this_program_is_refused_with_the_reason() {
    let Some(home) = Home::new() else { return };
    let open = |url: &str| {
        let address = DatabaseAddress::parse(url).unwrap();
        Postgres::open(home.dir.path(), &PostgresOptions::new(address)).err().unwrap().to_string()
    };
    home.database.sql("CREATE SCHEMA moonswarm; CREATE TABLE moonswarm.other (n int)");
    assert!(open(&home.database.url()).contains("belongs to something else"));
    home.database.sql(
        "CREATE TABLE moonswarm.cluster (one bool, format int, oldest int);
         INSERT INTO moonswarm.cluster VALUES (true, 999, 999)",
    );
    assert!(open(&home.database.url()).contains("999"));
    let nowhere = home.database.url().replace("/t_", "/none_");
    assert!(open(&nowhere).contains("does not exist"), "{}", open(&nowhere));
    let wrong = home.database.tcp_url().replace("a-pass", "no-pass");
    let told = open(&wrong);
    assert!(told.contains("password") && !told.contains("no-pass"), "{told}");
    let silent = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert!(open(&format!("postgres://{silent}/db")).contains("connect"));
}
