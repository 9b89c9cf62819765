//! Durations as authors write them: `"90s"`, `"1h30m"`, or a number of seconds.

use thiserror::Error;

/// Why a text is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DurationError {
    /// It does not have the shape of a duration.
    #[error(r#"read {0:?} as a duration such as "90s", "20m", "1h30m" or "250ms""#)]
    Shape(String),
    /// It is longer than can be stored.
    #[error("read {0:?} as a duration: it is too long")]
    TooLong(String),
}

const UNITS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// The longest duration: a hundred years, so that a point in time plus a duration never overflows.
const LONGEST_MS: u64 = 100 * 365 * 86_400_000;

/// Reads `"250ms"`, `"90s"`, `"20m"`, `"1h30m"`, `"2d"`, `"1.5h"` or a bare number of seconds, as
/// milliseconds. Units go from large to small, each at most once.
///
/// # Errors
/// When the text has another shape, or the duration is over a hundred years.
pub fn parse_duration(text: &str) -> Result<u64, DurationError> {
    let shape = || DurationError::Shape(text.chars().take(80).collect());
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(shape());
    }
    let mut total = 0_f64;
    let mut last_unit = u64::MAX;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        if !number.starts_with(|c: char| c.is_ascii_digit()) || number.ends_with('.') {
            return Err(shape());
        }
        let number: f64 = number.parse().map_err(|_| shape())?;
        let letters = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let unit = match unit {
            "" if last_unit == u64::MAX && tail.is_empty() => 1_000,
            unit => UNITS
                .iter()
                .find_map(|(name, ms)| (*name == unit).then_some(*ms))
                .ok_or_else(shape)?,
        };
        if unit >= last_unit {
            return Err(shape());
        }
        last_unit = unit;
        total += number * unit as f64;
        rest = tail;
    }
    whole_ms(total).ok_or_else(|| DurationError::TooLong(text.chars().take(80).collect()))
}

/// A number of seconds as milliseconds; `None` if it is negative, not finite or too long.
pub fn seconds_to_ms(seconds: f64) -> Option<u64> {
    whole_ms(seconds * 1_000.0)
}

fn whole_ms(ms: f64) -> Option<u64> {
    let ms = ms.round();
    (0.0..=LONGEST_MS as f64).contains(&ms).then_some(ms as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_spellings_are_read() {
        for (text, ms) in [
            ("250ms", 250),
            ("90s", 90_000),
            ("20m", 1_200_000),
            ("1h30m", 5_400_000),
            ("2d", 172_800_000),
            ("1.5h", 5_400_000),
            ("5", 5_000),
            ("0s", 0),
            ("1m500ms", 60_500),
        ] {
            assert_eq!(parse_duration(text), Ok(ms), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "m",
            "5 minutes",
            "-5s",
            "1x",
            "5m1h",
            "1s1s",
            "1h5",
            "..s",
            "1.s",
            "∞",
            "1e3s",
            "NaN",
        ] {
            assert!(matches!(parse_duration(text), Err(DurationError::Shape(_))), "{text}");
        }
        assert!(matches!(parse_duration("99999999999999d"), Err(DurationError::TooLong(_))));
    }

    #[test]
    fn seconds_must_be_finite_and_not_negative() {
        assert_eq!(seconds_to_ms(1.5), Some(1_500));
        assert_eq!(seconds_to_ms(-1.0), None);
        assert_eq!(seconds_to_ms(f64::NAN), None);
        assert_eq!(seconds_to_ms(f64::INFINITY), None);
    }
}
