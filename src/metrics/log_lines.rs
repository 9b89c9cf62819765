//! The lines of the log, which belong to the process and not to one host.

use super::{Counter, Scrape};

static WARNINGS: Counter = Counter::new();
static ERRORS: Counter = Counter::new();

/// Counts a warning, or an error.
pub fn count(is_error: bool) {
    if is_error { &ERRORS } else { &WARNINGS }.inc();
}

/// Adds the numbers to a reading.
pub fn collect(scrape: &mut Scrape) {
    scrape.count("moonswarm_log_lines_total", &["warn"], WARNINGS.get());
    scrape.count("moonswarm_log_lines_total", &["error"], ERRORS.get());
}
