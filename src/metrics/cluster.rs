//! The counters of a node of a cluster.

use super::{Counter, Scrape, Series};

/// The maximum number of outcomes and reasons; all are words of this program.
const WORDS: usize = 16;

/// The counters of a node. They go on while it drives and while it stands by.
#[derive(Debug)]
pub struct ClusterCounts {
    forwarded: Series<1, Counter>,
    takeovers: Series<1, Counter>,
    fenced: Counter,
}

impl Default for ClusterCounts {
    fn default() -> Self {
        let words = || Series::new(WORDS);
        Self { forwarded: words(), takeovers: words(), fenced: Counter::default() }
    }
}

impl ClusterCounts {
    /// Counts a request that was to be forwarded, by its outcome.
    pub fn forwarded(&self, outcome: &str) {
        self.forwarded.of([outcome]).inc();
    }

    /// Counts that this node took the runs over, by the reason.
    pub fn takeover(&self, why: &str) {
        self.takeovers.of([why]).inc();
    }

    /// Counts that this node was ended, or gave its runs up.
    pub fn fenced(&self) {
        self.fenced.inc();
    }

    /// Adds its numbers, and the time for which the node trusts its lease, to a reading.
    pub fn collect(&self, trusted_ms: u64, scrape: &mut Scrape) {
        for ([outcome], count) in self.forwarded.all() {
            scrape.count("moonswarm_forwarded_total", &[&outcome], count.get());
        }
        for ([why], count) in self.takeovers.all() {
            scrape.count("moonswarm_takeovers_total", &[&why], count.get());
        }
        scrape.count("moonswarm_fenced_total", &[], self.fenced.get());
        #[expect(clippy::cast_precision_loss, reason = "a lease has few milliseconds")]
        let seconds = trusted_ms as f64 / 1_000.0;
        scrape.number("moonswarm_lease_remaining_seconds", &[], seconds);
    }
}
