//! Commits over a network that cuts connections in the middle of a message, delays, and hangs.

use std::{sync::Arc, thread, time::Duration};

use super::{super::Postgres, Home, network::Network};
use crate::{
    protocol::StoreOptions,
    store::{Health, Reader as _, Write, Writer as _, conformance::put},
};

/// The numbers of bytes after which a connection is cut: within the head of a message and within its
/// body, of the first message of a group and of later ones.
const PLACES: [usize; 14] = [0, 1, 4, 5, 6, 20, 45, 80, 120, 200, 350, 600, 900, 1_400];

fn through() -> Option<(Home, Network, Arc<Postgres>)> {
    let home = Home::new()?;
    let network = Network::before(home.database.port());
    let store = home.open_through(&network);
    Some((home, network, store))
}

fn counted(value: u64) -> Vec<Write> {
    let (scope, key, value) = ("global".to_owned(), "count".to_owned(), value.to_string());
    let (hints, expires_ms) = (StoreOptions::default(), None);
    vec![Write::PutState { scope, key, value, hints, expires_ms, at_ms: 1 }]
}

/// Commits with a connection that is cut after each of these numbers of bytes.
fn is_committed_once(store: &Postgres, network: &Network, cut: impl Fn(usize)) {
    for (times, bytes) in (1..).zip(PLACES) {
        cut(bytes);
        put(store, counted(times));
        let row = store.state_value("global", "count").unwrap().unwrap();
        assert_eq!((row.revision, row.value), (times, times.to_string()), "after {bytes} bytes");
    }
    let cuts = network.cuts();
    assert!(cuts >= 8, "{cuts} connections were cut");
}

#[test]
fn a_commit_is_made_once_wherever_its_answer_is_cut() {
    let Some((_home, network, store)) = through() else { return };
    is_committed_once(&store, &network, |bytes| network.cut_answers_after(bytes));
}

#[test]
fn a_commit_is_made_once_wherever_its_request_is_cut() {
    let Some((_home, network, store)) = through() else { return };
    is_committed_once(&store, &network, |bytes| network.cut_requests_after(bytes));
}

#[test]
fn a_slow_network_is_no_outage() {
    let Some((_home, network, store)) = through() else { return };
    network.delay(Duration::from_millis(20));
    for times in 1..=3 {
        put(&*store, counted(times));
    }
    assert_eq!(store.state_value("global", "count").unwrap().unwrap().revision, 3);
    assert!(matches!(store.health(), Health::Well), "{:?}", store.health());
}

#[test]
fn a_network_that_hangs_is_noticed_and_the_commit_is_made_when_it_goes_on() {
    let Some((_home, network, store)) = through() else { return };
    put(&*store, counted(1));
    network.hang(true);
    let committer = Arc::clone(&store);
    let commit = thread::Builder::new().spawn(move || put(&*committer, counted(2))).unwrap();
    // The renewal of the lease notices it first, after two seconds without an answer.
    let mut looks = 0;
    while !matches!(store.health(), Health::Waiting(_)) {
        thread::park_timeout(Duration::from_millis(20));
        looks += 1;
        assert!(looks < 3_000, "an outage is noticed: {:?}", store.health());
    }
    network.hang(false);
    commit.join().unwrap();
    assert_eq!(store.state_value("global", "count").unwrap().unwrap().revision, 2);
}
