//! `/ui/runs/bulk`: one act on many runs: first what it would do, then the act and its results.

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse as _, Redirect, Response},
};
use maud::{Markup, html};
use serde_json::json;

use super::runs;
use crate::{
    dashboard::{
        again,
        component::{command, pager, status, text},
        desk::Desk,
        fields::Fields,
        layout::{self, Nav, Page},
        visitor::{Visitor, id},
    },
    door::{Code, Problem},
    engine::{Bulk, BulkAct, BulkItem, BulkRuns, BulkView, MOST_RUNS},
    protocol::RunId,
};

/// Shows what an act would do or, with the digest of that, does it.
pub(in crate::dashboard) async fn act(
    State(desk): State<Desk>,
    visitor: Visitor,
    fields: Fields,
) -> Result<Response, Problem> {
    let act = act_of(fields.text("act"))?;
    let runs = match fields.text("which") {
        "filter" => BulkRuns::Filter(Box::new(runs::filter(&fields, visitor.now_ms)?)),
        _ => {
            let mut ids = fields.all("id").map(id).collect::<Result<Vec<RunId>, _>>()?;
            ids.sort_unstable();
            ids.dedup();
            BulkRuns::Ids(ids)
        }
    };
    match &runs {
        BulkRuns::Ids(ids) if ids.is_empty() => {
            return Ok(Redirect::to(&pager::url("/ui/runs", &runs::query(&fields))).into_response());
        }
        BulkRuns::Ids(ids) if ids.len() > MOST_RUNS => {
            let detail = format!("one act is on at most {MOST_RUNS} runs");
            return Err(Problem::new(Code::BadRequest, detail));
        }
        BulkRuns::Ids(_) | BulkRuns::Filter(_) => {}
    }
    let bulk = Bulk {
        runs,
        act,
        digest: fields.given("digest").map(str::to_owned),
        reason: fields.given("reason").unwrap_or("together with others").to_owned(),
        key: fields
            .given("once")
            .filter(|once| once.len() <= 64)
            .map(|it| format!("dashboard {it}")),
    };
    let dry = Bulk { digest: None, ..bulk.clone() };
    let caller = &visitor.caller;
    // A sign-in only sees what would be deleted.
    let entered = match act == BulkAct::Delete && bulk.digest.is_some() {
        true => Some(again::caller(&desk, &fields)?),
        false => None,
    };
    let actor = entered.as_ref().unwrap_or(caller);
    let (view, note, status) = match desk.engine.bulk(actor, bulk).await.map_err(Problem::from) {
        Ok(view) => (view, html! {}, StatusCode::OK),
        Err(refused) if refused.code() == Code::SelectionChanged.as_str() => {
            let note = html! { div.banner.warn role="alert" {
                "Meanwhile a run of the selection has moved on, so nothing was done. This is the selection as it is now. "
                code { (refused.code()) }
            } };
            (desk.engine.bulk(caller, dry).await?, note, refused.status())
        }
        Err(refused) => return Err(refused),
    };
    let title = if view.dry_run { "What would be done" } else { "What was done" };
    let body = html! {
        p { a href=(pager::url("/ui/runs", &runs::query(&fields))) { "← Runs" } }
        h1 { (title) }
        (note)
        @if view.dry_run { (confirm(&visitor, &fields, &view)) }
        @else { div.banner.ok role="status" { (done(&view)) " of " (view.items.len()) @if view.items.len() == 1 { " run: " } @else { " runs: " } (word(act)) "." } }
        (table(&view))
        @if view.more { p.dim { "More runs match than one act takes." } }
    };
    Ok(Page { nav: Nav::Runs, title, live: None, body }.with_status(&visitor, status))
}

fn act_of(word: &str) -> Result<BulkAct, Problem> {
    match word {
        "cancel" => Ok(BulkAct::Cancel),
        "pause" => Ok(BulkAct::Pause),
        "resume" => Ok(BulkAct::Resume),
        "delete" => Ok(BulkAct::Delete),
        "rerun" => Ok(BulkAct::Rerun),
        _ => {
            Err(Problem::new(Code::BadRequest, "the act is cancel, pause, resume, delete or rerun"))
        }
    }
}

fn word(act: BulkAct) -> &'static str {
    match act {
        BulkAct::Cancel => "canceled",
        BulkAct::Pause => "paused",
        BulkAct::Resume => "resumed",
        BulkAct::Delete => "deleted",
        BulkAct::Rerun => "started again",
    }
}

fn done(view: &BulkView) -> usize {
    view.items.iter().filter(|item| item.result == "done").count()
}

fn confirm(visitor: &Visitor, fields: &Fields, view: &BulkView) -> Markup {
    let act = fields.text("act");
    let whole = fields.text("which") == "filter";
    let reasoned = matches!(view.action, BulkAct::Cancel | BulkAct::Pause);
    let line = match whole {
        true => format!("moonswarm bulk {act}{}", runs::flags(fields, visitor.now_ms)),
        false => {
            let ids: Vec<_> = view.items.iter().map(|item| item.run.to_string()).collect();
            format!("moonswarm bulk {act} {}", ids.join(" "))
        }
    };
    let ids: Vec<_> = view.items.iter().map(|item| item.run).collect();
    let body = json!({ "action": act, "ids": ids, "digest": view.digest }).to_string();
    html! {
        p { strong { (view.eligible) } " of " (view.items.len()) @if view.items.len() == 1 { " run" } @else { " runs" }
            " would be " (word(view.action)) "." }
        @if view.eligible > 0 {
            form.card method="post" action="/ui/runs/bulk" {
                (layout::token(visitor))
                @for (name, value) in runs::query(fields) { input type="hidden" name=(name) value=(value); }
                input type="hidden" name="act" value=(act);
                input type="hidden" name="which" value=(fields.text("which"));
                input type="hidden" name="digest" value=(view.digest);
                (layout::once())
                @if !whole { @for item in &view.items { input type="hidden" name="id" value=(item.run); } }
                @if reasoned {
                    div.field {
                        label for="reason" { "Reason" }
                        input type="text" id="reason" name="reason" maxlength="500";
                    }
                }
                @if view.action == BulkAct::Delete {
                    p { "Their histories, files and state are gone then. It cannot be undone." }
                    (again::field("bulk-token"))
                }
                button.main.danger[matches!(view.action, BulkAct::Cancel | BulkAct::Delete)] { "Do it" }
                (command::same(&visitor.url, &line, &command::Request {
                    method: "POST",
                    path: "/v1/runs/bulk".to_owned(),
                    body: Some(body),
                }))
            }
        }
    }
}

fn table(view: &BulkView) -> Markup {
    html! {
        div.card.flush tabindex="0" {
            @if view.items.is_empty() { div.empty { "No run matches." } }
            @else {
                table.stack {
                    thead { tr { th { "Run" } th { "Status before" } th { "Result" } } }
                    tbody { @for item in &view.items { (row(view.action, item)) } }
                }
            }
        }
    }
}

fn row(act: BulkAct, item: &BulkItem) -> Markup {
    let name = text::line(item.blueprint.as_deref().unwrap_or("a run"), 60);
    let is_gone = act == BulkAct::Delete && item.result == "done";
    let class = match item.result.as_str() {
        "eligible" | "done" => "status ok",
        "unchanged" => "status",
        _ => "status warn",
    };
    html! {
        tr {
            td data-label="Run" {
                @if is_gone { (name) } @else { a href={ "/ui/runs/" (item.run) } { (name) } }
                div.dim.small.mono { (item.run) } }
            td data-label="Status before" { @if let Some(status) = item.status { (status::pill(status.as_str())) } }
            td data-label="Result" { span class=(class) { (text::short(&item.result, 60)) }
                @if let Some(run) = item.started { " " a href={ "/ui/runs/" (run) } { "the new run" } }
                @if let Some(detail) = &item.detail { div.small { (text::line(detail, 300)) } }
            }
        }
    }
}
