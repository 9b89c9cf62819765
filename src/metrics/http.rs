//! The requests at the door.

use std::sync::Arc;

use super::{Counter, Gauge, Histogram, Scrape, Series};

/// The maximum number of combinations of a method, a route and a status.
const REQUESTS: usize = 2_000;
/// The maximum number of routes.
const ROUTES: usize = 500;
/// The maximum number of codes of refusals.
const CODES: usize = 300;

/// The counters of the door.
#[derive(Debug)]
pub struct HttpCounts {
    requests: Series<3, Counter>,
    durations: Series<1, Durations>,
    refusals: Series<1, Counter>,
    in_flight: Gauge,
    streams: Gauge,
    /// Open connections.
    pub connections: Arc<Gauge>,
}

#[derive(Debug)]
struct Durations(Histogram);

impl Default for Durations {
    fn default() -> Self {
        Self(Histogram::short())
    }
}

/// A request that was answered.
#[derive(Debug, Clone, Copy)]
pub struct Requested<'a> {
    /// The method.
    pub method: &'a str,
    /// The pattern of the route; never a path.
    pub route: &'a str,
    /// The status of the answer.
    pub status: u16,
    /// The time until the head of the answer, in microseconds.
    pub took_us: u64,
}

impl Default for HttpCounts {
    fn default() -> Self {
        Self {
            requests: Series::new(REQUESTS),
            durations: Series::new(ROUTES),
            refusals: Series::new(CODES),
            in_flight: Gauge::default(),
            streams: Gauge::default(),
            connections: Arc::default(),
        }
    }
}

impl HttpCounts {
    /// Counts a request that arrived.
    pub fn begin(&self) {
        self.in_flight.add(1);
    }

    /// Counts the end of a request, with an answer or without one: its client may be gone.
    pub fn end(&self) {
        self.in_flight.add(-1);
    }

    /// Counts an answer.
    pub fn answer(&self, it: Requested<'_>) {
        let mut digits = [0; 3];
        self.requests.of([it.method, it.route, status(it.status, &mut digits)]).inc();
        self.durations.of([it.route]).0.add(it.took_us);
    }

    /// Counts a refusal.
    pub fn refuse(&self, code: &str) {
        self.refusals.of([code]).inc();
    }

    /// Counts a stream of events that begins.
    pub fn stream(&self) {
        self.streams.add(1);
    }

    /// Counts the end of a stream of events.
    pub fn stream_ended(&self) {
        self.streams.add(-1);
    }

    /// Returns true if a request was counted with others.
    pub fn is_full(&self) -> bool {
        self.requests.is_full() || self.durations.is_full()
    }

    /// Adds its numbers to a reading.
    pub fn collect(&self, scrape: &mut Scrape) {
        for ([method, route, status], count) in self.requests.all() {
            let labels = [method.as_str(), &route, &status];
            scrape.count("moonswarm_http_requests_total", &labels, count.get());
        }
        for ([route], durations) in self.durations.all() {
            scrape.histogram("moonswarm_http_request_seconds", &[&route], &durations.0);
        }
        for ([code], count) in self.refusals.all() {
            scrape.count("moonswarm_refusals_total", &[&code], count.get());
        }
        scrape.count("moonswarm_http_requests_in_flight", &[], self.in_flight.whole());
        scrape.count("moonswarm_http_connections", &[], self.connections.whole());
        scrape.count("moonswarm_event_streams", &[], self.streams.whole());
    }
}

/// Returns a status as text, without memory of its own.
fn status(status: u16, digits: &mut [u8; 3]) -> &str {
    for (at, place) in [100, 10, 1].into_iter().enumerate() {
        digits[at] = b'0' + u8::try_from(status / place % 10).unwrap_or(0);
    }
    std::str::from_utf8(digits).unwrap_or("0")
}
