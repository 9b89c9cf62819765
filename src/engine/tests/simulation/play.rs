//! One seed from its beginning to its judgement.

use std::sync::OnceLock;

use tokio::runtime::{Builder, EnterGuard, Runtime};

use super::{
    blueprint::SHARED,
    checker::{Case, check},
    history::Event,
    world::{Lent, World},
};
use crate::store::Reader as _;

/// The outcome of a seed.
pub struct Played {
    pub seed: u64,
    /// The variable that has the seed played again.
    again: &'static str,
    pub events: Vec<Event>,
    pub commits: u64,
    pub findings: Vec<String>,
    pub source: String,
    pub lent: Lent,
    world: World,
}

/// Plays a seed.
pub fn play(seed: u64) -> Played {
    let _time = stand_still();
    live(seed, World::new(seed))
}

/// Plays a seed of the worlds whose hosts lend runs.
pub fn play_lending(seed: u64) -> Played {
    let _time = stand_still();
    Played { again: "MOONSWARM_LENDING_SEED", ..live(seed, World::lending(seed)) }
}

fn live(seed: u64, mut world: World) -> Played {
    let (least, more) = if world.lends { (300, 500) } else { (150, 350) };
    let steps = least + world.random.below(more);
    for _ in 0..steps {
        world.step();
    }
    world.calm();
    judge(seed, world)
}

/// The timeouts of the engine's own waits are on a clock that nobody drives: they never come.
pub fn stand_still() -> EnterGuard<'static> {
    static TIME: OnceLock<Runtime> = OnceLock::new();
    TIME.get_or_init(|| Builder::new_current_thread().enable_time().build().unwrap()).enter()
}

/// The outcome of a world.
pub fn judge(seed: u64, mut world: World) -> Played {
    let commits = world.store.commits(0);
    let tokens: Vec<String> = world.tokens.iter().map(|token| token.jti.clone()).collect();
    let now_ms = world.now_ms();
    let shared = world.store.state("global").unwrap().into_iter();
    let shared = shared.filter(|row| row.key.starts_with(SHARED) && row.is_live(now_ms));
    let shared: Vec<(String, String)> = shared.map(|row| (row.key, row.value)).collect();
    let case = Case {
        flow: &world.flow,
        events: &world.events,
        commits: &commits,
        tokens: &tokens,
        shared: &shared,
        lends: world.lends,
    };
    let mut findings = check(&case);
    findings.append(&mut world.findings);
    findings.extend(world.helpers.findings().cloned());
    Played {
        seed,
        again: "MOONSWARM_SEED",
        events: std::mem::take(&mut world.events),
        commits: commits.len() as u64,
        findings,
        source: world.flow.source(),
        lent: world.helpers.lent(),
        world,
    }
}

impl Played {
    /// The whole history, to be read.
    pub fn story(&self) -> String {
        let mut story = format!("{}\n", self.source);
        for event in &self.events {
            story.push_str(&format!("{event}\n"));
        }
        for line in self.world.helpers.story() {
            story.push_str(&format!("{line}\n"));
        }
        for commit in self.world.store.commits(0) {
            story.push_str(&format!("#{} run {:?}\n", commit.position, commit.run));
            for row in &commit.rows {
                let run = commit.run.unwrap_or_default();
                if let Ok(entry) = crate::journal::Entry::decode(run, &row.bytes) {
                    story
                        .push_str(&format!("    {} {} {:?}\n", entry.seq, entry.at_ms, entry.fact));
                }
            }
            for write in &commit.writes {
                story.push_str(&format!("    + {write:?}\n"));
            }
        }
        story
    }

    /// The finding, and the way to reproduce it.
    pub fn verdict(&self) -> Option<String> {
        (!self.findings.is_empty()).then(|| {
            format!(
                "seed {seed} breaks what is promised:\n  {}\nsee it again with\n  {}={seed} \
                 cargo nextest run --features faults --lib --no-capture simulation::seeds::one",
                self.findings.join("\n  "),
                self.again,
                seed = self.seed
            )
        })
    }
}
