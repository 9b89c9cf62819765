//! The waits of a request for a node that drives.

use crate::clock::Clock;

/// The time for which a request waits at first, and again after each time that it was sent.
const WAIT_MS: u64 = 15_000;
/// The pause after a node could not be reached. It is doubled each time, up to the longest.
const PAUSE_MS: u64 = 50;
const LONGEST_PAUSE_MS: u64 = 1_000;

/// The waits of a request for a node that drives.
pub(super) struct Waits {
    clock: Clock,
    until_ms: u64,
    pause_ms: u64,
}

impl Waits {
    /// Begins a wait.
    pub(super) fn new(clock: Clock) -> Self {
        let until_ms = clock.steady_ms().saturating_add(WAIT_MS);
        Self { clock, until_ms, pause_ms: PAUSE_MS }
    }

    /// Begins a new wait, after a node had the request.
    pub(super) fn again(&mut self) {
        *self = Self::new(self.clock.clone());
    }

    /// Returns true if the request has waited for long enough.
    pub(super) fn are_over(&self) -> bool {
        self.clock.steady_ms() >= self.until_ms
    }

    /// Waits until that.
    pub(super) async fn over(&self) {
        self.clock.sleep_until_either(u64::MAX, self.until_ms).await;
    }

    /// Pauses before the next attempt, at most until `gone`. Returns true if the request has waited for long
    /// enough.
    pub(super) async fn pause(&mut self, gone: impl Future<Output = ()>) -> bool {
        let pause_ms = self.pause_ms;
        self.pause_ms = pause_ms.saturating_mul(2).min(LONGEST_PAUSE_MS);
        tokio::select! {
            () = self.clock.sleep(pause_ms) => {}
            () = gone => {}
            () = self.over() => {}
        }
        self.are_over()
    }
}
