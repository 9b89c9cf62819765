use std::sync::mpsc;

use futures::FutureExt as _;

use super::*;
use crate::{
    protocol::StoreOptions,
    store::{
        Check, Memory, Reader as _, Reducer, RunWrite, StateAct, StateBatch, StateChange,
        Upkeep as _, Write,
        conformance::{
            Acked, append, batch, begin, conformance, header, put, relay_to, resumed, seqs, started,
        },
    },
};

/// Returns a store that writes through a relay, and whose parcels are committed at once.
fn relayed() -> ((), Arc<Memory>) {
    let driver = Arc::new(Memory::new());
    let relay = relay_to(driver.clone());
    ((), Arc::new(driver.reading(relay)))
}

// What a run does to its tables, and to state.
conformance! { relayed() =>
    a_task_is_replaced_and_closed
    a_value_of_state_counts_its_revisions
    files_are_staged_and_then_published_with_their_attempt
    signals_wait_in_order_until_they_arrive
    changes_wait_in_the_order_of_their_commits_by_scope_and_by_run
    of_the_refused_reports_of_an_attempt_the_first_are_kept
    ; shared
    any_json_is_kept_and_a_write_takes_the_place_of_the_last
    scopes_and_keys_of_any_length_and_characters_never_collide
    concurrent_writes_lose_nothing
    hints_are_kept_with_their_value
    links_are_followed_as_far_as_asked_and_go_with_their_keys
    what_has_a_receipt_is_done_once
}

/// Keeps the parcels until the test takes them.
#[derive(Default)]
struct Kept(Mutex<VecDeque<(u64, Parcel)>>);

impl Carrier for Kept {
    fn send(&self, number: u64, parcel: Parcel) {
        self.0.lock().push_back((number, parcel));
    }
}

impl Kept {
    fn next(&self) -> (u64, Parcel) {
        self.0.lock().pop_front().unwrap()
    }

    fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

fn relay() -> (Arc<Kept>, Arc<Relay>) {
    let kept = Arc::new(Kept::default());
    let carrier: Arc<dyn Carrier> = kept.clone();
    (kept, Relay::new(carrier))
}

fn submit(writer: &dyn Writer, run: Option<RunWrite>, writes: Vec<Write>) -> Acked {
    let (batch, acked) = batch(Vec::new(), run, writes);
    writer.submit(batch);
    acked
}

/// Returns the change of a value of state by the step of a run, and the slot for its answers.
fn add(step: u32) -> (Write, Answers) {
    let (value, hints) = ("1".to_owned(), StoreOptions::default());
    let act = StateAct::Put { value, reducer: Reducer::Sum, hints };
    let (scope, key) = ("global".to_owned(), "sum".to_owned());
    let changes = vec![StateChange { scope, key, if_revision: None, act }];
    let (answers, receipt) = (Answers::default(), Some((7, step)));
    let batch = StateBatch { changes, at_ms: 1, most: 64, receipt, answers: answers.clone() };
    (Write::ChangeState(Box::new(batch)), answers)
}

/// A node that drives and one that helps, over the same data.
struct Desk {
    driver: Arc<Memory>,
    helper: Memory,
    kept: Arc<Kept>,
    relay: Arc<Relay>,
    numbers: BTreeMap<u64, Renumbering>,
    /// True if refusals are told to the numbers.
    forgets: bool,
}

impl Desk {
    fn new() -> Self {
        let driver = Arc::new(Memory::new());
        let (kept, relay) = relay();
        let helper = driver.reading(Arc::clone(&relay));
        Self { driver, helper, kept, relay, numbers: BTreeMap::new(), forgets: true }
    }

    /// Commits the next parcel.
    fn deliver(&mut self) {
        let (number, mut parcel) = self.kept.next();
        let numbers = self.numbers.entry(parcel.about().unwrap()).or_default();
        let numbered = numbers.apply(&mut parcel, &*self.driver);
        let fate = numbered.and_then(|()| {
            let (tell, told) = mpsc::channel();
            self.driver.submit(parcel.into_batch(move |fate| tell.send(fate).unwrap()));
            told.try_recv().unwrap()
        });
        if fate.is_err() && self.forgets {
            numbers.forget();
        }
        self.relay.settled(number, fate);
    }

    fn seqs(&self, run: u64) -> Vec<u32> {
        seqs(&self.driver.entries(run, 0).unwrap())
    }
}

#[test]
fn parcels_go_in_their_order_and_each_ack_receives_its_own_fate() {
    let (kept, relay) = relay();
    let acks: Vec<_> =
        (0..3).map(|run| submit(&*relay, None, vec![Write::CloseTasks { run }])).collect();
    let parcels: Vec<_> = (0..3).map(|_| kept.next()).collect();
    let runs: Vec<_> = parcels.iter().map(|(_, parcel)| parcel.about()).collect();
    assert_eq!(runs, [Some(0), Some(1), Some(2)]);
    relay.settled(parcels[1].0, Err(StoreError::Full));
    assert!(matches!(acks[1].try_recv().unwrap(), Err(StoreError::Full)));
    assert!(acks[0].try_recv().is_err() && acks[2].try_recv().is_err(), "their fate is open");
    relay.settled(parcels[2].0, Ok(Vec::new()));
    relay.settled(parcels[0].0, Ok(Vec::new()));
    assert!(acks[2].try_recv().unwrap().is_ok() && acks[0].try_recv().unwrap().is_ok());
}

#[test]
fn answers_come_back_with_the_fate_of_their_batch() {
    let (kept, relay) = relay();
    let ((one, first), (other, second)) = (add(1), add(2));
    let acked = submit(&*relay, None, vec![one, Write::CloseTasks { run: 7 }, other]);
    let changed = |revision| vec![Changed { revision, value: None }];
    let number = kept.next().0;
    relay.settled(number, Ok(vec![changed(1), changed(2)]));
    acked.try_recv().unwrap().unwrap();
    assert_eq!((first.get(), second.get()), (&*changed(1), &*changed(2)));
    relay.settled(number, Ok(vec![changed(3), changed(4)]));
    assert_eq!(first.get(), changed(1), "it has ended");
    let (one, first) = add(3);
    let acked = submit(&*relay, None, vec![one]);
    relay.settled(kept.next().0, Ok(Vec::new()));
    assert!(acked.try_recv().unwrap().is_err() && first.get().is_empty());
}

#[test]
fn a_closed_relay_fails_what_waits_in_its_order_and_all_that_comes() {
    let (_kept, relay) = relay();
    let order: Arc<Mutex<Vec<_>>> = Arc::default();
    let send = |name: &'static str| {
        let order = Arc::clone(&order);
        let ack: Ack = Box::new(move |result| order.lock().push((name, result.is_ok())));
        relay.submit(Batch { checks: Vec::new(), run: None, writes: Vec::new(), ack });
    };
    for name in ["first", "second", "third"] {
        send(name);
    }
    relay.settled(2, Ok(Vec::new()));
    relay.close();
    relay.close();
    relay.settled(1, Ok(Vec::new()));
    send("late");
    let expected = [("second", true), ("first", false), ("third", false), ("late", false)];
    assert_eq!(*order.lock(), expected);
    assert!(matches!(relay.health(), Health::Lost(StoreError::Closed)));
}

#[test]
fn what_an_ack_submits_at_the_end_fails_behind_what_waited() {
    let (kept, relay) = relay();
    let order: Arc<Mutex<Vec<&str>>> = Arc::default();
    let noting = |name: &'static str| -> Ack {
        let order = Arc::clone(&order);
        Box::new(move |_| order.lock().push(name))
    };
    let batch = |ack| Batch { checks: Vec::new(), run: None, writes: Vec::new(), ack };
    let (again, first, last) = (Arc::clone(&relay), noting("first"), batch(noting("last")));
    relay.submit(batch(Box::new(move |result| {
        first(result);
        again.submit(last);
    })));
    relay.submit(batch(noting("second")));
    assert!(!kept.is_empty());
    relay.close();
    assert_eq!(*order.lock(), ["first", "second", "last"]);
}

/// Submits a batch that keeps the order of a run.
fn submit_of(relay: &Relay, run: u64, writes: Vec<Write>) -> Acked {
    let (batch, acked) = batch(vec![Check::RunAt { run, cursor: 1 }], None, writes);
    relay.submit(batch);
    acked
}

#[test]
fn acks_of_a_run_keep_the_order_of_its_batches_and_wait_for_no_other_run() {
    let (_kept, relay) = relay();
    let [first, second, other, third] = [5, 5, 6, 5].map(|run| submit_of(&relay, run, Vec::new()));
    relay.settled(2, Err(StoreError::Full));
    relay.settled(3, Ok(Vec::new()));
    assert!(other.try_recv().unwrap().is_ok());
    assert!(first.try_recv().is_err() && second.try_recv().is_err(), "the first is open");
    relay.settled(2, Ok(Vec::new()));
    relay.settled(1, Ok(Vec::new()));
    assert!(first.try_recv().unwrap().is_ok());
    assert!(matches!(second.try_recv().unwrap(), Err(StoreError::Full)), "it has one fate");
    assert!(third.try_recv().is_err());
    relay.settled(4, Ok(Vec::new()));
    assert!(third.try_recv().unwrap().is_ok());
    let state = relay.state.lock();
    assert!(state.waiting.is_empty() && state.lanes.is_empty() && state.bytes == 0);
}

#[test]
fn a_write_of_the_host_is_refused_in_its_turn_and_not_sent() {
    let (kept, relay) = relay();
    let reserve = || vec![Write::ReserveRun { num: 1 }];
    let acked = submit(&*relay, None, reserve());
    assert!(matches!(acked.try_recv().unwrap(), Err(StoreError::Database { .. })));
    assert!(kept.is_empty());
    let (first, second) = (submit_of(&relay, 5, Vec::new()), submit_of(&relay, 5, reserve()));
    let (number, _) = kept.next();
    assert!(kept.is_empty() && second.try_recv().is_err());
    relay.settled(number, Ok(Vec::new()));
    first.try_recv().unwrap().unwrap();
    assert!(second.try_recv().unwrap().is_err());
}

#[tokio::test]
async fn a_full_relay_takes_what_comes_and_says_when_there_is_room() {
    let (_kept, relay) = relay();
    let mut acks = Vec::new();
    for _ in 0..WAITING {
        assert!(relay.room().now_or_never().is_some());
        acks.push(submit(&*relay, None, Vec::new()));
    }
    acks.push(submit(&*relay, None, Vec::new()));
    assert!(relay.room().now_or_never().is_none());
    tokio::join!(relay.room(), async {
        relay.settled(1, Ok(Vec::new()));
        assert!(relay.room().now_or_never().is_none());
        relay.settled(2, Ok(Vec::new()));
    });
    relay.settled(3, Ok(Vec::new()));
    let (hash, data) = (String::new(), vec![0_u8; WAITING_BYTES].into());
    acks.push(submit(&*relay, None, vec![Write::PutBlob { hash, data }]));
    assert!(relay.room().now_or_never().is_none());
    tokio::join!(relay.room(), async { relay.close() });
}

#[tokio::test]
async fn a_store_is_lost_with_its_relay() {
    let desk = Desk::new();
    assert!(desk.helper.lost().now_or_never().is_none());
    let (lost, ()) = tokio::join!(desk.helper.lost(), async { desk.helper.close().unwrap() });
    assert!(matches!(lost, StoreError::Closed));
    assert!(matches!(desk.driver.health(), Health::Well));
}

#[test]
fn batches_of_several_runs_follow_each_other_on_their_way() {
    let mut desk = Desk::new();
    let mut runs = [1, 2].map(|num| begin(&*desk.driver, header(num)));
    let mut acks = Vec::new();
    for _ in 0..3 {
        for run in &mut runs {
            let write = append(&desk.helper, run, vec![resumed(), resumed()]);
            acks.push(submit(&desk.helper, Some(write), Vec::new()));
        }
    }
    for _ in 0..6 {
        // Runs of its own take numbers, too.
        desk.driver.next_lsn();
        desk.deliver();
    }
    acks.iter().for_each(|acked| acked.try_recv().unwrap().unwrap());
    for run in &runs {
        assert!(run.cursor > PROVISIONAL);
        assert!(desk.helper.header(run.num).unwrap().unwrap().cursor < PROVISIONAL);
        assert_eq!(desk.seqs(run.num), [1, 2, 3, 4, 5, 6, 7]);
    }
    let mut again = desk.helper.header(1).unwrap().unwrap();
    let write = append(&desk.helper, &mut again, vec![resumed()]);
    let acked = submit(&desk.helper, Some(write), Vec::new());
    desk.deliver();
    acked.try_recv().unwrap().unwrap();
    assert_eq!(desk.seqs(1).len(), 8);
}

#[test]
fn behind_a_refused_batch_those_of_its_run_are_refused_until_it_was_read_again() {
    for forgets in [true, false] {
        let mut desk = Desk { forgets, ..Desk::new() };
        put(&*desk.driver, vec![Write::RevokeToken { jti: "a".to_owned(), at_ms: 1 }]);
        let mut runs = [1, 2].map(|num| begin(&*desk.driver, header(num)));
        let (mut acks, mut others) = (Vec::new(), Vec::new());
        for n in 0..4 {
            let refused = (n == 1).then(|| Check::TokenLive("a".to_owned()));
            let [run, other] = &mut runs;
            let write = append(&desk.helper, run, vec![resumed()]);
            let (batch, acked) = batch(refused.into_iter().collect(), Some(write), Vec::new());
            desk.helper.submit(batch);
            acks.push(acked);
            let write = append(&desk.helper, other, vec![resumed()]);
            others.push(submit(&desk.helper, Some(write), Vec::new()));
        }
        for _ in 0..8 {
            desk.deliver();
        }
        let fates: Vec<_> = acks.iter().map(|acked| acked.try_recv().unwrap()).collect();
        let [first, second, third, fourth] = fates.as_slice() else { panic!("there are four") };
        assert!(first.is_ok());
        assert!(matches!(second, Err(StoreError::Revoked { .. })), "{second:?}");
        for later in [third, fourth] {
            assert!(matches!(later, Err(StoreError::Moved { run: 1 })), "{later:?}");
        }
        others.iter().for_each(|acked| acked.try_recv().unwrap().unwrap());
        let mut again = desk.helper.header(1).unwrap().unwrap();
        let write = append(&desk.helper, &mut again, vec![resumed()]);
        let acked = submit(&desk.helper, Some(write), Vec::new());
        desk.deliver();
        acked.try_recv().unwrap().unwrap();
        assert_eq!((desk.seqs(1), desk.seqs(2)), (vec![1, 2, 3], vec![1, 2, 3, 4, 5]));
    }
}

#[test]
fn what_was_numbered_before_a_refusal_is_refused_by_the_store_and_what_comes_later_at_once() {
    let driver = Memory::held();
    let (kept, relay) = relay();
    let helper = driver.reading(relay);
    let mut run = header(1);
    let begun = append(&driver, &mut run, vec![started(None)]);
    let revoked = Write::RevokeToken { jti: "a".to_owned(), at_ms: 1 };
    let begun = submit(&driver, Some(begun), vec![revoked]);
    driver.commit(1);
    assert!(driver.acknowledge() && begun.try_recv().unwrap().is_ok());
    let mut numbers = Renumbering::default();
    let (tell, told) = mpsc::channel();
    let mut acks = Vec::new();
    for n in 0..4 {
        let checks = (n == 0).then(|| Check::TokenLive("a".to_owned())).into_iter().collect();
        let write = append(&helper, &mut run, vec![resumed()]);
        let (batch, acked) = batch(checks, Some(write), Vec::new());
        helper.submit(batch);
        acks.push(acked);
    }
    for _ in 0..3 {
        let (_, mut parcel) = kept.next();
        numbers.apply(&mut parcel, &driver).unwrap();
        let tell = tell.clone();
        driver.submit(parcel.into_batch(move |fate| tell.send(fate).unwrap()));
    }
    driver.commit(3);
    while driver.acknowledge() {}
    let fates: Vec<_> = told.try_iter().collect();
    assert!(matches!(
        fates.as_slice(),
        [
            Err(StoreError::Revoked { .. }),
            Err(StoreError::Moved { run: 1 }),
            Err(StoreError::Moved { run: 1 }),
        ]
    ));
    numbers.forget();
    let late = numbers.apply(&mut kept.next().1, &driver);
    assert!(matches!(late, Err(StoreError::Moved { run: 1 })), "{late:?}");
}

#[test]
fn a_check_names_the_last_row_and_no_other() {
    let mut desk = Desk::new();
    let mut run = begin(&*desk.driver, header(1));
    let check = |desk: &mut Desk, cursor| {
        let checks = vec![Check::RunAt { run: 1, cursor }];
        let (batch, acked) = batch(checks, None, vec![Write::CloseTasks { run: 1 }]);
        desk.helper.submit(batch);
        desk.deliver();
        acked.try_recv().unwrap()
    };
    check(&mut desk, run.cursor).unwrap();
    let mut cursors = Vec::new();
    for _ in 0..2 {
        let write = append(&desk.helper, &mut run, vec![resumed()]);
        let acked = submit(&desk.helper, Some(write), Vec::new());
        desk.deliver();
        acked.try_recv().unwrap().unwrap();
        check(&mut desk, run.cursor).unwrap();
        cursors.push(run.cursor);
    }
    assert!(matches!(check(&mut desk, cursors[0]), Err(StoreError::Moved { run: 1 })));
    assert!(check(&mut desk, cursors[1]).is_err(), "after a refusal the run is read again");
}

#[test]
fn a_row_with_a_real_number_and_a_header_without_the_last_one_are_refused() {
    let desk = Desk::new();
    let mut run = begin(&*desk.driver, header(1));
    let mut numbers = Renumbering::default();
    let mut apply = |write| {
        let mut parcel = Parcel { checks: Vec::new(), run: Some(write), writes: Vec::new() };
        numbers.apply(&mut parcel, &*desk.driver).map(|()| parcel)
    };
    let mut before = run.clone();
    assert!(apply(append(&*desk.driver, &mut before, vec![resumed()])).is_err());
    let mut write = append(&desk.helper, &mut run, vec![resumed()]);
    write.header.cursor = before.cursor;
    assert!(apply(write.clone()).is_err());
    write.header.cursor = run.cursor;
    let write = apply(write).unwrap().run.unwrap();
    let row = &write.entries[0];
    assert_eq!((row.lsn, row.before), (write.header.cursor, write.expected));
    assert!(row.lsn < PROVISIONAL);
}
