//! `/ui/runs/{run}/compare`: a run beside the one that it was forked from.

use axum::{
    extract::{Path, State},
    response::Response,
};
use maud::{Markup, html};

use crate::{
    dashboard::{
        component::{
            command::{self, Request},
            pager, text,
        },
        desk::Desk,
        fields::Fields,
        layout::{Nav, Page},
        visitor::{Visitor, id},
    },
    door::{Code, Problem},
    engine::{RunDiff, StepDiff},
    protocol::RunId,
};

/// The number of steps of a page.
const STEPS: usize = 200;

/// Shows the page.
pub(in crate::dashboard) async fn show(
    State(desk): State<Desk>,
    visitor: Visitor,
    Path(run): Path<String>,
    fields: Fields,
) -> Result<Response, Problem> {
    let run: RunId = id(&run)?;
    let origin: RunId = match fields.given("with") {
        Some(with) => id(with.trim())?,
        None => {
            let from = desk.engine.run(&visitor.caller, run).await?.copied_from;
            let from = from.ok_or_else(|| {
                Problem::new(Code::BadQuery, "this run is no fork; `?with=RUN` names another run")
            })?;
            id(&from.run)?
        }
    };
    let after = fields.given("cursor").map_or(Ok(0), str::parse);
    let after =
        after.map_err(|_| Problem::new(Code::BadQuery, "cursor is not one of this list's"))?;
    let diff = desk.engine.diff(&visitor.caller, (origin, run), after, STEPS).await?;
    let with = origin.to_string();
    let path = format!("/ui/runs/{run}/compare");
    let body = html! {
        h1 { "Compare" }
        (summary(&diff))
        div.card.flush tabindex="0" {
            @if diff.items.is_empty() { div.empty { "Neither run has a step." } }
            @else { (table(&diff)) }
            (pager::links(&path, &[("with", &with)], after == 0, diff.next_cursor.as_deref()))
        }
        (command::same(&visitor.url, &format!("moonswarm diff {origin} {run}"), &Request {
            method: "GET",
            path: format!("/v1/runs/{origin}/diff/{run}"),
            body: None,
        }))
    };
    Ok(Page { nav: Nav::Runs, title: "Compare", live: None, body }.shown(&visitor))
}

fn summary(diff: &RunDiff) -> Markup {
    let word = |same: bool| if same { "the same" } else { "differs" };
    html! {
        dl.card {
            dt { "Before" } dd { a href={ "/ui/runs/" (diff.a) } { code { (diff.a) } } }
            dt { "After" } dd { a href={ "/ui/runs/" (diff.b) } { code { (diff.b) } } }
            @if let Some(step) = diff.forked_at { dt { "Forked at" } dd { "step " (step) } }
            dt { "Version" } dd { (word(diff.same_version)) }
            dt { "Input" } dd { (word(diff.same_input)) }
            dt { "Steps that differ" } dd { (diff.differing) }
            @if let Some(first) = &diff.first {
                dt { "First difference" } dd { (text::line(&first.name, 100)) ": " (said(first)) }
            }
        }
    }
}

fn table(diff: &RunDiff) -> Markup {
    let link = |run: RunId, step: Option<u32>| {
        html! {
            @match step {
                Some(step) => { a href={ "/ui/runs/" (run) "/steps/" (step) } { (step) } }
                None => { span.dim { "none" } }
            }
        }
    };
    html! {
        table {
            thead { tr { th.num { "Before" } th.num { "After" } th { "Step" } th { "Difference" } } }
            tbody { @for step in &diff.items {
                tr {
                    td.num { (link(diff.a, step.a)) }
                    td.num { (link(diff.b, step.b)) }
                    td.clip { (text::line(&step.name, 100)) " " span.dim.small { (step.kind) } }
                    td { @if step.is_same() { span.dim { "the same" } } @else { strong { (said(step)) } } }
                }
            } }
        }
    }
}

fn said(step: &StepDiff) -> &'static str {
    match step.difference.as_str() {
        "only_a" => "only before",
        "only_b" => "only after",
        "operation" => "another operation",
        "request" => "another request",
        "state" => "another state",
        "result" => "another result",
        "error" => "another error",
        _ => "the same",
    }
}
