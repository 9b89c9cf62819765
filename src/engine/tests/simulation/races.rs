//! Two results race for one attempt, ten thousand times.

use super::{
    blueprint::{Flow, Node},
    history::{Ask, Of, Says, Told, What},
    play::{judge, stand_still},
    random::Random,
    world::World,
};
use crate::store::Reader as _;

/// Races in one world.
const RACES: u32 = 50;
/// Worlds in one test.
const WORLDS: u64 = 50;

/// The answers to the last two requests.
fn told(world: &World, number: u32) -> &What {
    let mut events = world.events.iter().rev().map(|event| &event.what);
    let is_its = |what: &&What| match what {
        What::Told(of, _) | What::Refused(of, _) | What::Lost(of) => *of == number,
        _ => false,
    };
    events.find(is_its).expect("everything was answered")
}

fn race(part: u64) {
    let _time = stand_still();
    for world in 0..WORLDS {
        let leaves = (1..=RACES).map(|leaf| Node::Task("q", leaf)).collect();
        let flow = Flow { node: Node::Seq(leaves), rounds: 0, defers: false };
        let seed = part * WORLDS + world;
        let mut world = World::with(flow, Random::new(seed));
        world.ask(Ask::Start { body: 0, key: None, token: 0, peer: None });
        world.run_down();
        for _ in 0..RACES {
            let worker = world.next_body();
            world.ask(Ask::Lease { queue: "q", worker, max: 1, wait_ms: 0 });
            world.run_down();
            let of = *world.held.last().expect("a task was leased");
            let (first, second) = (world.next_body(), world.next_body());
            for (body, token) in [(first, None), (second, Some(0))] {
                world.ask(Ask::Report { of: Of { token, ..of }, body, says: Says::Done });
            }
            world.run_down();
            let asked = world.asked();
            let told = [told(&world, asked - 1), told(&world, asked)];
            let won = |what: &&What| matches!(what, What::Told(_, Told::Accepted(true)));
            assert_eq!(told.iter().filter(|it| won(it)).count(), 1, "seed {seed}: {told:?}");
            let loser = if won(&told[0]) { second } else { first };
            let evidence = world.store.evidence(of.run, None, usize::MAX).unwrap();
            let kept = evidence.iter().filter(|row| row.body == format!("body {loser}."));
            assert_eq!(kept.count(), 1, "seed {seed}: the loser is kept: {evidence:?}");
        }
        assert!(world.unfinished().is_empty(), "seed {seed}");
        let played = judge(seed, world);
        assert!(played.verdict().is_none(), "{}", played.verdict().unwrap());
    }
}

#[test]
fn two_results_race_and_one_wins_part_0() {
    race(0);
}

#[test]
fn two_results_race_and_one_wins_part_1() {
    race(1);
}

#[test]
fn two_results_race_and_one_wins_part_2() {
    race(2);
}

#[test]
fn two_results_race_and_one_wins_part_3() {
    race(3);
}
