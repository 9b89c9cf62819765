//! One seed from its beginning to its judgement.

use std::sync::OnceLock;

use tokio::runtime::{Builder, EnterGuard, Runtime};

use super::{
    checker::{Case, check},
    history::Event,
    world::World,
};

/// The outcome of a seed.
pub struct Played {
    pub seed: u64,
    pub events: Vec<Event>,
    pub commits: u64,
    pub findings: Vec<String>,
    pub source: String,
    world: World,
}

/// Plays a seed.
pub fn play(seed: u64) -> Played {
    let _time = stand_still();
    let mut world = World::new(seed);
    let steps = 150 + world.random.below(350);
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
    let case =
        Case { flow: &world.flow, events: &world.events, commits: &commits, tokens: &tokens };
    let mut findings = check(&case);
    findings.append(&mut world.findings);
    Played {
        seed,
        events: std::mem::take(&mut world.events),
        commits: commits.len() as u64,
        findings,
        source: world.flow.source(),
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
                "seed {} breaks what is promised:\n  {}\nsee it again with\n  MOONSWARM_SEED={} \
                 cargo nextest run --features faults --lib --no-capture simulation::seeds::one",
                self.seed,
                self.findings.join("\n  "),
                self.seed
            )
        })
    }
}
