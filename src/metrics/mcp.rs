//! The requests of MCP clients.

use super::{Counter, Histogram, Scrape, Series};

/// The maximum number of combinations of a method, a name and an outcome.
const REQUESTS: usize = 1_000;
/// The maximum number of pairs of a method and a name.
const NAMES: usize = 300;

/// The counters of the MCP server.
#[derive(Debug)]
pub struct McpCounts {
    requests: Series<3, Counter>,
    durations: Series<2, Durations>,
}

#[derive(Debug)]
struct Durations(Histogram);

impl Default for Durations {
    fn default() -> Self {
        Self(Histogram::calls())
    }
}

impl Default for McpCounts {
    fn default() -> Self {
        Self { requests: Series::new(REQUESTS), durations: Series::new(NAMES) }
    }
}

impl McpCounts {
    /// Counts a request that ended: its method, the tool or prompt that it named, its outcome, and
    /// its time in microseconds.
    pub fn answer(&self, method: &str, name: &str, outcome: &str, took_us: u64) {
        self.requests.of([method, name, outcome]).inc();
        self.durations.of([method, name]).0.add(took_us);
    }

    /// Returns true if a request was counted with others.
    pub fn is_full(&self) -> bool {
        self.requests.is_full() || self.durations.is_full()
    }

    /// Adds its numbers to a reading.
    pub fn collect(&self, scrape: &mut Scrape) {
        for ([method, name, outcome], count) in self.requests.all() {
            scrape.count("moonswarm_mcp_requests_total", &[&method, &name, &outcome], count.get());
        }
        for ([method, name], durations) in self.durations.all() {
            scrape.histogram("moonswarm_mcp_request_seconds", &[&method, &name], &durations.0);
        }
    }
}
