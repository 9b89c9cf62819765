//! Single moments that the seeds have shown to matter, each played by hand.

use std::time::Duration;

use super::{
    blueprint::{Flow, Node},
    history::{Ask, Of, Says, What},
    play::{judge, stand_still},
    random::Random,
    world::{SAFE, World},
};
use crate::{
    journal::Fact,
    store::{Reader as _, RunStatus, StoreError},
};

pub(super) const HOUR_MS: u64 = 3_600_000;
const YEAR_MS: u64 = 365 * 24 * HOUR_MS;

pub(super) fn world(nodes: Vec<Node>, defers: bool) -> World {
    World::with(Flow { node: Node::Seq(nodes), rounds: 0, defers }, Random::new(1))
}

/// Starts a run and lets the host go on until it waits for the commit of its beginning.
pub(super) fn start(world: &mut World) {
    let body = world.next_body();
    world.ask(Ask::Start { body, key: None, token: SAFE, peer: None });
    world.run_to_commit();
}

/// A worker asks for a task, and waits for one.
pub(super) fn poll(world: &mut World) {
    let worker = world.next_body();
    world.ask(Ask::Lease { queue: "q", worker, max: 1, wait_ms: HOUR_MS });
    world.run_down();
}

pub(super) fn commit_one(world: &mut World) {
    world.store.commit(1);
    world.run_to_commit();
}

/// Everything comes to its end, and every promise has held.
pub fn ends_well(mut world: World) {
    world.calm();
    let played = judge(0, world);
    assert!(played.findings.is_empty(), "{}\n{}", played.findings.join("\n"), played.story());
}

#[test]
fn a_called_run_whose_first_write_fails_is_started_again() {
    let _time = stand_still();
    let mut world = world(vec![Node::Call(1)], false);
    start(&mut world);
    commit_one(&mut world);
    assert!(world.store.waiting() > 0, "the called run waits for its first commit");
    world.store.fail_with(Some(StoreError::Full));
    world.store.commit(usize::MAX);
    world.run_to_commit();
    ends_well(world);
}

#[test]
fn a_called_runs_number_belongs_to_it_before_it_is_stored() {
    let _time = stand_still();
    let mut world = world(vec![Node::Call(1)], false);
    start(&mut world);
    world.store.commit(1);
    world.crash();
    start(&mut world);
    world.run_down();
    ends_well(world);
}

#[test]
fn a_cancel_reaches_the_called_run_across_a_crash() {
    let _time = stand_still();
    let mut world = world(vec![Node::Call(2)], false);
    start(&mut world);
    world.run_down();
    let (parent, child) = (world.runs.keys().next().copied().unwrap(), 2);
    let body = world.next_body();
    world.ask(Ask::Cancel { run: parent, body, token: SAFE });
    world.run_to_commit();
    world.store.commit(1);
    world.crash();
    world.run_down();
    let child = world.store.header(child).unwrap().unwrap();
    assert_eq!(child.status, RunStatus::Canceled, "nobody is left to wait for it");
    ends_well(world);
}

#[test]
fn a_cancel_that_a_full_disk_swallowed_is_carried_again() {
    let _time = stand_still();
    // In a moment; also when the clock is set back meanwhile.
    for later in [2_000, -HOUR_MS.cast_signed()] {
        let mut world = world(vec![Node::Call(2)], false);
        start(&mut world);
        world.run_down();
        let body = world.next_body();
        world.ask(Ask::Cancel { run: 1, body, token: SAFE });
        world.run_to_commit();
        commit_one(&mut world);
        world.store.fail_with(Some(StoreError::Full));
        world.store.commit(usize::MAX);
        world.run_to_commit();
        world.store.fail_with(None);
        world.clock.set(world.now_ms().saturating_add_signed(later));
        world.clock.advance(Duration::from_secs(2));
        // Whatever happens next, the shard looks at the clock.
        start(&mut world);
        world.run_down();
        assert_eq!(world.store.header(2).unwrap().unwrap().status, RunStatus::Canceled);
        assert!(world.store.outbox().unwrap().is_empty());
        ends_well(world);
    }
}

#[test]
fn what_rests_on_a_lost_beginning_is_lost_with_it() {
    let _time = stand_still();
    let mut world = world(vec![Node::Task("one", 1)], false);
    start(&mut world);
    world.run_down();
    // The second run waits for the place; it gets it while its own beginning is on its way.
    start(&mut world);
    let body = world.next_body();
    world.ask(Ask::Cancel { run: 1, body, token: SAFE });
    world.run_to_commit();
    world.store.fail_with(Some(StoreError::Full));
    world.store.commit(1);
    world.store.fail_with(None);
    world.run_down();
    let rows = world.store.tasks(&crate::store::TaskFilter { limit: 9, ..Default::default() });
    for row in rows.unwrap() {
        assert!(world.store.header(row.run).unwrap().is_some(), "a task of no run: {row:?}");
    }
    ends_well(world);
}

/// The other branch of the run waits for something that never comes.
#[test]
fn commands_that_wait_for_a_read_go_on_after_a_crash() {
    let _time = stand_still();
    let sends = Node::Seq(vec![Node::Task("echo", 1), Node::Signal(2)]);
    let mut world = world(vec![Node::All(vec![Node::Wait(None), sends])], false);
    start(&mut world);
    world.run_down();
    let peer = world.runs.keys().next().copied();
    let body = world.next_body();
    world.ask(Ask::Start { body, key: None, token: SAFE, peer });
    world.run_to_read();
    world.store.commit(usize::MAX);
    world.crash();
    world.run_down();
    let peer = world.store.header(1).unwrap().unwrap();
    assert_eq!(peer.status, RunStatus::Completed, "it was sent its signal");
    ends_well(world);
}

#[test]
fn a_signal_that_comes_during_a_pause_is_heard_after_it() {
    let _time = stand_still();
    let mut world = world(vec![Node::Wait(None)], false);
    start(&mut world);
    world.run_down();
    let body = world.next_body();
    world.ask(Ask::Pause { run: 1, body, token: SAFE });
    world.run_down();
    world.ask(Ask::Signal { run: 1, body, key: None, token: SAFE });
    world.run_down();
    world.ask(Ask::Resume { run: 1, token: SAFE });
    world.run_down();
    assert!(world.unfinished().is_empty(), "it went on");
    ends_well(world);
}

#[test]
fn a_resting_run_with_a_called_one_compensates_when_it_is_canceled_after_a_crash() {
    let _time = stand_still();
    let mut world = world(vec![Node::Call(2)], true);
    start(&mut world);
    world.run_down();
    let body = world.next_body();
    world.ask(Ask::Pause { run: 1, body, token: SAFE });
    world.run_down();
    world.crash();
    // Somebody waits for it, so it is in memory, without a flow.
    world.ask(Ask::Wait { run: 1 });
    world.run_down();
    let body = world.next_body();
    world.ask(Ask::Cancel { run: 1, body, token: SAFE });
    world.run_down();
    ends_well(world);
}

#[test]
fn a_place_that_a_resting_run_cannot_use_goes_to_the_next() {
    let _time = stand_still();
    let mut world = world(vec![Node::Task("one", 1)], false);
    for _ in 0..3 {
        start(&mut world);
        world.run_down();
    }
    let body = world.next_body();
    world.ask(Ask::Pause { run: 2, body, token: SAFE });
    world.run_down();
    let body = world.next_body();
    world.ask(Ask::Cancel { run: 1, body, token: SAFE });
    world.run_down();
    let row = world.store.task(3, 1).unwrap();
    assert!(row.is_some(), "the third run has the place that the second left");
    ends_well(world);
}

#[test]
fn a_worker_in_the_host_does_not_outlive_the_attempt_that_a_full_disk_undid() {
    let _time = stand_still();
    let mut world = world(vec![Node::Task("host", 1)], false);
    start(&mut world);
    world.run_down();
    assert_eq!(world.worked.live(), 1);
    // Its timeout ends the attempt, in memory only.
    world.clock.advance(Duration::from_millis(HOUR_MS));
    world.run_to_commit();
    world.store.fail_with(Some(StoreError::Full));
    world.store.commit(usize::MAX);
    world.run_to_commit();
    world.store.fail_with(None);
    assert_eq!(world.worked.live(), 0, "it was told to stop");
    ends_well(world);
}

#[test]
fn a_refused_workers_revoked_token_is_nobody_elses_trouble() {
    let _time = stand_still();
    let mut world = world(vec![Node::Task("q", 1), Node::Wait(None)], false);
    start(&mut world);
    world.run_down();
    let worker = world.next_body();
    world.ask(Ask::Lease { queue: "q", worker, max: 1, wait_ms: 0 });
    world.run_down();
    let of = *world.held.last().unwrap();
    let body = world.next_body();
    world.ask(Ask::Report { of, body, says: Says::Done });
    world.ask(Ask::Revoke { token: 1 });
    world.run_down();
    let late = Of { token: Some(1), ..of };
    world.ask(Ask::State { of: late, body });
    world.run_down();
    world.ask(Ask::Signal { run: of.run, body, key: None, token: SAFE });
    world.run_down();
    let last = world.events.last().map(|event| &event.what);
    assert!(matches!(last, Some(What::Told(..))), "{last:?}");
    ends_well(world);
}

#[test]
fn a_resting_run_whose_compensation_is_done_says_what_it_waits_for() {
    let _time = stand_still();
    let mut world = world(vec![Node::Wait(None)], true);
    start(&mut world);
    world.run_down();
    let body = world.next_body();
    world.ask(Ask::Cancel { run: 1, body, token: SAFE });
    world.run_down();
    let worker = world.next_body();
    world.ask(Ask::Lease { queue: "q", worker, max: 1, wait_ms: 0 });
    world.run_down();
    world.ask(Ask::Pause { run: 1, body, token: SAFE });
    let of = *world.held.last().unwrap();
    world.run_down();
    let body = world.next_body();
    world.ask(Ask::Report { of, body, says: Says::Done });
    world.run_down();
    let said = world.store.header(1).unwrap().unwrap().waiting_on.unwrap_or_default();
    assert!(said.contains("resume"), "{said:?}");
    ends_well(world);
}

#[test]
fn tickets_of_a_worker_that_leaves_go_to_others() {
    let _time = stand_still();
    let mut world = world(vec![Node::Task("q", 1)], false);
    for _ in 0..3 {
        start(&mut world);
        world.run_down();
    }
    let worker = world.next_body();
    world.ask(Ask::Lease { queue: "q", worker, max: 3, wait_ms: 0 });
    world.leave_once_taken();
    let worker = world.next_body();
    world.ask(Ask::Lease { queue: "q", worker, max: 3, wait_ms: 0 });
    world.run_down();
    let worker = world.next_body();
    world.ask(Ask::Lease { queue: "q", worker, max: 3, wait_ms: 0 });
    world.run_down();
    assert_eq!(world.held.len(), 3, "none is kept for who is gone");
    ends_well(world);
}

#[test]
fn time_may_jump_by_an_hour_and_a_year_both_ways() {
    let _time = stand_still();
    for jump in [HOUR_MS, YEAR_MS] {
        let mut world = world(vec![Node::Sleep(60), Node::Sleep(60)], false);
        start(&mut world);
        world.run_down();
        let began = world.now_ms();
        world.clock.set(began - jump);
        world.run_down();
        world.crash();
        world.run_down();
        assert_eq!(ended_steps(&world), 0, "it is not yet its time");
        world.clock.set(began + jump);
        world.run_down();
        assert_eq!(ended_steps(&world), 1, "one was due, and the next began just now");
        world.clock.set(began);
        world.run_down();
        assert_eq!(ended_steps(&world), 1, "the time of a run does not go back");
        world.clock.set(began + jump + 60_000);
        world.run_down();
        assert!(world.unfinished().is_empty());
        ends_well(world);
    }
}

fn ended_steps(world: &World) -> usize {
    let entries = world.store.entries(1, 0).unwrap();
    entries.iter().filter(|entry| matches!(entry.fact, Fact::StepEnded { .. })).count()
}

#[test]
fn a_worker_that_says_nothing_for_a_year_is_fenced() {
    let _time = stand_still();
    let mut world = world(vec![Node::Task("q", 1)], false);
    start(&mut world);
    world.run_down();
    let worker = world.next_body();
    world.ask(Ask::Lease { queue: "q", worker, max: 1, wait_ms: 0 });
    world.run_down();
    let of = *world.held.last().unwrap();
    world.clock.advance(Duration::from_millis(YEAR_MS));
    world.run_down();
    let body = world.next_body();
    world.ask(Ask::Report { of, body, says: Says::Done });
    world.run_down();
    let last = world.events.last().map(|event| &event.what);
    assert!(matches!(last, Some(What::Refused(_, code)) if code == "fenced"), "{last:?}");
    ends_well(world);
}
