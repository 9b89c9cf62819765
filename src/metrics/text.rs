//! The two text formats: Prometheus 0.0.4 and OpenMetrics 1.0.
//!
//! They differ in the name of a counter's family, in the line with the unit, and in the end mark.

use std::fmt::Write as _;

use super::{
    catalogue::{Described, Kind},
    scrape::{Sample, Scrape, Value},
};

/// A text format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Prometheus 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// Returns the format that a client prefers, by its `Accept` header.
    pub fn accepted(accept: &str) -> Self {
        let mut best = (0.0, Self::Prometheus);
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let format = match parts.next().unwrap_or_default() {
                "application/openmetrics-text" => Self::OpenMetrics,
                "text/plain" | "text/*" | "*/*" => Self::Prometheus,
                _ => continue,
            };
            let weight = parts.find_map(|it| it.strip_prefix("q="));
            let weight = weight.map_or(1.0, |it| it.parse::<f64>().unwrap_or(0.0));
            if weight > best.0 {
                best = (weight, format);
            }
        }
        best.1
    }

    /// Returns the content type.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Writes a reading as text.
pub fn write(scrape: &Scrape, format: Format) -> String {
    let mut text = String::with_capacity(32 << 10);
    for points in scrape.families() {
        head(&mut text, points.of, format);
        for sample in &points.samples {
            put(&mut text, points.of.name, sample);
        }
    }
    if format == Format::OpenMetrics {
        text.push_str("# EOF\n");
    }
    text
}

fn head(text: &mut String, of: &Described, format: Format) {
    let name = match (format, of.kind) {
        (Format::OpenMetrics, Kind::Counter) => of.name.trim_end_matches("_total"),
        _ => of.name,
    };
    let kind = match of.kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
    };
    // A text in memory takes every write.
    let _ = writeln!(text, "# HELP {name} {}", of.help);
    let _ = writeln!(text, "# TYPE {name} {kind}");
    if let (Format::OpenMetrics, Some(unit)) = (format, of.unit()) {
        let _ = writeln!(text, "# UNIT {name} {unit}");
    }
}

fn put(text: &mut String, name: &str, sample: &Sample) {
    let labels = Labels(&sample.labels);
    let _ = match &sample.value {
        Value::Whole(value) => writeln!(text, "{name}{} {value}", labels.text(None)),
        Value::Number(value) => writeln!(text, "{name}{} {}", labels.text(None), number(*value)),
        Value::Buckets(buckets) => {
            let mut sum = 0;
            let bounds = buckets.bounds.iter().map(|bound| number(*bound));
            for (bound, count) in bounds.chain(["+Inf".to_owned()]).zip(&buckets.counts) {
                sum += count;
                let _ = writeln!(text, "{name}_bucket{} {sum}", labels.text(Some(&bound)));
            }
            let labels = labels.text(None);
            let _ = writeln!(text, "{name}_sum{labels} {}", number(buckets.sum));
            writeln!(text, "{name}_count{labels} {sum}")
        }
    };
}

/// Writes a number with a point, as OpenMetrics wants bounds to be.
fn number(value: f64) -> String {
    format!("{value:?}")
}

struct Labels<'a>(&'a [(&'static str, String)]);

impl Labels<'_> {
    fn text(&self, bound: Option<&str>) -> String {
        let bound = bound.map(|bound| ("le", bound));
        let all = self.0.iter().map(|(name, value)| (*name, value.as_str())).chain(bound);
        let mut text = String::new();
        for (name, value) in all {
            text.push(if text.is_empty() { '{' } else { ',' });
            let _ = write!(text, "{name}=\"");
            for c in value.chars() {
                match c {
                    '\\' => text.push_str("\\\\"),
                    '"' => text.push_str("\\\""),
                    '\n' => text.push_str("\\n"),
                    c => text.push(c),
                }
            }
            text.push('"');
        }
        if !text.is_empty() {
            text.push('}');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Histogram;

    #[test]
    fn both_formats_name_a_counter_by_their_own_rule() {
        let mut scrape = Scrape::default();
        scrape.count("moonswarm_refusals_total", &["a\"b\\c\nd"], 3);
        let line = "moonswarm_refusals_total{code=\"a\\\"b\\\\c\\nd\"} 3\n";
        let text = write(&scrape, Format::Prometheus);
        assert!(text.contains("# TYPE moonswarm_refusals_total counter\n"), "{text}");
        assert!(text.contains(line) && !text.contains("# EOF"), "{text}");
        let text = write(&scrape, Format::OpenMetrics);
        assert!(text.contains("# TYPE moonswarm_refusals counter\n"), "{text}");
        assert!(text.contains(line) && text.ends_with("# EOF\n"), "{text}");
        assert!(text.contains("# UNIT moonswarm_commit_seconds seconds\n"), "{text}");
    }

    #[test]
    fn buckets_are_sums_and_the_last_has_no_bound() {
        let mut scrape = Scrape::default();
        let histogram = Histogram::many();
        [1, 1, 3, 9_999].into_iter().for_each(|it| histogram.add(it));
        scrape.histogram("moonswarm_group_rows", &[], &histogram);
        let text = write(&scrape, Format::OpenMetrics);
        for line in [
            "moonswarm_group_rows_bucket{le=\"1.0\"} 2\n",
            "moonswarm_group_rows_bucket{le=\"4.0\"} 3\n",
            "moonswarm_group_rows_bucket{le=\"+Inf\"} 4\n",
            "moonswarm_group_rows_sum 10004.0\n",
            "moonswarm_group_rows_count 4\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
    }

    #[test]
    fn the_client_chooses_the_format() {
        let of_prometheus = "application/openmetrics-text;version=1.0.0;q=0.75,\
                             text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(Format::accepted(of_prometheus), Format::OpenMetrics);
        for plain in
            ["", "*/*", "text/plain", "text/html", "application/openmetrics-text;q=0.1,*/*"]
        {
            assert_eq!(Format::accepted(plain), Format::Prometheus, "{plain}");
        }
    }
}
