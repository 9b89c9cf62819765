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
    engine::{RunView, shell},
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
    let status = status::chosen(fields)?;
    let blueprint = fields.given("blueprint").map(|name| name.trim().to_owned());
    let is_filtered = !status.is_empty() || blueprint.is_some();
    let filter = RunFilter {
        parent: Some(view.id.num()),
        status,
        blueprint,
        before,
        limit: LIMIT,
        ..RunFilter::default()
    };
    let path = format!("/ui/runs/{}", view.id);
    let empty = match is_filtered {
        true => html! { "No called run matches." },
        false => html! { "It called no run: " code { "ctx:call(\"name\", input)" } " starts one." },
    };
    let Some(page) = allowed(desk.engine.runs(&visitor.caller, filter).await)? else {
        return Ok(few(view));
    };
    let filters_given = given(fields);
    let query = [&[("tab", "children")][..], &filters_given].concat();
    let parent = view.id.to_string();
    let api = [&[("parent", parent.as_str())][..], &filters_given].concat();
    Ok(html! {
        @if is_filtered || !page.items.is_empty() { (filters(&path, fields, is_filtered)) }
        div.card.flush tabindex="0" {
            (run_table::of(&page.items, visitor.now_ms, &empty))
            @if page.partial { p.dim { "Only some of the runs were looked at: the next page goes on." } }
            (pager::links(&path, &query, before.is_none(), page.next_cursor.as_deref()))
        }
        (command::same(&visitor.url, &format!("moonswarm ps --parent {parent}{}", flags(fields)), &command::Request {
            method: "GET",
            path: pager::url("/v1/runs", &api),
            body: None,
        }))
    })
}

fn filters(path: &str, fields: &Fields, is_filtered: bool) -> Markup {
    html! {
        form.card.filters method="get" action=(path) {
            input type="hidden" name="tab" value="children";
            (status::choice(fields))
            div {
                label for="blueprint" { "Blueprint" }
                input type="text" id="blueprint" name="blueprint" spellcheck="false" value=(fields.text("blueprint"));
            }
            button.main { "Filter" }
            @if is_filtered { a href={ (path) "?tab=children" } { "Show all" } }
        }
    }
}

/// Returns the filters that are set. A status may be there several times.
fn given(fields: &Fields) -> Vec<(&'static str, &str)> {
    let all = status::words(fields).map(|it| ("status", it));
    all.chain(fields.given("blueprint").map(|it| ("blueprint", it))).collect()
}

/// Returns the flags of the command line for the filters.
fn flags(fields: &Fields) -> String {
    let flag = |(name, value)| shell::option(&format!("--{name}"), value);
    given(fields).into_iter().map(flag).collect()
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
