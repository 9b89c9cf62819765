//! `/ui/operators`: the operators, the sessions of connected ones, and the queues.

use std::collections::BTreeMap;

use axum::{extract::State, response::Response};
use maud::{Markup, html};

use crate::{
    dashboard::{
        component::{command, text, time},
        desk::Desk,
        fragment::allowed,
        layout::{Nav, Page},
        visitor::Visitor,
    },
    door::Problem,
    engine::{SessionView, TaskView},
    store::TaskFilter,
    token::Need,
};

/// The maximum number of queued tasks that are counted.
const COUNTED: usize = 500;

/// Shows the page.
pub(in crate::dashboard) async fn show(
    State(desk): State<Desk>,
    visitor: Visitor,
) -> Result<Response, Problem> {
    let (engine, caller, now_ms) = (&desk.engine, &visitor.caller, visitor.now_ms);
    let sessions = engine.sessions().list(caller)?;
    let reaches = |name: &str| caller.grant.scopes.cover(&Need::Operator(name));
    let operators: Vec<_> =
        engine.operators().into_iter().filter(|(name, _)| reaches(name)).collect();
    let filter =
        TaskFilter { kind: Some("queue".to_owned()), limit: COUNTED, ..TaskFilter::default() };
    let queued = allowed(engine.tasks().list(caller, filter).await)?;
    let body = html! {
        h1 { "Operators" }
        div.card.flush {
            table.stack {
                thead { tr { th { "Name" } th { "Kind" } th { "Stands for" } } }
                tbody { @for (name, kind) in &operators {
                    tr {
                        td data-label="Name" { (text::line(name, 80)) }
                        td data-label="Kind" { (kind) }
                        td data-label="Stands for" {
                            @if let Some((rule, members)) = engine.composite(name) {
                                (rule) ": " (text::line(&members.iter().filter(|it| reaches(it)).cloned().collect::<Vec<_>>().join(", "), 200))
                            }
                        }
                    }
                } }
            }
        }
        h2 { "Sessions" }
        (of_sessions(&sessions, now_ms))
        @if let Some(queued) = queued {
            h2 { "Queues" }
            (of_queues(&queued.items, queued.next_cursor.is_some(), now_ms))
        }
        (command::same(&visitor.url, "moonswarm operators", &command::Request {
            method: "GET",
            path: "/v1/operators".to_owned(),
            body: None,
        }))
    };
    Ok(Page { nav: Nav::Operators, title: "Operators", live: None, body }.shown(&visitor))
}

fn of_sessions(sessions: &[SessionView], now_ms: u64) -> Markup {
    html! {
        div.card.flush {
            @if sessions.is_empty() { div.empty { "No session is open." } }
            @else {
                table.stack {
                    thead { tr { th { "Session" } th { "Operator" } th { "Opened by" } th { "State" } th.num { "Tasks" } th.num { "Unread frames" } th { "Until" } } }
                    tbody { @for it in sessions.iter().take(200) {
                        tr {
                            td data-label="Session" { code { (text::short(&it.id, 60)) } }
                            td data-label="Operator" { (text::line(&it.operator, 60)) }
                            td data-label="Opened by" { (text::line(&it.opened_by, 80)) }
                            td data-label="State" { @if it.connected { "connected" } @else { "away" } }
                            td.num data-label="Tasks" { (it.open_tasks) }
                            td.num data-label="Unread frames" { (it.unacknowledged) }
                            td data-label="Until" { (time::of(&it.expires_at, now_ms)) }
                        }
                    } }
                }
            }
        }
    }
}

fn of_queues(tasks: &[TaskView], more: bool, now_ms: u64) -> Markup {
    let mut queues: BTreeMap<&str, Vec<&TaskView>> = BTreeMap::new();
    for task in tasks {
        queues.entry(task.queue.as_deref().unwrap_or(&task.agent)).or_default().push(task);
    }
    html! {
        div.card.flush {
            @if queues.is_empty() { div.empty { "No task is queued." } }
            @else {
                table.stack {
                    thead { tr { th { "Queue" } th.num { "Wait" } th.num { "In work" } th { "Oldest" } } }
                    tbody { @for (name, tasks) in &queues {
                        @let held = tasks.iter().filter(|it| it.state == "processing").count();
                        tr {
                            td data-label="Queue" { (text::line(name, 80)) }
                            td.num data-label="Wait" { (tasks.len() - held) }
                            td.num data-label="In work" { (held) }
                            td data-label="Oldest" { @if let Some(first) = tasks.first() { (time::of(&first.scheduled_at, now_ms)) } }
                        }
                    } }
                }
            }
            @if more { p.dim { "Of the oldest " (COUNTED) " tasks." } }
        }
    }
}
