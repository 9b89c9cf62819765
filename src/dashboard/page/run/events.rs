//! The tabs Events and Log of a run, newest first, with filters in the URL.

use maud::{Markup, html};
use serde_json::Value;

use crate::{
    dashboard::{
        component::{command, json, pager, text, time},
        desk::Desk,
        fields::Fields,
        visitor::Visitor,
    },
    door::{Code, Problem},
    engine::{EventView, RunView},
    protocol::{Json, RunId},
};

/// The number of events of a page.
const EVENTS: usize = 80;
/// The number of events that are read first: enough for a page if nearly all fit.
const FIRST: usize = 100;
/// The number of events that are read at a time after that.
const READ: usize = 500;
/// The maximum number of events that a page looks at.
const LOOK: usize = 2_000;
/// The longest data that are shown in the row itself, in characters.
const SHORT: usize = 120;
/// The levels of log lines.
const LEVELS: [&str; 4] = ["debug", "info", "warn", "error"];

/// Events that were found, and where to go on.
struct Found {
    items: Vec<EventView>,
    next: Option<String>,
    /// True if there may be more, because enough were looked at.
    partial: bool,
}

/// Looks for the newest events before the cursor that fit.
async fn find(
    desk: &Desk,
    visitor: &Visitor,
    run: RunId,
    cursor: Option<&str>,
    fits: impl Fn(&EventView) -> bool,
) -> Result<Found, Problem> {
    let bad = |_| Problem::new(Code::BadQuery, "cursor is not one of this list's");
    let mut before = cursor.map(str::parse::<u32>).transpose().map_err(bad)?;
    let (mut items, mut looked, mut read) = (Vec::new(), 0, FIRST);
    loop {
        let page = desk.engine.events_page(&visitor.caller, run, before, read).await?;
        read = READ;
        looked += page.items.len();
        for event in page.items.into_iter().rev() {
            if fits(&event) {
                if items.len() == EVENTS {
                    let last: Option<&EventView> = items.last();
                    let next = last.and_then(|it| it.seq).map(|seq| seq.to_string());
                    return Ok(Found { items, next, partial: false });
                }
                items.push(event);
            }
        }
        let Some(next) = page.next_cursor else {
            return Ok(Found { items, next: None, partial: false });
        };
        if looked >= LOOK {
            return Ok(Found { items, next: Some(next), partial: true });
        }
        before = next.parse().ok();
    }
}

/// Returns the tab of all events.
pub(super) async fn tab(
    desk: &Desk,
    visitor: &Visitor,
    view: &RunView,
    fields: &Fields,
) -> Result<Markup, Problem> {
    let kind = fields.given("type").map(str::trim);
    let step = fields.given("step").map(|it| it.trim().parse::<u32>()).transpose();
    let step = step.map_err(|_| Problem::new(Code::BadQuery, "step is the number of a step"))?;
    let fits = |event: &EventView| {
        kind.is_none_or(|kind| is_of(&event.kind, kind))
            && step.is_none_or(|step| step_of(event) == Some(step))
    };
    let cursor = fields.given("cursor");
    let found = find(desk, visitor, view.id, cursor, fits).await?;
    let path = format!("/ui/runs/{}", view.id);
    let step = step.map(|it| it.to_string()).unwrap_or_default();
    let query = [("tab", "events"), ("type", kind.unwrap_or_default()), ("step", step.as_str())];
    let is_filtered = kind.is_some() || !step.is_empty();
    let mut room = json::ROOM;
    Ok(html! {
        form.card.filters method="get" action=(path) {
            input type="hidden" name="tab" value="events";
            div {
                label for="type" { "Type, or its first word" }
                input type="text" id="type" name="type" placeholder="step.failed, attempt" spellcheck="false" value=(kind.unwrap_or_default());
            }
            div {
                label for="step" { "Step" }
                input type="text" inputmode="numeric" id="step" name="step" value=(step);
            }
            button.main { "Filter" }
            @if is_filtered { a href={ (path) "?tab=events" } { "Show all" } }
        }
        div.card.flush tabindex="0" {
            @if found.items.is_empty() { div.empty { @if is_filtered { "No event matches." } @else { "No event yet." } } }
            @else {
                table.stack {
                    thead { tr { th.num { "#" } th { "Event" } th.num { "Step" } th { "Data" } th { "When" } } }
                    tbody { @for event in &found.items { (row(view.id, event, visitor.now_ms, &mut room)) } }
                }
            }
            (rest(&path, &query, cursor, &found))
        }
        (command::same(&visitor.url, &format!("moonswarm logs {}", view.id), &command::Request {
            method: "GET",
            path: format!("/v1/runs/{}/events?format=json", view.id),
            body: None,
        }))
    })
}

fn row(run: RunId, event: &EventView, now_ms: u64, room: &mut usize) -> Markup {
    let seq = event.seq.unwrap_or(0);
    let data = event.data.as_str();
    let short = text::short(text::cut(data, 4 * SHORT).0, SHORT);
    let tree = if data.len() <= SHORT { None } else { json::part(&event.data, room) };
    html! {
        tr data-key=(seq) {
            td.num data-label="#" { (seq) }
            td data-label="Event" { (text::short(&event.kind, 60)) }
            td.num data-label="Step" { @if let Some(step) = step_of(event) { a href={ "/ui/runs/" (run) "/steps/" (step) } { (step) } } }
            td.clip data-label="Data" {
                @match tree {
                    Some(tree) => { details data-key={ "event-" (seq) } { summary.mono { (short) } (tree) } }
                    None => { code { (short) } }
                }
            }
            td data-label="When" { (time::of(&event.at, now_ms)) }
        }
    }
}

fn rest(path: &str, query: &[(&str, &str)], cursor: Option<&str>, found: &Found) -> Markup {
    html! {
        @if found.partial { p.dim { "Only some of the events were looked at: the next page goes on." } }
        (pager::links(path, query, cursor.is_none(), found.next.as_deref()))
    }
}

/// Returns the tab of what the flow wrote: its log, its statuses and its own events.
pub(super) async fn log(
    desk: &Desk,
    visitor: &Visitor,
    view: &RunView,
    fields: &Fields,
) -> Result<Markup, Problem> {
    let (level, words) = (fields.given("level"), fields.given("q").map(str::to_lowercase));
    let fits = |event: &EventView| {
        let own = matches!(event.kind.as_str(), "log" | "status" | "event");
        let leveled = |level: &str| event.kind == "log" && event.data.to_value()["level"] == level;
        own && level.is_none_or(leveled)
            && words.as_ref().is_none_or(|words| event.data.as_str().to_lowercase().contains(words))
    };
    let cursor = fields.given("cursor");
    let found = find(desk, visitor, view.id, cursor, fits).await?;
    let path = format!("/ui/runs/{}", view.id);
    let query = [("tab", "log"), ("level", level.unwrap_or_default()), ("q", fields.text("q"))];
    let is_filtered = level.is_some() || words.is_some();
    let mut room = json::ROOM;
    Ok(html! {
        form.card.filters method="get" action=(path) {
            input type="hidden" name="tab" value="log";
            div {
                label for="level" { "Level" }
                select id="level" name="level" {
                    option value="" { "any" }
                    @for it in LEVELS { option value=(it) selected[level == Some(it)] { (it) } }
                }
            }
            div {
                label for="q" { "Text" }
                input type="text" id="q" name="q" value=(fields.text("q"));
            }
            button.main { "Filter" }
            @if is_filtered { a href={ (path) "?tab=log" } { "Show all" } }
        }
        div.card.flush tabindex="0" {
            @if found.items.is_empty() {
                div.empty {
                    @if is_filtered { "No line matches." }
                    @else { "The flow wrote nothing: " code { "ctx:log(\"info\", \"…\")" } " adds a line." }
                }
            } @else {
                table.stack {
                    thead { tr { th { "When" } th { "Level" } th { "What" } } }
                    tbody { @for event in &found.items { (line(event, visitor.now_ms, &mut room)) } }
                }
            }
            (rest(&path, &query, cursor, &found))
        }
    })
}

fn line(event: &EventView, now_ms: u64, room: &mut usize) -> Markup {
    let data = event.data.to_value();
    let word = |key: &str| data[key].as_str().unwrap_or_default();
    let (level, words, more) = match event.kind.as_str() {
        "log" => (word("level"), word("message"), &data["data"]),
        "status" => ("status", word("text"), &data["progress"]),
        _ => ("event", word("topic"), &data["data"]),
    };
    *room = room.saturating_sub(words.len());
    let words = text::cut(words, if *room == 0 { SHORT } else { text::SHOWN });
    let more = if more.is_null() { None } else { json::part(&Json::from(more), room) };
    let class = match level {
        "error" => "status bad",
        "warn" => "status warn",
        "status" | "event" => "status busy",
        _ => "status",
    };
    html! {
        tr data-key=(event.seq.unwrap_or(0)) {
            td data-label="When" { (time::of(&event.at, now_ms)) }
            td data-label="Level" { span class=(class) { (text::short(level, 20)) } }
            td.wide data-label="What" {
                div dir="auto" { (text::marked(words.0)) @if words.1 > 0 { span.dim { " … " (words.1) " more bytes" } } }
                @if let Some(more) = more { (more) }
            }
        }
    }
}

/// Returns true if a type is the asked one, or begins with its words.
fn is_of(kind: &str, asked: &str) -> bool {
    kind.strip_prefix(asked).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn step_of(event: &EventView) -> Option<u32> {
    let data = event.data.to_value();
    data.get("step").and_then(Value::as_u64).and_then(|step| u32::try_from(step).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_is_asked_for_by_its_first_words() {
        assert!(is_of("step.failed", "step") && is_of("step.failed", "step.failed"));
        assert!(!is_of("step.failed", "st") && !is_of("step", "step.failed"));
    }
}
