//! `/ui/runs`: the list, with its filters in the URL.

use axum::{
    extract::State,
    response::{IntoResponse, Redirect, Response},
};
use maud::html;

use crate::{
    dashboard::{
        component::{command, pager, run_table},
        desk::Desk,
        fields::Fields,
        fragment::Fragment,
        layout::{Nav, Page},
        visitor::{Visitor, id},
    },
    door::{Code, Problem},
    protocol::RunId,
    store::{RunFilter, RunStatus},
};

/// The number of runs of a page.
const LIMIT: usize = 50;

/// The choices of the filter by time: the word, the label, and the span in milliseconds.
const SINCE: [(&str, &str, u64); 4] = [
    ("1h", "the last hour", 3_600_000),
    ("24h", "the last day", 86_400_000),
    ("7d", "the last week", 604_800_000),
    ("30d", "the last month", 2_592_000_000),
];

/// Shows the page; a whole id in the search goes to its run.
pub(in crate::dashboard) async fn show(
    State(desk): State<Desk>,
    visitor: Visitor,
    fields: Fields,
) -> Result<Response, Problem> {
    if let Some(run) = fields.given("run") {
        let run: RunId = id(run.trim())?;
        return Ok(Redirect::to(&format!("/ui/runs/{run}")).into_response());
    }
    let [fragment] = fragments(&desk, &visitor, &fields).await?;
    let (status, since) = (fields.text("status"), fields.text("since"));
    let body = html! {
        h1 { "Runs" }
        form.card.filters method="get" action="/ui/runs" role="search" {
            div {
                label for="status" { "Status" }
                select id="status" name="status" {
                    option value="" { "any" }
                    @for it in RunStatus::ALL {
                        option value=(it.as_str()) selected[it.as_str() == status] { (it.as_str()) }
                    }
                }
            }
            div {
                label for="blueprint" { "Blueprint" }
                input type="text" id="blueprint" name="blueprint" value=(fields.text("blueprint"));
            }
            div {
                label for="since" { "Started" }
                select id="since" name="since" {
                    option value="" { "any time" }
                    @for (word, label, _) in SINCE {
                        option value=(word) selected[word == since] { (label) }
                    }
                }
            }
            div {
                label for="run" { "Go to an id" }
                input type="text" id="run" name="run" placeholder="run_…" spellcheck="false";
            }
            button.main { "Filter" }
        }
        (fragment.html)
        (command::same(&visitor.url, &line(&fields), &command::Request {
            method: "GET",
            path: api(&fields),
            body: None,
        }))
    };
    // Only the first page moves: the others are what they were.
    let first = fields.given("cursor").is_none();
    let live = first.then(|| pager::url("/ui/live/runs", &query(&fields)));
    Ok(Page { nav: Nav::Runs, title: "Runs", live, body }.shown(&visitor))
}

/// Returns what changes on the page.
pub(in crate::dashboard) async fn fragments(
    desk: &Desk,
    visitor: &Visitor,
    fields: &Fields,
) -> Result<[Fragment; 1], Problem> {
    let page = desk.engine.runs(&visitor.caller, filter(fields, visitor.now_ms)?).await?;
    let empty = html! {
        @if query(fields).is_empty() { "Nothing ran yet. Start a run from a " a href="/ui/blueprints" { "blueprint" } "." }
        @else { "No run matches. " a href="/ui/runs" { "Show all" } }
    };
    let is_first = fields.given("cursor").is_none();
    let html = html! {
        div #runs.card.flush {
            (run_table::of(&page.items, visitor.now_ms, &empty))
            (pager::links("/ui/runs", &query(fields), is_first, page.next_cursor.as_deref()))
        }
    };
    Ok([Fragment { id: "runs", html }])
}

/// Returns the filters that are set.
fn query(fields: &Fields) -> Vec<(&str, &str)> {
    let names = ["status", "blueprint", "since"];
    names.into_iter().filter_map(|name| Some((name, fields.given(name)?))).collect()
}

fn filter(fields: &Fields, now_ms: u64) -> Result<RunFilter, Problem> {
    let words = fields.all("status").filter(|word| !word.is_empty());
    let status = words.map(|word| {
        RunStatus::parse(word)
            .ok_or_else(|| Problem::new(Code::BadQuery, format!("{word:?} is no status")))
    });
    let since = fields.given("since").map(|word| {
        let known = SINCE.iter().find(|(known, _, _)| *known == word);
        known
            .map(|(_, _, span)| now_ms.saturating_sub(*span))
            .ok_or_else(|| Problem::new(Code::BadQuery, "since is one of 1h, 24h, 7d and 30d"))
    });
    Ok(RunFilter {
        status: status.collect::<Result<_, _>>()?,
        blueprint: fields.given("blueprint").map(|name| name.trim().to_owned()),
        since_ms: since.transpose()?,
        before: fields.given("cursor").map(id).transpose()?,
        limit: LIMIT,
    })
}

fn line(fields: &Fields) -> String {
    let mut line = "moonswarm ps".to_owned();
    for name in ["status", "blueprint"] {
        if let Some(value) = fields.given(name) {
            line.push_str(&format!(" --{name} {}", command::quoted(value)));
        }
    }
    line
}

fn api(fields: &Fields) -> String {
    let all = query(fields).into_iter().filter(|(name, _)| *name != "since").collect::<Vec<_>>();
    pager::url("/v1/runs", &all)
}
