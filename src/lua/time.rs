//! `swarm.time`: seconds since 1970 from and to RFC 3339.

use jiff::Timestamp;

/// The text of a time, in UTC; milliseconds only where there are some.
pub(crate) fn format(seconds: f64) -> Result<String, String> {
    let out_of_range = || format!("{seconds} is not a time in seconds since 1970");
    let ms = (seconds * 1000.0).round();
    if ms.is_nan() || ms.abs() > 9e15 {
        return Err(out_of_range());
    }
    #[expect(clippy::cast_possible_truncation, reason = "it was just checked to be exact")]
    let time = Timestamp::from_millisecond(ms as i64).map_err(|_| out_of_range())?;
    let precision = if time.subsec_millisecond() == 0 { 0 } else { 3 };
    Ok(format!("{time:.precision$}"))
}

/// The seconds of a text.
#[expect(
    clippy::cast_precision_loss,
    reason = "milliseconds of any timestamp are exact in a double"
)]
pub(crate) fn parse(text: &str) -> Result<f64, String> {
    let time: Timestamp = text
        .parse()
        .map_err(|_| format!("\"{text}\" is not a time such as \"2026-01-31T08:00:00Z\""))?;
    Ok(time.as_millisecond() as f64 / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc_3339_in_utc() {
        assert_eq!(format(0.0).unwrap(), "1970-01-01T00:00:00Z");
        assert_eq!(format(1.25).unwrap(), "1970-01-01T00:00:01.250Z");
        assert!((parse("1970-01-01T01:00:02.5+01:00").unwrap() - 2.5).abs() < 1e-9);
        assert!(format(f64::NAN).is_err());
        assert!(parse("tomorrow").is_err());
    }
}
