//! The batches that a shard gathers: nothing overtakes them, and nothing long holds them up.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::{
    blueprint::{Flow, Node},
    history::Ask,
    play::stand_still,
    random::Random,
    world::World,
};
use crate::{
    engine::{
        shard::owner::Shard,
        shared::message::{Internal, Msg},
        turn::batch,
    },
    store::Write,
};

/// Gathers a batch of a run that waits for a worker. Returns the number of batches that are handed in
/// while its shard does something.
fn handed_in_by(act: impl FnOnce(&mut Shard, u64)) -> usize {
    let _time = stand_still();
    let flow = Flow { node: Node::Task("q", 1), rounds: 0, defers: false };
    let mut world = World::with(flow, Random::new(1));
    world.ask(Ask::Start { body: 0, key: None, token: 0, peer: None });
    world.run_down();
    let num = *world.runs.keys().next().expect("a run was started");
    let store = Arc::clone(&world.store);
    let shard = world.shard_of(num);
    let _round = batch::gather(&*store);
    let mut run = shard.runs.remove(&num).expect("it is in memory");
    run.pending.writes.push(Write::PutMeta { key: "gathered".to_owned(), value: "1".to_owned() });
    shard.flush(&mut run);
    shard.runs.insert(num, run);
    assert_eq!(store.waiting(), 0, "it is gathered");
    act(shard, num);
    store.waiting()
}

#[test]
fn a_quarantine_does_not_overtake_a_batch_of_its_run() {
    let handed_in = handed_in_by(|shard, run| {
        shard.quarantine(run, "the host died at it".to_owned(), oneshot::channel().0);
    });
    assert_eq!(handed_in, 1);
}

#[test]
fn a_shard_that_has_stopped_keeps_no_batch_back() {
    let handed_in = handed_in_by(|shard, _| {
        let (done, mut stopped) = oneshot::channel();
        assert!(!shard.handle(Msg::Stop(done)));
        assert!(stopped.try_recv().is_ok());
    });
    assert_eq!(handed_in, 1);
}

#[test]
fn no_batch_waits_through_what_may_be_long() {
    let turn = |is_slow| {
        handed_in_by(|shard, num| {
            let run = shard.runs.get_mut(&num).expect("it is in memory");
            let program = run.program.as_ref().expect("it has begun");
            assert!(!run.is_slow && !program.begins_slowly(), "its turns took no time");
            (run.is_slow, run.queued) = (is_slow, true);
            shard.take_turn(num);
        })
    };
    assert_eq!((turn(false), turn(true)), (0, 1));
    let loaded = handed_in_by(|shard, run| {
        shard.handle(Msg::Loaded { run, ticket: 0, result: Box::new(Ok(None)) });
    });
    let canceled = handed_in_by(|shard, run| {
        let (by, reason) = ("test".to_owned(), String::new());
        shard.tell(run, Internal::CancelFrom { sender: (0, 0), by, reason }.into());
    });
    assert_eq!((loaded, canceled), (1, 1));
}
