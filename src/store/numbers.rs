//! The numbers of new runs and of new rows of the journal.

use std::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
};

/// Hands out numbers. No number is handed out twice.
#[derive(Debug, Default)]
pub struct Numbers {
    run: AtomicU64,
    lsn: AtomicU64,
}

impl Numbers {
    /// Creates the numbers that follow the largest number of a run and of a row.
    pub(super) fn after(run: u64, lsn: u64) -> Self {
        Self { run: AtomicU64::new(run), lsn: AtomicU64::new(lsn) }
    }

    pub(super) fn next_lsns(&self, count: usize) -> Range<u64> {
        let count = count as u64;
        let first = self.lsn.fetch_add(count, Ordering::Relaxed) + 1;
        first..first + count
    }

    pub(super) fn last_lsn(&self) -> u64 {
        self.lsn.load(Ordering::Relaxed)
    }

    pub(super) fn next_run(&self) -> u64 {
        self.run.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(super) fn last_run(&self) -> u64 {
        self.run.load(Ordering::Relaxed)
    }

    pub(super) fn reserve_run(&self, run: u64) -> bool {
        self.run.fetch_max(run, Ordering::Relaxed) < run
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_taken_together_follow_each_other() {
        let numbers = Numbers::after(0, 6);
        assert_eq!(numbers.next_lsns(3), 7..10);
        assert_eq!((numbers.next_lsns(0).count(), numbers.last_lsn()), (0, 9));
        assert_eq!(numbers.next_lsns(1), 10..11);
    }
}
