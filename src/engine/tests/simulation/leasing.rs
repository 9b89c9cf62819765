//! Single moments of leases, each played by hand.

use std::time::Duration;

use super::{
    blueprint::{Flow, Node},
    history::{Ask, Says, Told, What},
    moments::{HOUR_MS, commit_one, ends_well, poll, start, world},
    play::stand_still,
    random::Random,
    world::{LEASE_MS, SAFE, World},
};
use crate::{
    journal::Fact,
    store::{Reader as _, StoreError, TaskFilter, TaskPhase, Write},
};

/// A worker waits for tasks that follow on a pause. They are scheduled, and their commit waits.
fn claimed(max: usize, tasks: Node) -> World {
    let mut world = world(vec![Node::Sleep(60), tasks], false);
    start(&mut world);
    world.run_down();
    let worker = world.next_body();
    world.ask(Ask::Lease { queue: "q", worker, max, wait_ms: HOUR_MS });
    world.run_down();
    world.clock.advance(Duration::from_secs(60));
    world.run_to_commit();
    assert!(world.held.is_empty() && world.store.waiting() > 0);
    world
}

/// The attempts whose leases workers received.
fn attempts(world: &World) -> Vec<u32> {
    world.held.iter().map(|of| of.attempt).collect()
}

#[test]
fn a_worker_that_waits_is_leased_its_task_by_the_commit_that_schedules_it() {
    let _time = stand_still();
    let mut world = world(vec![Node::Task("q", 1), Node::Task("q", 2)], false);
    poll(&mut world);
    start(&mut world);
    assert!(world.held.is_empty(), "nothing is durable yet");
    world.run_down();
    let of = *world.held.last().expect("it was leased");
    poll(&mut world);
    let body = world.next_body();
    world.ask(Ask::Report { of, body, says: Says::Done });
    world.run_down();
    assert_eq!(world.held.len(), 2);
    let writes = world.store.commits(0).into_iter().flat_map(|commit| commit.writes);
    let rows = writes.filter_map(|write| match write {
        Write::PutTask(row) => Some((row.phase, row.worker.is_some(), row.lease_ms.is_some())),
        Write::HoldTask(hold) => panic!("its row says who has it: {hold:?}"),
        _ => None,
    });
    let leased = (TaskPhase::Delivered, true, true);
    assert_eq!(rows.collect::<Vec<_>>(), [leased, leased]);
    ends_well(world);
}

#[test]
fn a_report_leases_the_next_task_in_the_commit_that_accepts_it() {
    let _time = stand_still();
    let mut world = world(vec![Node::Task("q", 1), Node::Task("q", 2)], false);
    start(&mut world);
    world.run_down();
    poll(&mut world);
    let of = world.held[0];
    let before = world.store.commits(0).len();
    world.report_and_lease(of, Says::Done, ("q", 1, 0));
    world.run_down();
    assert_eq!((world.held.len(), attempts(&world)), (2, vec![1, 1]));
    assert_eq!(world.store.commits(0).len(), before + 1);
    assert!(!world.engine().shared().hub.has_pollers());
    ends_well(world);
}

/// A worker reports, and stands for more; its report waits for its commit. Then a second run is
/// scheduled, and its task is leased to the worker.
fn held_up() -> (World, u32) {
    let mut world = world(vec![Node::Task("q", 1)], false);
    start(&mut world);
    world.run_down();
    poll(&mut world);
    let of = world.held[0];
    world.report_and_lease(of, Says::Done, ("q", 2, 0));
    world.run_to_commit();
    let reported = world.asked() - 1;
    start(&mut world);
    (world, reported)
}

fn told(world: &World, number: u32) -> Option<&Told> {
    world.events.iter().find_map(|event| match &event.what {
        What::Told(of, told) if *of == number => Some(told),
        _ => None,
    })
}

#[test]
fn what_is_claimed_beside_a_report_comes_with_its_answer() {
    let _time = stand_still();
    let (mut world, reported) = held_up();
    world.run_down();
    assert_eq!(told(&world, reported), Some(&Told::Accepted(true)));
    let Some(Told::Leased(leased)) = told(&world, reported + 1) else { panic!("no answer") };
    assert_eq!(leased.len(), 1);
    ends_well(world);
}

#[test]
fn a_report_that_is_held_up_does_not_keep_tasks_from_other_workers() {
    let _time = stand_still();
    let (mut world, reported) = held_up();
    world.clock.advance(Duration::from_secs(1));
    world.run_to_commit();
    let worker = world.next_body();
    world.ask(Ask::Lease { queue: "q", worker, max: 1, wait_ms: HOUR_MS });
    let other = world.asked();
    world.run_down();
    assert_eq!(told(&world, reported), Some(&Told::Accepted(true)));
    assert_eq!(told(&world, reported + 1), Some(&Told::Leased(Vec::new())));
    let Some(Told::Leased(leased)) = told(&world, other) else { panic!("no answer") };
    assert_eq!(leased.len(), 1);
    ends_well(world);
}

#[test]
fn an_answer_to_a_report_does_not_wait_for_the_lease_of_another_run() {
    let _time = stand_still();
    // In some worlds the lease is stored before the report.
    let is_played = (1..20).any(|seed| {
        let flow = Flow { node: Node::Task("q", 1), rounds: 0, defers: false };
        let mut world = World::with(flow, Random::new(seed));
        for _ in 0..2 {
            start(&mut world);
            world.run_down();
        }
        poll(&mut world);
        let of = world.held[0];
        world.report_and_lease(of, Says::Done, ("q", 1, 0));
        let reported = world.asked() - 1;
        world.run_to_commit();
        commit_one(&mut world);
        let is_accepted = world.store.header(of.run).unwrap().unwrap().ended_ms.is_some();
        if !is_accepted || world.store.waiting() == 0 {
            return false;
        }
        assert!(told(&world, reported).is_none(), "the lease has a moment more");
        world.clock.advance(Duration::from_millis(50));
        world.run_to_commit();
        assert_eq!(told(&world, reported), Some(&Told::Accepted(true)));
        assert_eq!(told(&world, reported + 1), Some(&Told::Leased(Vec::new())));
        world.run_down();
        poll(&mut world);
        assert_eq!(attempts(&world), [1, 2], "it went back, and another worker has it");
        ends_well(world);
        true
    });
    assert!(is_played, "the report is stored first in none of them");
}

#[test]
fn a_commit_that_fails_leases_nothing_and_the_worker_waits_on() {
    let _time = stand_still();
    let mut world = world(vec![Node::Task("q", 1), Node::Task("q", 2)], false);
    poll(&mut world);
    start(&mut world);
    world.run_down();
    let of = *world.held.last().unwrap();
    poll(&mut world);
    let waits = world.asked();
    let body = world.next_body();
    world.ask(Ask::Report { of, body, says: Says::Done });
    world.run_to_commit();
    world.store.fail_with(Some(StoreError::Full));
    world.store.commit(usize::MAX);
    world.run_to_commit();
    world.store.fail_with(None);
    let is_answer = |what: &What| match what {
        What::Told(number, _) | What::Refused(number, _) | What::Lost(number) => *number == waits,
        _ => false,
    };
    assert!(!world.events.iter().any(|event| is_answer(&event.what)), "it is not its refusal");
    assert_eq!(world.held.len(), 1);
    // A run whose write failed rests for a second.
    world.clock.advance(Duration::from_secs(2));
    world.run_down();
    world.ask(Ask::Report { of, body, says: Says::Done });
    world.run_down();
    assert_eq!(world.held.len(), 2, "the worker still waited");
    ends_well(world);
}

#[test]
fn a_lease_whose_answer_a_crash_took_ends_in_its_time() {
    let _time = stand_still();
    let mut world = world(vec![Node::Task("q", 1)], false);
    poll(&mut world);
    start(&mut world);
    world.store.commit(usize::MAX);
    world.crash();
    world.run_down();
    poll(&mut world);
    assert!(world.held.is_empty(), "it is the lost one's");
    world.clock.advance(Duration::from_millis(2 * LEASE_MS));
    world.run_down();
    assert_eq!(world.held.iter().map(|of| of.attempt).collect::<Vec<_>>(), [2]);
    ends_well(world);
}

#[test]
fn the_times_of_a_lease_begin_when_it_is_stored() {
    let _time = stand_still();
    let mut world = claimed(1, Node::Task("q", 1));
    // For longer than its lease and its timeout.
    world.clock.advance(Duration::from_millis(HOUR_MS / 2));
    world.run_to_commit();
    world.run_down();
    assert_eq!(attempts(&world), [1]);
    let row = |world: &World| world.store.task(1, world.held[0].step).unwrap().unwrap();
    assert_eq!(row(&world).lease_ms, Some(world.now_ms() + LEASE_MS));
    world.clock.advance(Duration::from_millis(LEASE_MS - 1));
    world.run_down();
    assert_eq!(row(&world).attempt, 1);
    world.clock.advance(Duration::from_millis(1));
    world.run_down();
    assert_eq!(row(&world).attempt, 2);
    ends_well(world);
}

#[test]
fn a_lease_that_is_stored_for_a_worker_that_left_goes_to_another() {
    let _time = stand_still();
    let mut world = claimed(1, Node::Task("q", 1));
    world.leave_once_taken();
    world.run_down();
    poll(&mut world);
    assert_eq!(attempts(&world), [2]);
    let entries = world.store.entries(1, 0).unwrap();
    let counts = entries.iter().filter_map(|entry| match &entry.fact {
        Fact::AttemptClosed(closed) => Some(closed.counts),
        _ => None,
    });
    assert_eq!(counts.collect::<Vec<_>>(), [false]);
    ends_well(world);
}

#[test]
fn a_lease_that_is_being_stored_when_the_host_stops_reaches_its_worker() {
    let _time = stand_still();
    let mut world = claimed(1, Node::Task("q", 1));
    world.engine().shared().tasks.stopping().cancel();
    world.run_to_commit();
    assert_eq!(world.pollers(), 1, "its answer is still to come");
    world.run_down();
    assert_eq!(attempts(&world), [1]);
    world.crash();
    ends_well(world);
}

#[test]
fn a_worker_is_not_given_a_lease_that_is_known_to_be_over() {
    let _time = stand_still();
    let mut world = claimed(1, Node::Task("q", 1));
    let body = world.next_body();
    world.ask(Ask::Cancel { run: 1, body, token: SAFE });
    world.run_to_commit();
    world.run_down();
    assert!(world.held.is_empty(), "{:?}", world.held);
    assert_eq!(world.pollers(), 1, "it waits on");
    ends_well(world);
}

#[test]
fn tasks_that_are_leased_together_come_in_their_order() {
    let _time = stand_still();
    let tasks = (1..=3).map(|leaf| Node::Task("q", leaf)).collect();
    let mut world = claimed(3, Node::All(tasks));
    world.run_down();
    let steps: Vec<u32> = world.held.iter().map(|of| of.step).collect();
    assert!(steps.len() == 3 && steps.is_sorted(), "{steps:?}");
    ends_well(world);
}

#[test]
fn a_task_that_is_still_to_be_offered_is_not_overtaken() {
    let _time = stand_still();
    let later = Node::Seq(vec![Node::Sleep(1), Node::Task("q", 2)]);
    let both = Node::All(vec![Node::Task("q", 1), later]);
    let mut world = world(vec![Node::Sleep(60), both], false);
    start(&mut world);
    world.run_down();
    world.clock.advance(Duration::from_secs(60));
    world.run_to_commit();
    let worker = world.next_body();
    world.ask(Ask::Lease { queue: "q", worker, max: 1, wait_ms: HOUR_MS });
    world.run_to_commit();
    world.clock.advance(Duration::from_secs(1));
    world.run_to_commit();
    world.run_down();
    let open = world.store.tasks(&TaskFilter { limit: 9, ..TaskFilter::default() }).unwrap();
    let first = open.iter().map(|row| row.step).min().expect("both are open");
    let held: Vec<u32> = world.held.iter().map(|of| of.step).collect();
    assert_eq!((open.len(), held), (2, vec![first]));
    ends_well(world);
}
