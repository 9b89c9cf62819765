//! Budgets of tokens and money.

use std::fmt;

use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};

use crate::journal::Usage;

/// The budget of an agent, or of a run as a whole.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Budget {
    /// Tokens, read and written together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Money in US dollars; a decimal text in JSON.
    #[serde(skip_serializing_if = "Option::is_none", with = "money")]
    pub usd: Option<Decimal>,
}

/// A part of a budget that is used up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsedUp(String);

impl Budget {
    /// Returns true if it says nothing.
    pub fn is_open(&self) -> bool {
        self.tokens.is_none() && self.usd.is_none()
    }

    /// The tighter of two.
    #[must_use]
    pub fn within(self, other: Self) -> Self {
        Self {
            tokens: self.tokens.into_iter().chain(other.tokens).min(),
            usd: self.usd.into_iter().chain(other.usd).min(),
        }
    }

    /// Returns the rest after `used`. Usage that was not reported counts as zero.
    #[must_use]
    pub fn left(self, used: &Usage) -> Self {
        Self {
            tokens: self.tokens.map(|most| most.saturating_sub(used.tokens().unwrap_or(0))),
            usd: self.usd.map(|most| (most - used.usd().unwrap_or_default()).max(Decimal::ZERO)),
        }
    }

    /// Returns the exhausted parts.
    pub fn used_up(&self, used: &Usage) -> Option<UsedUp> {
        if let (Some(most), Some(used)) = (self.tokens, used.tokens())
            && used >= most
        {
            return Some(UsedUp(format!("{used} of {most} tokens are used")));
        }
        if let (Some(most), Some(used)) = (self.usd, used.usd())
            && used >= most
        {
            return Some(UsedUp(format!("${used} of ${most} are used")));
        }
        // A budget of nothing is used up before anybody reports.
        match (self.tokens, self.usd) {
            (Some(0), _) => Some(UsedUp("no tokens may be used".to_owned())),
            (_, Some(usd)) if usd.is_zero() => Some(UsedUp("no money may be used".to_owned())),
            _ => None,
        }
    }
}

impl fmt::Display for UsedUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Money as a text.
mod money {
    use rust_decimal::Decimal;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(
        usd: &Option<Decimal>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        usd.map(|usd| usd.to_string()).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Decimal>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(input: Option<u64>, output: Option<u64>, cost: Option<&str>) -> Usage {
        let cost = cost.map(str::to_owned);
        Usage { input_tokens: input, output_tokens: output, cost, ..Usage::default() }
    }

    fn budget(json: &str) -> Budget {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn it_is_used_up_when_as_much_was_reported() {
        let it = budget(r#"{"tokens":100,"usd":"0.50"}"#);
        let says = |used: Usage| it.used_up(&used).map(|what| what.to_string());
        assert_eq!(says(usage(None, None, None)), None, "not reported is not used");
        assert_eq!(says(usage(Some(60), Some(39), Some("0.499"))), None);
        assert_eq!(
            says(usage(Some(60), Some(40), None)).as_deref(),
            Some("100 of 100 tokens are used")
        );
        assert_eq!(
            says(usage(None, Some(1), Some("0.51"))).as_deref(),
            Some("$0.51 of $0.50 are used")
        );
        assert!(budget(r#"{"usd":"0"}"#).used_up(&Usage::default()).is_some());
        assert!(budget("{}").is_open());
    }

    #[test]
    fn the_tighter_holds_and_what_is_left_goes_down() {
        let it = budget(r#"{"tokens":100}"#).within(budget(r#"{"tokens":80,"usd":"1"}"#));
        assert_eq!(it, budget(r#"{"tokens":80,"usd":"1"}"#));
        let left = it.left(&usage(Some(90), None, Some("0.25")));
        assert_eq!(serde_json::to_string(&left).unwrap(), r#"{"tokens":0,"usd":"0.75"}"#);
    }
}
