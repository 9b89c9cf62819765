//! `/ui/runs/{run}`: one run, why it waits, and what can be done with it.

mod acts;
pub(in crate::dashboard) mod artifacts;
mod children;
mod events;
mod graph;
mod state;

use axum::{
    extract::{Path, State},
    response::Response,
};
use maud::{Markup, html};

use crate::{
    dashboard::{
        component::{
            bytes::size, command, fold, json, pager, run_table, status, text, time, timeline,
            usage, waiting,
        },
        desk::Desk,
        fields::Fields,
        fragment::Fragment,
        layout::{Nav, Page},
        visitor::{Visitor, id},
    },
    door::{Code, Problem},
    engine::RunView,
    protocol::RunId,
    token::Verb,
};

/// The longest output in the head of the page, in characters.
const SHORT: usize = 160;
/// The number of steps of a page.
const STEPS: usize = 200;
/// The number of steps that are read at a time for a page that folds, and the maximum of all.
const READ: usize = 1_000;
const LOOK: usize = 10_000;

/// The tabs: the word in the URL, the label, and the verb that one needs beside `run.read`.
const TABS: [(&str, &str, Verb); 9] = [
    ("steps", "Timeline", Verb::RunRead),
    ("source", "Source", Verb::BlueprintRead),
    ("graph", "Graph", Verb::BlueprintRead),
    ("data", "Input and output", Verb::RunRead),
    ("events", "Events", Verb::RunRead),
    ("artifacts", "Artifacts", Verb::ArtifactRead),
    ("state", "State", Verb::StateRead),
    ("children", "Children", Verb::RunRead),
    ("log", "Log", Verb::RunRead),
];

/// The parameters of the URL that the tabs read, and their live fragments with them.
const FILTERS: [&str; 16] = [
    "scope",
    "fold",
    "file",
    "cursor",
    "type",
    "step",
    "level",
    "q",
    "prefix",
    "open",
    "raw",
    "node",
    "skip",
    "status",
    "blueprint",
    "whole",
];

/// Shows the page.
pub(in crate::dashboard) async fn show(
    State(desk): State<Desk>,
    visitor: Visitor,
    Path(run): Path<String>,
    fields: Fields,
) -> Result<Response, Problem> {
    let run: RunId = id(&run)?;
    let view = desk.engine.run(&visitor.caller, run).await?;
    let parts = parts(&desk, &visitor, &view, &fields).await?;
    let tab = tab(&fields)?;
    let path = format!("/ui/runs/{run}");
    let body = html! {
        @if let Some(done) = fields.given("done").filter(|it| *it != "start" || view.ended_at.is_none()).and_then(done) { div.banner.ok role="status" { (done) } }
        (parts.head.html)
        (parts.waits.html)
        (parts.acts.html)
        (acts::kept(&view))
        nav.tabs aria-label="Parts of the run" {
            @for (word, label, verb) in TABS {
                @if visitor.may(verb) {
                    a href=(pager::url(&path, &[("tab", word)])) aria-current=[(word == tab).then_some("page")] {
                        (label)
                    }
                }
            }
        }
        (parts.tab.html)
        @if let Some(path) = [("steps", "/steps"), ("data", "")].iter().find(|it| it.0 == tab).map(|it| it.1) {
            (command::same(&visitor.url, &format!("moonswarm show {run}"), &command::Request {
                method: "GET",
                path: format!("/v1/runs/{run}{path}"),
                body: None,
            }))
        }
    };
    let mut query = vec![("tab", tab)];
    let given = |name| fields.all(name).map(move |value| (name, value));
    query.extend(FILTERS.into_iter().flat_map(given));
    // A moment of the past does not change, and is not looked for again and again.
    let moves = view.ended_at.is_none() && fields.given("at").is_none();
    let live = moves.then(|| pager::url(&format!("/ui/live/runs/{run}"), &query));
    let title = format!("{} {}", view.blueprint, view.status.as_str());
    Ok(Page { nav: Nav::Runs, title: &title, live, body }.shown(&visitor))
}

/// Returns what changes on the page, and the number of the last event of the run that it shows.
pub(in crate::dashboard) async fn fragments(
    desk: &Desk,
    visitor: &Visitor,
    run: RunId,
    fields: &Fields,
) -> Result<(Vec<Fragment>, u32), Problem> {
    let view = desk.engine.run(&visitor.caller, run).await?;
    let Parts { head, waits, acts, tab } = parts(desk, visitor, &view, fields).await?;
    Ok((vec![head, waits, acts, tab], view.last_event))
}

/// The parts of the page.
struct Parts {
    head: Fragment,
    waits: Fragment,
    acts: Fragment,
    tab: Fragment,
}

async fn parts(
    desk: &Desk,
    visitor: &Visitor,
    view: &RunView,
    fields: &Fields,
) -> Result<Parts, Problem> {
    let now_ms = visitor.now_ms;
    let waits = html! {
        div #run-waits {
            @if let Some(error) = &view.error {
                div.banner.bad {
                    p { strong { (text::short(&error.kind, 60)) } " " (text::line(&error.message, 2_000)) }
                    @if let Some(step) = error.step {
                        a href={ "/ui/runs/" (view.id) "/steps/" (step) } { "Step " (step) }
                    }
                }
            }
            @if view.ended_at.is_none() { (waiting::list(view, now_ms)) }
        }
    };
    let tab = match tab(fields)? {
        "source" => super::source::tab(desk, visitor, view, fields).await?,
        "graph" => graph::tab(desk, visitor, view, fields).await?,
        "data" => data(view, fields),
        "events" => events::tab(desk, visitor, view, fields).await?,
        "artifacts" => artifacts::tab(desk, visitor, view, fields).await?,
        "state" => state::tab(desk, visitor, view, fields).await?,
        "children" => children::tab(desk, visitor, view, fields).await?,
        "log" => events::log(desk, visitor, view, fields).await?,
        _ => steps(desk, visitor, view, fields).await?,
    };
    Ok(Parts {
        head: Fragment { id: "run-head", html: head(view, now_ms) },
        waits: Fragment { id: "run-waits", html: waits },
        acts: Fragment { id: "run-acts", html: acts::of(visitor, view) },
        tab: Fragment { id: "run-tab", html: html! { div #run-tab { (tab) } } },
    })
}

fn tab(fields: &Fields) -> Result<&'static str, Problem> {
    let asked = fields.given("tab").unwrap_or("steps");
    let known = TABS.iter().find(|(word, _, _)| *word == asked).map(|(word, _, _)| *word);
    known.ok_or_else(|| Problem::new(Code::BadQuery, "there is no such tab"))
}

/// Returns the words for what a form did.
fn done(word: &str) -> Option<&'static str> {
    Some(match word {
        "cancel" => "The cancel is recorded. Its compensations still run.",
        "pause" => "The run is paused. Open tasks go on, new ones do not start.",
        "resume" => "The run goes on.",
        "signal" => "The signal is recorded.",
        "start" => "The run has started.",
        "fork" => "This is the new run. The steps before the chosen one were kept.",
        "answer" => "Your answer is recorded.",
        _ => return None,
    })
}

fn head(view: &RunView, now_ms: u64) -> Markup {
    let id = view.id.to_string();
    let hash = view.hash.get(..12).unwrap_or(&view.hash);
    let version = format!("{}@{hash}", view.blueprint);
    html! {
        div #run-head {
            h1.line {
                (text::line(&view.blueprint, 80)) (status::pill(view.status.as_str()))
                @if let Some(progress) = view.progress.filter(|_| view.ended_at.is_none()) {
                    (run_table::bar(progress))
                }
            }
            @if let Some(words) = &view.status_text { p { (text::line(words, 500)) } }
            dl.card {
                dt { "Id" } dd { code { (id) } " " (text::copy(&id)) }
                dt { "Version" } dd {
                    a href={ "/ui/blueprints/" (crate::dashboard::headers::escaped(&version)) } { (text::short(&version, 100)) }
                }
                dt { "Started" } dd { (time::of(&view.created_at, now_ms)) " by " (text::line(&view.started_by, 120)) }
                @if !view.tags.is_empty() { dt { "Tags" } dd { (run_table::tags(view)) } }
                @if let Some(ended) = &view.ended_at { dt { "Ended" } dd { (time::of(ended, now_ms)) } }
                dt { "Took" } dd { (run_table::lasted(view, now_ms)) }
                @if let Some(output) = view.output.as_ref().filter(|it| !it.is_null()) {
                    dt { "Output" } dd {
                        code { (text::short(text::cut(output.as_str(), 4 * SHORT).0, SHORT)) } " "
                        a.small href={ "/ui/runs/" (id) "?tab=data" } { "all of it" }
                    }
                }
                dt { "Steps" } dd { (view.steps_done) " of " (view.steps) " ended"
                    @if let Some(attempts) = view.attempts.filter(|it| *it > 0) {
                        ", " (usage::grouped(u64::from(attempts))) @if attempts == 1 { " attempt" } @else { " attempts" }
                    }
                }
                @for limit in &view.limits {
                    dt { "Limit of " (limit.name.trim_end_matches("_ms").replace('_', " ")) } dd { (amount(&limit.name, &limit.used)) " of " (amount(&limit.name, &limit.allowed)) }
                }
                @if let Some(trigger) = &view.trigger { dt { "Trigger" } dd { code { (text::short(trigger.as_str(), 300)) } } }
                @if !view.children.is_empty() {
                    dt { "Called" } dd { @for child in &view.children {
                        a href={ "/ui/runs/" (child.id) } { (text::line(&child.blueprint, 60)) } " " (status::pill(child.status.as_str())) " "
                    } a href={ "/ui/runs?parent=" (id) } { "all" } }
                }
                dt { "Usage" } dd {
                    (usage::of(view.usage.as_ref().map(|it| &it.total)))
                    @if let Some(missing) = view.usage.as_ref().map(|it| it.unreported).filter(|it| *it > 0) {
                        span.dim { " (" (missing) @if missing == 1 { " attempt" } @else { " attempts" } " reported none)" }
                    }
                }
                dt { "Stored" } dd { (size(view.stored_bytes)) ", " (view.last_event) " events" }
                @if let Some(parent) = view.parent { dt { "Called by" } dd { a href={ "/ui/runs/" (parent) } { (parent) } } }
                @if let Some(copy) = &view.copied_from {
                    dt { "Copied from" } dd {
                        a href={ "/ui/runs/" (crate::dashboard::headers::escaped(&copy.run)) } { (text::short(&copy.run, 60)) }
                        @if let Some(step) = copy.step { ", anew from step " (step) }
                        " " a href={ "/ui/runs/" (id) "/compare" } { "Compare" }
                    }
                }
                @for (operator, seat) in view.seats.iter().take(20) {
                    dt { "Seat" } dd { (text::short(operator, 60)) ": " code { (text::short(&seat.session, 60)) } }
                }
            }
        }
    }
}

/// Returns an amount of a limit in its unit.
fn amount(name: &str, text: &str) -> String {
    match (name, text.parse::<u64>()) {
        ("stored_bytes", Ok(bytes)) => size(bytes),
        ("time_ms", Ok(ms)) => time::took(ms),
        ("usd", _) => format!("${text}"),
        (_, Ok(number)) => usage::grouped(number),
        (_, Err(_)) => text.to_owned(),
    }
}

async fn steps(
    desk: &Desk,
    visitor: &Visitor,
    view: &RunView,
    fields: &Fields,
) -> Result<Markup, Problem> {
    let after = fields.given("cursor").map_or(Ok(0), str::parse);
    let after: u32 =
        after.map_err(|_| Problem::new(Code::BadQuery, "cursor is not one of this list's"))?;
    let scope = fields.text("scope");
    // A long run is folded, unless each of its steps is asked for.
    let folds = match fields.given("fold") {
        Some(word) => word == "on",
        None => !scope.is_empty() || view.steps as usize > STEPS,
    };
    let mut items = Vec::new();
    let mut next = Some(after.to_string());
    let (mut from, look) = (after, if folds { LOOK } else { STEPS });
    while next.is_some() && items.len() < look {
        let limit = if folds { READ } else { STEPS };
        let page = desk.engine.steps(&visitor.caller, view.id, from, limit).await?;
        items.extend(page.items);
        next = page.next_cursor;
        from = next.as_deref().and_then(|next| next.parse().ok()).unwrap_or(from);
        if folds && fold::folded(&items, scope).len() > STEPS {
            break;
        }
    }
    let mut rows = match folds {
        true => fold::folded(&items, scope),
        false => items.iter().map(fold::Row::Step).collect(),
    };
    if let Some(row) = rows.get(STEPS) {
        next = Some(row.first().saturating_sub(1).to_string());
        rows.truncate(STEPS);
    }
    let path = format!("/ui/runs/{}", view.id);
    let fold = fields.text("fold");
    let query = [("tab", "steps"), ("scope", scope), ("fold", fold)];
    let other = if folds { "off" } else { "on" };
    Ok(html! {
        @if !scope.is_empty() {
            p { a href=(pager::url(&path, &[("tab", "steps"), ("fold", fold)])) { "← all steps" }
                " Those of " code { (text::short(scope, 100)) } @if let Some(words) = items.iter().find(|it| it.scope.starts_with(scope)).and_then(|it| it.branch.as_deref()) { ": " (text::line(words, 100)) } }
        }
        div.card.flush tabindex="0" {
            @if rows.is_empty() { div.empty { @if scope.is_empty() { "No step yet." } @else { "No step of this scope among these." } } }
            @else { (timeline::rows_of(view.id, &rows, visitor.now_ms)) }
            (pager::links(&path, &query, after == 0, next.as_deref()))
        }
        @if items.iter().any(|it| !it.scope.is_empty()) && scope.is_empty() {
            p.small { a href=(pager::url(&path, &[("tab", "steps"), ("fold", other)])) {
                @if folds { "Show each step" } @else { "Fold branches" }
            } }
        }
    })
}

fn data(view: &RunView, fields: &Fields) -> Markup {
    let whole = fields.given("whole").is_some();
    html! {
        div.cards {
            section.card { h2 { "Input" }
                @match &view.input { Some(input) => { (json::tree(input, whole)) } None => { p.dim { "none" } } }
            }
            section.card { h2 { "Output" }
                @match &view.output {
                    Some(output) => { (json::tree(output, whole)) }
                    None => { p.dim { @if view.ended_at.is_none() { "not yet" } @else { "none" } } }
                }
            }
        }
        @if !whole { p { a href="?tab=data&whole=1" { "Show all of it" } } }
    }
}
