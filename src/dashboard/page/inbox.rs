//! `/ui/inbox`: the tasks that wait for a person, oldest first.

use axum::{extract::State, response::Response};
use maud::html;

use crate::{
    dashboard::{
        component::{command, pager, text, time},
        desk::Desk,
        fields::Fields,
        fragment::Fragment,
        layout::{Nav, Page},
        visitor::{Visitor, id},
    },
    door::{Code, Problem},
    engine::TaskView,
    protocol::RunId,
    store::TaskFilter,
    token::Verb,
};

/// The number of tasks of a page.
const LIMIT: usize = 50;

/// Shows the page.
pub(in crate::dashboard) async fn show(
    State(desk): State<Desk>,
    visitor: Visitor,
    fields: Fields,
) -> Result<Response, Problem> {
    let [fragment] = fragments(&desk, &visitor, &fields).await?;
    let body = html! {
        h1 { "Inbox" }
        @if fields.given("done") == Some("answer") {
            div.banner.ok role="status" { "Your answer is recorded. "
                @if let Some(run) = fields.given("run").and_then(|run| id::<RunId>(run).ok()) {
                    a href={ "/ui/runs/" (run) } { "The run" } " goes on."
                }
            }
        }
        @if !visitor.may(Verb::TaskAnswer) {
            p.dim { "This sign-in (" (visitor.caller.grant.role) ") reads tasks and does not answer them: "
                code { "moonswarm open --role approver" } " makes one that does." }
        }
        (tabs(&fields))
        (fragment.html)
        (command::same(&visitor.url, "moonswarm inbox", &command::Request {
            method: "GET",
            path: "/v1/tasks?kind=human".to_owned(),
            body: None,
        }))
    };
    let live = (fields.given("cursor").is_none() && fields.given("show").is_none())
        .then(|| "/ui/live/inbox".to_owned());
    Ok(Page { nav: Nav::Inbox, title: "Inbox", live, body }.shown(&visitor))
}

/// The lists: the word in the URL, and the label.
const LISTS: [(&str, &str); 4] = [
    ("", "Open"),
    ("mine", "For me"),
    ("answered", "Answered"),
    ("answered-mine", "Answered by me"),
];

fn tabs(fields: &Fields) -> maud::Markup {
    let shown = fields.text("show");
    html! {
        nav.tabs aria-label="Lists of tasks" {
            @for (word, label) in LISTS {
                a href=(pager::url("/ui/inbox", &[("show", word)])) aria-current=[(word == shown).then_some("page")] { (label) }
            }
        }
    }
}

async fn answered(desk: &Desk, visitor: &Visitor, fields: &Fields) -> Result<Fragment, Problem> {
    let (show, cursor) = (fields.text("show"), fields.given("cursor"));
    let mine = show == "answered-mine";
    let page = desk.engine.tasks().answered(&visitor.caller, mine, cursor, LIMIT).await?;
    let html = html! {
        div #inbox.card.flush {
            @if page.items.is_empty() { div.empty { "No task was answered in the last 30 days." } }
            @else {
                table.stack {
                    thead { tr { th { "Task" } th { "Said" } th { "By" } th { "When" } th { "Run" } } }
                    tbody { @for it in &page.items {
                        tr {
                            td data-label="Task" { a href={ "/ui/inbox/" (it.id) } { (text::line(&it.agent, 80)) } }
                            td data-label="Said" { (it.outcome) }
                            td data-label="By" { (text::line(&it.by, 80)) }
                            td data-label="When" { (time::of(&it.at, visitor.now_ms)) }
                            td data-label="Run" { a href={ "/ui/runs/" (it.run) "/steps/" (it.step) } { "step " (it.step) } }
                        }
                    } }
                }
            }
            (pager::links("/ui/inbox", &[("show", show)], cursor.is_none(), page.next_cursor.as_deref()))
        }
    };
    Ok(Fragment { id: "inbox", html })
}

/// Returns what changes on the page.
pub(in crate::dashboard) async fn fragments(
    desk: &Desk,
    visitor: &Visitor,
    fields: &Fields,
) -> Result<[Fragment; 1], Problem> {
    if fields.text("show").starts_with("answered") {
        return Ok([answered(desk, visitor, fields).await?]);
    }
    let mine = fields.text("show") == "mine";
    let after = fields.given("cursor").map(|cursor| {
        let pair = cursor.split_once('-');
        pair.and_then(|(run, step)| Some((run.parse().ok()?, step.parse().ok()?)))
            .ok_or_else(|| Problem::new(Code::BadQuery, "cursor is not one of this list's"))
    });
    let filter = TaskFilter {
        kind: Some("human".to_owned()),
        after: after.transpose()?,
        limit: LIMIT,
        ..TaskFilter::default()
    };
    let page = match mine {
        true => desk.engine.tasks().mine(&visitor.caller, filter).await?,
        false => desk.engine.tasks().list(&visitor.caller, filter).await?,
    };
    let query = [("show", fields.text("show"))];
    let is_first = fields.given("cursor").is_none();
    let html = html! {
        div #inbox.card.flush {
            @if page.items.is_empty() { div.empty { "Nothing waits for a person." } }
            @else {
                table.stack {
                    thead { tr { th { "Task" } th { "Agent" } th { "Run" } th { "Asked" } th { "Until" } } }
                    tbody { @for task in &page.items { (row(task, visitor.now_ms)) } }
                }
            }
            (pager::links("/ui/inbox", &query, is_first, page.next_cursor.as_deref()))
        }
    };
    Ok([Fragment { id: "inbox", html }])
}

fn row(task: &TaskView, now_ms: u64) -> maud::Markup {
    let title = task.summary.as_deref().unwrap_or(&task.agent);
    html! {
        tr data-key=(task.id.to_string()) {
            td data-label="Task" {
                a href={ "/ui/inbox/" (task.id) } { (text::line(title, 160)) }
                @if let Some(required) = task.required.filter(|it| *it > 1) {
                    div.small.dim { (task.answers.len()) " of " (required) " answers" }
                }
            }
            td data-label="Agent" { (text::line(&task.agent, 60)) }
            td data-label="Run" { a href={ "/ui/runs/" (task.run) } { "run" } }
            td data-label="Asked" { (time::of(&task.scheduled_at, now_ms)) }
            td data-label="Until" { @if let Some(until) = &task.expires_at { (time::of(until, now_ms)) } @else { "—" } }
        }
    }
}
