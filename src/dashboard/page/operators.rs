//! `/ui/operators`: operators, breakers and rate limits, sessions with take-over of a seat, queues and
//! pull workers.

use std::collections::BTreeMap;

use axum::{
    extract::State,
    response::{Redirect, Response},
};
use maud::{Markup, html};
use serde_json::json;

use crate::{
    dashboard::{
        component::{command, json as tree, text, time},
        desk::Desk,
        fields::Fields,
        fragment::allowed,
        layout::{self, Nav, Page},
        visitor::{Visitor, id},
    },
    door::{Code, Problem},
    engine::{LayerState, QueueView, SessionView, WorkerView},
    operator::ShownSettings,
    protocol::{RunId, SessionId},
    token::{Need, Verb},
};

/// The number of rows of each table.
const ROWS: usize = 100;

/// Shows the page.
pub(in crate::dashboard) async fn show(
    State(desk): State<Desk>,
    visitor: Visitor,
    fields: Fields,
) -> Result<Response, Problem> {
    let (engine, caller, now_ms) = (&desk.engine, &visitor.caller, visitor.now_ms);
    let sessions = engine.sessions().list(caller)?;
    let queues = engine.tasks().queues(caller).await?;
    let workers = engine.tasks().workers(caller).await?;
    let settings = allowed(engine.upkeep().operator_settings(caller))?;
    let states = allowed(engine.upkeep().layer_states(caller).await)?;
    let body = html! {
        h1 { "Operators" }
        @if fields.given("done") == Some("seat") { div.banner.ok role="status" { "The session holds the seat." } }
        (of_operators(&desk, &visitor, settings.as_ref()))
        @if let Some(states) = states.filter(|it| !it.is_empty()) {
            h2 { "Breakers and rate limits" }
            (of_states(&states, now_ms))
        }
        h2 { "Sessions" }
        (of_sessions(&sessions, now_ms))
        @if visitor.may(Verb::SeatAcquire) && !sessions.is_empty() { (seat_form(&visitor, &sessions)) }
        h2 { "Queues" }
        (of_queues(&queues, now_ms))
        h2 { "Pull workers" }
        (of_workers(&workers, now_ms))
        (command::same(&visitor.url, "moonswarm operators", &command::Request {
            method: "GET",
            path: "/v1/operators".to_owned(),
            body: None,
        }))
    };
    Ok(Page { nav: Nav::Operators, title: "Operators", live: None, body }.shown(&visitor))
}

fn of_operators(
    desk: &Desk,
    visitor: &Visitor,
    settings: Option<&BTreeMap<String, ShownSettings>>,
) -> Markup {
    let reaches = |name: &str| visitor.caller.grant.scopes.cover(&Need::Operator(name));
    let all: Vec<_> =
        desk.engine.operators().into_iter().filter(|(name, _)| reaches(name)).collect();
    let composed = all.iter().any(|(name, _)| desk.engine.composite(name).is_some());
    html! {
        div.card.flush {
            table.stack {
                thead { tr { th { "Name" } th { "Kind" } @if composed { th { "Stands for" } } @if settings.is_some() { th { "Settings" } } } }
                tbody { @for (name, kind) in &all {
                    tr {
                        td data-label="Name" { (text::line(name, 80)) }
                        td data-label="Kind" { (kind) }
                        @if composed { td data-label="Stands for" {
                            @if let Some((rule, members)) = desk.engine.composite(name) {
                                (rule) ": " (text::line(&members.iter().filter(|it| reaches(it)).cloned().collect::<Vec<_>>().join(", "), 200))
                            }
                        } }
                        @if let Some(settings) = settings {
                            td data-label="Settings" { (of_settings(name, settings.get(name))) }
                        }
                    }
                } }
            }
        }
    }
}

/// Returns the effective settings of an operator, secrets as the places that they come from.
fn of_settings(name: &str, settings: Option<&ShownSettings>) -> Markup {
    let items = settings.map(ShownSettings::items).unwrap_or_default();
    html! {
        @if items.is_empty() { span.dim { "none" } }
        @else {
            details data-key={ "settings-" (name) } {
                summary { (items.len()) @if items.len() == 1 { " setting" } @else { " settings" } }
                dl { @for (key, value) in items { dt { code { (key) } } dd { (text::line(value, 400)) } } }
            }
        }
    }
}

fn of_states(states: &[LayerState], now_ms: u64) -> Markup {
    html! {
        div.card.flush {
            table.stack {
                thead { tr { th { "Layer" } th { "For" } th { "State" } th { "Until" } } }
                tbody { @for it in states.iter().take(ROWS) {
                    tr {
                        td data-label="Layer" { (text::line(&it.layer, 80)) }
                        td data-label="For" { (text::line(&it.key, 120)) }
                        td data-label="State" { (tree::tree(&it.value, false)) }
                        td data-label="Until" { @if let Some(at) = &it.expires_at { (time::of(at, now_ms)) } @else { "—" } }
                    }
                } }
            }
        }
    }
}

fn of_sessions(sessions: &[SessionView], now_ms: u64) -> Markup {
    html! {
        div.card.flush {
            @if sessions.is_empty() { div.empty { "No session is open: " code { "moonswarm mcp" } " opens one for a coding agent, " code { "moonswarm sessions open" } " one for a client of yours." } }
            @else {
                table.stack {
                    thead { tr { th { "Session" } th { "Operator" } th { "Opened by" } th { "State" } th.num { "Tasks" } th.num { "Unread frames" } th { "Last seen" } th { "Until" } } }
                    tbody { @for it in sessions.iter().take(ROWS) {
                        tr {
                            td data-label="Session" { code { (text::short(&it.id, 60)) } " " (text::copy(&it.id)) }
                            td data-label="Operator" { (text::line(&it.operator, 60)) }
                            td data-label="Opened by" { (text::line(&it.opened_by, 80)) }
                            td data-label="State" { @if it.connected { "connected" } @else { "away" } }
                            td.num data-label="Tasks" { (it.open_tasks) }
                            td.num data-label="Unread frames" { (it.unacknowledged) }
                            td data-label="Last seen" { @if let Some(at) = &it.last_seen_at { (time::of(at, now_ms)) } @else { "not since the start" } }
                            td data-label="Until" { (time::of(&it.expires_at, now_ms)) }
                        }
                    } }
                }
            }
            (rest(sessions.len()))
        }
    }
}

fn seat_form(visitor: &Visitor, sessions: &[SessionView]) -> Markup {
    html! {
        div.acts {
            details {
                summary { "Take over a seat" }
                form method="post" action="/ui/operators/seat" {
                    (layout::token(visitor))
                    p { "The session gets the tasks of its operator in the run, also those that another session holds." }
                    div.field {
                        label for="seat-run" { "Run" }
                        input type="text" id="seat-run" name="run" placeholder="run_…" required spellcheck="false";
                    }
                    div.field {
                        label for="seat-session" { "Session" }
                        select id="seat-session" name="session" {
                            @for it in sessions.iter().take(ROWS) {
                                option value=(it.id) { (text::short(&it.operator, 40)) " " (text::short(&it.id, 60)) }
                            }
                        }
                    }
                    button.main { "Give it the seat" }
                    (command::same(&visitor.url, "moonswarm seat <run> <operator> <session>", &command::Request {
                        method: "POST",
                        path: "/v1/runs/<run>/seats/<operator>".to_owned(),
                        body: Some(json!({ "session": "<session>" }).to_string()),
                    }))
                }
            }
        }
    }
}

/// Gives the seat of a session's operator in a run to that session.
pub(in crate::dashboard) async fn seat(
    State(desk): State<Desk>,
    visitor: Visitor,
    fields: Fields,
) -> Result<Redirect, Problem> {
    let run: RunId = id(fields.text("run").trim())?;
    let session = SessionId::from(fields.text("session"));
    let sessions = desk.engine.sessions();
    let listed = sessions.list(&visitor.caller)?;
    let found = listed.into_iter().find(|it| it.id == session.0);
    let found = found.ok_or_else(|| Problem::new(Code::NotFound, "this session is not open"))?;
    sessions.take_seat(&visitor.caller, run, found.operator, session).await?;
    Ok(Redirect::to("/ui/operators?done=seat"))
}

fn of_queues(queues: &[QueueView], now_ms: u64) -> Markup {
    html! {
        div.card.flush {
            @if queues.is_empty() { div.empty { "No queue has tasks or workers." } }
            @else {
                table.stack {
                    thead { tr { th { "Queue" } th.num { "Wait" } th { "Oldest" } th { "Need" } th.num { "In work" } th.num { "Workers" } th.num { "Polling" } } }
                    tbody { @for it in queues.iter().take(ROWS) {
                        tr {
                            td data-label="Queue" { (text::line(&it.queue, 80)) }
                            td.num data-label="Wait" { (it.waiting) }
                            td data-label="Oldest" { @if let Some(at) = &it.oldest_at { (time::of(at, now_ms)) } @else { "—" } }
                            td data-label="Need" { @for line in it.lines.iter().take(8) { div.small { (line.waiting) ":" (text::short(&line.labels.to_string(), 120)) } } }
                            td.num data-label="In work" { (it.in_work) }
                            td.num data-label="Workers" { (it.workers) }
                            td.num data-label="Polling" { (it.polling) }
                        }
                    } }
                }
            }
            (rest(queues.len()))
        }
    }
}

/// Returns a note on what is not listed.
fn rest(all: usize) -> Markup {
    html! { @if all > ROWS { p.dim { "The first " (ROWS) " of " (all) " are listed." } } }
}

fn of_workers(workers: &[WorkerView], now_ms: u64) -> Markup {
    html! {
        div.card.flush {
            @if workers.is_empty() { div.empty { "No worker was seen in the last hour: " code { "moonswarm worker --queue NAME -- <command>" } } }
            @else {
                table.stack {
                    thead { tr { th { "Worker" } th { "Queue" } th { "Labels" } th.num { "Tasks" } th { "Last seen" } } }
                    tbody { @for it in workers.iter().take(ROWS) {
                        tr {
                            td data-label="Worker" { (text::line(&it.worker, 80)) }
                            td data-label="Queue" { (text::line(&it.queue, 80)) }
                            td data-label="Labels" { (text::short(it.labels.to_string().trim(), 160)) }
                            td.num data-label="Tasks" { (it.tasks) }
                            td data-label="Last seen" { @if let Some(at) = &it.last_seen_at { (time::of(at, now_ms)) } @else { "—" } }
                        }
                    } }
                }
            }
            (rest(workers.len()))
        }
    }
}
