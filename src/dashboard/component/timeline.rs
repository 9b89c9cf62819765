//! Steps as rows with bars on one axis of time. Long gaps, in which nothing happened, are shortened.

use maud::{Markup, html};

use super::{
    fold::{Fold, Row},
    pager, status, text, time,
};
use crate::{
    engine::{AttemptSpan, StepView},
    protocol::RunId,
};

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
/// The number of times in the head of the axis.
const TICKS: usize = 5;
/// The maximum number of attempts of a step that are drawn, the last ones.
const MOST_ATTEMPTS: usize = 24;
/// The deepest indentation.
const DEEPEST: usize = 4;

/// Returns a table of steps, each a row.
pub(in crate::dashboard) fn of(run: RunId, steps: &[StepView], now_ms: u64) -> Markup {
    let rows: Vec<_> = steps.iter().map(Row::Step).collect();
    rows_of(run, &rows, now_ms)
}

/// Returns a table of steps and folds.
pub(in crate::dashboard) fn rows_of(run: RunId, rows: &[Row<'_>], now_ms: u64) -> Markup {
    let spans: Vec<_> = rows.iter().map(|row| span_of(row, now_ms)).collect();
    let attempts = rows.iter().filter_map(|row| match row {
        Row::Step(step) => Some(attempts_of(step)),
        Row::Folded(_) => None,
    });
    let of_attempts = attempts.flatten().map(|it| Span::of_attempt(it, now_ms));
    let axis = Axis::of(spans.iter().flatten().copied().chain(of_attempts), now_ms);
    html! {
        table.steps data-zoom {
            thead { tr {
                th.seq.num { "#" } th.state { "State" } th { "Step" } th.took.num { "Took" }
                th.bar { (axis.head()) }
            } }
            tbody { @for (row, span) in rows.iter().zip(spans) {
                @match row {
                    Row::Step(step) => { (step_row(run, step, span, &axis, now_ms)) }
                    Row::Folded(fold) => { (fold_row(run, fold, span, &axis)) }
                }
            } }
        }
    }
}

fn span_of(row: &Row<'_>, now_ms: u64) -> Option<Span> {
    let steps: &[&StepView] = match row {
        Row::Step(step) => std::slice::from_ref(step),
        Row::Folded(fold) => &fold.steps,
    };
    let spans = steps.iter().filter_map(|step| Span::of(step, now_ms));
    spans.reduce(|all, it| Span {
        begin: all.begin.min(it.begin),
        started: all.started.min(it.started),
        end: all.end.max(it.end),
    })
}

fn step_row(run: RunId, step: &StepView, span: Option<Span>, axis: &Axis, now_ms: u64) -> Markup {
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
            td.bar { @if let Some(span) = span {
                @if attempts_of(step).is_empty() { (bar(&step.state, span, axis, step.attempts)) }
                @else { (bars(attempts_of(step), axis, now_ms)) }
            } }
        }
    }
}

fn fold_row(run: RunId, fold: &Fold<'_>, span: Option<Span>, axis: &Axis) -> Markup {
    let path = format!("/ui/runs/{run}");
    let state = fold.state();
    let (open, failed) = (fold.open(), fold.count("failed"));
    html! {
        tr data-key={ "fold-" (fold.key) } {
            td.seq.num { (fold.steps.first().map_or(0, |it| it.seq)) }
            td.state { (status::pill(state)) }
            td {
                "▸ " a href=(pager::url(&path, &[("tab", "steps"), ("scope", fold.key)])) { (text::line(&fold.label(), 80)) }
                " " span.dim.small { (fold.steps.len()) " steps" @if open > 0 { ", " (open) " open" } @if failed > 0 { ", " (failed) " failed" } }
            }
            td.took.num { @if let Some(span) = span { (time::took(span.end - span.begin)) } }
            td.bar { @if let Some(span) = span { (bar(state, span, axis, 1)) } }
        }
    }
}

/// Returns how deep a step is: in branches, and as a part of another.
fn depth(step: &StepView) -> usize {
    let scopes = if step.scope.is_empty() { 0 } else { 1 + step.scope.matches('/').count() };
    (scopes + usize::from(step.parent.is_some())).min(DEEPEST)
}

fn bar(state: &str, span: Span, axis: &Axis, attempts: u32) -> Markup {
    let waited = time::took(span.started - span.begin);
    let worked = time::took(span.end - span.started);
    let tried = if attempts > 1 { format!(", {attempts} attempts") } else { String::new() };
    let title = format!("waited {waited}, worked {worked}{tried}");
    let class =
        if attempts > 1 { format!("{} again", work(state)) } else { work(state).to_owned() };
    picture(&title, axis, &html! { title { (title) } (part(&class, span, axis)) })
}

/// Returns a bar for each attempt of a step, and a line where none was in progress.
fn bars(attempts: &[AttemptSpan], axis: &Axis, now_ms: u64) -> Markup {
    let spans: Vec<_> = attempts.iter().map(|it| (it, Span::of_attempt(it, now_ms))).collect();
    let words: Vec<_> = spans.iter().map(|(it, span)| words(it, *span)).collect();
    let between = spans.windows(2).map(|pair| (axis.x(pair[0].1.end), axis.x(pair[1].1.begin)));
    let inner = html! {
        @for (from, to) in between {
            @if to > from { line.rest x1=(place(from)) x2=(place(to)) y1="8" y2="8" {} }
        }
        @for ((attempt, span), words) in spans.iter().zip(&words) {
            g { title { (words) } (part(work(attempt.state), *span, axis)) }
        }
    };
    picture(&words.join("; "), axis, &inner)
}

fn words(attempt: &AttemptSpan, span: Span) -> String {
    let AttemptSpan { attempt, worker, state, .. } = attempt;
    let by = worker.as_deref().map(|it| format!(" by {}", text::short(it, 60))).unwrap_or_default();
    let (waited, worked) = (span.started - span.begin, span.end - span.started);
    let (waited, worked) = (time::took(waited), time::took(worked));
    format!("attempt {attempt}{by}: waited {waited}, worked {worked}, {state}")
}

/// Returns the class of the bar of some work.
fn work(state: &str) -> &'static str {
    match state {
        "completed" | "followed" => "ok",
        "failed" => "bad",
        "canceled" => "wait",
        _ => "run",
    }
}

/// Returns the bars of a time of waiting and a time of work.
fn part(class: &str, span: Span, axis: &Axis) -> Markup {
    let (begin, started, end) = (axis.x(span.begin), axis.x(span.started), axis.x(span.end));
    html! {
        @if started > begin { rect.wait x=(begin.min(LAST)) y="5" width=(width(begin, started)) height="6" {} }
        @if end > started || span.begin == span.end {
            rect class=(class) x=(started.min(LAST)) y="2" width=(width(started, end)) height="12" {}
        }
    }
}

fn picture(label: &str, axis: &Axis, bars: &Markup) -> Markup {
    html! {
        svg viewBox="0 0 1000 16" preserveAspectRatio="none" role="img" aria-label=(label) {
            @for gap in axis.gaps.iter().take(MOST_MARKS) {
                @let x = place(gap.middle());
                line.gap x1=(x) x2=(x) y1="0" y2="16" {}
            }
            (bars)
        }
    }
}

/// Returns the attempts of a step that are drawn: none if it had one only.
fn attempts_of(step: &StepView) -> &[AttemptSpan] {
    &step.spans[step.spans.len().saturating_sub(MOST_ATTEMPTS)..]
}

fn place(x: f64) -> String {
    format!("{x:.1}")
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
    fn of_attempt(attempt: &AttemptSpan, now_ms: u64) -> Self {
        let begin = attempt.opened_ms;
        let end = attempt.ended_ms.unwrap_or(now_ms).max(begin);
        // Nobody was given an attempt in progress; of one that ended nobody knows how long it waited.
        let idle = if attempt.ended_ms.is_none() { end } else { begin };
        Self { begin, started: attempt.started_ms.unwrap_or(idle).clamp(begin, end), end }
    }

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

/// The axis: times and their places, and the shortened gaps.
#[derive(Debug)]
struct Axis {
    points: Vec<(u64, f64)>,
    gaps: Vec<Gap>,
    /// The room at the end of an axis that grows, in milliseconds.
    room_ms: u64,
}

/// Returns the next of the numbers that are at most an eighth apart.
fn stepped(number: u64) -> u64 {
    let step = (number.next_power_of_two() / 16).max(1);
    number.div_ceil(step).saturating_mul(step)
}

/// A gap in which nothing happened, drawn shorter than it was.
#[derive(Debug)]
struct Gap {
    from: f64,
    to: f64,
    /// The time since the begin of the axis at which it begins.
    since_ms: u64,
    ms: u64,
}

impl Gap {
    fn middle(&self) -> f64 {
        f64::midpoint(self.from, self.to)
    }
}

impl Axis {
    /// Returns the axis of some times. One that goes up to now has room at its end, so that bars stay
    /// where they are while it grows, and an open page needs little to follow it.
    fn of(spans: impl Iterator<Item = Span>, now_ms: u64) -> Self {
        let mut times: Vec<u64> = spans.flat_map(|it| [it.begin, it.started, it.end]).collect();
        times.sort_unstable();
        times.dedup();
        let mut lengths: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        lengths.sort_unstable();
        let median = lengths.get(lengths.len() / 2).copied().unwrap_or(0);
        // With few times there is no typical gap, and all of them are as long as they were.
        let longest = match lengths.len() {
            0..4 => u64::MAX,
            _ => stepped(median.saturating_mul(LONGEST_GAP).max(SHORT_MS)),
        };
        let drawn: u64 = lengths.iter().map(|length| length.min(&longest)).sum();
        let grows = times.last().is_some_and(|last| *last >= now_ms);
        let room_ms = if grows { stepped(drawn) - drawn } else { 0 };
        let drawn = drawn + room_ms;
        let scale = WIDTH / (drawn.max(1) as f64);
        let (mut at, mut points, mut gaps) = (0, Vec::with_capacity(times.len()), Vec::new());
        let mut before = None;
        for &time in &times {
            let ms = before.map_or(0, |before| time - before);
            let from = at as f64 * scale;
            at += ms.min(longest);
            let to = at as f64 * scale;
            if ms > longest {
                gaps.push(Gap { from, to, since_ms: time - ms - times[0], ms });
            }
            points.push((time, to));
            before = Some(time);
        }
        Self { points, gaps, room_ms }
    }

    /// Returns the place of one of the times that the axis was made of.
    fn x(&self, time: u64) -> f64 {
        let at = self.points.partition_point(|(known, _)| *known < time);
        let x = self.points.get(at).map_or(WIDTH, |(_, x)| *x);
        (x * 10.0).round() / 10.0
    }

    /// Returns the bends of the axis: places, each with the milliseconds since its begin. Between two
    /// of them time goes on evenly.
    fn bends(&self) -> Vec<(f64, u64)> {
        let (Some((first, _)), Some((last, _))) = (self.points.first(), self.points.last()) else {
            return Vec::new();
        };
        let of_gap = |gap: &Gap| [(gap.from, gap.since_ms), (gap.to, gap.since_ms + gap.ms)];
        let gaps = self.gaps.iter().flat_map(of_gap);
        let end = (WIDTH, last - first + self.room_ms);
        std::iter::once((0.0, 0)).chain(gaps).chain([end]).collect()
    }

    /// Returns the head of the axis: times, and how long the longest of the shortened gaps were.
    fn head(&self) -> Markup {
        let bends = self.bends();
        let whole = bends.last().map_or(0, |(_, ms)| *ms);
        let data: Vec<_> = bends.iter().map(|(x, ms)| format!("{x:.1}:{ms}")).collect();
        let mut gaps: Vec<&Gap> = self.gaps.iter().collect();
        gaps.sort_by_key(|gap| std::cmp::Reverse(gap.ms));
        gaps.truncate(MOST_MARKS);
        let label = match gaps.is_empty() {
            true => format!("Time: {} in all", time::took(whole)),
            false => format!("Time: {} in all, idle gaps are shortened", time::took(whole)),
        };
        html! {
            @if whole == 0 { "Time" }
            @else {
                svg.axis width="100%" height="30" data-bends=(data.join(" ")) role="img" aria-label=(label) {
                    @for tick in 0..TICKS {
                        @let x = WIDTH * tick as f64 / (TICKS - 1) as f64;
                        @let anchor = if tick == 0 { "start" } else if tick + 1 == TICKS { "end" } else { "middle" };
                        text.tick x={ (place(x / 10.0)) "%" } y="12" text-anchor=(anchor) { (time::took(time_at(&bends, x))) }
                    }
                    @for gap in gaps {
                        text.idle data-x=(place(gap.middle())) x={ (place(gap.middle() / 10.0)) "%" } y="27" text-anchor="middle" {
                            "⋯ " (time::coarse(gap.ms)) " idle"
                        }
                    }
                }
            }
        }
    }
}

/// Returns the milliseconds since the begin of the axis at a place.
fn time_at(bends: &[(f64, u64)], x: f64) -> u64 {
    let behind = bends.partition_point(|(bend, _)| *bend < x).clamp(1, bends.len() - 1);
    let ((x0, ms0), (x1, ms1)) = (bends[behind - 1], bends[behind]);
    let part = if x1 > x0 { ((x - x0) / (x1 - x0)).clamp(0.0, 1.0) } else { 1.0 };
    ms0 + ((ms1 - ms0) as f64 * part) as u64
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
        const END: u64 = 8 * 3_600_000 + 1_000;
        let night = END - 1_000;
        let steps = [
            step(1, 0, 100, 1_000),
            step(2, 1_000, 1_100, 2_000),
            step(3, night, night + 100, night + 1_000),
        ];
        let axis = Axis::of(steps.iter().filter_map(|step| Span::of(step, END)), END + 1);
        assert_eq!(axis.gaps.len(), 1);
        assert!(axis.x(2_000) > 200.0, "{axis:?}");
        assert!(axis.x(night) < 900.0 && axis.x(night) > axis.x(2_000), "{axis:?}");
        assert_eq!(axis.x(night + 1_000), WIDTH);
        let head = axis.head().into_string();
        assert!(head.contains("⋯ 7 h idle") && head.contains(">8h 0m</text>"), "{head}");
        assert_eq!(time_at(&axis.bends(), axis.x(night)), night);
    }

    #[test]
    fn bars_stay_where_they_are_while_the_axis_grows() {
        let axis = |now_ms| {
            let ended = |n: u32| {
                let begin = u64::from(n) * 100;
                step(n, begin, begin, begin + 100)
            };
            let open = StepView { state: "processing".into(), ended_at: None, ..ended(40) };
            let all: Vec<_> = (0..40).map(ended).chain([open]).collect();
            Axis::of(all.iter().filter_map(|it| Span::of(it, now_ms)), now_ms)
        };
        let (now, later) = (axis(4_010), axis(4_060));
        for time in [0, 100, 2_500, 4_000] {
            assert_eq!(now.x(time), later.x(time), "{time}");
        }
        assert!(now.x(4_010) < later.x(4_060) && later.x(4_060) <= WIDTH);
        assert!(now.x(4_000) > 0.85 * WIDTH, "there is little room at the end");
        let (bends, steps) = (now.bends(), [0, 1, 2, 3, 16, 17, 31, 33, 100, 1_000].map(stepped));
        assert_eq!(bends.last().map(|(x, _)| *x), Some(WIDTH));
        assert_eq!(time_at(&bends, now.x(2_500)) / 10, 250);
        assert_eq!(steps, [0, 1, 2, 3, 16, 18, 32, 36, 104, 1_024]);
    }

    #[test]
    fn a_step_that_was_tried_again_looks_different() {
        let once = step(1, 0, 10, 100);
        let twice = StepView { attempts: 2, ..step(2, 0, 10, 100) };
        let shown = of(RunId::new(1, 1), &[once, twice], 200).into_string();
        assert_eq!(shown.matches("class=\"ok again\"").count(), 1, "{shown}");
        assert!(shown.contains("worked 90 ms, 2 attempts"), "{shown}");
    }

    #[test]
    fn each_attempt_of_a_step_has_a_bar_with_its_worker() {
        let span = |attempt, opened_ms, started_ms, ended_ms, state| AttemptSpan {
            attempt,
            opened_ms,
            started_ms,
            ended_ms,
            worker: started_ms.map(|_| "w<1>".to_owned()),
            state,
        };
        let spans = vec![
            span(1, 0, Some(100), Some(400), "failed"),
            span(2, 500, Some(600), None, "processing"),
        ];
        let step = StepView { attempts: 2, spans, ..step(1, 0, 600, 900) };
        let shown = of(RunId::new(1, 1), &[step], 1_000).into_string();
        let first = "<title>attempt 1 by w&lt;1&gt;: waited 100 ms, worked 300 ms, failed</title>";
        assert!(shown.contains(first), "{shown}");
        assert!(shown.contains("waited 100 ms, worked 400 ms, processing</title>"), "{shown}");
        for (class, expected) in
            [("class=\"wait\"", 2), ("class=\"bad\"", 1), ("class=\"rest\"", 1)]
        {
            assert_eq!(shown.matches(class).count(), expected, "{class}: {shown}");
        }
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
