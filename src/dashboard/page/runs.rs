//! `/ui/runs`: the list, with its filters in the URL.

use axum::{
    extract::State,
    response::{IntoResponse, Redirect, Response},
};
use maud::html;

use crate::{
    clock::rfc3339,
    dashboard::{
        component::{command, pager, run_table, status},
        desk::Desk,
        fields::Fields,
        fragment::Fragment,
        layout::{self, Nav, Page},
        visitor::{Visitor, id},
    },
    door::{Code, Problem},
    engine::shell,
    protocol::{RunId, TagIs},
    store::RunFilter,
    token::{Verb, permits},
};

/// The number of runs of a page.
const LIMIT: usize = 50;

/// The maximum number of conditions on tags.
const MOST_TAGS: usize = 8;

/// The choices of the filter by time: the word, the label, and the span in milliseconds.
const SINCE: [(&str, &str, u64); 4] = [
    ("1h", "the last hour", 3_600_000),
    ("24h", "the last day", 86_400_000),
    ("7d", "the last week", 604_800_000),
    ("30d", "the last month", 2_592_000_000),
];

/// The filters by a text: the name in the URL, the label, and an example.
const TEXTS: [(&str, &str, &str); 8] = [
    ("q", "Error or status text", "disk full"),
    ("tag", "Tag", "name=value"),
    ("kind", "Kind of error", "timeout"),
    ("agent", "Agent", ""),
    ("waiting_on", "Waits for", "task, signal, a name"),
    ("started_by", "Started by", ""),
    ("min_cost", "Cost at least, $", "0.50"),
    ("parent", "Called by", "run_…"),
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
    let since = fields.text("since");
    let body = html! {
        h1 { "Runs" }
        form.card.filters method="get" action="/ui/runs" role="search" {
            (status::choice(&fields))
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
            @for (name, label, hint) in TEXTS {
                div {
                    label for=(name) { (label) }
                    input type="text" id=(name) name=(name) placeholder=(hint) spellcheck="false" value=(fields.text(name));
                }
            }
            div {
                label for="run" { "Go to an id" }
                input type="text" id="run" name="run" placeholder="run_…" spellcheck="false";
            }
            button.main { "Filter" }
        }
        (fragment.html)
        (command::same(&visitor.url, &format!("moonswarm ps{}", flags(&fields, visitor.now_ms)), &command::Request {
            method: "GET",
            path: api(&fields, visitor.now_ms),
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
        @if query(fields).is_empty() { "Nothing ran yet. Start a run from a " a href="/ui/blueprints" { "blueprint" } ", or with " code { "moonswarm init" } " and " code { "moonswarm run hello.lua" } "." }
        @else { "No run matches. " a href="/ui/runs" { "Show all" } }
    };
    let is_first = fields.given("cursor").is_none();
    let acts = bulk_acts(visitor);
    let selects = !acts.is_empty() && !page.items.is_empty();
    let table = match selects {
        true => html! {
            form method="post" action="/ui/runs/bulk" {
                (layout::token(visitor))
                @for (name, value) in query(fields) { input type="hidden" name=(name) value=(value); }
                (run_table::selectable(&page.items, visitor.now_ms, &empty))
                div.line.bulk {
                    label.choice for="which" { "Do with" }
                    select id="which" name="which" {
                        option value="ids" { "the selected runs" }
                        option value="filter" { "all that match, 500 at most" }
                    }
                    @for (act, label) in acts { button name="act" value=(act) { (label) " …" } }
                }
            }
        },
        false => run_table::of(&page.items, visitor.now_ms, &empty),
    };
    let html = html! {
        div #runs.card.flush {
            (table)
            @if page.partial {
                p.dim { "Only some of the runs were looked at: the next page goes on." }
            }
            (pager::links("/ui/runs", &query(fields), is_first, page.next_cursor.as_deref()))
        }
    };
    Ok([Fragment { id: "runs", html }])
}

/// Returns the acts on many runs that a token may do, each with its label.
fn bulk_acts(visitor: &Visitor) -> Vec<(&'static str, &'static str)> {
    let all = [
        ("pause", "Pause", visitor.may(Verb::RunPause)),
        ("resume", "Resume", visitor.may(Verb::RunResume)),
        ("rerun", "Run again", visitor.may(Verb::RunStart)),
        ("cancel", "Cancel", visitor.may(Verb::RunCancel)),
        // No sign-in has the verb: the page asks for a token.
        ("delete", "Delete", permits(visitor.caller.grant.role, Verb::RunDelete)),
    ];
    all.into_iter().filter(|it| it.2).map(|(act, label, _)| (act, label)).collect()
}

/// Returns the filters that are set. A status and a tag may be there several times.
pub(super) fn query(fields: &Fields) -> Vec<(&str, &str)> {
    let texts = TEXTS.iter().map(|(name, _, _)| *name);
    let names = ["status", "blueprint", "since"].into_iter().chain(texts);
    let values = |name| -> Vec<&str> {
        let given = fields.all(name).filter(|value| !value.trim().is_empty());
        match name {
            "status" => status::words(fields).collect(),
            "tag" => given.take(MOST_TAGS).collect(),
            _ => given.take(1).collect(),
        }
    };
    names.flat_map(|name| values(name).into_iter().map(move |value| (name, value))).collect()
}

/// Returns the time that the filter by time begins with.
fn since(fields: &Fields, now_ms: u64) -> Result<Option<u64>, Problem> {
    let since = fields.given("since").map(|word| {
        let known = SINCE.iter().find(|(known, _, _)| *known == word);
        known
            .map(|(_, _, span)| now_ms.saturating_sub(*span))
            .ok_or_else(|| Problem::new(Code::BadQuery, "since is one of 1h, 24h, 7d and 30d"))
    });
    since.transpose()
}

pub(super) fn filter(fields: &Fields, now_ms: u64) -> Result<RunFilter, Problem> {
    let text = |name: &str| fields.given(name).map(|text| text.trim().to_owned());
    let tags = fields.all("tag").filter(|tag| !tag.trim().is_empty());
    let tags = tags.take(MOST_TAGS).map(|tag| TagIs::parse(tag.trim())).collect::<Result<_, _>>();
    let bad = |error| Problem::new(Code::BadQuery, format!("failed to {error}"));
    Ok(RunFilter {
        status: status::chosen(fields)?,
        blueprint: text("blueprint"),
        since_ms: since(fields, now_ms)?,
        parent: fields.given("parent").map(id::<RunId>).transpose()?.map(RunId::num),
        tags: tags.map_err(bad)?,
        started_by: text("started_by"),
        error: text("kind"),
        agent: text("agent"),
        waiting_on: text("waiting_on"),
        text: text("q"),
        min_cost: fields.given("min_cost").map(money).transpose()?,
        before: fields.given("cursor").map(id).transpose()?,
        limit: LIMIT,
        ..RunFilter::default()
    })
}

fn money(text: &str) -> Result<rust_decimal::Decimal, Problem> {
    let wrong = |_| Problem::new(Code::BadQuery, "the cost is an amount in dollars such as 0.50");
    text.trim().trim_start_matches('$').parse().map_err(wrong)
}

/// Returns the filters as the command line and the API have them: with a time in place of a span.
fn absolute(fields: &Fields, now_ms: u64) -> Vec<(&str, String)> {
    let value = |(name, value): (_, &str)| match name {
        "since" => Some((name, rfc3339(since(fields, now_ms).ok()??))),
        _ => Some((name, value.to_owned())),
    };
    query(fields).into_iter().filter_map(value).collect()
}

/// Returns the flags of the command line for the filters.
pub(super) fn flags(fields: &Fields, now_ms: u64) -> String {
    let mut line = String::new();
    for (name, value) in absolute(fields, now_ms) {
        let flag = if name == "q" { "text".to_owned() } else { name.replace('_', "-") };
        line.push_str(&shell::option(&format!("--{flag}"), &value));
    }
    line
}

fn api(fields: &Fields, now_ms: u64) -> String {
    let all = absolute(fields, now_ms);
    pager::url("/v1/runs", &all.iter().map(|(name, value)| (*name, &**value)).collect::<Vec<_>>())
}
