//! Statistics that outlive their runs: what is counted when a run ends, and how it is summed up.
//!
//! Owns the sums as pure data. An adapter stores each ended run as one row, and folds such rows into
//! sums by hour and by day when they have become many. Deleting a run leaves its counts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::journal::{Dimension, Ending, HOUR_MS, Measure, Tally, TallyKey};

/// The length of a day, in milliseconds.
pub const DAY_MS: u64 = 24 * HOUR_MS;
/// The retention of sums by hour; sums by day are kept for good.
pub const HOURS_KEPT_MS: u64 = 35 * DAY_MS;
/// The number of the most expensive runs that are kept of each day.
pub const COSTLY: u32 = 20;

/// The counts of a run that ended, or of a history that another follows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountedRun {
    /// The run's number.
    pub run: u64,
    /// When it was created, in Unix milliseconds.
    pub created_ms: u64,
    /// The end of the run or the history, in Unix milliseconds.
    pub ended_ms: u64,
    /// Its blueprint.
    pub blueprint: String,
    /// The ending of the run; `Open` if another history follows.
    pub ending: Ending,
    /// The counts of its history.
    pub tally: Tally,
}

/// Decodes stored counts. Damaged ones are logged and count as none: a run that ends does not fail
/// for the statistics of others.
pub(super) fn decode_counts<T: DeserializeOwned>(body: &[u8]) -> Option<T> {
    match postcard::from_bytes(body) {
        Ok(counts) => Some(counts),
        Err(error) => {
            tracing::error!(%error, "damaged counts are left out of the statistics");
            None
        }
    }
}

/// Checks that stored counts can be decoded. Returns the problem.
pub(super) fn check_counts<T: DeserializeOwned>(body: &[u8]) -> Result<(), String> {
    let counts: Result<T, _> = postcard::from_bytes(body);
    counts.map(drop).map_err(|error| format!("its counts cannot be decoded: {error}"))
}

/// Checks a stored sum: the numbers of its grain, dimension and ending, and its counts. Returns the
/// problem.
pub(super) fn check_sum([grain, of, ending]: [i64; 3], body: &[u8]) -> Result<(), String> {
    for (what, number, most) in [("grain", grain, 1), ("dimension", of, 2), ("ending", ending, 3)] {
        if !(0..=most).contains(&number) {
            return Err(format!("unknown {what} {number}"));
        }
    }
    check_counts::<Measure>(body)
}

/// The length of the time that a sum is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grain {
    /// An hour, for the last 35 days.
    Hour,
    /// A day.
    Day,
}

impl Grain {
    /// Returns the beginning of the time that a moment is in.
    pub fn begin(self, at_ms: u64) -> u64 {
        match self {
            Self::Hour => at_ms - at_ms % HOUR_MS,
            Self::Day => at_ms - at_ms % DAY_MS,
        }
    }
}

/// The sums to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatsFilter {
    /// The length of the time of each sum.
    pub grain: Grain,
    /// Only sums of times that begin at or after this one, in Unix milliseconds.
    pub since_ms: u64,
    /// The subject.
    pub of: Dimension,
    /// Only this blueprint, agent or model.
    pub name: Option<String>,
}

/// A sum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatsRow {
    /// The beginning of its time, in Unix milliseconds.
    pub at_ms: u64,
    /// The blueprint, agent or model.
    pub name: String,
    /// The ends of the counted things.
    pub ending: Ending,
    /// The counts.
    pub measure: Measure,
}

/// The usage of a run on one day.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CostlyRun {
    /// The run's number.
    pub run: u64,
    /// When it was created, in Unix milliseconds.
    pub created_ms: u64,
    /// Its blueprint.
    pub blueprint: String,
    /// Input and output tokens.
    pub tokens: u64,
    /// The cost, in billionths of a US dollar.
    pub nano_usd: u64,
}

/// Sums by key; the name of a run is its blueprint's.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    /// By grain; the time of a key is the beginning of its hour or day.
    pub(crate) rows: BTreeMap<(Grain, TallyKey), Measure>,
    /// By day and run.
    pub(crate) costly: BTreeMap<(u64, u64), CostlyRun>,
}

impl Sums {
    /// Adds a run.
    pub(crate) fn add(&mut self, counted: &CountedRun) {
        let run = (Dimension::Blueprint, counted.blueprint.as_str(), counted.ending);
        if counted.ending != Ending::Open {
            let mut one = Measure::default();
            one.end(counted.ended_ms.saturating_sub(counted.created_ms));
            self.put(counted.ended_ms, run, &one);
        }
        for (key, measure) in counted.tally.iter() {
            match key.of {
                Dimension::Blueprint => {
                    self.put(key.hour_ms, run, measure);
                    self.cost(counted, key.hour_ms, measure);
                }
                of => self.put(key.hour_ms, (of, &key.name, key.ending), measure),
            }
        }
    }

    fn put(&mut self, at_ms: u64, (of, name, ending): (Dimension, &str, Ending), more: &Measure) {
        for grain in [Grain::Hour, Grain::Day] {
            let hour_ms = grain.begin(at_ms);
            let key = TallyKey { hour_ms, of, name: name.to_owned(), ending };
            self.rows.entry((grain, key)).or_default().add(more);
        }
    }

    fn cost(&mut self, counted: &CountedRun, at_ms: u64, more: &Measure) {
        let tokens = more.input_tokens.saturating_add(more.output_tokens);
        if tokens == 0 && more.nano_usd == 0 {
            return;
        }
        let key = (Grain::Day.begin(at_ms), counted.run);
        let sum = self.costly.entry(key).or_insert_with(|| CostlyRun {
            run: counted.run,
            created_ms: counted.created_ms,
            blueprint: counted.blueprint.clone(),
            tokens: 0,
            nano_usd: 0,
        });
        sum.tokens = sum.tokens.saturating_add(tokens);
        sum.nano_usd = sum.nano_usd.saturating_add(more.nano_usd);
    }

    /// Returns the sums that a filter names.
    pub(crate) fn find(&self, filter: &StatsFilter) -> Vec<StatsRow> {
        let fits = |(grain, key): &(Grain, TallyKey)| {
            *grain == filter.grain
                && key.of == filter.of
                && key.hour_ms >= filter.since_ms
                && filter.name.as_ref().is_none_or(|name| *name == key.name)
        };
        let row = |((_, key), measure): (&(Grain, TallyKey), &Measure)| StatsRow {
            at_ms: key.hour_ms,
            name: key.name.clone(),
            ending: key.ending,
            measure: measure.clone(),
        };
        self.rows.iter().filter(|(key, _)| fits(key)).map(row).collect()
    }
}

/// Returns the most expensive runs, summed up over their days, at most `limit`.
pub(crate) fn most_expensive(
    days: impl IntoIterator<Item = CostlyRun>,
    limit: usize,
) -> Vec<CostlyRun> {
    let mut runs: BTreeMap<u64, CostlyRun> = BTreeMap::new();
    for day in days {
        match runs.get_mut(&day.run) {
            None => drop(runs.insert(day.run, day)),
            Some(run) => {
                run.tokens = run.tokens.saturating_add(day.tokens);
                run.nano_usd = run.nano_usd.saturating_add(day.nano_usd);
            }
        }
    }
    let mut runs: Vec<_> = runs.into_values().collect();
    runs.sort_by_key(|it| std::cmp::Reverse((it.nano_usd, it.tokens, it.run)));
    runs.truncate(limit);
    runs
}
