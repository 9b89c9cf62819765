//! Failures that pass, and what takes long in a large database: neither may be taken for the end.

use std::{net::TcpListener, sync::Arc, thread, time::Duration};

use tokio::runtime::Builder;
use tokio_postgres::NoTls;

use super::{
    super::{
        DatabaseAddress, Postgres, PostgresOptions,
        session::{Call, Session, wait},
        wire::Wire,
    },
    Home, fresh,
    network::Network,
};
use crate::{
    protocol::Scope,
    store::{
        Reader as _, Store as _, StoreError, Write, Writer as _,
        conformance::{batch, begin, commit, header, put},
    },
    tasks::Tasks,
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

/// Waits until a connection of the store with a name like this waits for a lock. Others may wait
/// too: the thread that renews the lease reads as well.
fn until_waits(home: &Home, name: &str) {
    let waiting = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'
         AND datname = current_database() AND application_name LIKE '{name}'"
    );
    for _ in 0..2_000 {
        if home.database.sql(&waiting).trim() != "0" {
            return;
        }
        thread::yield_now();
    }
    panic!("{name} waits for no lock");
}

fn meta(key: &str) -> Write {
    Write::PutMeta { key: key.to_owned(), value: "1".to_owned() }
}

fn keep(key: &str) -> Write {
    let (layer, key, value) = ("l".to_owned(), key.to_owned(), "1".to_owned());
    Write::PutKept { layer, key, value, expires_ms: None }
}

#[test]
fn a_read_that_waits_too_long_finds_the_database_away_and_not_broken() {
    let Some((home, store)) = fresh() else { return };
    begin(&*store, header(1));
    let open = beside(&home, "LOCK TABLE moonswarm.runs IN ACCESS EXCLUSIVE MODE");
    let locked = store.header(1);
    assert!(matches!(locked, Err(StoreError::Away { .. })), "{locked:?}");
    open.batch("COMMIT").unwrap();
    assert!(store.header(1).unwrap().is_some());
    let slow = store.pool.read("wait", |db| {
        db.batch("SET statement_timeout = '20ms'")?;
        db.batch("SELECT pg_sleep(9)")
    });
    assert!(matches!(slow, Err(StoreError::Away { .. })), "{slow:?}");
}

#[test]
fn a_host_of_the_address_that_does_not_answer_is_passed_by() {
    let Some(home) = Home::new() else { return };
    // The system accepts connections for it.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let url =
        home.database.tcp_url().replace("@127.0.0.1:", &format!("@127.0.0.1:{port},127.0.0.1:"));
    let options = PostgresOptions::new(DatabaseAddress::parse(&url).unwrap());
    let store = Postgres::open(home.dir.path(), &options).unwrap();
    put(&*store, vec![meta("a")]);
    // The renewal of the lease has the least time.
    let lease = "SELECT lease_until FROM moonswarm.nodes";
    let before = home.database.sql(lease);
    for _ in 0..500 {
        if home.database.sql(lease) != before {
            return;
        }
        thread::park_timeout(Duration::from_millis(20));
    }
    panic!("the lease is not renewed");
}

#[test]
fn a_standby_beside_a_primary_that_is_away_is_not_what_is_wrong() {
    let Some(home) = Home::new() else { return };
    home.database.sql(
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on',
         current_database()); END $$",
    );
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let standby = format!("127.0.0.1:{}", home.database.port());
    let open = |hosts: &str| {
        let url = home.database.tcp_url().replace(&format!("@{standby}/"), &format!("@{hosts}/"));
        let options = PostgresOptions::new(DatabaseAddress::parse(&url).unwrap());
        Postgres::open(home.dir.path(), &options).err().unwrap()
    };
    let alone = open(&standby);
    assert!(alone.to_string().contains("name the primary"), "{alone}");
    for hosts in [format!("{gone},{standby}"), format!("{standby},{gone}")] {
        let away = open(&hosts);
        assert!(matches!(away, StoreError::Away { .. }), "{hosts}: {away}");
    }
}

#[test]
fn a_start_over_an_empty_database_waits_for_another_that_makes_the_tables() {
    let Some(home) = Home::new() else { return };
    let open = beside(&home, "CREATE SCHEMA moonswarm");
    let (dir, address) = (home.dir.path().to_owned(), home.database.url());
    let options = PostgresOptions::new(DatabaseAddress::parse(&address).unwrap());
    let start = thread::Builder::new().spawn(move || Postgres::open(&dir, &options)).unwrap();
    until_waits(&home, "moonswarm/start");
    // For longer than a commit waits for a lock.
    home.database.sql("SELECT pg_sleep(3.5)");
    open.batch("ROLLBACK").unwrap();
    let store = start.join().unwrap().unwrap();
    put(&*store, vec![meta("a")]);
}

#[test]
fn a_transaction_that_fails_says_why_also_if_it_cannot_be_rolled_back() {
    let Some(home) = Home::new() else { return };
    let network = Network::before(home.database.port());
    let url = network.through(&home.database.tcp_url(), home.database.port());
    let wire = Wire::new(DatabaseAddress::parse(&url).unwrap()).unwrap();
    let session = wire.starter().unwrap();
    network.cut_before_rollback();
    let failed = session.commit_all(&[Call::new("SELECT 1 / 0")]).unwrap_err();
    assert!(failed.reason().contains("22012"), "{}", failed.reason());
    assert_eq!(network.cuts(), 1);
}

#[test]
fn each_of_the_statements_that_are_sent_together_has_its_own_time() {
    let Some(home) = Home::new() else { return };
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let handle = runtime.handle().clone();
    let address = DatabaseAddress::parse(&home.database.url()).unwrap();
    let ten = Duration::from_secs(10);
    let (client, connection) = wait(&handle, ten, address.config.connect(NoTls)).unwrap().unwrap();
    let tasks = Tasks::new(handle.clone());
    drop(tasks.spawn(connection));
    let session = Session::new(client, handle, Duration::from_secs(2), Arc::default());
    session.query("SELECT pg_sleep(0)", &[]).unwrap();
    session.batch("BEGIN").unwrap();
    let slow = || Call::new("SELECT pg_sleep(0.6)");
    session.commit(&[slow(), slow(), slow(), slow()]).unwrap();
    let late = session.all(&[slow(), Call::new("SELECT pg_sleep(9)")]);
    assert!(late.is_err(), "an answer that is late ends the connection");
}

#[test]
fn a_session_with_many_values_and_links_is_closed_in_time() {
    let Some((home, store)) = fresh() else { return };
    let scope = Scope::Session("s".into()).to_string();
    home.database.sql(&format!(
        "SET search_path = moonswarm;
         INSERT INTO state (place, scope, key, revision, updated_ms, session_bound, value)
         SELECT sha256(('v' || n)::bytea), '{scope}', ('k' || n)::bytea, 1, 1, true, '1'
         FROM generate_series(1, 20000) n;
         INSERT INTO state_links (place, scope, from_key, relation, to_key)
         SELECT sha256(('l' || n)::bytea), '{scope}', ('k' || n)::bytea, 'r',
                CASE WHEN n % 2 = 0 THEN ('k' || n + 1)::bytea ELSE ('x' || n)::bytea END
         FROM generate_series(1, 20000) n;
         INSERT INTO state_links (place, scope, from_key, relation, to_key)
         VALUES ('a', '{scope}', 'x', 'r', 'k7'), ('b', '{scope}', 'x', 'r', 'y');
         ANALYZE state; ANALYZE state_links"
    ));
    let (session, reason) = ("s".to_owned(), "bye".to_owned());
    put(&*store, vec![Write::CloseSession { session, at_ms: 5, reason }]);
    assert_eq!(store.state_bytes(&scope).unwrap(), 0);
    let left = store.links(&scope).unwrap();
    assert_eq!(left.iter().map(|link| link.to_key.as_str()).collect::<Vec<_>>(), ["y"]);
}

#[test]
fn what_adds_up_all_runs_has_the_time_of_a_long_read() {
    let Some((home, store)) = fresh() else { return };
    begin(&*store, header(1));
    let sums: [fn(&Postgres) -> bool; 2] =
        [|store| store.ended_runs().is_ok(), |store| store.charges(0).is_ok()];
    for sum in sums {
        let open = beside(&home, "LOCK TABLE moonswarm.runs IN ACCESS EXCLUSIVE MODE");
        let reading = Arc::clone(&store);
        let read = thread::Builder::new().spawn(move || sum(&reading)).unwrap();
        until_waits(&home, "moonswarm/long");
        open.batch("COMMIT").unwrap();
        assert!(read.join().unwrap());
    }
}

#[test]
fn the_limits_of_a_server_do_not_end_what_has_its_own() {
    let Some(home) = Home::new() else { return };
    home.database.sql(
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET statement_timeout = %L', current_database(), '7s');
         EXECUTE format('ALTER DATABASE %I SET idle_session_timeout = %L', current_database(), '7s'); END $$",
    );
    let wire = Wire::new(DatabaseAddress::parse(&home.database.url()).unwrap()).unwrap();
    let show = |session: &Session, what: &str| -> String {
        session.one(&format!("SHOW {what}"), &[]).unwrap().unwrap().get(0)
    };
    // The start changes the tables, which takes long where they are large.
    assert_eq!(show(&wire.starter().unwrap(), "statement_timeout"), "1h");
    assert_eq!(show(&wire.reader().unwrap(), "idle_session_timeout"), "0");
    assert_eq!(show(&wire.writer("w").unwrap(), "idle_session_timeout"), "0");
    // The other side of a copy may be read for longer than any limit.
    assert_eq!(show(&wire.copier().unwrap(), "idle_in_transaction_session_timeout"), "0");
    // A transaction is idle while a large value arrives.
    assert_eq!(show(&wire.lane("l").unwrap(), "idle_in_transaction_session_timeout"), "10s");
}

#[test]
fn a_batch_that_was_committed_before_the_host_was_ended_is_not_told_that_it_failed() {
    let Some((home, store)) = fresh() else { return };
    // A group with what is refused is made batch by batch. The first of them ends the host.
    home.database.sql(
        "SET search_path = moonswarm;
         CREATE FUNCTION refuses() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE EXCEPTION 'refused'; END $$;
         CREATE TRIGGER refuses BEFORE INSERT ON kept FOR EACH ROW EXECUTE FUNCTION refuses();
         CREATE FUNCTION ends() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN DELETE FROM moonswarm.lanes; RETURN new; END $$;
         CREATE TRIGGER ends BEFORE INSERT ON meta FOR EACH ROW WHEN (new.key = 'last')
             EXECUTE FUNCTION ends();",
    );
    let open = beside(&home, "SELECT 1 FROM moonswarm.lanes WHERE lane = 0 FOR UPDATE");
    let submit = |write| {
        let (batch, acked) = batch(vec![], None, vec![write]);
        store.submit(batch);
        acked
    };
    let first = submit(meta("first"));
    until_waits(&home, "moonswarm/%/0");
    // These two wait for the first one, and are a group then.
    let (last, refused) = (submit(meta("last")), submit(keep("k")));
    open.batch("COMMIT").unwrap();
    first.recv().unwrap().unwrap();
    last.recv().unwrap().unwrap();
    let refused = refused.recv().unwrap();
    assert!(matches!(refused, Err(StoreError::Fenced)), "{refused:?}");
    assert!(store.meta("last").unwrap().is_some());
    let later = commit(&*store, vec![], None, vec![meta("later")]);
    assert!(matches!(later, Err(StoreError::Fenced)), "{later:?}");
}

#[test]
fn the_files_of_a_deleted_run_go_a_part_at_a_time() {
    let Some((home, store)) = fresh() else { return };
    begin(&*store, header(1));
    begin(&*store, header(2));
    // Their sizes are as of large files. The last one is shared with another run.
    home.database.sql(
        "SET search_path = moonswarm;
         INSERT INTO artifacts (run, n, step, attempt, size, created_ms, published, name, hash)
         SELECT 1, n, 1, 1, 48 << 20, 1, true, 'f'::bytea, ('h' || n)::bytea FROM generate_series(1, 5) n
         UNION ALL SELECT 2, 1, 1, 1, 48 << 20, 1, true, 'f'::bytea, 'h5'::bytea;
         INSERT INTO blobs (hash, data) SELECT ('h' || n)::bytea, 'd' FROM generate_series(1, 5) n",
    );
    let left = || {
        let counts = "SELECT (SELECT count(*) FROM moonswarm.artifacts WHERE run = 1),
                             (SELECT count(*) FROM moonswarm.blobs)";
        let counts = home.database.sql(counts).trim().to_owned();
        (counts, store.upkeep().space().unwrap().debris)
    };
    put(&*store, vec![Write::DeleteRun { run: 1 }]);
    assert_eq!(left(), ("3|3".to_owned(), true));
    assert_eq!(store.header(1).unwrap(), None);
    for expected in [("1|1", true), ("0|1", false), ("0|1", false)] {
        put(&*store, vec![Write::Tidy { rows: 9, pages: 0 }]);
        assert_eq!(left(), (expected.0.to_owned(), expected.1));
    }
}
