//! The commits of the store.

use super::{Counter, Histogram, Scrape, Series};

/// The counters of the store's writer.
#[derive(Debug)]
pub struct Commits {
    /// The duration of a transaction, from its begin to its end.
    pub whole: Histogram,
    /// The duration of its last part: writing the log and syncing it to disk.
    pub sync: Histogram,
    /// The number of batches in a transaction.
    pub batches: Histogram,
    /// The number of rows in a transaction.
    pub rows: Histogram,
    /// Batches that a check refused.
    pub refused: Counter,
    /// Transactions that failed.
    pub failed: Counter,
    /// Commits without an answer, by what a look at the database found: committed, or not.
    pub unknown: Series<1, Counter>,
    /// Times that the database lacked commits that were acknowledged.
    pub lost: Counter,
}

impl Default for Commits {
    fn default() -> Self {
        Self {
            whole: Histogram::short(),
            sync: Histogram::short(),
            batches: Histogram::many(),
            rows: Histogram::many(),
            refused: Counter::default(),
            failed: Counter::default(),
            unknown: Series::new(2),
            lost: Counter::default(),
        }
    }
}

impl Commits {
    /// Adds its numbers to a reading.
    pub fn collect(&self, scrape: &mut Scrape) {
        scrape.histogram("moonswarm_commit_seconds", &[], &self.whole);
        scrape.histogram("moonswarm_commit_sync_seconds", &[], &self.sync);
        scrape.histogram("moonswarm_group_batches", &[], &self.batches);
        scrape.histogram("moonswarm_group_rows", &[], &self.rows);
        scrape.count("moonswarm_batches_refused_total", &[], self.refused.get());
        scrape.count("moonswarm_commits_failed_total", &[], self.failed.get());
        for ([found], count) in self.unknown.all() {
            scrape.count("moonswarm_unknown_outcomes_total", &[&found], count.get());
        }
        scrape.count("moonswarm_lost_acknowledged_total", &[], self.lost.get());
    }
}
