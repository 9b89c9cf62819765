//! A node that helps: it reads the database by itself, and the node that drives commits what it writes.

use std::sync::Arc;

use futures::executor::block_on;
use tempfile::TempDir;

use super::{
    super::{DatabaseAddress, Joining, Member, Postgres, Seat, SeatOptions},
    Home,
};
use crate::store::{
    ClusterKey, ClusterView, Durability, Health, LeaseTimes, PROVISIONAL, PeerAddress, Reader as _,
    StoreError, Upkeep as _, Writer as _,
    conformance::{append, begin, commit, header, relay_to, resumed, seqs},
};

fn member(home: &Home, dir: &TempDir, key: &ClusterKey) -> Arc<Member> {
    let options = SeatOptions {
        address: DatabaseAddress::parse(&home.database.url()).unwrap(),
        readers: 2,
        writers: 1,
        key: key.clone(),
        times: LeaseTimes::default(),
        durability: Durability::default(),
    };
    let seat = Seat::take(dir.path(), options).unwrap();
    let peer = PeerAddress { at: "127.0.0.1:1".to_owned(), fingerprint: [1; 32] };
    let (name, url) = ("a node".to_owned(), "http://127.0.0.1:1".to_owned());
    Member::join(&seat, &Joining { name, url, peer }).unwrap()
}

#[test]
fn a_node_that_helps_reads_by_itself_and_stands_by_as_before_when_it_no_longer_does() {
    let Some(home) = Home::new() else { return };
    let (elsewhere, key) = (TempDir::new().unwrap(), ClusterKey::generate().unwrap());
    let (first, second) = (member(&home, &home.dir, &key), member(&home, &elsewhere, &key));
    let driver = Postgres::take_over(&first).unwrap().unwrap();
    let helper = Postgres::reading(&second, relay_to(driver.clone())).unwrap();
    let mut run = begin(&*driver, header(1));
    let write = append(&*helper, &mut run, vec![resumed(), resumed()]);
    commit(&*helper, vec![], Some(write), vec![]).unwrap();
    assert!(run.cursor > PROVISIONAL);
    assert!(helper.header(1).unwrap().unwrap().cursor < PROVISIONAL);
    assert_eq!(seqs(&helper.entries(1, 0).unwrap()), [1, 2, 3]);
    assert!(helper.space().unwrap().used > 0 && !helper.owner_died());
    assert_eq!(helper.durability(), Some(Durability::default()));

    helper.close().unwrap();
    assert!(matches!(helper.health(), Health::Lost(StoreError::Closed)));
    assert!(matches!(helper.header(1), Err(StoreError::Closed)));
    assert!(driver.header(1).unwrap().is_some());
    driver.close().unwrap();
    let mut view = second.seat().view();
    assert!(block_on(view.wait_for(ClusterView::is_vacant)).is_ok());
    assert!(Postgres::take_over(&second).unwrap().is_some());
    second.stop();
    let refused = Postgres::reading(&second, relay_to(driver.clone()));
    assert!(matches!(refused, Err(StoreError::Closed)));
}
