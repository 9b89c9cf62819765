//! The fold of a long history for its totals: the steps that have ended are dropped on the way.

use super::Chain;

impl Chain {
    /// Drops the steps before the first open one and those that it belongs to. The totals and the
    /// counts stay, so a reader that needs nothing else holds no more than it has just read.
    pub fn drop_ended(&mut self) {
        let outermost = |number: &u32| {
            std::iter::successors(Some(*number), |number| self.step(*number)?.scheduled.parent)
                .last()
        };
        let first =
            self.open.iter().filter_map(outermost).min().unwrap_or_else(|| self.next_step());
        let gone = first.saturating_sub(self.first_step);
        self.steps.drain(..gone as usize);
        self.index.retain(|_, number| *number >= first);
        self.tails.retain(|_, number| *number >= first);
        self.first_step += gone;
        self.dropped += gone;
    }
}
