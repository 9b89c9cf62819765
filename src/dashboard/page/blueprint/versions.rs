//! The tab Versions of a blueprint: which are stored, and how two of them differ.

use maud::{Markup, html};

use crate::{
    blueprint::{Change, FileChange},
    dashboard::{
        component::{command, pager, text, time},
        desk::Desk,
        fields::Fields,
        headers::escaped,
        visitor::Visitor,
    },
    door::Problem,
    engine::{BlueprintDiff, BlueprintView, EngineError, VersionView, shell},
};

/// The number of versions of a page.
const VERSIONS: usize = 50;
/// The maximum size of the lines that are shown, in bytes; and of all of them, for a page that asks.
const ROOM: usize = 60_000;
const WHOLE: usize = 600_000;
/// The longest line that is shown, in bytes.
const WIDTH: usize = 1_000;
/// The size of the tags around a line, in bytes.
const TAG: usize = 32;

/// Returns the tab.
pub(super) async fn tab(
    desk: &Desk,
    visitor: &Visitor,
    view: &BlueprintView,
    fields: &Fields,
) -> Result<Markup, Problem> {
    let (blueprints, caller) = (desk.engine.blueprints(), &visitor.caller);
    let cursor = fields.given("cursor");
    let page = blueprints.list_versions(caller, &view.name, cursor, VERSIONS).await?;
    let (from, to) = (fields.given("from"), fields.given("to"));
    let diff = match from.or(to) {
        None => None,
        Some(_) => {
            let found = blueprints.diff(caller, &view.name, from, to.or(Some(&view.hash))).await;
            match found {
                Err(EngineError::NotFound { id, .. }) => Some(Err(id)),
                found => Some(Ok(found?)),
            }
        }
    };
    let path = super::path(view);
    let now_ms = visitor.now_ms;
    Ok(html! {
        @match &diff {
            Some(Ok(diff)) => { (difference(diff, &path, visitor, fields.given("whole").is_some())) }
            Some(Err(missing)) => { div.banner.bad role="alert" { "There is no version " code { (text::short(missing, 120)) } } }
            None => {}
        }
        @if page.items.len() > 1 { (choice(&page.items, &path, diff.as_ref().and_then(|it| it.as_ref().ok()))) }
        div.card.flush tabindex="0" {
            table.stack {
                thead { tr { th { "Version" } th { "Stored" } th { "State" } th { "Difference" } } }
                tbody { @for (at, it) in page.items.iter().enumerate() {
                    tr {
                        td data-label="Version" { a href={ "/ui/blueprints/" (escaped(&format!("{}@{}", view.name, short(&it.hash)))) } { code { (short(&it.hash)) } } }
                        td data-label="Stored" { (time::of(&it.stored_at, now_ms)) }
                        td data-label="State" {
                            @if it.current { span.status.ok { "✓ current" } }
                            @if !it.published { span.status { "○ came with a run" } }
                            @if it.hash == view.hash { " this one" }
                        }
                        td data-label="Difference" {
                            @if at + 1 < page.items.len() || page.next_cursor.is_some() {
                                a href=(pager::url(&path, &[("tab", "versions"), ("to", short(&it.hash))])) { "to the one before" }
                            } @else { span.dim { "the first" } }
                        }
                    }
                } }
            }
            (pager::links(&path, &[("tab", "versions")], cursor.is_none(), page.next_cursor.as_deref()))
        }
        (command::same(&visitor.url, &format!("moonswarm blueprints versions {}", shell::quoted(&view.name)), &command::Request {
            method: "GET",
            path: format!("/v1/blueprints/{}/versions", escaped(&view.name)),
            body: None,
        }))
    })
}

fn short(hash: &str) -> &str {
    hash.get(..12).unwrap_or(hash)
}

/// Returns the form that compares any two versions of the page.
fn choice(versions: &[VersionView], path: &str, diff: Option<&BlueprintDiff>) -> Markup {
    let (from, to) = match diff {
        Some(diff) => (diff.from.as_str(), diff.to.as_str()),
        None => (versions[1].hash.as_str(), versions[0].hash.as_str()),
    };
    html! {
        form.card.filters method="get" action=(path) {
            input type="hidden" name="tab" value="versions";
            @for (name, label, chosen) in [("from", "Before", from), ("to", "After", to)] {
                div.roomy {
                    label for=(name) { (label) }
                    select id=(name) name=(name) {
                        @for it in versions {
                            option value=(short(&it.hash)) selected[it.hash == chosen] {
                                (short(&it.hash)) ", " (it.stored_at.get(..16).unwrap_or(&it.stored_at))
                            }
                        }
                    }
                }
            }
            button.main { "Compare" }
        }
    }
}

fn difference(diff: &BlueprintDiff, path: &str, visitor: &Visitor, whole: bool) -> Markup {
    let (from, to) = (short(&diff.from), short(&diff.to));
    let (added, removed) =
        diff.files.iter().fold((0, 0), |(a, r), it| (a + it.added, r + it.removed));
    let mut room = if whole { WHOLE } else { ROOM };
    let files: Vec<_> = diff.files.iter().map(|it| file(it, &mut room)).collect();
    let query = [("tab", "versions"), ("from", from), ("to", to), ("whole", "1")];
    html! {
        h2 { "From " code { (from) } " to " code { (to) } }
        dl.card {
            dt { "Files that differ" } dd { (diff.files.len()) ", +" (added) " −" (removed) " lines" }
            @if diff.compiles {
                dt { "Agents that differ" } dd {
                    @if diff.agents.is_empty() { span.dim { "none" } }
                    @for it in diff.agents.iter().take(100) {
                        div { (word(it.change)) " " code { (text::short(&it.name, 80)) }
                            @if !it.parts.is_empty() { ": " (text::line(&it.parts.join(", "), 200)) } }
                    }
                }
                dt { "Declarations that differ" } dd {
                    @if diff.parts.is_empty() { span.dim { "none" } }
                    @else { (text::line(&diff.parts.join(", "), 300)) }
                }
            } @else {
                dt { "Declarations" } dd { span.dim { "not compared: one of the versions does not compile any more" } }
            }
        }
        @if files.is_empty() { div.empty { "The files are the same." } }
        @for it in &files { (it) }
        @if room == 0 && !whole { p { a href=(pager::url(path, &query)) { "Show all of it" } } }
        (command::same(&visitor.url, &format!("moonswarm blueprints diff {} {from} {to}", shell::quoted(&diff.name)), &command::Request {
            method: "GET",
            path: format!("/v1/blueprints/{}/diff?from={from}&to={to}", escaped(&diff.name)),
            body: None,
        }))
    }
}

fn word(change: Change) -> &'static str {
    match change {
        Change::Added => "added",
        Change::Removed => "removed",
        Change::Changed => "changed",
    }
}

/// Returns the lines of a file, as many as there is room for.
fn file(it: &FileChange, room: &mut usize) -> Markup {
    // The two lines with the names of the files say nothing new.
    let all: Vec<_> = it.unified.lines().skip(2).map(|line| text::cut(line, WIDTH)).collect();
    let mut fits = 0;
    while let Some((line, _)) = all.get(fits) {
        let Some(left) = room.checked_sub(line.len() + TAG) else {
            *room = 0;
            break;
        };
        *room = left;
        fits += 1;
    }
    html! {
        details.card open {
            summary { code { (text::short(&it.path, 200)) } " " (word(it.change)) span.dim { ", +" (it.added) " −" (it.removed) } }
            @if it.unified.is_empty() { p.dim { "The difference is too long to be shown." } }
            @else {
                pre.diff tabindex="0" {
                    @for (line, rest) in &all[..fits] {
                        span class=[class(line)] { (text::marked(line)) @if *rest > 0 { "…" } "\n" }
                    }
                }
                @if fits < all.len() { p.dim.small { "… and " (all.len() - fits) " more lines" } }
            }
        }
    }
}

fn class(line: &str) -> Option<&'static str> {
    match line.as_bytes().first() {
        Some(b'+') => Some("added"),
        Some(b'-') => Some("removed"),
        Some(b'@') => Some("dim"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_texts_and_a_long_difference_is_cut() {
        let unified = format!(
            "--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n same\n-<b>old\n+new\u{202e}\n{}",
            "+more\n".repeat(50)
        );
        let change = FileChange {
            path: "<x>".into(),
            change: Change::Changed,
            added: 51,
            removed: 1,
            unified,
        };
        let mut room = 1_000;
        let shown = file(&change, &mut room).into_string();
        assert_eq!(room, 0);
        assert!(shown.contains("<span class=\"removed\">-&lt;b&gt;old\n</span>"), "{shown}");
        assert!(shown.contains("⟨U+202E⟩") && shown.contains("more lines"), "{shown}");
        let mut room = ROOM;
        let shown = file(&change, &mut room).into_string();
        assert!(room > 0 && shown.matches("class=\"added\"").count() == 51, "{shown}");
    }
}
