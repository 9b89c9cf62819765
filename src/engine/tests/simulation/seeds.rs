//! Seeds, many of them: `MOONSWARM_SEEDS` of them from `MOONSWARM_SEED_FROM` on.

use super::play::play;

/// Seeds of the ordinary run, over all of its parts.
const SEEDS: u64 = 2_000;
/// Broken seeds that are shown before a part gives up.
const SHOWN: usize = 10;
/// Parts that run beside each other.
const PARTS: u64 = 8;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Every promise holds in one part of the seeds.
fn part(part: u64) {
    if number("MOONSWARM_SEED").is_some() {
        return;
    }
    let seeds = number("MOONSWARM_SEEDS").unwrap_or(SEEDS);
    let from = number("MOONSWARM_SEED_FROM").unwrap_or(0);
    let mut verdicts = Vec::new();
    let mut events = 0;
    for seed in (from + part..from + seeds).step_by(usize::try_from(PARTS).expect("few")) {
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
    ($($name:ident $part:literal)*) => {
        $(
            #[test]
            fn $name() {
                part($part);
            }
        )*
    };
}

parts! {
    every_promise_holds_in_part_0_of_the_seeds 0
    every_promise_holds_in_part_1_of_the_seeds 1
    every_promise_holds_in_part_2_of_the_seeds 2
    every_promise_holds_in_part_3_of_the_seeds 3
    every_promise_holds_in_part_4_of_the_seeds 4
    every_promise_holds_in_part_5_of_the_seeds 5
    every_promise_holds_in_part_6_of_the_seeds 6
    every_promise_holds_in_part_7_of_the_seeds 7
}

#[test]
fn one_seed_of_choice_is_played_and_told() {
    let Some(seed) = number("MOONSWARM_SEED") else { return };
    let played = play(seed);
    println!("{}", played.story());
    assert!(played.verdict().is_none(), "{}", played.verdict().unwrap());
}

#[test]
fn the_same_seed_is_the_same_history() {
    for seed in [1, 7, 42] {
        let (first, second) = (play(seed), play(seed));
        assert_eq!(first.events, second.events, "seed {seed}");
        assert_eq!((first.commits, first.source), (second.commits, second.source));
        assert!(first.events.len() > 50, "something happens");
    }
}
