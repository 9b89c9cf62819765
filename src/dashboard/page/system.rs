//! `/ui/system`: whether the host is well, its layers, and the audit log.

use axum::{extract::State, response::Response};
use maud::html;

use crate::{
    dashboard::{
        component::{command, json, text, time},
        desk::Desk,
        fragment::allowed,
        layout::{Nav, Page},
        visitor::Visitor,
    },
    door::Problem,
};

/// The number of lines of the audit log.
const LINES: usize = 100;

/// Shows the page.
pub(in crate::dashboard) async fn show(
    State(desk): State<Desk>,
    visitor: Visitor,
) -> Result<Response, Problem> {
    let (engine, caller, now_ms) = (&desk.engine, &visitor.caller, visitor.now_ms);
    let ready = engine.ready().and_then(|()| engine.safe_mode().taking_up().map_or(Ok(()), Err));
    let layers = engine.upkeep().layers(caller, None).await?;
    let audit = allowed(engine.upkeep().audit(caller, 0, LINES).await)?;
    let body = html! {
        h1 { "System" }
        @match &ready {
            Ok(()) => { div.banner.ok { "The host takes work." } }
            Err(reason) => { div.banner.bad role="alert" { "Not ready: " (text::line(reason, 500)) } }
        }
        dl.card {
            dt { "Version" } dd { (env!("CARGO_PKG_VERSION")) }
            dt { "Address" } dd { code { (visitor.url) } }
            dt { "Open runs" } dd { (engine.open_runs()) }
            dt { "API" } dd { code { "/openapi.json" } ", " a href="/docs" { "/docs" } }
        }
        h2 { "Layers around tasks and state" }
        div.card.flush {
            @if layers.is_empty() { div.empty { "None." } }
            @else {
                table.stack {
                    thead { tr { th { "Boundary" } th { "Layer" } th { "Class" } th { "From" } th { "Settings" } } }
                    tbody { @for it in &layers {
                        tr {
                            td data-label="Boundary" { (it.boundary) }
                            td data-label="Layer" { (text::line(&it.name, 80)) }
                            td data-label="Class" { (it.class) }
                            td data-label="From" { (it.from) }
                            td data-label="Settings" { @if let Some(settings) = &it.settings { (json::tree(settings, false)) } }
                        }
                    } }
                }
            }
        }
        @if let Some(audit) = audit.filter(|it| !it.items.is_empty()) {
            h2 { "Audit log" }
            div.card.flush tabindex="0" {
                table {
                    thead { tr { th.num { "#" } th { "When" } th { "What" } } }
                    tbody { @for it in &audit.items {
                        tr { td.num { (it.seq) } td { (time::of(&it.at, now_ms)) } td.clip.mono { (text::short(&it.line, 400)) } }
                    } }
                }
            }
            @if audit.next_cursor.is_some() { p.dim { "The first " (LINES) " lines; " code { "moonswarm audit" } " has all." } }
        }
        (command::same(&visitor.url, "moonswarm doctor", &command::Request {
            method: "GET",
            path: "/readyz".to_owned(),
            body: None,
        }))
    };
    Ok(Page { nav: Nav::System, title: "System", live: None, body }.shown(&visitor))
}
