//! A reading of the metrics as a message.

use super::message::{
    Data, Gauge, Histogram, HistogramPoint, KeyValue, Metric, Metrics, Number, Point,
    ResourceMetrics, ScopeMetrics, Sum, resource, scope, text,
};
use crate::{
    clock::Clock,
    metrics::{Kind, Points, Sample, Scrape, Value},
};

/// The sums of a counter since its start.
const CUMULATIVE: i32 = 2;
/// The counters that begin with the process. The others begin with the engine: a node of a cluster may
/// have several, one after the other.
const OF_PROCESS: [&str; 5] = [
    "moonswarm_forwarded_total",
    "moonswarm_takeovers_total",
    "moonswarm_fenced_total",
    "moonswarm_log_lines_total",
    "process_cpu_seconds_total",
];

/// Returns the message for a reading. `since_ms` is when the counters of the engine began.
pub(super) fn message(scrape: &Scrape, attributes: &[(String, String)], since_ms: u64) -> Metrics {
    let now = Clock::system().now_ms().saturating_mul(1_000_000);
    let since = since_ms.saturating_mul(1_000_000).min(now);
    let started = started(scrape).unwrap_or(since);
    let start_of = |points: &Points| match OF_PROCESS.contains(&points.of.name) {
        true => started.min(now),
        false => since,
    };
    let with_points = scrape.families().iter().filter(|it| !it.samples.is_empty());
    let metrics = with_points.map(|points| metric(points, (start_of(points), now))).collect();
    let scope_metrics = vec![ScopeMetrics { scope: Some(scope()), metrics }];
    let resource = Some(resource(attributes));
    Metrics { resource_metrics: vec![ResourceMetrics { resource, scope_metrics }] }
}

/// Returns when the process started, in nanoseconds.
fn started(scrape: &Scrape) -> Option<u64> {
    let is_start = |it: &&Points| it.of.name == "process_start_time_seconds";
    let sample = scrape.families().iter().find(is_start)?.samples.first()?;
    let Value::Number(seconds) = sample.value else { return None };
    u64::try_from(std::time::Duration::try_from_secs_f64(seconds).ok()?.as_nanos()).ok()
}

fn metric(points: &Points, times: (u64, u64)) -> Metric {
    let of = points.of;
    let data = match of.kind {
        Kind::Counter => Data::Sum(Sum {
            data_points: points.samples.iter().filter_map(|it| point(it, times)).collect(),
            aggregation_temporality: CUMULATIVE,
            is_monotonic: true,
        }),
        Kind::Gauge => Data::Gauge(Gauge {
            data_points: points.samples.iter().filter_map(|it| point(it, (0, times.1))).collect(),
        }),
        Kind::Histogram => Data::Histogram(Histogram {
            data_points: points.samples.iter().filter_map(|it| buckets(it, times)).collect(),
            aggregation_temporality: CUMULATIVE,
        }),
    };
    let unit = match of.unit() {
        Some("seconds") => "s",
        Some("bytes") => "By",
        Some("usd") => "{USD}",
        _ => "",
    };
    Metric {
        name: of.name.trim_end_matches("_total").to_owned(),
        description: of.help.to_owned(),
        unit: unit.to_owned(),
        data: Some(data),
    }
}

fn point(sample: &Sample, (start, at): (u64, u64)) -> Option<Point> {
    let value = match &sample.value {
        Value::Whole(value) => Number::Int(i64::try_from(*value).unwrap_or(i64::MAX)),
        Value::Number(value) => Number::Double(*value),
        Value::Buckets(_) => return None,
    };
    Some(Point {
        start_time_unix_nano: start,
        time_unix_nano: at,
        value: Some(value),
        attributes: attributes(sample),
    })
}

fn buckets(sample: &Sample, (start, at): (u64, u64)) -> Option<HistogramPoint> {
    let Value::Buckets(buckets) = &sample.value else { return None };
    Some(HistogramPoint {
        start_time_unix_nano: start,
        time_unix_nano: at,
        count: buckets.counts.iter().sum(),
        sum: Some(buckets.sum),
        bucket_counts: buckets.counts.clone(),
        explicit_bounds: buckets.bounds.clone(),
        attributes: attributes(sample),
    })
}

fn attributes(sample: &Sample) -> Vec<KeyValue> {
    sample.labels.iter().map(|(name, value)| text(name, value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_of_the_engine_begins_with_it_and_one_of_the_process_with_the_process() {
        let mut scrape = Scrape::default();
        scrape.number("process_start_time_seconds", &[], 100.0);
        scrape.count("moonswarm_fenced_total", &[], 1);
        scrape.count("moonswarm_runs_quarantined_total", &[], 1);
        let message = message(&scrape, &[], 200_000);
        let metrics = &message.resource_metrics[0].scope_metrics[0].metrics;
        let start = |name: &str| {
            let metric = metrics.iter().find(|it| it.name == name).unwrap();
            let Some(Data::Sum(sum)) = &metric.data else { panic!("{metric:?}") };
            sum.data_points[0].start_time_unix_nano
        };
        assert_eq!(start("moonswarm_fenced"), 100_000_000_000);
        assert_eq!(start("moonswarm_runs_quarantined"), 200_000_000_000);
    }

    #[test]
    fn the_counters_of_the_process_are_in_the_table() {
        for name in OF_PROCESS {
            assert!(crate::metrics::FAMILIES.iter().any(|it| it.name == name), "{name}");
        }
    }
}
