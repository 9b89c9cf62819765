//! Quotas: limits on the work and storage of a token.

use std::fmt;

use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};

/// The limits of a token and of all tokens made from it. An absent quota is limited only by the
/// quotas of the parents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quotas {
    /// Runs that are open at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_runs: Option<u64>,
    /// Runs started per minute, with a burst of the same number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts_per_minute: Option<u32>,
    /// Bytes that its runs store: journals and files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored_bytes: Option<u64>,
    /// Model tokens that its runs use, input and output together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Cost of its runs in US dollars, as a decimal string in JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usd: Option<Decimal>,
}

/// One of the quotas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Quota {
    /// Open runs.
    OpenRuns,
    /// Runs started per minute.
    StartsPerMinute,
    /// Stored bytes.
    StoredBytes,
    /// Model tokens.
    Tokens,
    /// Cost.
    Usd,
}

impl Quota {
    /// Returns the name of the quota.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OpenRuns => "open_runs",
            Self::StartsPerMinute => "starts_per_minute",
            Self::StoredBytes => "stored_bytes",
            Self::Tokens => "tokens",
            Self::Usd => "usd",
        }
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Quotas {
    /// Returns true if no quota is set.
    pub fn is_open(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the reason why the quotas are invalid, if they are.
    pub fn fault(&self) -> Option<&'static str> {
        let negative = self.usd.is_some_and(|usd| usd.is_sign_negative());
        negative.then_some("`usd` is less than nothing")
    }

    /// Returns the smaller limit of two, quota by quota.
    #[must_use]
    pub fn within(self, other: Self) -> Self {
        fn tighter<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
            a.into_iter().chain(b).min()
        }
        Self {
            open_runs: tighter(self.open_runs, other.open_runs),
            starts_per_minute: tighter(self.starts_per_minute, other.starts_per_minute),
            stored_bytes: tighter(self.stored_bytes, other.stored_bytes),
            tokens: tighter(self.tokens, other.tokens),
            usd: tighter(self.usd, other.usd),
        }
    }

    /// Returns true if no quota exceeds the same quota of `whole`. An absent quota does not exceed:
    /// its usage counts against `whole` anyway.
    pub fn fits(self, whole: Self) -> bool {
        let both = self.within(whole);
        let same = |own: Self| Self {
            open_runs: own.open_runs.and(both.open_runs),
            starts_per_minute: own.starts_per_minute.and(both.starts_per_minute),
            stored_bytes: own.stored_bytes.and(both.stored_bytes),
            tokens: own.tokens.and(both.tokens),
            usd: own.usd.and(both.usd),
        };
        same(self) == self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_fits_one_that_is_at_least_as_wide_or_says_nothing() {
        let open = Quotas::default();
        let five = Quotas { open_runs: Some(5), ..open };
        let six = Quotas { open_runs: Some(6), ..open };
        let cent = Quotas { usd: Some(Decimal::new(1, 2)), ..open };
        assert!(five.fits(six) && five.fits(five) && five.fits(open) && five.fits(cent));
        assert!(!six.fits(five) && open.fits(five) && open.fits(open));
        let dollar = Quotas { usd: Some(Decimal::ONE), ..five };
        assert!(!dollar.fits(cent) && cent.fits(dollar));
        let both = Quotas { open_runs: Some(5), usd: Some(Decimal::new(1, 2)), ..open };
        assert_eq!(six.within(dollar).within(cent), both);
    }

    #[test]
    fn it_is_read_and_written_word_by_word() {
        let text = r#"{"open_runs":5,"starts_per_minute":60,"usd":"0.50"}"#;
        let quotas: Quotas = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&quotas).unwrap(), text);
        assert!(serde_json::from_str::<Quotas>(r#"{"runs":5}"#).is_err());
        assert!(serde_json::from_str::<Quotas>(r#"{"open_runs":-1}"#).is_err());
        let negative: Quotas = serde_json::from_str(r#"{"usd":"-1"}"#).unwrap();
        assert!(negative.fault().is_some() && quotas.fault().is_none());
    }
}
