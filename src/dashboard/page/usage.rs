//! `/ui/usage`: tokens and cost by day, blueprint, agent and model, and the most expensive runs.

use axum::{extract::State, response::Response};
use maud::{Markup, html};

use crate::{
    dashboard::{
        component::{
            command, pager,
            sparkline::{self, Shown},
            text, time, usage,
        },
        desk::Desk,
        fields::Fields,
        headers::escaped,
        layout::{Nav, Page},
        visitor::Visitor,
    },
    door::{Code, Problem},
    engine::{StatsAsk, StatsBy, StatsItem, StatsView},
    store::DAY_MS,
};

/// The spans: the word in the URL, the label, and the number of days.
const SPANS: [(&str, &str, u64); 4] =
    [("1d", "a day", 1), ("7d", "7 days", 7), ("30d", "30 days", 30), ("365d", "a year", 365)];
/// The maximum number of groups of a table.
const GROUPS: usize = 50;

/// Shows the page.
pub(in crate::dashboard) async fn show(
    State(desk): State<Desk>,
    visitor: Visitor,
    fields: Fields,
) -> Result<Response, Problem> {
    let asked = fields.given("since").unwrap_or("30d");
    let span = SPANS.iter().find(|(word, _, _)| *word == asked);
    let (word, _, days) =
        *span.ok_or_else(|| Problem::new(Code::BadQuery, "since is 1d, 7d, 30d or 365d"))?;
    let since_ms = Some(visitor.now_ms.saturating_sub(days * DAY_MS));
    let ask = |by| StatsAsk { by, since_ms, blueprint: None, limit: Some(GROUPS) };
    let read = async |by| desk.engine.stats(&visitor.caller, ask(by)).await;
    let by_day = match days {
        1 => read(StatsBy::Hour).await?,
        _ => {
            let ask = StatsAsk { limit: None, ..ask(StatsBy::Day) };
            desk.engine.stats(&visitor.caller, ask).await?
        }
    };
    let (slots, slot_ms) = match days {
        1 => (24, DAY_MS / 24),
        days => (usize::try_from(days).unwrap_or(usize::MAX), DAY_MS),
    };
    let runs = read(StatsBy::Run).await?;
    let body = html! {
        h1 { "Usage" }
        nav.tabs aria-label="Span" {
            @for (it, label, _) in SPANS {
                a href=(pager::url("/ui/usage", &[("since", it)])) aria-current=[(it == word).then_some("page")] { (label) }
            }
        }
        div.cards {
            section.card { h2 { "Runs that ended" } (sparkline::of(&by_day, (slots, slot_ms), Shown::Runs, visitor.now_ms)) }
            section.card { h2 { "Cost" } (sparkline::of(&by_day, (slots, slot_ms), Shown::Cost, visitor.now_ms)) }
        }
        (table("Blueprints", &read(StatsBy::Blueprint).await?, "runs", Some("/ui/blueprints/")))
        (table("Agents", &read(StatsBy::Agent).await?, "tasks", None))
        (table("Models", &read(StatsBy::Model).await?, "calls", None))
        (expensive(&runs))
        p.dim { "A run is counted when it ends. What nobody reported is not counted; deleted runs stay." }
        (command::same(&visitor.url, &format!("moonswarm stats --since {word}"), &command::Request {
            method: "GET",
            path: format!("/v1/stats?by=blueprint&since={word}"),
            body: None,
        }))
    };
    Ok(Page { nav: Nav::Usage, title: "Usage", live: None, body }.shown(&visitor))
}

fn table(label: &str, view: &StatsView, what: &str, path: Option<&str>) -> Markup {
    html! {
        h2 { (label) }
        div.card.flush {
            @if view.items.is_empty() { div.empty { "None ended." } }
            @else {
                table.stack {
                    thead { tr { th { "Name" } th.num { (what) } th.num { "failed" } th.num { "p50" } th.num { "p95" }
                        th.num { "tokens" } th.num { "cost" } } }
                    tbody { @for item in &view.items {
                        tr {
                            td data-label="Name" {
                                @match path {
                                    Some(path) => { a href={ (path) (escaped(&item.key)) } { (text::line(&item.key, 100)) } }
                                    None => { (text::line(&item.key, 100)) }
                                }
                            }
                            (numbers(item, what))
                        }
                    } }
                }
            }
        }
        @if view.left_off > 0 { p.dim { (view.left_off) " more are left out; the total has them." } }
    }
}

fn numbers(item: &StatsItem, what: &str) -> Markup {
    html! {
        td.num data-label=(what) { (usage::grouped(item.count)) }
        td.num data-label="failed" { (usage::grouped(item.failed)) }
        td.num data-label="p50" { @match item.p50_ms { Some(ms) => { (time::took(ms)) } None => { "—" } } }
        td.num data-label="p95" { @match item.p95_ms { Some(ms) => { (time::took(ms)) } None => { "—" } } }
        td.num data-label="tokens" { (usage::grouped(item.tokens)) }
        td.num data-label="cost" { "$" (item.usd) }
    }
}

fn expensive(view: &StatsView) -> Markup {
    html! {
        @if !view.items.is_empty() {
            h2 { "The most expensive runs" }
            div.card.flush { table.stack {
                thead { tr { th { "Run" } th { "Blueprint" } th.num { "tokens" } th.num { "cost" } } }
                tbody { @for item in view.items.iter().take(20) { tr {
                    td data-label="Run" { a href={ "/ui/runs/" (item.key) } { (item.key) } }
                    td data-label="Blueprint" { (text::line(item.blueprint.as_deref().unwrap_or_default(), 100)) }
                    td.num data-label="tokens" { (usage::grouped(item.tokens)) }
                    td.num data-label="cost" { "$" (item.usd) }
                } } }
            } }
        }
    }
}
