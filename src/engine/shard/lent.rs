//! Runs that this process drives for another node, until they go home.

use crate::{
    engine::{
        run::{loan::HomeReason, resident::Run},
        shard::owner::Shard,
        shared::message::{Internal, RunMsg},
        turn::{helping, places, waiting},
    },
    fault,
};

/// A run that rests for longer than this goes home, in milliseconds.
const REST_MS: u64 = 5_000;

impl Shard {
    /// Returns true if this process drives runs for another node only.
    pub(crate) fn is_helper(&self) -> bool {
        self.shared.helps.is_some()
    }

    /// Returns true if a run that is not in memory may be read for a message. A helper reads those that
    /// it is lent; all others are not its own any more.
    pub(crate) fn may_read(&self, message: &RunMsg) -> bool {
        !self.is_helper() || matches!(message, RunMsg::Internal(Internal::Take(..)))
    }

    /// Returns true if a run of another node goes home now; sees to it that it does so in time.
    pub(crate) fn goes_home(&mut self, run: &mut Run) -> bool {
        if run.lent.is_none() || !run.submitted.is_empty() || run.has_pending() {
            return false;
        }
        let rests = run.is_idle() && self.rests(run);
        let Some(lent) = &mut run.lent else { return false };
        if rests && lent.leaves().is_none() {
            lent.leave(HomeReason::Over, self.steady_ms);
        }
        let Some(now_ms) = lent.leaves() else { return false };
        if helping::is_leaving(run, self.steady_ms) {
            return true;
        }
        if now_ms < u64::MAX {
            self.wake_later(run.num, now_ms - self.steady_ms);
        }
        false
    }

    /// Returns true if nothing of a run is due soon.
    fn rests(&self, run: &Run) -> bool {
        let next = match run.chain.paused() {
            Some(_) => None,
            None => waiting::first_alarm(run.timers.first(), &self.shared.clock),
        };
        next.is_none_or(|due| due > self.now_ms + REST_MS)
    }

    /// Gives a run of another node back.
    pub(crate) fn give_home(&mut self, mut run: Box<Run>) {
        fault::point("engine.give_home");
        drop(self.held.remove(&run.num));
        places::cancel_workers(&mut run);
        self.shared.state.drop_run(run.id);
        self.silence(&run);
    }
}
