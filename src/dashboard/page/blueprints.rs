//! `/ui/blueprints`: the names, each with its current version.

use axum::{extract::State, response::Response};
use maud::html;

use crate::{
    dashboard::{
        component::{command, pager, text, time},
        desk::Desk,
        fields::Fields,
        headers::escaped,
        layout::{Nav, Page},
        page::gallery,
        visitor::Visitor,
    },
    door::Problem,
    engine::BlueprintView,
    token::Verb,
};

/// The number of names of a page.
const LIMIT: usize = 50;

/// The maximum number of sources that are compiled for a page: none is, unless the program or its
/// operators changed.
const COMPILED: usize = 20;

/// Shows the page.
pub(in crate::dashboard) async fn show(
    State(desk): State<Desk>,
    visitor: Visitor,
    fields: Fields,
) -> Result<Response, Problem> {
    let archived = fields.given("archived").is_some();
    let (all, unread) = match archived {
        true => (desk.engine.blueprints().archived(&visitor.caller).await?, 0),
        false => desk.engine.blueprints().list_soon(&visitor.caller, COMPILED).await?,
    };
    let problems = desk.engine.blueprints().blueprint_problems(&visitor.caller)?;
    let query = fields.text("q").to_lowercase();
    let fits = |name: &str, about: Option<&str>| {
        name.to_lowercase().contains(&query)
            || about.is_some_and(|it| it.to_lowercase().contains(&query))
    };
    let after = fields.text("cursor");
    let mut found: Vec<_> = all
        .iter()
        .filter(|it| it.name.as_str() > after && fits(&it.name, it.description.as_deref()))
        .collect();
    found.sort_unstable_by_key(|it| &it.name);
    let next = found.get(LIMIT).and_then(|_| found.get(LIMIT - 1)).map(|it| it.name.as_str());
    let filters = [("archived", fields.text("archived")), ("q", fields.text("q"))];
    let now_ms = visitor.now_ms;
    let body = html! {
        h1 { @if archived { "Archived blueprints" } @else { "Blueprints" } }
        p { @if archived { a href="/ui/blueprints" { "Those that are not archived" } } @else { a href="/ui/blueprints?archived=1" { "Archived ones" } } }
        @if all.len() > 5 {
            form.card.filters method="get" action="/ui/blueprints" role="search" {
                @if archived { input type="hidden" name="archived" value="1"; }
                div { label for="q" { "Name or description" }
                    input type="search" id="q" name="q" value=(fields.text("q")); }
                button.main { "Filter" }
            }
        }
        @for it in problems.iter().take(20) {
            div.banner.bad { strong { code { (text::short(&it.file, 120)) } } " " (text::line(&it.message, 300)) }
        }
        @if unread > 0 {
            p.dim { "This release has not read " (unread) " of the sources so far, and shows only their names. A reload reads " (COMPILED) " more." }
        }
        div.card.flush {
            @if found.is_empty() {
                div.empty {
                    @if all.is_empty() && archived { "None is archived." }
                    @else if all.is_empty() { "No blueprint is stored. " code { "moonswarm init" } " writes one, "
                        code { "moonswarm run hello.lua" } " runs it, and " code { "moonswarm serve --blueprints ." }
                        " stores those of a directory. Or take an example:" }
                    @else { "None matches." }
                }
            } @else {
                table.stack {
                    thead { tr { th { "Name" } th { "What it does" } th { "Version" } th { "Starts by itself" } th { "Stored" } } }
                    tbody { @for it in found.iter().take(LIMIT) {
                        tr {
                            td data-label="Name" { a href={ "/ui/blueprints/" (escaped(&link(it))) } { (text::line(&it.name, 80)) } }
                            td.clip data-label="What it does" { (text::line(it.description.as_deref().unwrap_or("—"), 200)) }
                            td data-label="Version" { code { (it.hash.get(..12).unwrap_or(&it.hash)) } }
                            td data-label="Starts by itself" {
                                @for on in it.on.iter().take(5) {
                                    div.small { (on.kind) " " code { (text::short(&on.what, 60)) }
                                        @if let Some(next) = &on.next_at { " " (time::of(next, now_ms)) } }
                                }
                                @if it.on.len() > 5 { div.small.dim { "and " (it.on.len() - 5) " more" } }
                            }
                            td data-label="Stored" { (time::of(&it.updated_at, now_ms)) }
                        }
                    } }
                }
            }
            (pager::links("/ui/blueprints", &filters, after.is_empty(), next))
        }
        @if all.is_empty() && !archived { (gallery::form(&visitor)) }
        @else if !archived && visitor.may(Verb::RunStart) {
            details { summary { "Examples of the gallery …" } (gallery::form(&visitor)) }
        }
        (command::same(&visitor.url, if archived { "moonswarm blueprints --archived" } else { "moonswarm blueprints" }, &command::Request {
            method: "GET",
            path: if archived { "/v1/blueprints?archived=true" } else { "/v1/blueprints" }.to_owned(),
            body: None,
        }))
    };
    Ok(Page { nav: Nav::Blueprints, title: "Blueprints", live: None, body }.shown(&visitor))
}

/// Returns what refers to a blueprint: the name of an archived one stands for no version.
fn link(view: &BlueprintView) -> String {
    match view.archived_at {
        None => view.name.clone(),
        Some(_) => format!("{}@{}", view.name, view.hash.get(..16).unwrap_or(&view.hash)),
    }
}
