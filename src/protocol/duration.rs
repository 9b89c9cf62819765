//! Durations as every wire format carries them: whole milliseconds.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

/// A duration in milliseconds; a plain integer in JSON.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct DurationMs(u64);

impl DurationMs {
    /// Zero.
    pub const ZERO: Self = Self(0);

    /// Creates a duration of `ms` milliseconds.
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms)
    }

    /// Creates a duration of `secs` seconds; saturates at the largest value.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1000))
    }

    /// Returns the milliseconds.
    pub const fn as_millis(&self) -> u64 {
        self.0
    }

    /// Converts to [`Duration`].
    pub const fn to_std(&self) -> Duration {
        Duration::from_millis(self.0)
    }
}

impl From<Duration> for DurationMs {
    fn from(span: Duration) -> Self {
        Self(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
    }
}

impl From<DurationMs> for Duration {
    fn from(span: DurationMs) -> Self {
        span.to_std()
    }
}

impl fmt::Display for DurationMs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ms", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_an_integer_in_json_and_says_its_unit_in_text() {
        let span = DurationMs::from_millis(1500);
        assert_eq!(serde_json::to_string(&span).unwrap(), "1500");
        assert_eq!(serde_json::from_str::<DurationMs>("1500").unwrap(), span);
        assert!(serde_json::from_str::<DurationMs>("-1").is_err());
        assert_eq!(span.to_string(), "1500ms");
    }

    #[test]
    fn what_does_not_fit_becomes_the_longest_span() {
        assert_eq!(DurationMs::from_secs(2).as_millis(), 2000);
        assert_eq!(DurationMs::from_secs(u64::MAX).as_millis(), u64::MAX);
        assert_eq!(DurationMs::from(Duration::MAX).as_millis(), u64::MAX);
    }
}
