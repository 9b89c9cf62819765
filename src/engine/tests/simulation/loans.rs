//! Single moments of runs that are lent, each played by hand.

use std::time::Duration;

use tokio::sync::oneshot;

use super::{
    blueprint::{Flow, Node},
    history::{Ask, Says, What},
    moments::ends_well,
    play::stand_still,
    random::Random,
    world::{SAFE, World},
};
use crate::{
    engine::{FromHelper, ToHelper},
    journal::Fact,
    protocol::Json,
    store::{Reader as _, RunStatus, StoreError},
};

/// The time that the attempts of a lent run have to end when somebody asks for something of it.
const PATIENCE: Duration = Duration::from_secs(2);
const MOMENT: Duration = Duration::from_millis(1);

/// The run that is lent. The one before it stays at the host, which lends half of its runs.
const LENT: u64 = 2;

fn port(leaf: u32) -> Node {
    Node::Task("port", leaf)
}

/// A world with a helper.
fn helped(flow: Flow, seed: u64) -> World {
    let mut world = World::lending_with(flow, Random::new(seed));
    world.join();
    world.run_down();
    world
}

/// Starts a run and lets everything go on until it waits for the commit of its beginning.
fn start(world: &mut World) {
    let body = world.next_body();
    world.ask(Ask::Start { body, key: None, token: SAFE, peer: None });
    world.run_to_commit();
}

/// A world with one run that waits here, and one that will be lent once its start is committed.
fn begun(node: Node, seed: u64) -> World {
    let mut world = helped(Flow { node, rounds: 0, defers: false }, seed);
    start(&mut world);
    world.run_down();
    start(&mut world);
    assert_eq!(world.store.waiting(), 1, "its start waits for the commit");
    world
}

/// A world with one run that waits here, and one that waits at the helper.
fn lent(node: Node, seed: u64) -> World {
    let mut world = begun(node, seed);
    world.run_down();
    assert_eq!(world.host().lent(), [LENT]);
    world
}

fn status(world: &World) -> RunStatus {
    world.store.header(LENT).unwrap().unwrap().status
}

/// The lent run is home, its header says that it waits for this alone, and nothing has it read again.
fn waits_at_home_for(world: &World, kind: &str) {
    assert!(world.host().lent().is_empty());
    let header = world.store.header(LENT).unwrap().unwrap();
    let said = header.waiting_on.unwrap_or_default();
    assert!(said.starts_with(&format!(r#"[{{"kind":"{kind}""#)), "{said}");
    assert_ne!(header.wake_at_ms, Some(0));
}

fn is_told(world: &World, number: u32) -> bool {
    let mut events = world.events.iter();
    events.any(|event| matches!(&event.what, What::Told(of, _) if *of == number))
}

fn ended_steps(world: &World) -> usize {
    let entries = world.store.entries(LENT, 0).unwrap();
    entries.iter().filter(|entry| matches!(entry.fact, Fact::StepEnded { .. })).count()
}

/// The worker at the helper ends its attempt.
fn end_there(world: &mut World) {
    let desk = world.helpers.port(0);
    assert_eq!(desk.len(), 1, "it is worked on there");
    world.end_job(&desk, 0, Says::Done);
}

/// Sends the lent run a signal, and lets everything go on; returns the number of the ask.
fn signal(world: &mut World) -> u32 {
    let body = world.next_body();
    world.ask(Ask::Signal { run: LENT, body, key: None, token: SAFE });
    world.run_down();
    world.asked()
}

/// Lets so much time pass, and everything that is due by then.
fn pass(world: &mut World, time: Duration) {
    world.clock.advance(time);
    world.run_down();
}

/// Reads the events of the lent run up to the last; returns their numbers.
fn read(world: &World) -> oneshot::Receiver<Vec<u32>> {
    let (engine, caller) = (world.engine().clone(), world.tokens[SAFE].clone());
    let run = world.runs[&LENT];
    world.add(async move {
        let mut events = engine.events(&caller, run, 0).await.unwrap();
        let mut numbers = Vec::new();
        while let Some(event) = events.next().await.unwrap() {
            numbers.extend(event.seq);
        }
        numbers
    })
}

#[test]
fn a_lent_run_ends_there_and_whoever_waits_for_it_or_reads_it_sees_the_end() {
    let _time = stand_still();
    let mut world = lent(port(1), 1);
    world.ask(Ask::Wait { run: LENT });
    let (wait, mut reader) = (world.asked(), read(&world));
    world.run_down();
    assert_eq!(world.host().lent(), [LENT], "it is recalled once nobody works on it");
    end_there(&mut world);
    world.run_down();
    assert_eq!(status(&world), RunStatus::Completed);
    assert!(world.host().lent().is_empty() && !world.host().drives(LENT));
    let entries = world.store.entries(LENT, 0).unwrap();
    let numbers: Vec<u32> = entries.iter().map(|entry| entry.seq).collect();
    assert_eq!(reader.try_recv().unwrap(), numbers, "each once, and in order");
    assert!(is_told(&world, wait));
    ends_well(world);
}

#[test]
fn a_cancel_reaches_a_lent_run_and_nothing_is_accepted_after_it() {
    let _time = stand_still();
    for things in 0..60 {
        let mut world = lent(port(1), 1);
        let body = world.next_body();
        world.ask(Ask::Cancel { run: LENT, body, token: SAFE });
        world.run_for(things);
        let desk = world.helpers.port(0);
        if desk.len() > 0 {
            world.end_job(&desk, 0, Says::Done);
        }
        world.run_down();
        assert!(status(&world).is_ended(), "{things}");
        ends_well(world);
    }
}

/// Each round is a history of its own, and the next begins with the commit of the last.
#[test]
fn a_cancel_reaches_a_lent_run_that_never_waits() {
    let _time = stand_still();
    let mut world = helped(Flow { node: Node::Count, rounds: 100, defers: false }, 1);
    start(&mut world);
    start(&mut world);
    for _ in 0..1_000 {
        if world.host().lent().is_empty() {
            world.run_for(1);
        }
    }
    assert_eq!(world.host().lent(), [LENT]);
    world.run_for(200);
    let body = world.next_body();
    world.ask(Ask::Cancel { run: LENT, body, token: SAFE });
    world.run_down();
    assert_eq!(status(&world), RunStatus::Canceled);
    ends_well(world);
}

#[test]
fn a_link_that_breaks_between_a_batch_and_its_commit_has_the_run_go_on_here_after_it() {
    let _time = stand_still();
    let mut world = lent(Node::Seq(vec![port(1), port(2)]), 1);
    end_there(&mut world);
    world.run_to_commit();
    assert_eq!(world.store.waiting(), 1, "the end of the step");
    world.helpers.cut(0);
    world.run_to_commit();
    assert_eq!(world.host().lent(), [LENT], "nobody drives it before its batch is settled");
    world.run_down();
    assert!(world.host().lent().is_empty());
    assert_eq!(ended_steps(&world), 1);
    assert!(world.port.runs().contains(&LENT), "its second step is worked on here");
    ends_well(world);
}

#[test]
fn a_link_may_break_at_any_moment() {
    let _time = stand_still();
    let task = Node::Task("echo", 2);
    let rest = [Node::Share(1), Node::Count, task, Node::Share(3), Node::File, Node::Sleep(1)];
    for things in (0..180).step_by(4) {
        let nodes = [Node::Sleep(2)].into_iter().chain(rest.clone());
        let mut world = lent(Node::Seq(nodes.collect()), 1);
        world.clock.advance(Duration::from_secs(2));
        world.run_for(things);
        world.helpers.cut(0);
        world.run_down();
        assert!(world.host().lent().is_empty(), "{things}");
        ends_well(world);
    }
}

#[test]
fn a_late_batch_of_a_run_that_is_home_is_refused() {
    let _time = stand_still();
    let mut world = begun(port(1), 1);
    world.run_unsaid();
    let late = world.helpers.next_said(0).expect("the helper goes on with the run");
    assert!(matches!(late, FromHelper::Parcel { .. }), "{late:?}");
    world.helpers.cut(0);
    world.run_to_commit();
    assert!(world.host().drives(LENT) && world.store.waiting() > 0, "it begins here as well");
    // The node comes back, and sends once more what it does not know to be lost.
    world.join();
    world.run_unordered();
    world.helpers.carry(1, late);
    world.run_unordered();
    let moved = |order: &ToHelper| {
        matches!(order, ToHelper::Settled { result: Err(StoreError::Moved { run: LENT }), .. })
    };
    assert!(world.helpers.orders(1).any(moved));
    world.run_down();
    ends_well(world);
}

#[test]
fn nobody_hears_a_helper_whose_link_is_broken() {
    let _time = stand_still();
    let mut world = lent(port(1), 1);
    world.helpers.cut(0);
    world.run_down();
    assert!(world.port.runs().contains(&LENT), "it is worked on here");
    end_there(&mut world);
    world.run_down();
    assert_eq!(ended_steps(&world), 0);
    ends_well(world);
}

#[test]
fn a_run_whose_start_is_not_stored_is_not_lent() {
    let _time = stand_still();
    let mut world = begun(port(1), 1);
    world.store.fail_with(Some(StoreError::Full));
    world.store.commit(usize::MAX);
    world.run_to_commit();
    world.store.fail_with(None);
    world.run_down();
    assert!(world.host().lent().is_empty() && world.helpers.lent().runs == 0);
    assert!(world.store.header(LENT).unwrap().is_none());
    ends_well(world);
}

#[test]
fn a_run_that_was_to_be_lent_goes_on_after_a_crash() {
    let _time = stand_still();
    for is_handed_over in [false, true] {
        let mut world = begun(port(1), 1);
        world.store.commit(usize::MAX);
        if is_handed_over {
            world.run_unordered();
            assert_eq!(world.host().lent(), [LENT], "the helper was not told yet");
        }
        world.crash();
        world.run_down();
        assert!(world.port.runs().contains(&LENT), "it is worked on here");
        ends_well(world);
    }
}

#[test]
fn a_run_that_came_home_for_a_task_says_that_it_waits_for_it() {
    let _time = stand_still();
    for agent in ["human", "q"] {
        let mut world = begun(Node::Task(agent, 1), 1);
        world.run_down();
        assert_eq!(world.helpers.lent().runs, 1);
        waits_at_home_for(&world, "task");
        ends_well(world);
    }
}

#[test]
fn a_run_that_was_recalled_says_what_it_waits_for() {
    let _time = stand_still();
    let mut world = lent(Node::Seq(vec![port(1), Node::Wait(None)]), 1);
    let _reader = read(&world);
    world.run_down();
    end_there(&mut world);
    world.run_down();
    waits_at_home_for(&world, "signal");
    ends_well(world);
}

#[test]
fn a_signal_brings_a_run_home() {
    let _time = stand_still();
    let mut world = lent(Node::All(vec![Node::Wait(None), port(1)]), 1);
    let signal = signal(&mut world);
    pass(&mut world, PATIENCE - MOMENT);
    assert!(!is_told(&world, signal), "its attempt has some time to end");
    assert_eq!(world.host().lent(), [LENT]);
    pass(&mut world, MOMENT);
    assert!(is_told(&world, signal) && world.host().lent().is_empty());
    assert!(world.port.runs().contains(&LENT), "its attempt is made again here");
    ends_well(world);
}

#[test]
fn an_attempt_that_ends_soon_after_a_signal_is_not_made_again() {
    let _time = stand_still();
    let mut world = lent(Node::All(vec![Node::Wait(None), port(1)]), 1);
    let signal = signal(&mut world);
    pass(&mut world, PATIENCE / 2);
    end_there(&mut world);
    world.run_down();
    assert!(is_told(&world, signal) && world.host().lent().is_empty());
    // Nobody here ended an attempt of it.
    assert_eq!(status(&world), RunStatus::Completed);
    ends_well(world);
}

#[test]
fn a_run_that_nobody_works_on_comes_home_for_a_signal_at_once() {
    let _time = stand_still();
    let mut world = lent(Node::All(vec![Node::Wait(None), Node::Sleep(4)]), 1);
    let signal = signal(&mut world);
    assert!(is_told(&world, signal) && world.host().lent().is_empty());
    ends_well(world);
}

#[test]
fn a_pause_interrupts_the_attempts_of_a_lent_run_at_once() {
    let _time = stand_still();
    let mut world = lent(port(1), 1);
    let body = world.next_body();
    world.ask(Ask::Pause { run: LENT, body, token: SAFE });
    let pause = world.asked();
    world.run_down();
    assert!(is_told(&world, pause) && world.host().lent().is_empty());
    assert_eq!(status(&world), RunStatus::Paused);
    ends_well(world);
}

#[test]
fn a_query_brings_a_run_home() {
    let _time = stand_still();
    let mut world = lent(port(1), 1);
    let (engine, caller) = (world.engine().clone(), world.tokens[SAFE].clone());
    let run = world.runs[&LENT];
    let mut answer = world
        .add(async move { engine.query(&caller, run, "anything".to_owned(), Json::null()).await });
    world.run_down();
    pass(&mut world, PATIENCE - MOMENT);
    assert!(answer.try_recv().is_err(), "its attempt has some time to end");
    pass(&mut world, MOMENT);
    assert!(answer.try_recv().unwrap().is_err(), "its flow answers none");
    assert!(world.host().lent().is_empty());
    ends_well(world);
}

#[test]
fn a_change_of_shared_state_that_is_under_way_when_the_link_breaks_is_made_once() {
    let _time = stand_still();
    let mut world = begun(Node::Seq(vec![Node::Share(1), port(2)]), 1);
    for _ in 0..2 {
        world.store.commit(usize::MAX);
        world.run_to_commit();
    }
    assert_eq!((world.store.waiting(), ended_steps(&world)), (1, 0), "the change");
    world.helpers.cut(0);
    world.run_to_commit();
    assert_eq!(world.host().lent(), [LENT], "nobody makes it again before its fate is known");
    world.run_down();
    assert_eq!(ended_steps(&world), 1);
    ends_well(world);
}

/// The change is asked for beside a task that only the host can give out.
#[test]
fn a_change_that_comes_after_its_run_went_home_is_not_made() {
    let _time = stand_still();
    for seed in 0..40 {
        let node = Node::All(vec![Node::Share(1), Node::Task("q", 2), Node::Share(3)]);
        let mut world = begun(node, seed);
        world.run_down();
        assert!(world.host().lent().is_empty(), "it needs the host");
        ends_well(world);
    }
}
