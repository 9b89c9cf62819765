//! Steps as rows with bars on one axis of time. Long gaps, in which nothing happened, are shortened.

use maud::{Markup, html};

use super::{status, text, time};
use crate::{engine::StepView, protocol::RunId};

/// The width of the axis.
const WIDTH: f64 = 1_000.0;
/// A bar is at least this wide, and begins early enough to be seen.
const LEAST: f64 = 4.0;
/// The last place at which a bar begins.
const LAST: f64 = WIDTH - LEAST;
/// A gap is drawn no longer than this many times the median of all.
const LONGEST_GAP: u64 = 6;
/// A gap below this is never shortened, in milliseconds.
const SHORT_MS: u64 = 1_000;
/// The maximum number of shortened gaps that are marked.
const MOST_MARKS: usize = 4;
/// The deepest indentation.
const DEEPEST: usize = 4;

/// Returns a table of steps.
pub(in crate::dashboard) fn of(run: RunId, steps: &[StepView], now_ms: u64) -> Markup {
    let axis = Axis::of(steps, now_ms);
    html! {
        table.steps {
            thead { tr {
                th.seq.num { "#" } th.state { "State" } th { "Step" } th.took.num { "Took" }
                th.bar { "Time" @if !axis.gaps.is_empty() { span.dim { " (gaps shortened)" } } }
            } }
            tbody { @for step in steps { (row(run, step, &axis, now_ms)) } }
        }
    }
}

fn row(run: RunId, step: &StepView, axis: &Axis, now_ms: u64) -> Markup {
    let span = Span::of(step, now_ms);
    html! {
        tr data-key=(step.seq) {
            td.seq.num { (step.seq) }
            td.state { (status::pill(&step.state)) }
            td class={ "d" (depth(step)) } {
                a href={ "/ui/runs/" (run) "/steps/" (step.seq) } { (text::line(&step.name, 80)) }
                " " span.dim.small { (step.kind)
                    @if step.attempts > 1 { ", attempt " (step.attempts) }
                }
                @if let Some(error) = &step.error {
                    div.small { (text::line(&error.message, 160)) }
                } @else if let Some(summary) = &step.summary {
                    div.small.dim { (text::line(summary, 160)) }
                }
            }
            td.took.num { @if let Some(span) = span { (time::took(span.end - span.begin)) } }
            td.bar { @if let Some(span) = span { (bar(step, span, axis)) } }
        }
    }
}

/// Returns how deep a step is: in branches, and as a part of another.
fn depth(step: &StepView) -> usize {
    let scopes = if step.scope.is_empty() { 0 } else { 1 + step.scope.matches('/').count() };
    (scopes + usize::from(step.parent.is_some())).min(DEEPEST)
}

fn bar(step: &StepView, span: Span, axis: &Axis) -> Markup {
    let (begin, started, end) = (axis.x(span.begin), axis.x(span.started), axis.x(span.end));
    let work = match step.state.as_str() {
        "completed" => "ok",
        "failed" => "bad",
        "canceled" => "wait",
        _ => "run",
    };
    let waited = time::took(span.started - span.begin);
    let worked = time::took(span.end - span.started);
    let title = format!("waited {waited}, worked {worked}");
    html! {
        svg viewBox="0 0 1000 16" preserveAspectRatio="none" role="img" aria-label=(title) {
            title { (title) }
            @for gap in &axis.gaps { line.gap x1=(gap) x2=(gap) y1="0" y2="16" {} }
            @if started > begin { rect.wait x=(begin.min(LAST)) y="5" width=(width(begin, started)) height="6" {} }
            @if end > started || span.begin == span.end {
                rect class=(work) x=(started.min(LAST)) y="2" width=(width(started, end)) height="12" {}
            }
        }
    }
}

fn width(from: f64, to: f64) -> String {
    format!("{:.1}", (to - from).max(LEAST))
}

/// The times of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    begin: u64,
    started: u64,
    end: u64,
}

impl Span {
    fn of(step: &StepView, now_ms: u64) -> Option<Self> {
        let begin = time::unix_ms(&step.scheduled_at)?;
        let ms = |at: &Option<String>| at.as_deref().and_then(time::unix_ms);
        let end = ms(&step.ended_at).unwrap_or(now_ms).max(begin);
        // Nobody works on these: they only wait.
        let waits = matches!(step.kind.as_str(), "timer" | "signal" | "child");
        let idle =
            if step.state == "completed" && step.task.is_none() && !waits { begin } else { end };
        let started = ms(&step.started_at).unwrap_or(idle).clamp(begin, end);
        Some(Self { begin, started, end })
    }
}

/// The axis: times and their places, and the places of shortened gaps.
#[derive(Debug)]
struct Axis {
    points: Vec<(u64, f64)>,
    gaps: Vec<String>,
}

impl Axis {
    fn of(steps: &[StepView], now_ms: u64) -> Self {
        let spans = steps.iter().filter_map(|step| Span::of(step, now_ms));
        let mut times: Vec<u64> = spans.flat_map(|it| [it.begin, it.started, it.end]).collect();
        times.sort_unstable();
        times.dedup();
        let mut lengths: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        lengths.sort_unstable();
        let median = lengths.get(lengths.len() / 2).copied().unwrap_or(0);
        // With few times there is no typical gap, and all of them are as long as they were.
        let longest = match lengths.len() {
            0..4 => u64::MAX,
            _ => median.saturating_mul(LONGEST_GAP).max(SHORT_MS),
        };
        let (mut at, mut points, mut gaps) = (0, Vec::with_capacity(times.len()), Vec::new());
        let mut before = None;
        for time in times {
            let gap = before.map_or(0, |before| time - before);
            if gap > longest {
                gaps.push(at + longest / 2);
            }
            at += gap.min(longest);
            points.push((time, at));
            before = Some(time);
        }
        let scale = WIDTH / (at.max(1) as f64);
        gaps.truncate(MOST_MARKS);
        Self {
            points: points.into_iter().map(|(time, at)| (time, at as f64 * scale)).collect(),
            gaps: gaps.into_iter().map(|at| format!("{:.1}", at as f64 * scale)).collect(),
        }
    }

    /// Returns the place of one of the times that the axis was made of.
    fn x(&self, time: u64) -> f64 {
        let at = self.points.partition_point(|(known, _)| *known < time);
        let x = self.points.get(at).map_or(WIDTH, |(_, x)| *x);
        (x * 10.0).round() / 10.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::rfc3339;

    fn step(seq: u32, begin: u64, started: u64, end: u64) -> StepView {
        serde_json::from_value(serde_json::json!({
            "id": "x", "seq": seq, "scope": "", "index": 0, "prev": null, "kind": "task",
            "name": "<b>", "summary": null, "state": "completed", "attempts": 1, "task": null,
            "scheduled_at": rfc3339(begin), "started_at": rfc3339(started),
            "ended_at": rfc3339(end), "duration_ms": end - begin, "usage": null, "error": null,
        }))
        .unwrap()
    }

    #[test]
    fn an_idle_night_takes_little_of_the_axis() {
        let night = 8 * 3_600_000;
        let steps = [
            step(1, 0, 100, 1_000),
            step(2, 1_000, 1_100, 2_000),
            step(3, night, night + 100, night + 1_000),
        ];
        let axis = Axis::of(&steps, night + 1_000);
        assert_eq!(axis.gaps.len(), 1);
        assert!(axis.x(2_000) > 200.0, "{axis:?}");
        assert!(axis.x(night) < 900.0 && axis.x(night) > axis.x(2_000), "{axis:?}");
        assert_eq!(axis.x(night + 1_000), WIDTH);
    }

    #[test]
    fn names_are_escaped_and_bars_are_within_the_axis() {
        let run = RunId::new(1, 1);
        let shown = of(run, &[step(1, 5, 6, 7)], 9).into_string();
        assert!(shown.contains("&lt;b&gt;") && !shown.contains("<b>"), "{shown}");
        assert!(!shown.contains("NaN") && !shown.contains("style="), "{shown}");
        assert!(of(run, &[], 9).into_string().contains("<tbody></tbody>"));
    }
}
