//! Tests of the statistics.

use super::fixture::{begin, header, put};
use crate::{
    journal::{Dimension, Ending, Measure, Tally, Usage},
    store::{Checked, CountedRun, DAY_MS, Grain, RunStatus, StatsFilter, Store, Trace, Write},
};

const HOUR_MS: u64 = crate::journal::HOUR_MS;

/// A run of `blueprint` that ended in an hour, took `took_ms` and spent `tokens` for its agent.
fn counted(run: u64, hour: u64, took_ms: u64, tokens: u64) -> CountedRun {
    let ended_ms = hour * HOUR_MS + 5;
    let usage = Usage {
        input_tokens: Some(tokens),
        cost: Some(format!("0.0000{tokens:05}")),
        ..Usage::default()
    };
    let mut tally = Tally::default();
    tally.at(ended_ms, Dimension::Agent, "coder", Ending::Completed).end(took_ms / 2);
    tally.spend(ended_ms, Some("coder"), &usage);
    CountedRun {
        run,
        created_ms: ended_ms.saturating_sub(took_ms),
        ended_ms,
        blueprint: format!("b{}", run % 2),
        ending: if run.is_multiple_of(5) { Ending::Failed } else { Ending::Completed },
        tally,
    }
}

fn count(store: &dyn Store, run: CountedRun) {
    put(store, vec![Write::CountRun(Box::new(run))]);
}

/// The sum of everything that a filter names, and the number of its rows.
fn sum(store: &dyn Store, filter: &StatsFilter) -> (Measure, usize) {
    let rows = store.stats(filter).unwrap();
    let mut sum = Measure::default();
    rows.iter().for_each(|row| sum.add(&row.measure));
    (sum, rows.len())
}

pub fn ended_runs_are_summed_up_and_stay_counted_when_they_are_deleted(store: &dyn Store) {
    let of = |of, name: Option<&str>, grain, since_ms| StatsFilter {
        grain,
        since_ms,
        of,
        name: name.map(str::to_owned),
    };
    let all = of(Dimension::Blueprint, None, Grain::Day, 0);
    assert_eq!(store.stats(&all).unwrap(), []);
    let mut first = header(1);
    first.status = RunStatus::Completed;
    begin(store, first);
    // More than are folded at a time, so that some are folded and some are not.
    for run in 1..=600 {
        count(store, counted(run, 1_000 + run % 3, 1_000, 10));
    }
    put(store, vec![Write::DeleteRun { run: 1 }]);
    for filter in [&all, &of(Dimension::Blueprint, None, Grain::Hour, 0)] {
        let (sum, _) = sum(store, filter);
        assert_eq!((sum.count, sum.input_tokens, sum.nano_usd), (600, 6_000, 6_000));
        let half = sum.durations.quantile(50).unwrap();
        assert!(half.abs_diff(1_000) <= 125, "{half}");
    }
    let rows = store.stats(&all).unwrap();
    let failed: u64 =
        rows.iter().filter(|row| row.ending == Ending::Failed).map(|row| row.measure.count).sum();
    assert_eq!((failed, rows.len()), (120, 4), "two blueprints, each completed and failed");
    let one = of(Dimension::Blueprint, Some("b1"), Grain::Hour, 1_001 * HOUR_MS);
    let (of_one, rows) = sum(store, &one);
    assert_eq!((of_one.count, rows), (200, 4), "two hours, completed and failed");
    let (agents, _) = sum(store, &of(Dimension::Agent, Some("coder"), Grain::Day, 0));
    assert_eq!((agents.count, agents.input_tokens), (600, 6_000));
    assert_eq!(sum(store, &of(Dimension::Model, None, Grain::Day, 0)).1, 0);
    assert_eq!(sum(store, &of(Dimension::Blueprint, None, Grain::Hour, 1_003 * HOUR_MS)).1, 0);

    // A history that another follows is no run, but what it used counts.
    let history = CountedRun { ending: Ending::Open, ..counted(601, 1_000, 9, 7) };
    count(store, history);
    let (sum, _) = sum(store, &all);
    assert_eq!((sum.count, sum.input_tokens), (600, 6_007));
}

pub fn the_most_expensive_runs_of_each_day_are_known(store: &dyn Store) {
    for run in 1..=300 {
        count(store, counted(run, 24 * 50, 10, run));
    }
    // The run goes on the next day, in another history.
    count(store, CountedRun { ending: Ending::Open, ..counted(300, 24 * 51, 10, 400) });
    let shown = |since_ms, limit| -> Vec<(u64, u64)> {
        let runs = store.costly_runs(since_ms, limit).unwrap();
        runs.iter().map(|it| (it.run, it.tokens)).collect()
    };
    assert_eq!(shown(0, 3), [(300, 700), (299, 299), (298, 298)]);
    assert_eq!(shown(51 * DAY_MS, 3), [(300, 400)]);
    let first = &store.costly_runs(0, 1).unwrap()[0];
    assert_eq!((first.nano_usd, first.blueprint.as_str()), (700, "b0"));
}

/// Stores rows in each table of the statistics.
pub fn fill_statistics(store: &dyn Store) {
    count(store, counted(1, 1, 10, 7));
    // An erasure folds them.
    put(store, vec![Write::Erase(Box::new(Trace::Sums("nobody".to_owned())))]);
    count(store, counted(1, 1, 10, 7));
}

/// Returns what a check finds damaged, sorted.
pub fn damage(store: &dyn Store) -> Vec<String> {
    let mut found = Vec::new();
    let mut tell = |line| {
        if let Checked::Damaged { what, .. } = line {
            found.push(what);
        }
        true
    };
    store.upkeep().check(&mut tell).unwrap();
    found.sort();
    found
}
