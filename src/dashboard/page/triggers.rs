//! `/ui/triggers`: what starts runs by itself, when, and what it did last.

use axum::{
    extract::{Path, State},
    response::{Redirect, Response},
};
use maud::{Markup, html};

use crate::{
    dashboard::{
        component::{command, pager, text, time},
        desk::Desk,
        fields::Fields,
        headers::escaped,
        layout::{self, Nav, Page},
        visitor::Visitor,
    },
    door::Problem,
    engine::{TriggerEntry, shell},
    protocol::Json,
    token::Verb,
};

/// The number of triggers of a page.
const LIMIT: usize = 50;

/// Shows the page.
pub(in crate::dashboard) async fn show(
    State(desk): State<Desk>,
    visitor: Visitor,
    fields: Fields,
) -> Result<Response, Problem> {
    let (blueprint, cursor) = (fields.given("blueprint"), fields.given("cursor"));
    let page = desk.engine.triggers().list(&visitor.caller, blueprint, cursor, LIMIT).await?;
    let query: Vec<_> = blueprint.map(|name| ("blueprint", name)).into_iter().collect();
    let line = blueprint.map_or_else(String::new, |it| shell::option("--blueprint", it));
    let body = html! {
        h1 { "Schedules and triggers" }
        @match fields.given("done") {
            Some("pause") => { div.banner.ok role="status" { "The trigger is paused. What is due until it is resumed is skipped." } }
            Some("resume") => { div.banner.ok role="status" { "The trigger is resumed." } }
            _ => {}
        }
        @if let Some(name) = blueprint {
            p { "Of the blueprint " (text::line(name, 80)) ". " a href="/ui/triggers" { "Show all" } }
        }
        @if page.items.is_empty() {
            div.card { div.empty {
                @if page.next_cursor.is_some() { "None of these blueprints has a trigger." }
                @else { "Nothing starts by itself. A blueprint declares its triggers: " code { "on = { { schedule = \"0 7 * * *\" } }" } "." }
            } }
        }
        @for entry in &page.items { (of_trigger(&visitor, entry)) }
        (pager::links("/ui/triggers", &query, cursor.is_none(), page.next_cursor.as_deref()))
        (command::same(&visitor.url, &format!("moonswarm triggers{line}"), &command::Request {
            method: "GET",
            path: pager::url("/v1/triggers", &query),
            body: None,
        }))
    };
    Ok(Page { nav: Nav::Triggers, title: "Schedules and triggers", live: None, body }
        .shown(&visitor))
}

fn of_trigger(visitor: &Visitor, entry: &TriggerEntry) -> Markup {
    let (trigger, now_ms) = (&entry.trigger, visitor.now_ms);
    html! {
        section.card id=(entry.id) {
            div.line {
                h2 { (text::line(&trigger.what, 120)) @if let Some(zone) = &trigger.zone { " " span.dim.small { (text::short(zone, 60)) } } }
                @if entry.paused_at.is_some() { span.status.warn { "⏸ paused" } }
                span.dim.small { (trigger.kind) " " code { (entry.id) } }
            }
            dl {
                dt { "Blueprint" } dd { a href={ "/ui/blueprints/" (escaped(&entry.blueprint)) } { (text::line(&entry.blueprint, 80)) } }
                @if let Some(at) = &entry.paused_at {
                    dt { "Paused" } dd { (time::of(at, now_ms)) @if let Some(by) = &entry.paused_by { " by " (text::line(by, 80)) } }
                }
                @if let Some(next) = &trigger.next_at { dt { "Next" } dd { (time::of(next, now_ms)) } }
                @if let Some(path) = &entry.path { dt { "Webhook" } dd { code { "POST " (text::short(path, 200)) } } }
                @if let Some(dir) = &trigger.directory { dt { "Directory" } dd { code { (text::short(dir, 200)) } } }
                @if let Some(problem) = &trigger.problem { dt { "Problem" } dd { (text::line(problem, 400)) } }
                dt { "Last" } dd {
                    @match &entry.last_at {
                        Some(at) => { (time::of(at, now_ms)) @if let Some(run) = entry.last_run { ", " a href={ "/ui/runs/" (run) } { "its run" } } }
                        None => { "never" }
                    }
                }
                @if let Some(error) = &entry.last_error { dt { "Last error" } dd { (text::line(error, 400)) } }
                dt { "Skipped" } dd { (entry.skipped)
                    @if let Some(missed) = entry.missed { span.dim { " (missed: " (word(missed)) ")" } }
                }
            }
            (acts(visitor, entry))
        }
    }
}

fn word(missed: crate::blueprint::Missed) -> &'static str {
    use crate::blueprint::Missed;
    match missed {
        Missed::Skip => "skip",
        Missed::Once => "once",
        Missed::All => "all",
    }
}

fn acts(visitor: &Visitor, entry: &TriggerEntry) -> Markup {
    let act = if entry.paused_at.is_some() { "resume" } else { "pause" };
    let path = |act: &str| format!("/ui/triggers/{}/{act}", entry.id);
    let same = |act: &str| {
        let request = command::Request {
            method: "POST",
            path: format!("/v1/triggers/{}/{act}", entry.id),
            body: None,
        };
        command::same(&visitor.url, &format!("moonswarm triggers {act} {}", entry.id), &request)
    };
    html! {
        div.acts {
            @if visitor.may(Verb::TriggerPause) {
                form method="post" action=(path(act)) {
                    (layout::token(visitor))
                    button { @if act == "pause" { "Pause" } @else { "Resume" } }
                    (same(act))
                }
            }
            @if visitor.may(Verb::RunStart) {
                details {
                    summary { "Fire now" }
                    form method="post" action=(path("fire")) {
                        (layout::token(visitor))
                        (layout::once())
                        p { "Starts its run now, with your rights." }
                        @if entry.trigger.kind == "signal" {
                            div.field {
                                label for={ "payload-" (entry.id) } { "Payload" }
                                textarea id={ "payload-" (entry.id) } name="payload" rows="3" spellcheck="false" { "true" }
                            }
                        }
                        button.main { "Start the run" }
                        (same("fire"))
                    }
                }
            }
        }
    }
}

/// Pauses a trigger.
pub(in crate::dashboard) async fn pause(
    State(desk): State<Desk>,
    visitor: Visitor,
    Path(trigger): Path<String>,
) -> Result<Redirect, Problem> {
    let entry = desk.engine.triggers().pause(&visitor.caller, &trigger).await?;
    Ok(Redirect::to(&format!("/ui/triggers?done=pause#{}", entry.id)))
}

/// Resumes a trigger.
pub(in crate::dashboard) async fn resume(
    State(desk): State<Desk>,
    visitor: Visitor,
    Path(trigger): Path<String>,
) -> Result<Redirect, Problem> {
    let entry = desk.engine.triggers().resume(&visitor.caller, &trigger).await?;
    Ok(Redirect::to(&format!("/ui/triggers?done=resume#{}", entry.id)))
}

/// Starts the run of a trigger.
pub(in crate::dashboard) async fn fire(
    State(desk): State<Desk>,
    visitor: Visitor,
    Path(trigger): Path<String>,
    fields: Fields,
) -> Result<Redirect, Problem> {
    let payload = Json::parse(fields.given("payload").unwrap_or("true").trim());
    let payload = payload.map_err(|error| {
        let detail = format!("the payload is not JSON: {error}");
        Problem::new(crate::door::Code::MalformedJson, detail)
    })?;
    let key = fields.once("dashboard fire", &trigger);
    let made = desk.engine.triggers().fire(&visitor.caller, &trigger, payload, key).await?;
    Ok(Redirect::to(&format!("/ui/runs/{}", made.id())))
}
