//! `/ui/runs/{run}`: one run, why it waits, and what can be done with it.

use axum::{
    extract::{Path, State},
    response::Response,
};
use maud::{Markup, html};

use crate::{
    dashboard::{
        component::{
            command::{self, Request},
            json, pager, run_table, status, text, time, timeline, usage, waiting,
        },
        desk::Desk,
        fields::Fields,
        fragment::{Fragment, allowed},
        layout::{self, Nav, Page},
        visitor::{Visitor, id},
    },
    door::{Code, Problem},
    engine::{EventView, RunView},
    protocol::{RunId, Scope, WorkflowId},
    store::RunStatus,
    token::Verb,
};

/// The number of steps of a page.
const STEPS: usize = 200;
/// The number of events of a page.
const EVENTS: u32 = 100;
/// The number of keys of the run's state that are listed.
const KEYS: usize = 200;

/// The tabs: the word in the URL, the label, and the verb that one needs beside `run.read`.
const TABS: [(&str, &str, Verb); 6] = [
    ("steps", "Steps", Verb::RunRead),
    ("source", "Source", Verb::BlueprintRead),
    ("data", "Input and output", Verb::RunRead),
    ("events", "Events", Verb::RunRead),
    ("artifacts", "Artifacts", Verb::ArtifactRead),
    ("state", "State", Verb::StateRead),
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
        @if let Some(done) = fields.given("done").and_then(done) { div.banner.ok role="status" { (done) } }
        (parts.head.html)
        (parts.waits.html)
        (parts.acts.html)
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
    };
    let mut query = vec![("tab", tab)];
    query.extend(["file", "cursor"].map(|name| (name, fields.given(name).unwrap_or_default())));
    // A moment of the past does not change, and is not looked for again and again.
    let moves = view.ended_at.is_none() && fields.given("at").is_none();
    let live = moves.then(|| pager::url(&format!("/ui/live/runs/{run}"), &query));
    let title = format!("{} {}", view.blueprint, view.status.as_str());
    Ok(Page { nav: Nav::Runs, title: &title, live, body }.shown(&visitor))
}

/// Returns what changes on the page.
pub(in crate::dashboard) async fn fragments(
    desk: &Desk,
    visitor: &Visitor,
    run: RunId,
    fields: &Fields,
) -> Result<Vec<Fragment>, Problem> {
    let view = desk.engine.run(&visitor.caller, run).await?;
    let Parts { head, waits, acts, tab } = parts(desk, visitor, &view, fields).await?;
    Ok(vec![head, waits, acts, tab])
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
        "data" => data(view, fields),
        "events" => events(desk, visitor, view, fields).await?,
        "artifacts" => artifacts(desk, visitor, view).await?,
        "state" => state(desk, visitor, view).await?,
        _ => steps(desk, visitor, view, fields).await?,
    };
    Ok(Parts {
        head: Fragment { id: "run-head", html: head(view, now_ms) },
        waits: Fragment { id: "run-waits", html: waits },
        acts: Fragment { id: "run-acts", html: acts(visitor, view) },
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
                dt { "Steps" } dd { (view.steps_done) " of " (view.steps) " ended" }
                @for limit in &view.limits {
                    dt { "Limit of " (limit.name) } dd { (limit.used) " of " (limit.allowed) }
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
                dt { "Stored" } dd { (usage::bytes(view.stored_bytes)) ", " (view.last_event) " events" }
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

/// Returns the buttons that the token and the run's status allow.
fn acts(visitor: &Visitor, view: &RunView) -> Markup {
    let may = |verb| visitor.caller.may(verb, view.id).is_ok();
    let open = view.ended_at.is_none();
    let paused = view.status == RunStatus::Paused;
    let id = view.id.to_string();
    html! {
        div #run-acts.acts {
            @if open && paused && may(Verb::RunResume) {
                form method="post" action={ "/ui/runs/" (id) "/resume" } {
                    (layout::token(visitor))
                    button.main { "Resume" }
                }
                (command::same(&visitor.url, &format!("moonswarm resume {id}"), &post(&id, "resume", None)))
            }
            @if open && !paused && may(Verb::RunPause) { (with_reason(visitor, &id, "pause", "Pause", false)) }
            @if open && may(Verb::RunSignal) { (signal(visitor, view)) }
            @if !open && visitor.may(Verb::RunStart) { (rerun(visitor, &id)) }
            @if !open && visitor.may(Verb::RunStart) && visitor.may(Verb::BlueprintRead) {
                @let version = format!("{}@{}", view.blueprint, view.hash.get(..16).unwrap_or(&view.hash));
                a.button href={ "/ui/blueprints/" (crate::dashboard::headers::escaped(&version)) "?from=" (id) } { "Run with another input …" }
            }
            @if view.steps > 0 && may(Verb::RunFork) { a.button href={ "/ui/runs/" (id) "/fork" } { "Fork …" } }
            @if open && may(Verb::RunCancel) { (with_reason(visitor, &id, "cancel", "Cancel", true)) }
        }
    }
}

fn post<'a>(id: &str, act: &str, body: Option<String>) -> Request<'a> {
    Request { method: "POST", path: format!("/v1/runs/{id}/{act}"), body }
}

fn rerun(visitor: &Visitor, id: &str) -> Markup {
    let once = uuid::Uuid::new_v4().simple();
    html! {
        details data-key="rerun" {
            summary { "Run again …" }
            form method="post" action={ "/ui/runs/" (id) "/rerun" } {
                (layout::token(visitor))
                input type="hidden" name="once" value=(once);
                div.field {
                    label for="rerun-version" { "Version" }
                    select id="rerun-version" name="version" {
                        option value="same" { "of this run" }
                        option value="newest" { "the newest" }
                    }
                }
                button.main { "Run again" }
            }
            (command::same(&visitor.url, &format!("moonswarm rerun {id}"), &post(id, "rerun", None)))
        }
    }
}

fn with_reason(visitor: &Visitor, id: &str, act: &str, label: &str, danger: bool) -> Markup {
    let field = format!("{act}-reason");
    let body = Some(r#"{"reason":"why"}"#.to_owned());
    html! {
        details data-key=(act) {
            summary.danger[danger] { (label) " …" }
            form method="post" action={ "/ui/runs/" (id) "/" (act) } {
                (layout::token(visitor))
                div.field {
                    label for=(field) { "Reason" }
                    input type="text" id=(field) name="reason" maxlength="500";
                }
                button.main.danger[danger] { (label) " this run" }
            }
            (command::same(&visitor.url, &format!("moonswarm {act} {id} --reason why"), &post(id, act, body)))
        }
    }
}

fn signal(visitor: &Visitor, view: &RunView) -> Markup {
    let id = view.id.to_string();
    let waited = view.waiting_on.iter().find(|on| on.kind == "signal");
    let name = waited.and_then(|on| on.subject.name.as_deref()).unwrap_or_default();
    let line = format!(
        "moonswarm signal {id} {} true",
        command::quoted(if name.is_empty() { "NAME" } else { name })
    );
    let act = format!(
        "signals/{}",
        crate::dashboard::headers::escaped(if name.is_empty() { "NAME" } else { name })
    );
    html! {
        details data-key="signal" {
            summary { "Signal …" }
            form method="post" action={ "/ui/runs/" (id) "/signal" } {
                (layout::token(visitor))
                div.field {
                    label for="signal-name" { "Name" }
                    input type="text" id="signal-name" name="name" required value=(name);
                }
                div.field {
                    label for="signal-payload" { "Payload, as JSON" }
                    textarea.mono id="signal-payload" name="payload" spellcheck="false" { "\ntrue" }
                }
                button.main { "Send the signal" }
            }
            (command::same(&visitor.url, &line, &post(&id, &act, Some("true".to_owned()))))
        }
    }
}

async fn steps(
    desk: &Desk,
    visitor: &Visitor,
    view: &RunView,
    fields: &Fields,
) -> Result<Markup, Problem> {
    let after = fields.given("cursor").map_or(Ok(0), str::parse);
    let after =
        after.map_err(|_| Problem::new(Code::BadQuery, "cursor is not one of this list's"))?;
    let page = desk.engine.steps(&visitor.caller, view.id, after, STEPS).await?;
    let path = format!("/ui/runs/{}", view.id);
    Ok(html! {
        div.card.flush tabindex="0" {
            @if page.items.is_empty() { div.empty { "No step yet." } }
            @else { (timeline::of(view.id, &page.items, visitor.now_ms)) }
            (pager::links(&path, &[("tab", "steps")], after == 0, page.next_cursor.as_deref()))
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

/// Returns the durable events of a run from `from` to `upto`.
///
/// # Errors
/// Fails when they cannot be read.
pub(in crate::dashboard) async fn events_between(
    desk: &Desk,
    visitor: &Visitor,
    run: RunId,
    from: u32,
    upto: u32,
) -> Result<Vec<EventView>, Problem> {
    let mut found = Vec::new();
    if upto < from {
        return Ok(found);
    }
    let mut events = desk.engine.events(&visitor.caller, run, from.saturating_sub(1)).await?;
    while let Some(event) = events.next().await? {
        let Some(seq) = event.seq else { continue };
        if seq <= upto {
            found.push(event);
        }
        if seq >= upto {
            break;
        }
    }
    Ok(found)
}

async fn events(
    desk: &Desk,
    visitor: &Visitor,
    view: &RunView,
    fields: &Fields,
) -> Result<Markup, Problem> {
    let upto = match fields.given("cursor").map(str::parse::<u32>) {
        None => view.last_event,
        Some(Ok(upto)) => upto.min(view.last_event),
        Some(Err(_)) => {
            return Err(Problem::new(Code::BadQuery, "cursor is not one of this list's"));
        }
    };
    let from = upto.saturating_sub(EVENTS - 1).max(1);
    let found = events_between(desk, visitor, view.id, from, upto).await?;
    let next = (from > 1).then(|| (from - 1).to_string());
    let path = format!("/ui/runs/{}", view.id);
    Ok(html! {
        div.card.flush tabindex="0" {
            table {
                thead { tr { th.num { "#" } th { "Event" } th { "Data" } th { "When" } } }
                tbody { @for event in found.iter().rev() {
                    tr data-key=(event.seq.unwrap_or(0)) {
                        td.num { (event.seq.unwrap_or(0)) }
                        td { (text::short(&event.kind, 60)) }
                        td.clip.mono { (text::short(text::cut(event.data.as_str(), 4_000).0, 400)) }
                        td { (time::of(&event.at, visitor.now_ms)) }
                    }
                } }
            }
            (pager::links(&path, &[("tab", "events")], upto == view.last_event, next.as_deref()))
        }
    })
}

async fn artifacts(desk: &Desk, visitor: &Visitor, view: &RunView) -> Result<Markup, Problem> {
    let files =
        allowed(desk.engine.tasks().artifacts(&visitor.caller, view.id).await)?.unwrap_or_default();
    Ok(html! {
        div.card.flush {
            @if files.is_empty() { div.empty { "No artifacts." } }
            @else {
                table.stack {
                    thead { tr { th { "Name" } th { "Step" } th.num { "Size" } th { "When" } } }
                    tbody { @for file in files.iter().take(500) {
                        tr data-key=(file.id.to_string()) {
                            td data-label="Name" { a href={ "/ui/artifacts/" (file.id) } download { (text::line(&file.name, 200)) } }
                            td data-label="Step" { a href={ "/ui/runs/" (view.id) "/steps/" (file.step) } { (file.step) } }
                            td.num data-label="Size" { (usage::bytes(file.size)) }
                            td data-label="When" { (time::of(&file.created_at, visitor.now_ms)) }
                        }
                    } }
                }
            }
        }
    })
}

async fn state(desk: &Desk, visitor: &Visitor, view: &RunView) -> Result<Markup, Problem> {
    let scope = Scope::Workflow(WorkflowId::new(view.id.to_string()));
    let page = desk.engine.stored_state().state_page(&visitor.caller, &scope, "", None, KEYS).await;
    let Some(page) = allowed(page)? else {
        return Ok(html! { div.empty { "This token does not reach the state of this run." } });
    };
    let mut values = Vec::new();
    for item in &page.items {
        values.push(
            allowed(
                desk.engine.stored_state().state_value(&visitor.caller, &scope, &item.key).await,
            )
            .ok()
            .flatten(),
        );
    }
    Ok(html! {
        div.card {
            @if page.items.is_empty() { div.empty { "No state of its own." } }
            @for (item, value) in page.items.iter().zip(&values) {
                details data-key=(item.key) {
                    summary { code { (text::short(&item.key, 200)) }
                        @if let Some(revision) = item.revision { span.dim.small { " revision " (revision) } }
                    }
                    @if let Some(value) = value { (json::tree(&value.value, false)) }
                }
            }
            @if page.next_cursor.is_some() { p.dim { "Only the first " (KEYS) " keys are listed." } }
        }
    })
}
