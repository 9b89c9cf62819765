//! The cost of tokens.

use std::{fmt, str::FromStr as _};

use rust_decimal::Decimal;
use serde::{
    Deserialize, Deserializer,
    de::{self, Visitor},
};

use crate::journal::Usage;

/// The tokens of one answer, as the provider counts them; a count that it does not report is
/// absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tokens {
    /// Input tokens, including those read from and written to a cache.
    pub(super) input: Option<u64>,
    /// Input tokens read from a cache.
    pub(super) cached: Option<u64>,
    /// Input tokens written to a cache.
    pub(super) cache_written: Option<u64>,
    /// Output tokens, reasoning included.
    pub(super) output: Option<u64>,
    /// Output tokens of reasoning.
    pub(super) reasoning: Option<u64>,
}

/// The prices of a model, in US dollars per million tokens.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Price {
    /// Input tokens.
    input: Money,
    /// Output tokens.
    output: Money,
    /// Tokens read from a cache; as `input` if absent.
    cached: Option<Money>,
    /// Tokens written to a cache; as `input` if absent.
    cache_write: Option<Money>,
    /// Reasoning tokens; as `output` if absent.
    reasoning: Option<Money>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Money(Decimal);

impl Tokens {
    /// Adds the tokens of another request for the same answer.
    pub(super) fn add(&mut self, more: Self) {
        let sum = |a: Option<u64>, b: Option<u64>| match (a, b) {
            (None, None) => None,
            (a, b) => Some(a.unwrap_or(0).saturating_add(b.unwrap_or(0))),
        };
        *self = Self {
            input: sum(self.input, more.input),
            cached: sum(self.cached, more.cached),
            cache_written: sum(self.cache_written, more.cache_written),
            output: sum(self.output, more.output),
            reasoning: sum(self.reasoning, more.reasoning),
        };
    }

    /// Returns the usage, with its cost if there is a price and a count.
    pub(super) fn usage(&self, price: Option<&Price>) -> Option<Usage> {
        if *self == Self::default() {
            return None;
        }
        Some(Usage {
            input_tokens: self.input,
            output_tokens: self.output,
            cached_tokens: self.cached,
            reasoning_tokens: self.reasoning,
            cost: price.map(|price| price.of(self).normalize().to_string()),
        })
    }
}

impl Price {
    fn of(&self, tokens: &Tokens) -> Decimal {
        let count = |tokens: Option<u64>| tokens.unwrap_or(0);
        let cached = count(tokens.cached);
        let written = count(tokens.cache_written);
        let plain = count(tokens.input).saturating_sub(cached).saturating_sub(written);
        let reasoning = count(tokens.reasoning);
        let said = count(tokens.output).saturating_sub(reasoning);
        let or = |own: Option<Money>, other: Money| own.unwrap_or(other).0;
        let sum = Decimal::from(plain) * self.input.0
            + Decimal::from(cached) * or(self.cached, self.input)
            + Decimal::from(written) * or(self.cache_write, self.input)
            + Decimal::from(said) * self.output.0
            + Decimal::from(reasoning) * or(self.reasoning, self.output);
        sum / Decimal::from(1_000_000)
    }
}

impl<'de> Deserialize<'de> for Money {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(MoneyVisitor)
    }
}

struct MoneyVisitor;

impl Visitor<'_> for MoneyVisitor {
    type Value = Money;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a price, such as \"2.50\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Money, E> {
        let amount = Decimal::from_str(text.trim().trim_start_matches('$'))
            .map_err(|_| E::custom(format!("{text:?} is not an amount of money")))?;
        if amount.is_sign_negative() || amount > Decimal::from(1_000_000) {
            return Err(E::custom("a price is from 0 to 1000000 dollars a million tokens"));
        }
        Ok(Money(amount))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Money, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Money, E> {
        self.visit_str(&number.to_string())
    }

    // The shortest text of a float is the text in the file.
    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Money, E> {
        self.visit_str(&number.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn price(text: &str) -> Result<Price, String> {
        toml::from_str(text).map_err(|error| error.message().to_owned())
    }

    const ALL: Tokens = Tokens {
        input: Some(1_000),
        cached: Some(400),
        cache_written: Some(100),
        output: Some(300),
        reasoning: Some(200),
    };

    #[test]
    fn every_kind_of_token_has_its_price() {
        let own = price(
            "input = \"2.50\"\noutput = 10\ncached = 0.25\ncache_write = \"3\"\nreasoning = \"12\"",
        );
        // 500 * 2.5 + 400 * 0.25 + 100 * 3 + 100 * 10 + 200 * 12, over a million.
        let usage = ALL.usage(Some(&own.unwrap())).unwrap();
        assert_eq!(usage.cost.as_deref(), Some("0.00505"));
        assert_eq!((usage.input_tokens, usage.cached_tokens), (Some(1_000), Some(400)));
    }

    #[test]
    fn what_has_no_price_of_its_own_costs_what_it_is_a_part_of() {
        let plain = price("input = 1\noutput = 2").unwrap();
        assert_eq!(ALL.usage(Some(&plain)).unwrap().cost.as_deref(), Some("0.0016"));
    }

    #[test]
    fn nothing_reported_is_nothing_and_no_price_is_no_cost() {
        assert_eq!(Tokens::default().usage(None), None);
        assert_eq!(ALL.usage(None).unwrap().cost, None);
    }

    #[test]
    fn a_price_is_an_amount() {
        for (text, part) in [
            ("input = 1", "missing field `output`"),
            ("input = \"much\"\noutput = 1", "not an amount"),
            ("input = -1\noutput = 1", "from 0 to"),
            ("input = true\noutput = 1", "expected a price"),
            ("input = 1\noutput = 1\ncahced = 1", "unknown field `cahced`"),
        ] {
            let error = price(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
