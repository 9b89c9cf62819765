//! What happens when the network or the database fails in the middle of a commit, and who owns a
//! database.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    thread,
};

use super::{
    super::{DatabaseAddress, Postgres, PostgresOptions},
    Home,
};
use crate::{
    protocol::StoreOptions,
    store::{
        Health, Reader as _, StoreError, Upkeep as _, Write, Writer as _,
        conformance::{begin, commit, header, put},
    },
};

/// What a proxy does with the next `COMMIT`.
const PASSES: u8 = 0;
const CUTS_BEFORE: u8 = 1;
const CUTS_THE_ANSWER: u8 = 2;

/// A proxy before the database, which can cut a connection at its `COMMIT`.
struct Proxy {
    port: u16,
    next: Arc<AtomicU8>,
}

impl Proxy {
    fn before(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let next = Arc::new(AtomicU8::new(PASSES));
        let told = Arc::clone(&next);
        let serve = move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else { continue };
                forward(client, server, &told);
            }
        };
        thread::Builder::new().spawn(serve).unwrap();
        Self { port, next }
    }

    fn next(&self, what: u8) {
        self.next.store(what, Ordering::SeqCst);
    }
}

fn forward(client: TcpStream, server: TcpStream, next: &Arc<AtomicU8>) {
    let (mut to_server, mut to_client) = (server.try_clone().unwrap(), client.try_clone().unwrap());
    let (mut from_client, mut from_server) = (client, server);
    let (next, cut) = (Arc::clone(next), Arc::new(AtomicU8::new(PASSES)));
    let cut_answer = Arc::clone(&cut);
    let answers = move || {
        let mut bytes = [0; 65_536];
        while let Ok(n @ 1..) = from_server.read(&mut bytes) {
            if cut_answer.load(Ordering::SeqCst) == CUTS_THE_ANSWER {
                break;
            }
            if to_client.write_all(&bytes[..n]).is_err() {
                break;
            }
        }
        let _ = to_client.shutdown(Shutdown::Both);
        let _ = from_server.shutdown(Shutdown::Both);
    };
    let requests = move || {
        let mut bytes = [0; 65_536];
        while let Ok(n @ 1..) = from_client.read(&mut bytes) {
            if bytes[..n].windows(7).any(|part| part == b"COMMIT\0") {
                let what = next.swap(PASSES, Ordering::SeqCst);
                if what == CUTS_BEFORE {
                    break;
                }
                cut.store(what, Ordering::SeqCst);
            }
            if to_server.write_all(&bytes[..n]).is_err() {
                break;
            }
        }
        let _ = to_server.shutdown(Shutdown::Write);
        let _ = from_client.shutdown(Shutdown::Read);
    };
    thread::Builder::new().spawn(answers).unwrap();
    thread::Builder::new().spawn(requests).unwrap();
}

fn through(home: &Home, proxy: &Proxy) -> Arc<Postgres> {
    let url = home
        .database
        .tcp_url()
        .replace(&format!(":{}/", home.database.port()), &format!(":{}/", proxy.port));
    let address = DatabaseAddress::parse(&url).unwrap();
    Postgres::open(home.dir.path(), &PostgresOptions::new(address)).unwrap()
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
    let proxy = Proxy::before(home.database.port());
    let store = through(&home, &proxy);
    put(&*store, vec![counted("0")]);
    for (times, what) in [(2, CUTS_THE_ANSWER), (3, CUTS_BEFORE), (4, CUTS_THE_ANSWER)] {
        proxy.next(what);
        put(&*store, vec![counted(&times.to_string())]);
        let row = store.state_value("global", "count").unwrap().unwrap();
        assert_eq!((row.revision, row.value), (times, times.to_string()), "{what}");
    }
    assert!(matches!(store.health(), Health::Well));
    let run = begin(&*store, header(7));
    proxy.next(CUTS_THE_ANSWER);
    put(&*store, vec![counted("5")]);
    assert_eq!(store.header(7).unwrap().unwrap(), run);
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
