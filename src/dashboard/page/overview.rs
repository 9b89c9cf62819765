//! `/ui`: what the swarm does now, and what waits for a person.

use axum::{extract::State, response::Response};
use maud::{Markup, html};

use crate::{
    dashboard::{
        component::{
            bytes::size,
            run_table,
            sparkline::{self, Shown},
            text, time,
        },
        desk::Desk,
        fragment::{Fragment, allowed},
        layout::{Nav, Page},
        page::gallery,
        visitor::Visitor,
    },
    door::Problem,
    engine::{
        DiskView, LimitView, RunView, SessionView, StatsAsk, StatsBy, StatsView, TaskView,
        WorkerView,
    },
    protocol::RunId,
    store::{RunFilter, RunStatus, TaskFilter},
    token::Verb,
};

/// The maximum number of open runs that are counted.
const COUNTED: usize = 200;
/// The number of open runs whose limits are looked at.
const LOOKED_AT: usize = 50;
/// The number of recent runs that are listed.
const RECENT: usize = 12;
/// The number of runs behind the bars of the last day.
const BARRED: usize = 500;
/// An hour, in milliseconds.
const HOUR_MS: u64 = 3_600_000;

/// Shows the page.
pub(in crate::dashboard) async fn show(
    State(desk): State<Desk>,
    visitor: Visitor,
) -> Result<Response, Problem> {
    let [fragment] = fragments(&desk, &visitor).await?;
    let body = html! { h1 { "Overview" } (fragment.html) };
    let live = Some("/ui/live/overview".to_owned());
    Ok(Page { nav: Nav::Overview, title: "Overview", live, body }.shown(&visitor))
}

/// Returns what changes on the page.
pub(in crate::dashboard) async fn fragments(
    desk: &Desk,
    visitor: &Visitor,
) -> Result<[Fragment; 1], Problem> {
    let (engine, caller, now_ms) = (&desk.engine, &visitor.caller, visitor.now_ms);
    let open = RunStatus::ALL.into_iter().filter(|status| !status.is_ended()).collect();
    let filter =
        |status, since_ms, limit| RunFilter { status, since_ms, limit, ..RunFilter::default() };
    let open = allowed(engine.runs(caller, filter(open, None, COUNTED)).await)?;
    let recent = allowed(engine.runs(caller, filter(Vec::new(), None, RECENT)).await)?;
    let day = filter(Vec::new(), Some(now_ms.saturating_sub(24 * HOUR_MS)), BARRED);
    let day = allowed(engine.runs(caller, day).await)?;
    let ask = |by| StatsAsk { by, since_ms: None, blueprint: None, limit: None };
    let hours = allowed(engine.stats(caller, ask(StatsBy::Hour)).await)?;
    let days = allowed(engine.stats(caller, ask(StatsBy::Day)).await)?;
    let asked = TaskFilter { kind: Some("human".to_owned()), limit: 10, ..TaskFilter::default() };
    let tasks = allowed(engine.tasks().list(caller, asked).await)?;
    let sessions = allowed(engine.sessions().list(caller))?;
    let workers = allowed(engine.tasks().workers(caller).await)?;
    let disk = allowed(engine.upkeep().disk(caller).await)?;
    let nearest = open.as_ref().map(|open| &open.items[..open.items.len().min(LOOKED_AT)]);
    let tight = engine.nearly_used(nearest.unwrap_or_default()).await;
    let problems = allowed(engine.blueprints().blueprint_problems(caller))?;
    let health = engine.ready().and_then(|()| engine.safe_mode().taking_up().map_or(Ok(()), Err));
    let html = html! {
        div #overview {
            @if let Err(reason) = &health { div.banner.bad role="alert" { "Not ready: " (text::line(reason, 300)) } }
            @match &open {
                Some(open) => { (counts(&open.items, day.as_ref().map(|day| day.items.as_slice()).unwrap_or_default())) }
                None => { (reach(visitor)) }
            }
            @if let Some(recent) = recent.as_ref().filter(|it| it.items.is_empty()) {
                @let _ = recent;
                (first_steps(visitor))
            }
            div.cards {
                @if let Some(tasks) = &tasks { (people(&tasks.items, now_ms)) }
                @if let (Some(open), Some(recent)) = (&open, &recent) {
                    (attention(&open.items, &recent.items, &tight, now_ms))
                }
                @if let Some(day) = day.as_ref().filter(|day| !day.items.is_empty()) {
                    (last_day(&day.items, day.next_cursor.is_some(), now_ms))
                }
                @if let (Some(hours), Some(days)) = (&hours, &days) { (ended(hours, days, now_ms)) }
                (host_card(visitor, &health, disk, sessions.as_deref(), workers.as_deref()))
                @if let Some(problems) = problems.as_ref().filter(|it| !it.is_empty()) {
                    section.card {
                        h2 { "Files that are no blueprints" }
                        ul { @for it in problems.iter().take(10) {
                            li { code { (text::short(&it.file, 80)) } " " (text::line(&it.message, 200)) }
                        } }
                    }
                }
            }
            @if let Some(recent) = recent.filter(|it| !it.items.is_empty()) {
                h2 { "Newest runs" }
                div.card.flush { (run_table::of(&recent.items, now_ms, &html! {})) }
                p { a href="/ui/runs" { "All runs" } }
            }
        }
    };
    Ok([Fragment { id: "overview", html }])
}

fn counts(open: &[RunView], day: &[RunView]) -> Markup {
    let shown = [RunStatus::Running, RunStatus::Waiting, RunStatus::Paused, RunStatus::Queued];
    let most = open.len() >= COUNTED;
    html! {
        div.counts.card {
            @for status in shown {
                a href={ "/ui/runs?status=" (status.as_str()) } {
                    b { (open.iter().filter(|run| run.status == status).count()) @if most { "+" } }
                    (status.as_str())
                }
            }
            a href="/ui/runs?status=failed&since=24h" {
                b { (day.iter().filter(|run| run.status == RunStatus::Failed).count()) }
                "failed in a day"
            }
        }
    }
}

/// Returns what a token reaches that may not list runs.
fn reach(visitor: &Visitor) -> Markup {
    let scopes: Vec<String> =
        visitor.caller.grant.scopes.0.iter().map(ToString::to_string).collect();
    html! {
        div.card {
            p { "This token does not list all runs. It reaches:" }
            ul { @for scope in scopes.iter().take(50) {
                li {
                    @match scope.strip_prefix("run:").filter(|id| id.starts_with("run_")) {
                        Some(run) => { a href={ "/ui/runs/" (run) } { (run) } }
                        None => { code { (scope) } }
                    }
                }
            } }
        }
    }
}

fn first_steps(visitor: &Visitor) -> Markup {
    html! {
        section.card {
            h2 { "Nothing ran yet" }
            @if visitor.may(Verb::RunStart) { p { "Run an example of the gallery below, or a blueprint of your own, in any directory on this machine:" } }
            @else { p { "This sign-in (" (visitor.caller.grant.role) ") starts no runs: " code { "moonswarm open" } " makes one that does. On a command line:" } }
            pre { "moonswarm init\nmoonswarm run hello.lua who=moon" }
        }
        (gallery::form(visitor))
    }
}

fn people(tasks: &[TaskView], now_ms: u64) -> Markup {
    html! {
        section.card {
            h2 { "Waits for a person" }
            @if tasks.is_empty() { p.dim { "Nothing." } }
            @else {
                ul { @for task in tasks {
                    li data-key=(task.id.to_string()) {
                        a href={ "/ui/inbox/" (task.id) } {
                            (text::line(task.summary.as_deref().unwrap_or(&task.agent), 100))
                        }
                        " " span.dim.small { (time::of(&task.scheduled_at, now_ms)) }
                    }
                } }
                a href="/ui/inbox" { "The inbox" }
            }
        }
    }
}

fn attention(
    open: &[RunView],
    recent: &[RunView],
    tight: &[(RunId, LimitView)],
    now_ms: u64,
) -> Markup {
    let of = |run: &RunView| tight.iter().find(|(id, _)| *id == run.id).map(|(_, limit)| limit);
    let held = |run: &&RunView| run.status == RunStatus::Paused || of(run).is_some();
    let failed = recent.iter().filter(|run| run.status == RunStatus::Failed);
    let all: Vec<_> = open.iter().filter(held).chain(failed).take(8).collect();
    html! {
        section.card {
            h2 { "Needs attention" }
            @if all.is_empty() { p.dim { "No run is paused or near a limit, none of the newest failed." } }
            ul { @for run in all {
                li data-key=(run.id.to_string()) {
                    a href={ "/ui/runs/" (run.id) } { (text::line(&run.blueprint, 60)) }
                    " " (run.status.as_str()) " " span.dim.small { (time::of(&run.updated_at, now_ms)) }
                    @if let Some(error) = &run.error { div.small { (text::line(&error.message, 160)) } }
                    @if let Some(limit) = of(run) {
                        div.small { (limit.percent()) " % of its limit of " (limit.name.trim_end_matches("_ms").replace('_', " ")) " is used" }
                    }
                }
            } }
        }
    }
}

/// Returns the state of the host: its health, disk, sessions and workers, as far as the token sees.
fn host_card(
    visitor: &Visitor,
    health: &Result<(), String>,
    disk: Option<DiskView>,
    sessions: Option<&[SessionView]>,
    workers: Option<&[WorkerView]>,
) -> Markup {
    html! {
        section.card {
            h2 { "The host" }
            dl {
                dt { "Health" } dd { @if health.is_ok() { span.status.ok { "✓ takes work" } } @else { span.status.bad { "✕ not ready" } } }
                @if let Some(bytes) = disk.and_then(|disk| disk.database_bytes) { dt { "Database" } dd { (size(bytes)) } }
                @if let Some(bytes) = disk.and_then(|disk| disk.free_bytes) { dt { "Free on its disk" } dd { (size(bytes)) } }
                @if let Some(sessions) = sessions {
                    dt { "Sessions" } dd { (sessions.iter().filter(|it| it.connected).count()) " of " (sessions.len()) " connected" }
                }
                @if let Some(workers) = workers { dt { "Pull workers" } dd { (workers.len()) " seen in the last hour" } }
            }
            @if visitor.may(Verb::OperatorRead) { p { a href="/ui/operators" { "Operators, sessions and queues" } } }
        }
    }
}

/// Returns the ends and failures of the last day and of the last 30, and what they cost.
fn ended(hours: &StatsView, days: &StatsView, now_ms: u64) -> Markup {
    let day_ms = 24 * HOUR_MS;
    html! {
        @if days.total.count > 0 {
            section.card {
                h2 { "Ended in a day" }
                (sparkline::of(hours, (24, HOUR_MS), Shown::Runs, now_ms))
                h2 { "Ended in 30 days" }
                (sparkline::of(days, (30, day_ms), Shown::Runs, now_ms))
                @if days.total.tokens > 0 || !days.total.usd.is_zero() {
                    (sparkline::of(days, (30, day_ms), Shown::Cost, now_ms))
                }
                a href="/ui/usage" { "Usage" }
            }
        }
    }
}

/// Returns the starts and failures of each of the last 24 hours as bars.
fn last_day(runs: &[RunView], more: bool, now_ms: u64) -> Markup {
    let mut hours = [(0_u32, 0_u32); 24];
    for run in runs {
        let ago = now_ms.saturating_sub(time::unix_ms(&run.created_at).unwrap_or(now_ms));
        let at = 23 - usize::try_from(ago / HOUR_MS).unwrap_or(23).min(23);
        hours[at].0 += 1;
        hours[at].1 += u32::from(run.status == RunStatus::Failed);
    }
    let most = hours.iter().map(|(starts, _)| *starts).max().unwrap_or(1).max(1);
    let failed = runs.iter().filter(|run| run.status == RunStatus::Failed).count();
    let height = |count: u32| count * 36 / most;
    let words = format!("{} started in the last 24 hours, {failed} of them failed", runs.len());
    html! {
        section.card {
            h2 { "The last day" }
            svg viewBox="0 0 240 40" width="100%" height="60" preserveAspectRatio="none" role="img"
                aria-label=(words) {
                @for (at, (starts, failures)) in hours.iter().enumerate() {
                    rect.run x=(at * 10 + 1) width="8" y=(40 - height(*starts)) height=(height(*starts)) {}
                    rect.bad x=(at * 10 + 1) width="8" y=(40 - height(*failures)) height=(height(*failures)) {}
                }
            }
            p.small { (words) @if more { " (the newest " (runs.len()) ")" } "." }
        }
    }
}
