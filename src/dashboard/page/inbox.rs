//! `/ui/inbox`: the tasks that wait for a person, oldest first.

use axum::{extract::State, response::Response};
use maud::html;

use crate::{
    dashboard::{
        component::{command, pager, text, time},
        desk::Desk,
        fields::Fields,
        fragment::Fragment,
        headers::escaped,
        layout::{Nav, Page},
        visitor::{Visitor, id},
    },
    door::{Code, Problem},
    engine::{Sought, TaskView, shell},
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
        // Folded, so that the tasks come first on a phone.
        details data-key="find" open[fields.given("q").is_some()] {
            summary { "Find by text …" }
            form.card.filters method="get" action="/ui/inbox" role="search" {
                @if let Some(show) = fields.given("show") { input type="hidden" name="show" value=(show); }
                div { label for="q" { "Text" }
                    input type="search" id="q" name="q" value=(fields.text("q")); }
                button.main { "Filter" }
            }
        }
        (fragment.html)
        (same(&visitor, &fields))
    };
    let is_plain = ["cursor", "show", "q"].into_iter().all(|name| fields.given(name).is_none());
    let live = is_plain.then(|| "/ui/live/inbox".to_owned());
    Ok(Page { nav: Nav::Inbox, title: "Inbox", live, body }.shown(&visitor))
}

/// A list of the inbox.
struct List {
    /// The word in the URL.
    word: &'static str,
    label: &'static str,
    /// The commands that make the same list.
    line: &'static str,
    path: &'static str,
}

#[rustfmt::skip]
const LISTS: [List; 4] = [
    List { word: "", label: "Open", line: "moonswarm inbox", path: "/v1/tasks?kind=human" },
    List { word: "mine", label: "For me", line: "moonswarm inbox --mine", path: "/v1/tasks?kind=human&mine=true" },
    List { word: "answered", label: "Answered", line: "moonswarm inbox --answered", path: "/v1/tasks?state=answered" },
    List { word: "answered-mine", label: "Answered by me", line: "moonswarm inbox --answered --mine", path: "/v1/tasks?state=answered&mine=true" },
];

/// Returns the commands that make the list which is shown.
fn same(visitor: &Visitor, fields: &Fields) -> maud::Markup {
    let shown = LISTS.iter().find(|it| it.word == fields.text("show"));
    let List { line, path, .. } = shown.unwrap_or(&LISTS[0]);
    let (mut line, mut path) = ((*line).to_owned(), (*path).to_owned());
    if let Some(text) = fields.given("q") {
        line.push_str(&shell::option("--text", text));
        path.push_str(&format!("&q={}", escaped(text)));
    }
    command::same(&visitor.url, &line, &command::Request { method: "GET", path, body: None })
}

fn tabs(fields: &Fields) -> maud::Markup {
    let shown = fields.text("show");
    html! {
        nav.tabs aria-label="Lists of tasks" {
            @for List { word, label, .. } in LISTS {
                a href=(pager::url("/ui/inbox", &[("show", word)])) aria-current=[(word == shown).then_some("page")] { (label) }
            }
        }
    }
}

/// Returns the list and the text that are chosen.
fn query(fields: &Fields) -> [(&str, &str); 2] {
    [("show", fields.text("show")), ("q", fields.text("q"))]
}

async fn answered(desk: &Desk, visitor: &Visitor, fields: &Fields) -> Result<Fragment, Problem> {
    let (show, cursor) = (fields.text("show"), fields.given("cursor"));
    let sought = Sought { mine: show == "answered-mine", text: fields.given("q") };
    let page = desk.engine.tasks().answered(&visitor.caller, sought, cursor, LIMIT).await?;
    let html = html! {
        div #inbox.card.flush {
            @if page.items.is_empty() { div.empty { "No task " @if sought.text.is_some() { "with these words " } "was answered in the last 30 days." } }
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
            (pager::links("/ui/inbox", &query(fields), cursor.is_none(), page.next_cursor.as_deref()))
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
    let sought = Sought { mine: fields.text("show") == "mine", text: fields.given("q") };
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
    let page = match sought.mine || sought.text.is_some() {
        true => desk.engine.tasks().find(&visitor.caller, filter, sought).await?,
        false => desk.engine.tasks().list(&visitor.caller, filter).await?,
    };
    let is_first = fields.given("cursor").is_none();
    // What workers ask a senior is for people as well; the flags of the command line do the same.
    let questions = match is_first && !sought.mine {
        true => desk.engine.tasks().questions(&visitor.caller, sought.text).await?,
        false => Vec::new(),
    };
    let html = html! {
        div #inbox.card.flush {
            @if page.items.is_empty() && questions.is_empty() {
                div.empty {
                    @if sought.text.is_some() { "No task has these words." } @else { "Nothing waits for a person." }
                }
            }
            @else {
                table.stack {
                    thead { tr { th { "Task" } th { "Agent" } th { "Run" } th { "Asked" } th { "Until" } } }
                    tbody {
                        @for task in &questions { (row(task, visitor.now_ms)) }
                        @for task in &page.items { (row(task, visitor.now_ms)) }
                    }
                }
            }
            @if page.items.len() < LIMIT && page.next_cursor.is_some() {
                p.dim { "Only some of the tasks were looked at: the next page goes on." }
            }
            (pager::links("/ui/inbox", &query(fields), is_first, page.next_cursor.as_deref()))
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
                @if let Some(question) = &task.question { div.small { "asks: " (text::line(question, 160)) } }
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
