//! The share of the time that a live page may take.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

/// Changes that follow a rendering within this time are shown together.
const TOGETHER: Duration = Duration::from_millis(40);
/// The pages that move take together at most this part of the time: a run with a long history costs
/// more, and so do many viewers.
const PART: u32 = 20;
/// The time that a page may have saved while nothing moved on it. Its next changes are shown at once.
const SAVED: Duration = Duration::from_millis(30);
/// The longest pause between two renderings of a page that moves.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// The time that a page has saved or owes.
#[derive(Debug)]
pub(super) struct Budget {
    saved: Duration,
    owed: Duration,
    at: Instant,
    moving: Arc<AtomicU32>,
}

/// A page that moves: it was rendered a moment ago. It counts until it is dropped.
pub(super) struct Moving {
    moving: Arc<AtomicU32>,
    /// The time at which it may be rendered again.
    pub until: Instant,
}

impl Drop for Moving {
    fn drop(&mut self) {
        self.moving.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Budget {
    /// Returns the budget of a page; `moving` is the number of all pages that move.
    pub(super) fn new(moving: &Arc<AtomicU32>) -> Self {
        let moving = Arc::clone(moving);
        Self { saved: SAVED, owed: Duration::ZERO, at: Instant::now(), moving }
    }

    /// Spends the time of a rendering that has just ended.
    pub(super) fn spend(&mut self, cost: Duration) -> Moving {
        let all = self.moving.fetch_add(1, Ordering::Relaxed) + 1;
        let now = Instant::now();
        let pause = self.pause(cost, now - self.at, all);
        self.at = now;
        Moving { moving: Arc::clone(&self.moving), until: now + pause }
    }

    /// Returns the pause after a rendering, if it is the only one in `since`, and of `all` pages that
    /// move.
    fn pause(&mut self, cost: Duration, since: Duration, all: u32) -> Duration {
        let each = PART.saturating_mul(all);
        let earned = since / each;
        self.saved = (self.saved + earned.saturating_sub(self.owed)).min(SAVED);
        self.owed = self.owed.saturating_sub(earned) + cost.saturating_sub(self.saved);
        // A page that has waited as long as it must owes nothing more.
        self.owed = self.owed.min(LONGEST_PAUSE / each);
        self.saved = self.saved.saturating_sub(cost);
        self.owed.saturating_mul(each).max(TOGETHER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn budget() -> Budget {
        Budget::new(&Arc::default())
    }

    #[tokio::test]
    async fn a_page_at_rest_shows_its_next_changes_at_once() {
        let mut page = budget();
        // Ten changes a second take all that is earned in it; one that costs more is not late.
        for cost in [5, 5, 9, 5, 20, 1, 5] {
            assert_eq!(page.pause(cost * MS, 100 * MS, 1), TOGETHER, "{cost}");
        }
        assert!(page.pause(40 * MS, 100 * MS, 1) > TOGETHER, "the savings are spent");
        assert_eq!(page.pause(10 * MS, 2_000 * MS, 1), TOGETHER);
    }

    #[tokio::test]
    async fn a_page_that_always_moves_takes_a_twentieth_and_many_share_it() {
        for (all, cost) in [(1, 5 * MS), (3, 4 * MS), (10, 10 * MS)] {
            let (mut page, mut pause, mut time) = (budget(), Duration::ZERO, Duration::ZERO);
            for _ in 0..200 {
                pause = page.pause(cost, pause + cost, all);
                time += pause + cost;
            }
            let (used, share) = (200 * cost - SAVED, time / (PART * all));
            assert!(used <= share && used * 11 / 10 >= share, "{all}: {used:?} of {time:?}");
        }
    }

    #[tokio::test]
    async fn no_page_is_behind_for_long() {
        let mut page = budget();
        assert_eq!(page.pause(900 * MS, MS, 1), LONGEST_PAUSE);
        assert_eq!(page.pause(50 * MS, LONGEST_PAUSE, 100), LONGEST_PAUSE);
        assert_eq!(page.pause(2 * MS, 60 * 1_000 * MS, 1), TOGETHER, "it owes nothing more");
    }

    #[tokio::test]
    async fn a_page_moves_until_its_pause_is_over() {
        let moving = Arc::default();
        let (mut one, mut other) = (Budget::new(&moving), Budget::new(&moving));
        let (first, second) = (one.spend(MS), other.spend(MS));
        assert_eq!(moving.load(Ordering::Relaxed), 2);
        drop((first, second));
        assert_eq!(moving.load(Ordering::Relaxed), 0);
    }
}
