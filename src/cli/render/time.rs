//! Times as a person reads them.

/// A length of time: `0.8s`, `2m05s`, `3h07m`, `2d4h`.
pub fn elapsed(ms: u64) -> String {
    let s = ms / 1000;
    match s {
        0..10 => format!("{}.{}s", s, ms % 1000 / 100),
        10..60 => format!("{s}s"),
        60..3600 => format!("{}m{:02}s", s / 60, s % 60),
        3600..86_400 => format!("{}h{:02}m", s / 3600, s % 3600 / 60),
        _ => format!("{}d{}h", s / 86_400, s % 86_400 / 3600),
    }
}

/// An RFC 3339 time in Unix milliseconds; 0 for what is not a time.
pub fn unix_ms(at: &str) -> u64 {
    let at: Option<jiff::Timestamp> = at.parse().ok();
    at.and_then(|at| u64::try_from(at.as_millisecond()).ok()).unwrap_or(0)
}

/// Returns the age of an RFC 3339 time, in milliseconds; 0 for a future time.
pub fn since_ms(at: &str, now_ms: u64) -> u64 {
    now_ms.saturating_sub(unix_ms(at))
}

/// Returns the age of an RFC 3339 time, in whole seconds or coarser.
pub fn age(at: &str, now_ms: u64) -> String {
    let s = since_ms(at, now_ms) / 1000;
    match s {
        0..60 => format!("{s}s"),
        60..3600 => format!("{}m", s / 60),
        3600..86_400 => format!("{}h", s / 3600),
        _ => format!("{}d", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_get_coarser_as_they_grow() {
        let shown = [0, 840, 9_990, 12_000, 125_000, 11_220_000, 187_200_000].map(elapsed);
        assert_eq!(shown, ["0.0s", "0.8s", "9.9s", "12s", "2m05s", "3h07m", "2d4h"]);
    }

    #[test]
    fn an_age_counts_from_a_printed_time() {
        assert_eq!(age("1970-01-01T00:00:10.000Z", 75_000), "1m");
        assert_eq!(age("1970-01-01T00:10:00.000Z", 75_000), "0s");
        assert_eq!(unix_ms("yesterday"), 0);
    }
}
