//! The attempts of a step, with the results that were refused and what was decided.

use maud::{Markup, html};

use crate::{
    dashboard::component::{json, status, text, time, usage},
    engine::{AttemptView, AttemptsView},
    protocol::Json,
};

/// The maximum number of attempts that are shown, the last ones.
const SHOWN: usize = 100;

/// Returns the attempts; nothing for a step without any.
pub(in crate::dashboard) fn of(view: &AttemptsView, now_ms: u64) -> Markup {
    let hidden = view.items.len().saturating_sub(SHOWN);
    html! {
        @if !view.items.is_empty() {
            h2 { "Attempts" }
            @if hidden > 0 { p.dim { (hidden) " earlier ones are left out" } }
            @for attempt in &view.items[hidden..] { (one(attempt, now_ms)) }
        }
        @if let Some(allowed) = &view.allowed {
            section.card { h2 { "Left by the layers" }
                @if allowed.is_empty() { p.dim { "none of the agent's operators and tools" } }
                p { @for name in allowed.iter().take(100) { code { (text::short(name, 100)) } " " } }
            }
        }
        @if !view.decisions.is_empty() {
            h2 { "Decisions" }
            div.card.flush tabindex="0" { table {
                thead { tr { th { "What" } th { "Data" } th { "When" } } }
                tbody { @for it in view.decisions.iter().rev().take(SHOWN) { tr {
                    td { (text::short(&it.kind, 60)) }
                    td.clip.mono { (text::short(text::cut(it.data.as_str(), 2_000).0, 400)) }
                    td { (time::of(&it.at, now_ms)) }
                } } }
            } }
        }
    }
}

fn one(it: &AttemptView, now_ms: u64) -> Markup {
    let times = [
        ("Opened", Some(&it.scheduled_at)),
        ("Delivered", it.delivered_at.as_ref()),
        ("Started", it.started_at.as_ref()),
        ("Last heartbeat", it.last_heartbeat_at.as_ref()),
        ("Times out", it.deadline.as_ref().filter(|_| it.ended_at.is_none())),
        ("Ended", it.ended_at.as_ref()),
        ("Next may start", it.retry_at.as_ref()),
    ];
    html! {
        section.card {
            h3.line { "Attempt " (it.attempt) (status::pill(&it.state))
                @if !it.counts { span.dim.small { "does not count" } }
            }
            dl {
                @if let Some(session) = &it.session { dt { "Session" } dd { code { (text::short(session, 60)) } } }
                @else if let Some(worker) = &it.worker { dt { "Worker" } dd { (text::line(worker, 120)) } }
                @for (label, at) in times {
                    @if let Some(at) = at { dt { (label) } dd { (time::of(at, now_ms)) } }
                }
                @if it.usage.is_some() { dt { "Usage" } dd { (usage::of(it.usage.as_ref())) } }
            }
            @if let Some(error) = &it.error {
                div.banner.bad {
                    p { strong { (text::short(&error.kind, 60)) } " " (text::line(&error.message, 2_000)) }
                    @if let Some(data) = &error.data { (json::tree(data, false)) }
                }
            }
            @for refused in it.refused.iter().take(SHOWN) {
                details {
                    summary { "A refused result: " code { (text::short(&refused.code, 60)) } " " (time::of(&refused.at, now_ms)) }
                    @match serde_json::from_str::<serde_json::Value>(&refused.body) {
                        Ok(body) => { (json::tree(&Json::from(&body), false)) }
                        Err(_) => { (text::block(&refused.body, false)) }
                    }
                }
            }
        }
    }
}
