//! Rate limits: a token bucket per credential.

use std::hash::{BuildHasher, Hash, RandomState};

use hashlink::LruCache;
use parking_lot::Mutex;

use crate::clock::Clock;

/// The number of buckets beyond which the least recently used one is dropped.
const MOST_BUCKETS: usize = 10_000;

/// The buckets of recent callers.
#[derive(Debug)]
pub(super) struct Rates {
    clock: Clock,
    per_second: f64,
    burst: f64,
    hasher: RandomState,
    buckets: Mutex<LruCache<u64, Bucket>>,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    drops: f64,
    at_ms: u64,
}

impl Rates {
    /// Creates buckets of size `burst` that gain `per_second`.
    pub(super) fn new(clock: Clock, per_second: u32, burst: u32) -> Self {
        Self {
            clock,
            per_second: f64::from(per_second.max(1)),
            burst: f64::from(burst.max(1)),
            hasher: RandomState::new(),
            buckets: Mutex::new(LruCache::new(MOST_BUCKETS)),
        }
    }

    /// Takes one token from the bucket of `who`.
    ///
    /// # Errors
    /// Returns the seconds until the next token, if the bucket is empty.
    pub(super) fn take(&self, who: impl Hash) -> Result<(), u64> {
        let now = self.clock.steady_ms();
        let key = self.hasher.hash_one(who);
        let mut buckets = self.buckets.lock();
        let bucket = buckets.get(&key).copied();
        let drops = bucket.map_or(self.burst, |bucket| self.filled(bucket, now));
        let left = if drops < 1.0 { drops } else { drops - 1.0 };
        buckets.insert(key, Bucket { drops: left, at_ms: now });
        if drops < 1.0 {
            let seconds = ((1.0 - drops) / self.per_second).ceil();
            return Err((seconds as u64).max(1));
        }
        Ok(())
    }

    fn filled(&self, bucket: Bucket, now: u64) -> f64 {
        let gained = now.saturating_sub(bucket.at_ms) as f64 / 1_000.0 * self.per_second;
        (bucket.drops + gained).min(self.burst)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_burst_is_let_through_then_the_rate_then_nothing() {
        let clock = Clock::manual(1_000);
        let rates = Rates::new(clock.clone(), 2, 3);
        assert_eq!([(); 4].map(|()| rates.take("a").is_ok()), [true, true, true, false]);
        assert_eq!(rates.take("a"), Err(1));
        clock.advance(Duration::from_millis(500));
        assert_eq!([(); 2].map(|()| rates.take("a").is_ok()), [true, false]);
    }

    #[test]
    fn one_token_does_not_use_up_anothers_bucket() {
        let rates = Rates::new(Clock::manual(0), 1, 1);
        assert!(rates.take("a").is_ok());
        assert!(rates.take("a").is_err());
        assert!(rates.take("b").is_ok());
    }

    #[test]
    fn the_number_of_buckets_is_bounded_and_a_busy_one_stays() {
        let rates = Rates::new(Clock::manual(0), 1, 1);
        assert!(rates.take("busy").is_ok());
        for who in 0..3 * MOST_BUCKETS {
            assert!(rates.take(who).is_ok());
            assert!(rates.take("busy").is_err(), "strangers do not refill its bucket");
        }
        assert!(rates.buckets.lock().len() <= MOST_BUCKETS);
    }
}
