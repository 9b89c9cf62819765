//! Durations as authors write them: `"90s"`, `"1h30m"`, or a number of seconds.
//!
//! The one parser of the program: blueprints, scripts (`ctx:sleep`), the HTTP API, operators,
//! layers and the command line all use it. The grammar has the units `d h m s ms`, each at most
//! once and from large to small, with decimals in the last amount only. Stored blueprints may hold
//! looser forms; they are read as ever, and [`old_form`] names what is wrong with them.

use thiserror::Error;

/// The reason why a text is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DurationError {
    /// The text does not have the shape of a duration.
    #[error(r#"read {0:?} as a duration such as "90s", "20m", "1h30m" or "250ms""#)]
    Shape(String),
    /// The duration is longer than can be stored.
    #[error("read {0:?} as a duration: it is too long")]
    TooLong(String),
}

/// The units, from large to small, in milliseconds.
const UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// The longest duration: a hundred years, so that a point in time plus a duration never overflows.
const LONGEST_MS: u64 = 36_525 * 86_400_000;

/// A form that is outside of the grammar, and read nevertheless.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loose {
    NoUnit,
    Order,
    Decimal,
    Point,
}

impl Loose {
    const fn text(self) -> &'static str {
        match self {
            Self::NoUnit => "has no unit",
            Self::Order => "has its units in another order than `d h m s ms`, or one of them twice",
            Self::Decimal => "has decimals before its last unit",
            Self::Point => "has a point without decimals",
        }
    }
}

/// Reads `"250ms"`, `"90s"`, `"20m"`, `"1h30m"`, `"2d"` or `"1.5h"` as milliseconds. The forms that
/// [`old_form`] names are read as well.
///
/// # Errors
/// Fails when the text has another shape, or the duration is over a hundred years.
pub fn parse_duration(text: &str) -> Result<u64, DurationError> {
    read(text).map(|(ms, _)| ms)
}

/// Returns why a later release refuses this duration, and how to write it, if it does.
pub fn old_form(text: &str) -> Option<(&'static str, String)> {
    let (ms, loose) = read(text).ok()?;
    Some((loose?.text(), spelled(ms)))
}

fn read(text: &str) -> Result<(u64, Option<Loose>), DurationError> {
    let shape = || DurationError::Shape(text.chars().take(80).collect());
    let mut rest = text.trim();
    let (mut total, mut last, mut loose) = (0_f64, u64::MAX, None);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        if !number.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(shape());
        }
        let amount: f64 = number.parse().map_err(|_| shape())?;
        let letters = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (name, tail) = tail.split_at(letters);
        let bare = name.is_empty() && last == u64::MAX && tail.is_empty();
        let unit = match UNITS.iter().find(|(unit, _)| *unit == name) {
            Some((_, ms)) => *ms,
            None if bare && !number.ends_with('.') => 1_000,
            None => return Err(shape()),
        };
        let found = [
            (bare, Loose::NoUnit),
            (unit >= last, Loose::Order),
            (number.ends_with('.'), Loose::Point),
            (number.contains('.') && !tail.is_empty(), Loose::Decimal),
        ];
        loose = loose.or_else(|| found.iter().find_map(|(is, form)| is.then_some(*form)));
        last = unit;
        total += amount * unit as f64;
        rest = tail;
    }
    if last == u64::MAX {
        return Err(shape());
    }
    let ms =
        whole_ms(total).ok_or_else(|| DurationError::TooLong(text.chars().take(80).collect()))?;
    Ok((ms, loose))
}

/// Writes milliseconds as the grammar has them: `1h30m`.
pub(crate) fn spelled(ms: u64) -> String {
    let (mut rest, mut text) = (ms, String::new());
    for (unit, each) in UNITS {
        if rest >= each {
            text.push_str(&format!("{}{unit}", rest / each));
            rest %= each;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// A number of seconds as milliseconds; `None` if it is negative, not finite or too long.
pub fn seconds_to_ms(seconds: f64) -> Option<u64> {
    whole_ms(seconds * 1_000.0)
}

fn whole_ms(ms: f64) -> Option<u64> {
    let ms = ms.round();
    (0.0..=LONGEST_MS as f64).contains(&ms).then_some(ms as u64)
}

/// The cases for both sides of the sandbox: a text, its milliseconds, and its place in the grammar.
#[cfg(test)]
pub(crate) const CASES: &[(&str, Option<u64>, bool)] = &[
    ("250ms", Some(250), true),
    ("90s", Some(90_000), true),
    ("20m", Some(1_200_000), true),
    ("1h30m", Some(5_400_000), true),
    ("1h30.5m", Some(5_430_000), true),
    ("2d", Some(172_800_000), true),
    ("1.5h", Some(5_400_000), true),
    ("0s", Some(0), true),
    ("1m500ms", Some(60_500), true),
    ("1d2h3m4s5ms", Some(93_784_005), true),
    ("36525d", Some(3_155_760_000_000), true),
    ("5", Some(5_000), false),
    ("1.5", Some(1_500), false),
    ("5m1h", Some(3_900_000), false),
    ("1s1s", Some(2_000), false),
    ("5.s", Some(5_000), false),
    ("1.5h30m", Some(7_200_000), false),
    ("", None, false),
    ("m", None, false),
    ("5.", None, false),
    ("5 minutes", None, false),
    ("-5s", None, false),
    ("1x", None, false),
    ("1h5", None, false),
    ("..s", None, false),
    ("1.2.3s", None, false),
    (".5s", None, false),
    ("∞", None, false),
    ("1e3s", None, false),
    ("NaN", None, false),
    ("36526d", None, false),
    ("99999999999999d", None, false),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read_as_the_table_says() {
        for (text, ms, strict) in CASES {
            assert_eq!(parse_duration(text).ok(), *ms, "{text}");
            assert_eq!(old_form(text).is_some(), ms.is_some() && !strict, "{text}");
        }
    }

    #[test]
    fn what_is_refused_says_why() {
        assert!(matches!(parse_duration("soon"), Err(DurationError::Shape(_))));
        assert!(matches!(parse_duration("99999999999999d"), Err(DurationError::TooLong(_))));
    }

    #[test]
    fn an_old_form_comes_with_one_that_stays() {
        for (text, stays) in [("5", "5s"), ("5m1h", "1h5m"), ("1.5h30m", "2h"), ("0", "0s")] {
            let (_, written) = old_form(text).expect(text);
            assert_eq!(written, stays);
            assert_eq!(old_form(&written), None);
            assert_eq!(parse_duration(&written), parse_duration(text));
        }
    }

    #[test]
    fn seconds_must_be_finite_and_not_negative() {
        assert_eq!(seconds_to_ms(1.5), Some(1_500));
        assert_eq!(seconds_to_ms(-1.0), None);
        assert_eq!(seconds_to_ms(f64::NAN), None);
        assert_eq!(seconds_to_ms(f64::INFINITY), None);
    }
}
