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
    door::{Code, Problem},
    engine::RunView,
    store::{RunFilter, RunStatus},
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
    let status = fields.given("status").map(|word| {
        RunStatus::parse(word)
            .ok_or_else(|| Problem::new(Code::BadQuery, format!("{word:?} is no status")))
    });
    let status = status.transpose()?;
    let blueprint = fields.given("blueprint").map(|name| name.trim().to_owned());
    let is_filtered = status.is_some() || blueprint.is_some();
    let filter = RunFilter {
        parent: Some(view.id.num()),
        status: status.into_iter().collect(),
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
    let query = [
        ("tab", "children"),
        ("status", fields.text("status")),
        ("blueprint", fields.text("blueprint")),
    ];
    let parent = view.id.to_string();
    let api = [("parent", parent.as_str()), query[1], query[2]];
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
    let status = fields.text("status");
    html! {
        form.card.filters method="get" action=(path) {
            input type="hidden" name="tab" value="children";
            div {
                label for="status" { "Status" }
                select id="status" name="status" {
                    option value="" { "any" }
                    @for it in RunStatus::ALL {
                        option value=(it.as_str()) selected[it.as_str() == status] { (it.as_str()) }
                    }
                }
            }
            div {
                label for="blueprint" { "Blueprint" }
                input type="text" id="blueprint" name="blueprint" spellcheck="false" value=(fields.text("blueprint"));
            }
            button.main { "Filter" }
            @if is_filtered { a href={ (path) "?tab=children" } { "Show all" } }
        }
    }
}

/// Returns the flags of the command line for the filters.
fn flags(fields: &Fields) -> String {
    let flag = |name: &str| {
        let value = fields.given(name)?;
        Some(format!(" --{name} {}", command::quoted(value)))
    };
    ["status", "blueprint"].into_iter().filter_map(flag).collect()
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
