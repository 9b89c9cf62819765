//! Runs as rows.

use maud::{Markup, html};

use super::{pager, status, text, time, usage, waiting};
use crate::engine::RunView;

/// Returns a table of runs; `empty` is shown if there are none.
pub(in crate::dashboard) fn of(runs: &[RunView], now_ms: u64, empty: &Markup) -> Markup {
    table(runs, now_ms, empty, false)
}

/// Returns a table of runs that a form can select: each has a field `id`.
pub(in crate::dashboard) fn selectable(runs: &[RunView], now_ms: u64, empty: &Markup) -> Markup {
    table(runs, now_ms, empty, true)
}

fn table(runs: &[RunView], now_ms: u64, empty: &Markup, selects: bool) -> Markup {
    html! {
        @if runs.is_empty() {
            div.empty { (empty) }
        } @else {
            table.stack {
                thead { tr {
                    @if selects { th.pick { input type="checkbox" data-all="id" aria-label="Select all on this page"; } }
                    th { "Status" } th { "Run" } th { "What it does" } th.num { "Steps" }
                    th.num { "Took" } th.num { "Cost" } th { "Started" }
                } }
                tbody { @for run in runs { (row(run, now_ms, selects)) } }
            }
        }
    }
}

fn row(run: &RunView, now_ms: u64, selects: bool) -> Markup {
    let id = run.id.to_string();
    html! {
        tr data-key=(id) {
            @if selects {
                td.pick data-label="Select" { input type="checkbox" name="id" value=(id) aria-label={ "Select " (text::short(&run.blueprint, 60)) " " (id) }; }
            }
            td data-label="Status" { (status::pill(run.status.as_str())) }
            td data-label="Run" {
                a href={ "/ui/runs/" (id) } { (text::line(&run.blueprint, 60)) }
                div.dim.small.mono { (id) }
                (tags(run))
            }
            td.clip data-label="What it does" { (says(run)) }
            td.num data-label="Steps" { (run.steps_done) "/" (run.steps) }
            td.num data-label="Took" { (lasted(run, now_ms)) }
            td.num data-label="Cost" { (usage::short(run.usage.as_ref().map(|it| &it.total))) }
            td data-label="Started" { (time::of(&run.created_at, now_ms)) }
        }
    }
}

/// Returns the tags of a run, each as a link to the runs with it.
pub(in crate::dashboard) fn tags(run: &RunView) -> Markup {
    html! {
        @if !run.tags.is_empty() {
            div.tags.small { @for (name, value) in &run.tags {
                @let tag = format!("{name}={value}");
                a.tag href=(pager::url("/ui/runs", &[("tag", &tag)])) { (text::line(&tag, 60)) } " "
            } }
        }
    }
}

/// Returns the one thing that says most about a run: its error, its wait, its own text.
fn says(run: &RunView) -> Markup {
    html! {
        @if let Some(error) = &run.error {
            (text::line(&error.message, 160))
        } @else if let Some(on) = run.waiting_on.first() {
            (waiting::reason(on))
            @if run.waiting_on.len() > 1 { " and " (run.waiting_on.len() - 1) " more" }
        } @else if let Some(words) = &run.status_text {
            (text::line(words, 160))
        }
        @if let Some(progress) = run.progress.filter(|_| run.ended_at.is_none()) {
            " " (bar(progress))
        }
    }
}

/// Returns a bar of progress.
pub(in crate::dashboard) fn bar(progress: f64) -> Markup {
    let percent = format!("{:.0}%", progress.clamp(0.0, 1.0) * 100.0);
    html! { progress value=(progress) max="1" aria-label="Progress" title=(percent) { (percent) } }
}

/// Returns the time from the start of a run to its end, or to now.
pub(in crate::dashboard) fn lasted(run: &RunView, now_ms: u64) -> String {
    let end = run.ended_at.as_deref().and_then(time::unix_ms).unwrap_or(now_ms);
    let begin = time::unix_ms(&run.created_at).unwrap_or(end);
    time::took(end.saturating_sub(begin))
}
