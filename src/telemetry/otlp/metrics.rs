//! A reading of the metrics as a message.

use super::message::{
    Data, Gauge, Histogram, HistogramPoint, KeyValue, Metric, Metrics, Number, Point,
    ResourceMetrics, ScopeMetrics, Sum, resource, scope, text,
};
use crate::{
    clock::Clock,
    metrics::{Kind, Points, Sample, Scrape, Value},
};

/// The sums of a counter since the start of the process.
const CUMULATIVE: i32 = 2;

/// Returns the message for a reading.
pub(super) fn message(scrape: &Scrape, attributes: &[(String, String)]) -> Metrics {
    let now = Clock::system().now_ms().saturating_mul(1_000_000);
    let started = started(scrape).unwrap_or(now);
    let with_points = scrape.families().iter().filter(|it| !it.samples.is_empty());
    let metrics = with_points.map(|points| metric(points, (started, now))).collect();
    let scope_metrics = vec![ScopeMetrics { scope: Some(scope()), metrics }];
    let resource = Some(resource(attributes));
    Metrics { resource_metrics: vec![ResourceMetrics { resource, scope_metrics }] }
}

/// Returns when the process started, in nanoseconds: the sums are since then.
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
