//! Numbers that threads add to without a lock.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// A sum that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Creates a counter at 0.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds one.
    pub fn inc(&self) {
        self.add(1);
    }

    /// Adds a number.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// Returns the sum.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that goes up and down.
#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Gauge {
    /// Replaces the number.
    pub fn set(&self, value: i64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Adds a number, which may be negative.
    pub fn add(&self, more: i64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// Returns the number; 0 if it is negative for a moment, because threads add in any order.
    pub fn whole(&self) -> u64 {
        u64::try_from(self.0.load(Ordering::Relaxed)).unwrap_or(0)
    }
}

/// The upper bounds of the buckets for work within the process, in microseconds.
const SHORT: &[u64] = &[
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000,
];
/// The upper bounds of the buckets for work outside of the process, in microseconds.
const LONG: &[u64] = &[
    5_000,
    25_000,
    100_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    30_000_000,
    60_000_000,
    300_000_000,
    900_000_000,
    3_600_000_000,
    21_600_000_000,
    86_400_000_000,
];
/// The upper bounds of the buckets for calls that may wait, in microseconds: those of the conventions
/// of OpenTelemetry for MCP, and shorter ones.
const CALLS: &[u64] = &[
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    30_000_000,
    60_000_000,
    120_000_000,
    300_000_000,
];
/// The upper bounds of the buckets for numbers of things.
const MANY: &[u64] = &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024];

/// Counts of values by size.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [u64],
    /// The number of units of a value in one unit of the family.
    scale: f64,
    /// One more than there are bounds.
    buckets: Box<[AtomicU64]>,
    sum: AtomicU64,
}

/// The content of a histogram at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Buckets {
    /// The upper bounds, in the unit of the family; the last bucket has none.
    pub bounds: Vec<f64>,
    /// The number of values in each bucket, one more than there are bounds.
    pub counts: Vec<u64>,
    /// The sum of all values.
    pub sum: f64,
}

impl Histogram {
    fn of(bounds: &'static [u64], scale: f64) -> Self {
        let buckets = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, scale, buckets, sum: AtomicU64::new(0) }
    }

    /// Creates a histogram of durations from a tenth of a millisecond to seconds.
    pub fn short() -> Self {
        Self::of(SHORT, 1e6)
    }

    /// Creates a histogram of durations from milliseconds to a day.
    pub fn long() -> Self {
        Self::of(LONG, 1e6)
    }

    /// Creates a histogram of durations from a millisecond to minutes.
    pub fn calls() -> Self {
        Self::of(CALLS, 1e6)
    }

    /// Creates a histogram of numbers of things.
    pub fn many() -> Self {
        Self::of(MANY, 1.0)
    }

    /// Adds a duration in microseconds, or a number of things.
    pub fn add(&self, value: u64) {
        let at = self.bounds.partition_point(|bound| *bound < value);
        self.buckets[at].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    /// Adds a duration in milliseconds.
    pub fn add_ms(&self, ms: u64) {
        self.add(ms.saturating_mul(1_000));
    }

    /// Returns the content. Values that are added meanwhile may be in it in part.
    #[expect(clippy::cast_precision_loss, reason = "a sum of durations needs no exact microsecond")]
    pub fn read(&self) -> Buckets {
        Buckets {
            bounds: self.bounds.iter().map(|bound| *bound as f64 / self.scale).collect(),
            counts: self.buckets.iter().map(|it| it.load(Ordering::Relaxed)).collect(),
            sum: self.sum.load(Ordering::Relaxed) as f64 / self.scale,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_in_the_first_bucket_whose_bound_it_does_not_exceed() {
        let histogram = Histogram::many();
        [0, 1, 2, 3, 1_024, 5_000].into_iter().for_each(|it| histogram.add(it));
        let read = histogram.read();
        assert_eq!(read.counts, [2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!((read.sum, read.bounds[2]), (6_030.0, 4.0));
        let short = Histogram::short();
        short.add_ms(1);
        assert_eq!(short.read().counts[3], 1);
        assert!((short.read().sum - 0.001).abs() < 1e-9);
    }
}
