//! The usage that workers report.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The usage of some work. A number is absent if it was not reported.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Input tokens.
    pub input_tokens: Option<u64>,
    /// Output tokens.
    pub output_tokens: Option<u64>,
    /// Input tokens that came from a cache.
    pub cached_tokens: Option<u64>,
    /// Reasoning tokens.
    pub reasoning_tokens: Option<u64>,
    /// The cost in US dollars, as a decimal string.
    pub cost: Option<String>,
}

impl Usage {
    /// Returns the sum of input and output tokens, as far as they were reported.
    pub fn tokens(&self) -> Option<u64> {
        match (self.input_tokens, self.output_tokens) {
            (None, None) => None,
            (input, output) => Some(input.unwrap_or(0).saturating_add(output.unwrap_or(0))),
        }
    }

    /// Returns the cost in US dollars, if it was reported and can be parsed.
    pub fn usd(&self) -> Option<rust_decimal::Decimal> {
        self.cost.as_ref()?.parse().ok()
    }

    /// Returns the cost in billionths of a US dollar, rounded; `None` if it was not reported or is
    /// negative.
    pub fn nano_usd(&self) -> Option<u64> {
        use rust_decimal::prelude::ToPrimitive as _;
        let nano = self.usd()?.checked_mul(rust_decimal::Decimal::from(1_000_000_000_u64));
        nano.map_or(Some(u64::MAX), |nano| nano.round().to_u64())
    }

    /// Adds the usage of another attempt. A number that neither reported stays absent. Sums
    /// saturate.
    pub fn add(&mut self, more: &Self) {
        let add = |a: &mut Option<u64>, b: Option<u64>| {
            if let Some(b) = b {
                *a = Some(a.unwrap_or(0).saturating_add(b));
            }
        };
        add(&mut self.input_tokens, more.input_tokens);
        add(&mut self.output_tokens, more.output_tokens);
        add(&mut self.cached_tokens, more.cached_tokens);
        add(&mut self.reasoning_tokens, more.reasoning_tokens);
        let cost = |text: &Option<String>| text.as_ref()?.parse::<rust_decimal::Decimal>().ok();
        self.cost = match (cost(&self.cost), cost(&more.cost)) {
            (Some(a), Some(b)) => Some(a.saturating_add(b).to_string()),
            (Some(one), None) | (None, Some(one)) => Some(one.to_string()),
            (None, None) => None,
        };
    }
}

/// Tokens and money that a run has used so far, in all its histories.
///
/// Usage that was not reported stays absent. It is never counted as zero.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Spent {
    /// The total: the attempts of the run, and the runs that it called.
    pub total: Usage,
    /// The number of attempts that were delivered and ended without reporting usage.
    pub unreported: u32,
    /// The usage by agent.
    pub agents: BTreeMap<String, Usage>,
}

impl Spent {
    /// Adds an ended attempt. `agent` is set for attempts of tasks. `delivered` is true if the
    /// attempt reached a worker.
    pub fn add(&mut self, agent: Option<&str>, usage: Option<&Usage>, delivered: bool) {
        let Some(usage) = usage else {
            self.unreported = self.unreported.saturating_add(u32::from(delivered));
            return;
        };
        self.total.add(usage);
        if let Some(agent) = agent {
            match self.agents.get_mut(agent) {
                Some(sum) => sum.add(usage),
                None => drop(self.agents.insert(agent.to_owned(), usage.clone())),
            }
        }
    }

    /// Returns true if no usage was reported and no delivered attempt is missing its report.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(tokens: u64, cost: Option<&str>) -> Usage {
        Usage { input_tokens: Some(tokens), cost: cost.map(str::to_owned), ..Usage::default() }
    }

    #[test]
    fn sums_keep_what_is_unknown_apart_from_nothing() {
        let mut spent = Spent::default();
        assert!(spent.is_empty());
        spent.add(Some("a"), Some(&usage(5, None)), true);
        spent.add(Some("b"), Some(&usage(7, Some("0.10"))), true);
        spent.add(None, Some(&usage(1, Some("0.05"))), false);
        spent.add(Some("a"), None, true);
        spent.add(Some("a"), None, false);
        assert_eq!(spent.total, usage(13, Some("0.15")));
        assert_eq!(spent.total.output_tokens, None, "nobody said");
        assert_eq!(spent.agents["a"], usage(5, None));
        assert_eq!((spent.agents["a"].tokens(), spent.unreported), (Some(5), 1));
    }

    #[test]
    fn sums_that_are_too_large_stay_at_the_largest() {
        let mut spent = Spent::default();
        let most = rust_decimal::Decimal::MAX.to_string();
        for _ in 0..2 {
            spent.add(None, Some(&usage(u64::MAX, Some(&most))), true);
        }
        assert_eq!(spent.total, usage(u64::MAX, Some(&most)));
    }
}
