//! Parts of a world's time, for what is played by hand.

use super::{Pick, World, helper::HelperPick};
use crate::engine::shard::owner::Shard;

impl World {
    /// Lets the host go on in a random order until it rests.
    pub fn run_down(&mut self) {
        while let Some(pick) = self.random.weigh(&self.inner()) {
            self.go(pick);
        }
    }

    /// Lets the host go on until it rests, or waits for a commit.
    pub fn run_to_commit(&mut self) {
        self.run_only(|pick| !matches!(pick, Pick::Commit));
    }

    /// Lets the host do so many things at most, in a random order.
    pub fn run_for(&mut self, things: usize) {
        for _ in 0..things {
            let Some(pick) = self.random.weigh(&self.inner()) else { return };
            self.go(pick);
        }
    }

    /// Lets the host do what is allowed until nothing of that is left.
    fn run_only(&mut self, allows: impl Fn(Pick) -> bool) {
        loop {
            let mut picks = self.inner();
            picks.retain(|(_, pick)| allows(*pick));
            let Some(pick) = self.random.weigh(&picks) else { return };
            self.go(pick);
        }
    }

    /// Lets the host go on until the commands of a run wait for a read, and what came before them for a
    /// commit. The read itself is left to whoever calls.
    pub fn run_to_read(&mut self) {
        let waits = |world: &Self| {
            let mut runs = world.host().shards.iter().flat_map(|(shard, _)| shard.runs.values());
            runs.any(|run| run.lookups.rest.is_some())
        };
        while let Some(pick) = self.random.weigh(&self.inner()) {
            if waits(self) {
                break;
            }
            self.go(pick);
        }
        self.run_only(|pick| matches!(pick, Pick::Deliver(_) | Pick::Turn(_)));
    }

    /// Lets everything go on but what the helpers say, which waits at their ends of the links.
    pub fn run_unsaid(&mut self) {
        self.run_only(|pick| !matches!(pick, Pick::Helper(_, HelperPick::Say)));
    }

    /// Lets everything go on but commits, and what the host says to the helpers: that waits.
    pub fn run_unordered(&mut self) {
        self.run_only(|pick| !matches!(pick, Pick::Commit | Pick::Helper(_, HelperPick::Order)));
    }

    /// Returns the shard that has a run in memory.
    pub(crate) fn shard_of(&mut self, run: u64) -> &mut Shard {
        let mut shards = self.host_mut().shards.iter_mut().map(|(shard, _)| shard);
        shards.find(|shard| shard.runs.contains_key(&run)).expect("a shard drives it")
    }
}
