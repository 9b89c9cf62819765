//! Time as a seam: the system's clocks, and manual clocks for tests.
//!
//! There are two. The *wall clock* is the time of day: schedules, `sleep_until`, tokens and the
//! journal use it. It can be set, also backwards. The *steady clock* only moves forward: leases,
//! timeouts and pauses are measured with it, so that setting the wall clock ends none of them. On
//! the system it is `CLOCK_MONOTONIC`: time in which the whole machine is suspended does not count,
//! because nobody could have worked during it.
//!
//! The steady clock is expressed in Unix milliseconds as well. It agrees with the wall clock until
//! that one is set; from then on the difference is the *offset*. Code that stores steady times must
//! also store the offset across restarts.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use jiff::fmt::temporal::DateTimePrinter;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The maximum interval between two calls of [`Clock::look`] in a process.
pub const LOOK: Duration = Duration::from_secs(1);
/// A look that is late by more than this follows a pause of the process, in milliseconds.
const LATE_MS: u64 = 1_000;
/// The wall clock was set if it moved relative to the steady one by more than this, in
/// milliseconds.
const STEP_MS: u64 = 500;
/// The number of settings of the wall clock that are remembered.
const STEPS: usize = 64;

/// A pair of clocks, wall and steady, in Unix milliseconds.
#[derive(Clone)]
pub struct Clock(Source);

#[derive(Clone)]
enum Source {
    System(Arc<System>),
    Manual(Arc<Manual>),
}

struct System {
    /// The lead of the wall clock over the steady one when the process began.
    ahead_ms: i64,
    looked_ms: AtomicU64,
    resumed_ms: AtomicU64,
    offsets: Offsets,
}

struct Manual {
    now_ms: AtomicU64,
    steady_ms: AtomicU64,
    resumed_ms: AtomicU64,
    offsets: Offsets,
    moved: Notify,
}

/// The offsets of the wall clock, each with the steady time from which it applies.
struct Offsets(Mutex<Vec<(u64, i64)>>);

impl Offsets {
    fn new(offset_ms: i64) -> Self {
        Self(Mutex::new(vec![(0, offset_ms)]))
    }

    fn all(&self) -> parking_lot::MutexGuard<'_, Vec<(u64, i64)>> {
        self.0.lock()
    }

    fn last(&self) -> i64 {
        self.all().last().map_or(0, |(_, offset)| *offset)
    }

    fn note(&self, steady_ms: u64, offset_ms: i64) {
        let mut all = self.all();
        if all.len() == STEPS {
            all.remove(0);
        }
        all.push((steady_ms, offset_ms));
    }
}

/// Returns the time at which this process began, on both clocks of the system.
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
fn began() -> (Instant, u64) {
    static BEGAN: OnceLock<(Instant, u64)> = OnceLock::new();
    *BEGAN.get_or_init(|| (Instant::now(), wall_ms()))
}

#[expect(clippy::disallowed_methods, reason = "this is the clock")]
fn wall_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, millis)
}

/// Returns the time since the boot of the machine in milliseconds, with the time in which it was suspended.
/// Only for leases, which end during a suspension as well.
pub fn boot_ms() -> u64 {
    #[cfg(target_os = "linux")]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;
    let now = rustix::time::clock_gettime(CLOCK);
    let (seconds, nanos) = (now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs());
    seconds.saturating_mul(1_000).saturating_add(nanos / 1_000_000)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A measurement of a duration, for counters: nothing is decided by it.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts it.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Returns the time since its start, in microseconds.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn micros(&self) -> u64 {
        let passed = Instant::now().saturating_duration_since(self.0);
        u64::try_from(passed.as_micros()).unwrap_or(u64::MAX)
    }
}

impl Clock {
    /// Returns the system's clocks.
    pub fn system() -> Self {
        Self::system_ahead(0)
    }

    /// Returns the system's clocks, with the wall clock `ahead_ms` ahead of the steady one, as an
    /// earlier process left them.
    pub fn system_ahead(ahead_ms: i64) -> Self {
        let looked_ms = began().1.saturating_add_signed(-ahead_ms);
        let clock = Self(Source::System(Arc::new(System {
            ahead_ms,
            looked_ms: AtomicU64::new(looked_ms),
            resumed_ms: AtomicU64::new(0),
            offsets: Offsets::new(ahead_ms),
        })));
        if let Source::System(system) = &clock.0 {
            // There was no earlier look.
            system.looked_ms.store(clock.steady_ms(), Ordering::Release);
        }
        clock
    }

    /// Returns clocks that stay at `now_ms` until [`Clock::advance`] moves them.
    pub fn manual(now_ms: u64) -> Self {
        let manual = Manual {
            now_ms: AtomicU64::new(now_ms),
            steady_ms: AtomicU64::new(now_ms),
            resumed_ms: AtomicU64::new(0),
            offsets: Offsets::new(0),
            moved: Notify::new(),
        };
        Self(Source::Manual(Arc::new(manual)))
    }

    /// Returns the current time of the wall clock.
    pub fn now_ms(&self) -> u64 {
        match &self.0 {
            Source::System(_) => wall_ms(),
            Source::Manual(manual) => manual.now_ms.load(Ordering::Acquire),
        }
    }

    /// Returns the current time of the steady clock.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn steady_ms(&self) -> u64 {
        match &self.0 {
            Source::System(system) => {
                let (instant, wall_ms) = began();
                let passed = millis(Instant::now().saturating_duration_since(instant));
                wall_ms.saturating_add(passed).saturating_add_signed(-system.ahead_ms)
            }
            Source::Manual(manual) => manual.steady_ms.load(Ordering::Acquire),
        }
    }

    /// Returns the lead of the wall clock over the steady one, as of the last look.
    pub fn offset_ms(&self) -> i64 {
        self.offsets().last()
    }

    /// Returns the wall time of a steady time, if the wall clock is not set in between.
    pub fn wall_of(&self, steady_ms: u64) -> u64 {
        steady_ms.saturating_add_signed(self.offset_ms())
    }

    /// Returns the steady time at which the wall clock last showed `past_ms`.
    pub fn steady_of(&self, past_ms: u64) -> u64 {
        let now = self.steady_ms();
        let all = self.offsets().all();
        let found = all.iter().rev().find_map(|(since, offset)| {
            let steady = past_ms.saturating_add_signed(-offset);
            (steady >= *since && steady <= now).then_some(steady)
        });
        let first = all.first().map_or(0, |(_, offset)| *offset);
        found.unwrap_or_else(|| past_ms.saturating_add_signed(-first).min(now))
    }

    /// Returns the earliest steady time that may have been recorded as `wall_ms`.
    pub fn earliest_of(&self, wall_ms: u64) -> u64 {
        let most = self.offsets().all().iter().map(|(_, offset)| *offset).max().unwrap_or(0);
        wall_ms.saturating_add_signed(-most)
    }

    /// Returns the difference between the largest remembered offset and the current one.
    pub fn slack_ms(&self) -> u64 {
        let all = self.offsets().all();
        let most = all.iter().map(|(_, offset)| *offset).max().unwrap_or(0);
        most.abs_diff(all.last().map_or(most, |(_, offset)| *offset))
    }

    /// Returns the steady time at which the last pause of the whole process ended; 0 before the
    /// first.
    pub fn resumed_ms(&self) -> u64 {
        match &self.0 {
            Source::System(system) => system.resumed_ms.load(Ordering::Acquire),
            Source::Manual(manual) => manual.resumed_ms.load(Ordering::Acquire),
        }
    }

    fn offsets(&self) -> &Offsets {
        match &self.0 {
            Source::System(system) => &system.offsets,
            Source::Manual(manual) => &manual.offsets,
        }
    }

    /// Detects that the process was paused, or that the wall clock was set. Users that measure with
    /// this clock call it at least every [`LOOK`]; a manual clock does not need it.
    pub fn look(&self) {
        let Source::System(system) = &self.0 else { return };
        let (before, wall, now) = (self.steady_ms(), self.now_ms(), self.steady_ms());
        let looked = system.looked_ms.load(Ordering::Acquire);
        if now.saturating_sub(looked) > millis(LOOK) + LATE_MS {
            system.resumed_ms.fetch_max(now, Ordering::AcqRel);
        }
        system.looked_ms.fetch_max(now, Ordering::AcqRel);
        let offset = wall.cast_signed().saturating_sub(now.cast_signed());
        // If the process was stopped between the readings, they cannot be compared.
        if now - before < STEP_MS / 4 && offset.abs_diff(system.offsets.last()) > STEP_MS {
            system.offsets.note(now, offset);
        }
    }

    /// Returns true if [`Clock::look`] must be called.
    pub fn wants_looks(&self) -> bool {
        matches!(self.0, Source::System(_))
    }

    /// Moves manual clocks forward and wakes their sleepers; no effect on the system's clocks.
    pub fn advance(&self, by: Duration) {
        if let Source::Manual(manual) = &self.0 {
            manual.steady_ms.fetch_add(millis(by), Ordering::AcqRel);
            manual.now_ms.fetch_add(millis(by), Ordering::AcqRel);
            manual.moved.notify_waiters();
        }
    }

    /// Moves manual clocks forward as if the process had been paused in the meantime.
    pub fn pause(&self, by: Duration) {
        if let Source::Manual(manual) = &self.0 {
            let now = manual.steady_ms.load(Ordering::Acquire) + millis(by);
            manual.resumed_ms.store(now, Ordering::Release);
            self.advance(by);
        }
    }

    /// Sets a manual wall clock, also backwards, and wakes its sleepers; no effect on the system's.
    /// The steady clock does not change.
    pub fn set(&self, now_ms: u64) {
        if let Source::Manual(manual) = &self.0 {
            manual.now_ms.store(now_ms, Ordering::Release);
            let steady = manual.steady_ms.load(Ordering::Acquire);
            manual.offsets.note(steady, now_ms.cast_signed() - steady.cast_signed());
            manual.moved.notify_waiters();
        }
    }

    /// Waits until the wall clock shows at least `at_ms`. A clock that was set is noticed within a
    /// minute.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn sleep_until(&self, at_ms: u64) {
        self.sleep_until_either(at_ms, u64::MAX).await;
    }

    /// Waits for `ms` milliseconds of the steady clock, whatever happens to the wall clock.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn sleep(&self, ms: u64) {
        self.sleep_until_either(u64::MAX, self.steady_ms().saturating_add(ms)).await;
    }

    /// Waits until the wall clock shows `wall_ms` or the steady one `steady_ms`.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn sleep_until_either(&self, wall_ms: u64, steady_ms: u64) {
        loop {
            let left = || {
                let wall = wall_ms.saturating_sub(self.now_ms());
                wall.min(steady_ms.saturating_sub(self.steady_ms()))
            };
            match &self.0 {
                Source::System(_) => {
                    let left = left();
                    if left == 0 {
                        return;
                    }
                    tokio::time::sleep(Duration::from_millis(left.min(60_000))).await;
                }
                Source::Manual(manual) => {
                    let moved = manual.moved.notified();
                    tokio::pin!(moved);
                    moved.as_mut().enable();
                    if left() == 0 {
                        return;
                    }
                    moved.await;
                }
            }
        }
    }
}

/// Formats a time as RFC 3339 in UTC, with milliseconds.
pub fn rfc3339(ms: u64) -> String {
    const PRINTER: DateTimePrinter = DateTimePrinter::new().precision(Some(3));
    let ms = i64::try_from(ms).unwrap_or(i64::MAX);
    let time = jiff::Timestamp::from_millisecond(ms).unwrap_or(jiff::Timestamp::MAX);
    PRINTER.timestamp_to_string(&time)
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Clock").field(&self.now_ms()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000;

    #[test]
    fn a_time_is_printed_in_utc_with_milliseconds() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(1_709_210_096_007), "2024-02-29T12:34:56.007Z");
        assert_eq!(rfc3339(253_370_764_799_999), "9998-12-31T23:59:59.999Z");
        assert_eq!(rfc3339(253_370_764_800_000), "9999-01-01T00:00:00.000Z");
    }

    #[test]
    fn setting_the_wall_clock_leaves_the_steady_one_alone() {
        let clock = Clock::manual(10 * HOUR);
        clock.set(11 * HOUR);
        assert_eq!((clock.now_ms(), clock.steady_ms()), (11 * HOUR, 10 * HOUR));
        clock.advance(Duration::from_millis(5));
        assert_eq!((clock.now_ms(), clock.steady_ms()), (11 * HOUR + 5, 10 * HOUR + 5));
        assert_eq!(clock.wall_of(10 * HOUR), 11 * HOUR);
    }

    #[test]
    fn what_was_written_before_and_after_a_step_is_found_on_the_steady_clock() {
        let clock = Clock::manual(10 * HOUR);
        clock.advance(Duration::from_millis(HOUR));
        clock.set(14 * HOUR);
        clock.advance(Duration::from_millis(HOUR));
        assert_eq!(clock.steady_of(10 * HOUR + 1), 10 * HOUR + 1);
        assert_eq!(clock.steady_of(14 * HOUR + 1), 11 * HOUR + 1);
        assert_eq!((clock.earliest_of(15 * HOUR), clock.slack_ms()), (12 * HOUR, 0));
        clock.set(9 * HOUR);
        clock.advance(Duration::from_millis(HOUR));
        assert_eq!(clock.steady_of(9 * HOUR + 7), 12 * HOUR + 7, "the last time it showed that");
        assert_eq!(clock.slack_ms(), 6 * HOUR);
    }

    #[test]
    fn a_process_that_goes_on_in_time_was_not_paused() {
        let clock = Clock::system_ahead(5_000);
        assert_eq!(clock.offset_ms(), 5_000);
        assert!(clock.now_ms().abs_diff(clock.steady_ms() + 5_000) < STEP_MS);
        clock.look();
        assert_eq!((clock.resumed_ms(), clock.offset_ms()), (0, 5_000));
    }

    #[test]
    fn a_look_that_comes_late_notices_the_pause() {
        let clock = Clock::system();
        let Source::System(system) = &clock.0 else { unreachable!() };
        system.looked_ms.store(clock.steady_ms() - 2_100, Ordering::Release);
        clock.look();
        assert!(clock.resumed_ms() > 0);
    }
}
