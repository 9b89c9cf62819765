//! The tab Children of a run: the runs that it called.

use maud::{Markup, html};

use crate::{
    dashboard::{
        component::{command, pager, run_table, status, text},
        desk::Desk,
        fields::Fields,
        fragment::allowed,
        visitor::{Visitor, id},
    },
    door::Problem,
    engine::RunView,
    store::RunFilter,
};

/// The number of runs of a page.
const LIMIT: usize = 50;

/// Returns the tab.
pub(super) async fn tab(
    desk: &Desk,
    visitor: &Visitor,
    view: &RunView,
    fields: &Fields,
) -> Result<Markup, Problem> {
    let before = fields.given("cursor").map(id).transpose()?;
    let filter =
        RunFilter { parent: Some(view.id.num()), before, limit: LIMIT, ..RunFilter::default() };
    let path = format!("/ui/runs/{}", view.id);
    let empty = html! { "It called no run: " code { "ctx:call(\"name\", input)" } " starts one." };
    let Some(page) = allowed(desk.engine.runs(&visitor.caller, filter).await)? else {
        return Ok(few(view));
    };
    Ok(html! {
        div.card.flush tabindex="0" {
            (run_table::of(&page.items, visitor.now_ms, &empty))
            (pager::links(&path, &[("tab", "children")], before.is_none(), page.next_cursor.as_deref()))
        }
        (command::same(&visitor.url, &format!("moonswarm ps --parent {}", view.id), &command::Request {
            method: "GET",
            path: format!("/v1/runs?parent={}", view.id),
            body: None,
        }))
    })
}

/// Returns the newest called runs, for a token that does not list runs.
fn few(view: &RunView) -> Markup {
    html! {
        div.card {
            @if view.children.is_empty() { div.empty { "It called no run." } }
            ul { @for child in &view.children {
                li { (text::line(&child.blueprint, 60)) " " (status::pill(child.status.as_str())) " " code { (child.id) } }
            } }
        }
    }
}
