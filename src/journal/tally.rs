//! The counts of a history for the statistics of the host: steps, durations, tokens and cost, by hour.
//!
//! Folded with the chain, and handed over when the run ends or begins a new history. What was copied
//! from another run is not counted again.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Outcome, Usage};

/// The length of an hour, in milliseconds.
pub const HOUR_MS: u64 = 3_600_000;
/// The maximum number of keys of a tally. More are counted under [`OTHER`].
const KEYS: usize = 512;
/// The longest name that is counted by itself, in bytes.
const NAME: usize = 200;
/// The name of everything that exceeds a limit.
pub const OTHER: &str = "(other)";

/// The subject of a count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Dimension {
    /// Runs, by blueprint.
    Blueprint,
    /// Tasks, by agent or tool.
    Agent,
    /// Model calls, by the name of the model.
    Model,
}

/// The ending of the things that are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Ending {
    /// Not ended: usage alone.
    Open,
    /// Completed.
    Completed,
    /// Failed.
    Failed,
    /// Canceled.
    Canceled,
}

impl From<&Outcome> for Ending {
    fn from(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Completed(_) => Self::Completed,
            Outcome::Failed(_) => Self::Failed,
            Outcome::Canceled(_) => Self::Canceled,
        }
    }
}

/// The key of a count.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TallyKey {
    /// The beginning of the hour, in Unix milliseconds.
    pub hour_ms: u64,
    /// The subject.
    pub of: Dimension,
    /// The agent or model; empty for the run, whose blueprint its header names.
    pub name: String,
    /// The ending.
    pub ending: Ending,
}

/// Counts that can be added up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measure {
    /// The number that ended.
    pub count: u64,
    /// Their durations.
    pub durations: Durations,
    /// Input tokens.
    pub input_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// The cost, in billionths of a US dollar.
    pub nano_usd: u64,
}

impl Measure {
    /// Adds another measure. Sums saturate.
    pub fn add(&mut self, more: &Self) {
        self.count = self.count.saturating_add(more.count);
        self.durations.merge(&more.durations);
        self.input_tokens = self.input_tokens.saturating_add(more.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(more.output_tokens);
        self.nano_usd = self.nano_usd.saturating_add(more.nano_usd);
    }

    /// Counts one thing that ended.
    pub fn end(&mut self, took_ms: u64) {
        self.count = self.count.saturating_add(1);
        self.durations.add(took_ms);
    }

    /// Adds a usage, as far as it was reported.
    pub fn spend(&mut self, usage: &Usage) {
        let add = |sum: &mut u64, more: Option<u64>| *sum = sum.saturating_add(more.unwrap_or(0));
        add(&mut self.input_tokens, usage.input_tokens);
        add(&mut self.output_tokens, usage.output_tokens);
        add(&mut self.nano_usd, usage.nano_usd());
    }
}

/// A histogram of durations with buckets whose width is a quarter of their power of two.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Durations(Vec<(u8, u64)>);

impl Durations {
    /// Adds a duration in milliseconds.
    pub fn add(&mut self, ms: u64) {
        self.put(bucket(ms), 1);
    }

    /// Adds another histogram.
    pub fn merge(&mut self, more: &Self) {
        for (bucket, count) in &more.0 {
            self.put(*bucket, *count);
        }
    }

    fn put(&mut self, bucket: u8, count: u64) {
        match self.0.binary_search_by_key(&bucket, |(it, _)| *it) {
            Ok(at) => self.0[at].1 = self.0[at].1.saturating_add(count),
            Err(at) => self.0.insert(at, (bucket, count)),
        }
    }

    /// Returns the duration in milliseconds that `percent` of all do not exceed, at most an eighth
    /// away; `None` without durations.
    pub fn quantile(&self, percent: u64) -> Option<u64> {
        let total: u128 = self.0.iter().map(|(_, count)| u128::from(*count)).sum();
        let rank = (total * u128::from(percent)).div_ceil(100).max(1);
        let mut seen = 0;
        self.0.iter().find_map(|(bucket, count)| {
            seen += u128::from(*count);
            (seen >= rank).then(|| middle(*bucket))
        })
    }
}

/// Returns the bucket of a duration: 0 to 3 as they are, then four for each power of two.
fn bucket(ms: u64) -> u8 {
    let power = ms.checked_ilog2().unwrap_or(0);
    let bucket = match power {
        0 | 1 => ms,
        power => 4 + (u64::from(power) - 2) * 4 + ((ms >> (power - 2)) & 3),
    };
    u8::try_from(bucket).expect("64 powers have 252 buckets")
}

/// Returns the middle of a bucket.
fn middle(bucket: u8) -> u64 {
    if bucket < 4 {
        return bucket.into();
    }
    let (power, part) = (u32::from(bucket - 4) / 4, u64::from(bucket - 4) % 4);
    // The bucket begins at (4 + part) · 2^power and is 2^power wide.
    let width = 1_u64 << power;
    (4 + part).saturating_mul(width).saturating_add(width / 2)
}

/// The counts of a history.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally(BTreeMap<TallyKey, Measure>);

impl Tally {
    /// Returns true if nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Iterates over the counts.
    pub fn iter(&self) -> impl Iterator<Item = (&TallyKey, &Measure)> {
        self.0.iter()
    }

    /// Returns the count of a key, to be added to.
    pub fn at(&mut self, at_ms: u64, of: Dimension, name: &str, ending: Ending) -> &mut Measure {
        let hour_ms = at_ms - at_ms % HOUR_MS;
        let name = if name.len() > NAME { OTHER } else { name };
        let mut key = TallyKey { hour_ms, of, name: name.to_owned(), ending };
        if self.0.len() >= KEYS && !self.0.contains_key(&key) {
            OTHER.clone_into(&mut key.name);
        }
        self.0.entry(key).or_default()
    }

    /// Adds the usage of an attempt: to the run, and to the agent that it is charged to.
    pub fn spend(&mut self, at_ms: u64, agent: Option<&str>, usage: &Usage) {
        self.at(at_ms, Dimension::Blueprint, "", Ending::Open).spend(usage);
        if let Some(agent) = agent {
            self.at(at_ms, Dimension::Agent, agent, Ending::Open).spend(usage);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_middle_of_a_bucket_is_at_most_an_eighth_away(ms: u64) {
            let near = middle(bucket(ms));
            prop_assert_eq!(bucket(near), bucket(ms));
            prop_assert!(near.abs_diff(ms) <= ms / 8 + 1, "{} for {}", near, ms);
        }

        #[test]
        fn a_longer_duration_is_in_no_lower_bucket(a: u64, b: u64) {
            prop_assert_eq!(bucket(a.min(b)) <= bucket(a.max(b)), true);
        }
    }

    #[test]
    fn quantiles_are_those_of_the_sum() {
        let (mut most, mut few) = (Durations::default(), Durations::default());
        assert_eq!(most.quantile(50), None);
        (0..95).for_each(|_| most.add(2));
        (0..5).for_each(|_| few.add(1_000));
        most.merge(&few);
        assert_eq!((most.quantile(50), most.quantile(95)), (Some(2), Some(2)));
        let slow = most.quantile(96).unwrap();
        assert!((900..1_100).contains(&slow), "{slow}");
        assert_eq!(most.quantile(100), Some(slow));
    }

    #[test]
    fn names_without_end_are_counted_together() {
        let mut tally = Tally::default();
        for n in 0..2_000 {
            tally.at(0, Dimension::Agent, &format!("agent {n}"), Ending::Completed).end(1);
        }
        tally.at(0, Dimension::Agent, &"x".repeat(300), Ending::Completed).end(1);
        assert!(tally.iter().count() <= KEYS + 1);
        let all: u64 = tally.iter().map(|(_, it)| it.count).sum();
        assert_eq!(all, 2_001);
    }
}
