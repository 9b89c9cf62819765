//! Time as a seam: the system's clock, and one that a test moves by hand.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::sync::Notify;

/// What tells the time, in Unix milliseconds.
#[derive(Clone)]
pub struct Clock(Source);

#[derive(Clone)]
enum Source {
    System,
    Manual(Arc<Manual>),
}

struct Manual {
    now_ms: AtomicU64,
    moved: Notify,
}

impl Clock {
    /// The system's clock.
    pub fn system() -> Self {
        Self(Source::System)
    }

    /// A clock that stands at `now_ms` until [`Clock::advance`] moves it.
    pub fn manual(now_ms: u64) -> Self {
        let manual = Manual { now_ms: AtomicU64::new(now_ms), moved: Notify::new() };
        Self(Source::Manual(Arc::new(manual)))
    }

    /// The time now.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn now_ms(&self) -> u64 {
        match &self.0 {
            Source::System => SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX)),
            Source::Manual(manual) => manual.now_ms.load(Ordering::Acquire),
        }
    }

    /// Moves a manual clock forward and wakes who sleeps on it; the system's clock moves itself.
    pub fn advance(&self, by: Duration) {
        if let Source::Manual(manual) = &self.0 {
            let by = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
            manual.now_ms.fetch_add(by, Ordering::AcqRel);
            manual.moved.notify_waiters();
        }
    }

    /// Sets a manual clock, also back, and wakes who sleeps on it; the system's clock is set by
    /// others.
    pub fn set(&self, now_ms: u64) {
        if let Source::Manual(manual) = &self.0 {
            manual.now_ms.store(now_ms, Ordering::Release);
            manual.moved.notify_waiters();
        }
    }

    /// Waits until the time is at least `at_ms`. A jump of the system's clock is noticed within
    /// a minute.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn sleep_until(&self, at_ms: u64) {
        loop {
            match &self.0 {
                Source::System => {
                    let left = at_ms.saturating_sub(self.now_ms());
                    if left == 0 {
                        return;
                    }
                    tokio::time::sleep(Duration::from_millis(left.min(60_000))).await;
                }
                Source::Manual(manual) => {
                    let moved = manual.moved.notified();
                    tokio::pin!(moved);
                    moved.as_mut().enable();
                    if self.now_ms() >= at_ms {
                        return;
                    }
                    moved.await;
                }
            }
        }
    }
}

/// Prints a time as RFC 3339 in UTC, with milliseconds.
pub fn rfc3339(ms: u64) -> String {
    let ms = i64::try_from(ms).unwrap_or(i64::MAX);
    jiff::Timestamp::from_millisecond(ms)
        .unwrap_or(jiff::Timestamp::MAX)
        .strftime("%Y-%m-%dT%H:%M:%S%.3fZ")
        .to_string()
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Clock").field(&self.now_ms()).finish()
    }
}
