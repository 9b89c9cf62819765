//! The statistics of the host: counts, durations, tokens and cost of what ended.

use std::collections::BTreeMap;

use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    engine::{Caller, Engine, EngineError, rfc3339},
    journal::{Dimension, Ending, Measure},
    protocol::RunId,
    store::{CostlyRun, DAY_MS, Grain, HOURS_KEPT_MS, StatsFilter, StatsRow},
    token::{Need, ScopeKind, Verb},
};

/// The age up to which sums by hour are added up, so that `since` is exact to the hour.
const EXACT_MS: u64 = 2 * DAY_MS;
/// The number of keys without a limit of the caller's.
const KEYS: usize = 100;

/// The grouping of statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StatsBy {
    /// Runs, by how they ended.
    Status,
    /// Runs, by blueprint.
    Blueprint,
    /// Tasks, by agent or tool.
    Agent,
    /// Model calls, by model.
    Model,
    /// Runs, by hour.
    Hour,
    /// Runs, by day.
    Day,
    /// The most expensive runs.
    Run,
}

/// The statistics to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatsAsk {
    /// The grouping.
    pub by: StatsBy,
    /// The beginning, in Unix milliseconds; by default a day ago for hours, 30 days for the rest.
    pub since_ms: Option<u64>,
    /// Only runs of this blueprint; not for agents and models.
    pub blueprint: Option<String>,
    /// The maximum number of items; those that used most come first.
    pub limit: Option<usize>,
}

/// Statistics of what ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StatsView {
    /// The grouping.
    pub by: StatsBy,
    /// RFC 3339, UTC: the beginning of the first hour or day that is counted.
    pub since: String,
    /// The groups: hours and days in their order, all others the most expensive first.
    pub items: Vec<StatsItem>,
    /// The sum of all groups, also of those that were left off.
    pub total: StatsItem,
    /// The number of groups that the limit left off.
    pub left_off: usize,
}

/// The sum of a group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StatsItem {
    /// The status, the name, the beginning of the hour or day (RFC 3339, UTC), or the run's id; empty
    /// for the total.
    pub key: String,
    /// The blueprint of a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blueprint: Option<String>,
    /// The number that ended.
    pub count: u64,
    /// The number that completed.
    pub completed: u64,
    /// The number that failed.
    pub failed: u64,
    /// The number that were canceled.
    pub canceled: u64,
    /// The duration that half of them did not exceed, in milliseconds, at most an eighth off.
    pub p50_ms: Option<u64>,
    /// The duration that 95 of 100 did not exceed, in milliseconds, at most an eighth off.
    pub p95_ms: Option<u64>,
    /// Input and output tokens, as far as they were reported.
    pub tokens: u64,
    /// The cost in US dollars, as far as it was reported.
    #[schema(value_type = String)]
    pub usd: Decimal,
}

impl Engine {
    /// Returns statistics. Each run is counted when it ends, its steps by the hour in which they ended;
    /// deleted runs stay counted.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or asks for hours that are not kept any more.
    pub async fn stats(&self, caller: &Caller, ask: StatsAsk) -> Result<StatsView, EngineError> {
        caller.grant.check(Verb::RunRead, &[Need::Every(ScopeKind::Run)])?;
        let now_ms = self.shared().clock.now_ms();
        let is_by_hour = ask.by == StatsBy::Hour;
        let default = if is_by_hour { DAY_MS } else { 30 * DAY_MS };
        let since_ms = ask.since_ms.unwrap_or_else(|| now_ms.saturating_sub(default));
        let age_ms = now_ms.saturating_sub(since_ms);
        if is_by_hour && age_ms > HOURS_KEPT_MS {
            let days = HOURS_KEPT_MS / DAY_MS;
            return Err(EngineError::BadRequest(format!("hours are kept for {days} days")));
        }
        if ask.by == StatsBy::Run {
            return self.costly(ask, since_ms).await;
        }
        let grain = match ask.by {
            StatsBy::Hour => Grain::Hour,
            StatsBy::Day => Grain::Day,
            _ if age_ms <= EXACT_MS => Grain::Hour,
            _ => Grain::Day,
        };
        let since_ms = grain.begin(since_ms);
        let of = match ask.by {
            StatsBy::Agent => Dimension::Agent,
            StatsBy::Model => Dimension::Model,
            _ => Dimension::Blueprint,
        };
        let name = ask.blueprint.filter(|_| of == Dimension::Blueprint);
        let filter = StatsFilter { grain, since_ms, of, name };
        let rows = self.read(move |store| store.stats(&filter)).await?;
        Ok(summed(ask.by, since_ms, rows, ask.limit))
    }

    async fn costly(&self, ask: StatsAsk, since_ms: u64) -> Result<StatsView, EngineError> {
        let limit = ask.limit.unwrap_or(KEYS);
        // The days keep few runs each, so all of them can be read and then filtered.
        let runs = self.read(move |store| store.costly_runs(since_ms, usize::MAX)).await?;
        let mut items: Vec<StatsItem> = runs
            .into_iter()
            .filter(|run| ask.blueprint.as_ref().is_none_or(|name| *name == run.blueprint))
            .map(|CostlyRun { run, created_ms, blueprint, tokens, nano_usd }| StatsItem {
                key: RunId::new(run, created_ms).to_string(),
                blueprint: Some(blueprint),
                count: 1,
                tokens,
                usd: usd(nano_usd),
                ..StatsItem::default()
            })
            .collect();
        let total = StatsItem {
            count: items.len() as u64,
            tokens: items.iter().fold(0, |sum, it| it.tokens.saturating_add(sum)),
            usd: items.iter().fold(Decimal::ZERO, |sum, it| sum.saturating_add(it.usd)),
            ..StatsItem::default()
        };
        let left_off = items.len().saturating_sub(limit);
        items.truncate(limit);
        let since = rfc3339(Grain::Day.begin(since_ms));
        Ok(StatsView { by: ask.by, since, items, total, left_off })
    }
}

/// The measures of a group, by how they ended.
#[derive(Default)]
struct Group(BTreeMap<Ending, Measure>);

impl Group {
    fn add(&mut self, ending: Ending, measure: &Measure) {
        self.0.entry(ending).or_default().add(measure);
    }

    fn item(&self, key: String) -> StatsItem {
        let mut all = Measure::default();
        self.0.values().for_each(|it| all.add(it));
        let count = |ending| self.0.get(&ending).map_or(0, |it| it.count);
        StatsItem {
            key,
            blueprint: None,
            count: all.count,
            completed: count(Ending::Completed),
            failed: count(Ending::Failed),
            canceled: count(Ending::Canceled),
            p50_ms: all.durations.quantile(50),
            p95_ms: all.durations.quantile(95),
            tokens: all.input_tokens.saturating_add(all.output_tokens),
            usd: usd(all.nano_usd),
        }
    }
}

fn summed(by: StatsBy, since_ms: u64, rows: Vec<StatsRow>, limit: Option<usize>) -> StatsView {
    let (mut groups, mut total) = (BTreeMap::<String, Group>::new(), Group::default());
    for StatsRow { at_ms, name, ending, measure } in rows {
        let key = match by {
            StatsBy::Hour | StatsBy::Day => rfc3339(at_ms),
            StatsBy::Status => word(ending).to_owned(),
            StatsBy::Blueprint | StatsBy::Agent | StatsBy::Model | StatsBy::Run => name,
        };
        total.add(ending, &measure);
        groups.entry(key).or_default().add(ending, &measure);
    }
    let mut items: Vec<_> = groups.into_iter().map(|(key, group)| group.item(key)).collect();
    let is_of_time = matches!(by, StatsBy::Hour | StatsBy::Day);
    if !is_of_time {
        items.sort_by_key(|it| std::cmp::Reverse((it.usd, it.tokens, it.count)));
    }
    let limit = limit.unwrap_or(if is_of_time { usize::MAX } else { KEYS });
    let left_off = items.len().saturating_sub(limit);
    if is_of_time {
        // The latest are of interest.
        items.drain(..left_off);
    }
    items.truncate(limit);
    let total = total.item(String::new());
    StatsView { by, since: rfc3339(since_ms), items, total, left_off }
}

/// Returns the status of an ending; runs that are open have none yet.
fn word(ending: Ending) -> &'static str {
    match ending {
        Ending::Open => "open",
        Ending::Completed => "completed",
        Ending::Failed => "failed",
        Ending::Canceled => "canceled",
    }
}

fn usd(nano: u64) -> Decimal {
    Decimal::from_i128_with_scale(nano.into(), 9).normalize()
}
