//! The validity of a certificate, read from its DER.
//!
//! Reads as far as the two times and no further. What a certificate means is judged by whoever
//! connects; the host only refuses to serve one that nobody accepts.

use jiff::civil;

/// The tags of the elements on the way to the validity.
const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// The time within which a certificate is valid, in milliseconds of Unix time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// The first millisecond.
    pub from_ms: u64,
    /// The last one.
    pub until_ms: u64,
}

impl Validity {
    /// Reads it from a certificate in DER; `None` if that is no X.509 certificate.
    pub(super) fn of(certificate: &[u8]) -> Option<Self> {
        let (certificate, _) = enter(certificate, SEQUENCE)?;
        let (mut fields, _) = enter(certificate, SEQUENCE)?;
        if fields.first() == Some(&VERSION) {
            fields = enter(fields, VERSION)?.1;
        }
        fields = enter(fields, INTEGER)?.1;
        for _algorithm_and_issuer in 0..2 {
            fields = enter(fields, SEQUENCE)?.1;
        }
        let (times, _) = enter(fields, SEQUENCE)?;
        let (from_ms, rest) = time(times)?;
        let (until_ms, _) = time(rest)?;
        Some(Self { from_ms, until_ms })
    }
}

/// Returns the content of the first element, which has this tag, and what follows it.
fn enter(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, rest) = bytes.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match usize::from(*first) {
        short @ 0..0x80 => (short, rest),
        long => {
            let digits = long & 0x7f;
            if digits == 0 || digits > 4 || rest.len() < digits {
                return None;
            }
            let (digits, rest) = rest.split_at(digits);
            (digits.iter().fold(0, |sum, digit| sum << 8 | usize::from(*digit)), rest)
        }
    };
    (*found == tag && length <= rest.len()).then(|| rest.split_at(length))
}

/// Returns the time at the front, and what follows it.
fn time(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let tag = *bytes.first()?;
    let digits = match tag {
        UTC_TIME => 2,
        GENERALIZED_TIME => 4,
        _ => return None,
    };
    let (text, rest) = enter(bytes, tag)?;
    let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    if text.len() != digits + 10 || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number = |at: usize, len: usize| text[at..at + len].parse::<i16>().ok();
    let year = match (digits, number(0, digits)?) {
        // Two digits stand for the years from 1950 to 2049.
        (2, year @ 50..) => 1900 + year,
        (2, year) => 2000 + year,
        (_, year) => year,
    };
    let part = |n: usize| number(digits + 2 * n, 2).and_then(|it| i8::try_from(it).ok());
    let at =
        civil::DateTime::new(year, part(0)?, part(1)?, part(2)?, part(3)?, part(4)?, 0).ok()?;
    let at = at.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp().as_millisecond();
    Some((u64::try_from(at).unwrap_or(0), rest))
}
