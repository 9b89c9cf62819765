//! Seeds, many of them: `MOONSWARM_SEEDS` of them from `MOONSWARM_SEED_FROM` on, of worlds whose host
//! drives every run itself, and of worlds whose host lends some.

use super::play::{Played, play, play_lending};

/// Seeds of the ordinary run, over all of its parts.
const SEEDS: u64 = 1_200;
/// The same of worlds that lend.
const LENDING_SEEDS: u64 = 160;
/// Broken seeds that are shown before a part gives up.
const SHOWN: usize = 10;
/// Parts that run beside each other.
const PARTS: u64 = 8;
/// The same of worlds that lend.
const LENDING_PARTS: u64 = 4;

/// Plays a seed.
type Play = fn(u64) -> Played;

/// The variables that choose one seed, which is then the only one that is played.
const CHOICES: [(&str, Play); 2] =
    [("MOONSWARM_SEED", play), ("MOONSWARM_LENDING_SEED", play_lending)];

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Every promise holds in one part of the seeds.
fn part(part: u64) {
    play_part(play, SEEDS, part, PARTS);
}

/// Every promise holds in one part of the seeds of worlds that lend.
fn lending_part(part: u64) {
    play_part(play_lending, LENDING_SEEDS, part, LENDING_PARTS);
}

fn play_part(play: fn(u64) -> Played, seeds: u64, part: u64, parts: u64) {
    if CHOICES.iter().any(|(variable, _)| number(variable).is_some()) {
        return;
    }
    let seeds = number("MOONSWARM_SEEDS").unwrap_or(seeds);
    let from = number("MOONSWARM_SEED_FROM").unwrap_or(0);
    let mut verdicts = Vec::new();
    let mut events = 0;
    for seed in (from + part..from + seeds).step_by(usize::try_from(parts).expect("few")) {
        let played = play(seed);
        events += played.events.len();
        verdicts.extend(played.verdict());
        if verdicts.len() >= SHOWN {
            break;
        }
    }
    println!("{events} events");
    assert!(verdicts.is_empty(), "{}", verdicts.join("\n\n"));
}

macro_rules! parts {
    ($of:ident: $($name:ident $part:literal)*) => {
        $(
            #[test]
            fn $name() {
                $of($part);
            }
        )*
    };
}

parts! {
    part:
    every_promise_holds_in_part_0_of_the_seeds 0
    every_promise_holds_in_part_1_of_the_seeds 1
    every_promise_holds_in_part_2_of_the_seeds 2
    every_promise_holds_in_part_3_of_the_seeds 3
    every_promise_holds_in_part_4_of_the_seeds 4
    every_promise_holds_in_part_5_of_the_seeds 5
    every_promise_holds_in_part_6_of_the_seeds 6
    every_promise_holds_in_part_7_of_the_seeds 7
}

parts! {
    lending_part:
    every_promise_holds_in_lending_part_0 0
    every_promise_holds_in_lending_part_1 1
    every_promise_holds_in_lending_part_2 2
    every_promise_holds_in_lending_part_3 3
}

#[test]
fn one_seed_of_choice_is_played_and_told() {
    for (variable, play) in CHOICES {
        let Some(seed) = number(variable) else { continue };
        let played = play(seed);
        println!("{}", played.story());
        assert!(played.verdict().is_none(), "{}", played.verdict().unwrap());
    }
}

#[test]
fn runs_of_the_worlds_that_lend_are_lent_and_go_on_there() {
    let seeds = 20;
    let lent: Vec<_> = (0..seeds).map(|seed| play_lending(seed).lent).collect();
    let runs: u64 = lent.iter().map(|lent| lent.runs).sum();
    let batches: u64 = lent.iter().map(|lent| lent.batches).sum();
    let is_enough = runs >= 2 * seeds && 2 * batches > 3 * runs;
    assert!(is_enough, "{runs} runs, {batches} batches: {lent:?}");
}

#[test]
fn the_same_seed_is_the_same_history() {
    for (seed, play) in [1, 7, 42].into_iter().flat_map(|seed| CHOICES.map(|it| (seed, it.1))) {
        let (first, second) = (play(seed), play(seed));
        assert_eq!(first.events, second.events, "seed {seed}");
        assert_eq!((first.commits, first.source), (second.commits, second.source));
        assert!(first.events.len() > 50, "something happens");
    }
}
