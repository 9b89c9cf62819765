//! The times of a schedule: cron in a time zone.

use std::fmt;

use croner::{
    Cron,
    parser::{CronParser, Seconds},
};
use jiff::{Timestamp, tz::TimeZone};

/// A cron expression of five fields, in a time zone.
#[derive(Clone)]
pub struct Schedule {
    text: String,
    zone: String,
    cron: Cron,
    time_zone: TimeZone,
}

/// The reason why a schedule cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadSchedule {
    /// The expression.
    #[error("read the schedule {text:?}: {reason}")]
    Cron {
        /// As it was written.
        text: String,
        /// The problem.
        reason: String,
    },
    /// The zone.
    #[error("resolve the time zone {0:?}: it is unknown")]
    Zone(String),
}

impl BadSchedule {
    /// Returns true if it is the zone that cannot be found.
    pub fn is_zone(&self) -> bool {
        matches!(self, Self::Zone(_))
    }
}

impl Schedule {
    /// Reads an expression; without a zone it is in UTC.
    ///
    /// # Errors
    /// Fails when the expression is no cron of five fields that ever comes, or there is no such
    /// zone.
    pub fn parse(text: &str, zone: Option<&str>) -> Result<Self, BadSchedule> {
        let bad =
            |reason: String| BadSchedule::Cron { text: text.chars().take(80).collect(), reason };
        let zone = zone.unwrap_or("UTC");
        let time_zone =
            TimeZone::get(zone).map_err(|_| BadSchedule::Zone(zone.chars().take(80).collect()))?;
        if text.len() > 200 {
            return Err(bad("it is too long".to_owned()));
        }
        let parser = CronParser::builder().seconds(Seconds::Disallowed).build();
        let cron = parser.parse(text).map_err(|error| bad(error.to_string()))?;
        let schedule = Self { text: text.to_owned(), zone: zone.to_owned(), cron, time_zone };
        // 30 February never comes.
        if schedule.next(1_767_225_600_000).is_none() {
            return Err(bad("it never comes".to_owned()));
        }
        Ok(schedule)
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The zone's name.
    pub fn zone(&self) -> &str {
        &self.zone
    }

    /// The first time after `after_ms`, both in Unix milliseconds.
    pub fn next(&self, after_ms: u64) -> Option<u64> {
        let after = Timestamp::from_millisecond(i64::try_from(after_ms).ok()?).ok()?;
        let next = self.cron.find_next_occurrence(&after.to_zoned(self.time_zone.clone()), false);
        u64::try_from(next.ok()?.timestamp().as_millisecond()).ok()
    }
}

impl PartialEq for Schedule {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text && self.zone == other.zone
    }
}

impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Schedule").field(&self.text).field(&self.zone).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(text: &str, zone: &str, after: &str) -> String {
        let after: Timestamp = after.parse().unwrap();
        let schedule = Schedule::parse(text, Some(zone)).unwrap();
        let next = schedule.next(after.as_millisecond() as u64).unwrap();
        Timestamp::from_millisecond(next as i64).unwrap().to_string()
    }

    #[test]
    fn a_schedule_is_in_its_zone_also_over_a_change_of_the_clock() {
        let berlin = |after| next("0 7 * * 1-5", "Europe/Berlin", after);
        assert_eq!(berlin("2026-01-02T06:00:00Z"), "2026-01-05T06:00:00Z");
        assert_eq!(berlin("2026-03-27T06:00:00Z"), "2026-03-30T05:00:00Z");
        assert_eq!(next("*/15 * * * *", "UTC", "2026-01-01T00:07:00Z"), "2026-01-01T00:15:00Z");
    }

    #[test]
    fn an_hour_that_is_there_twice_is_due_once() {
        // 02:30 comes twice on 25 October 2026 in Berlin.
        let first = next("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z");
        assert_eq!(first, "2026-10-25T00:30:00Z");
        assert_eq!(next("30 2 * * *", "Europe/Berlin", &first), "2026-10-26T01:30:00Z");
    }

    #[test]
    fn what_is_no_schedule_is_refused() {
        for text in ["", "* * * *", "* * * * * *", "61 * * * *", "0 0 30 2 *", "soon"] {
            assert!(matches!(Schedule::parse(text, None), Err(BadSchedule::Cron { .. })), "{text}");
        }
        assert!(Schedule::parse("* * * * *", Some("Mars/Olympus")).unwrap_err().is_zone());
    }
}
