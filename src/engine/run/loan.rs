//! The marks of a run that one node drives for another.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use serde::{Deserialize, Serialize};

/// The reason why a run comes home.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HomeReason {
    /// The run has ended, waits for something far away, or cannot go on there.
    Over,
    /// The run needs something that only the node that drives has.
    Needs,
    /// The run was recalled.
    Recalled,
}

/// The node that drives a run which could be lent.
pub(crate) enum Place {
    /// This one.
    Here(#[expect(dead_code, reason = "it counts the run as long as it lives")] Share),
    /// The helper with this link.
    There(u64, Share),
}

/// Counts one run, as long as it lives.
pub(crate) struct Share(Arc<AtomicUsize>);

impl Share {
    /// Counts one more.
    pub(crate) fn of(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Tells the node that drives that a run comes home.
pub(crate) type GoHome = Arc<dyn Fn(u64, HomeReason) + Send + Sync>;

/// A run of another node. It comes home when this is dropped, whatever the reason.
pub(crate) struct Lent {
    run: u64,
    leaves: Option<Leave>,
    home: GoHome,
}

/// The wish that a run comes home.
#[derive(Clone, Copy)]
struct Leave {
    why: HomeReason,
    /// The time from which its attempts are interrupted for that, on the steady clock.
    now_ms: u64,
}

impl Lent {
    /// Returns the mark of a run.
    pub(crate) fn new(run: u64, home: GoHome) -> Self {
        Self { run, leaves: None, home }
    }

    /// Lets the run leave when none of its attempts is in work, at the latest at `now_ms` on the steady
    /// clock.
    pub(crate) fn leave(&mut self, why: HomeReason, now_ms: u64) {
        let before = self.leaves.unwrap_or(Leave { why, now_ms });
        // A run that needs its node says so in its header, whatever else brings it home.
        let why = if why == HomeReason::Needs { why } else { before.why };
        self.leaves = Some(Leave { why, now_ms: now_ms.min(before.now_ms) });
    }

    /// Returns true if the run leaves for something that only its node has.
    pub(crate) fn needs_home(&self) -> bool {
        self.leaves.is_some_and(|leave| leave.why == HomeReason::Needs)
    }

    /// Returns the time from which the run leaves although attempts are in work; none if it stays.
    pub(crate) fn leaves(&self) -> Option<u64> {
        self.leaves.map(|leave| leave.now_ms)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        (self.home)(self.run, self.leaves.map_or(HomeReason::Over, |leave| leave.why));
    }
}
