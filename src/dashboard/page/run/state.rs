//! The tab State of a run: its own keys, with a filter by prefix.

use maud::{Markup, html};

use crate::{
    dashboard::{
        component::{command, json, pager, state_path::value_path, text},
        desk::Desk,
        fields::Fields,
        fragment::allowed,
        visitor::Visitor,
    },
    door::Problem,
    engine::{RunView, shell},
    protocol::{Scope, WorkflowId},
};

/// The number of keys of a page.
const KEYS: usize = 100;

/// Returns the tab.
pub(super) async fn tab(
    desk: &Desk,
    visitor: &Visitor,
    view: &RunView,
    fields: &Fields,
) -> Result<Markup, Problem> {
    let scope = Scope::Workflow(WorkflowId::new(view.id.to_string()));
    let (prefix, cursor) = (fields.text("prefix"), fields.given("cursor"));
    let (stored, caller) = (desk.engine.stored_state(), &visitor.caller);
    let after = cursor.map(str::to_owned);
    let page = stored.state_page(caller, &scope, prefix, after, KEYS).await;
    let Some(page) = allowed(page)? else {
        return Ok(html! { div.empty { "This token does not reach the state of this run." } });
    };
    let mut room = json::ROOM;
    let mut trees = Vec::with_capacity(page.items.len());
    for item in &page.items {
        // One value at a time: each may be large.
        let value = allowed(stored.state_value(caller, &scope, &item.key).await).ok().flatten();
        trees.push(value.and_then(|it| json::part(&it.value, &mut room)));
    }
    let path = format!("/ui/runs/{}", view.id);
    let name = scope.to_string();
    Ok(html! {
        @if !page.items.is_empty() || !prefix.is_empty() {
            form.card.filters method="get" action=(path) {
                input type="hidden" name="tab" value="state";
                div {
                    label for="prefix" { "Keys that begin with" }
                    input type="text" id="prefix" name="prefix" spellcheck="false" value=(prefix);
                }
                button.main { "Filter" }
                a href=(pager::url("/ui/state", &[("scope", &name)])) { "Search it, as a tree" }
            }
        }
        div.card {
            @if page.items.is_empty() {
                div.empty {
                    @if prefix.is_empty() { "No state of its own: " code { "ctx.state:set(\"key\", value)" } " keeps a value." }
                    @else { "No key begins with that." }
                }
            }
            @for (item, tree) in page.items.iter().zip(&trees) {
                details data-key=(text::short(&item.key, 200)) {
                    summary { code { (text::short(&item.key, 200)) }
                        @if let Some(revision) = item.revision { span.dim.small { " revision " (revision) } }
                    }
                    @if let Some(tree) = tree { (tree) }
                    a.small href=(value_path(&name, &item.key)) { "Its page" }
                }
            }
            (pager::links(&path, &[("tab", "state"), ("prefix", prefix)], cursor.is_none(), page.next_cursor.as_deref()))
        }
        (command::same(&visitor.url, &format!("moonswarm state ls{}", shell::option("--scope", &name)), &command::Request {
            method: "GET",
            path: format!("/v1/state/{name}"),
            body: None,
        }))
    })
}
