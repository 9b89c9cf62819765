//! The reason of a run's wait, and the command that ends it.

use maud::{Markup, html};

use super::{move_command::move_command, text, time};
use crate::engine::{RunView, WaitingOn};

/// The maximum number of waits that are listed.
const MOST: usize = 20;

/// Returns every wait of a run with what would end it.
pub(in crate::dashboard) fn list(run: &RunView, now_ms: u64) -> Markup {
    html! {
        @for on in run.waiting_on.iter().take(MOST) {
            div.banner.warn {
                div.line {
                    strong { (reason(on)) }
                    span.small { "since " (time::of(&on.since, now_ms))
                        @if let Some(until) = &on.until { ", until " (time::of(until, now_ms)) }
                    }
                    (link(on))
                }
                @if let Some(command) = move_command(run, on) {
                    div.small { code { (text::short(&command, 300)) } }
                }
            }
        }
        @if run.waiting_on.len() > MOST { p.dim { "… and " (run.waiting_on.len() - MOST) " more" } }
    }
}

/// Returns one wait in words.
pub(in crate::dashboard) fn reason(on: &WaitingOn) -> Markup {
    let what = on.to_string();
    let lead = match on.kind.as_str() {
        "resume" => "Paused: ",
        "quarantine" => "Quarantined: ",
        "capacity" => "Waits for a free place: ",
        "retry" => "Waits to try again: ",
        _ => "Waits for ",
    };
    html! { (lead) (text::line(&what, 300)) }
}

fn link(on: &WaitingOn) -> Markup {
    let human = on.subject.operator_kind.as_deref() == Some("human");
    html! {
        @if let Some(task) = on.subject.task.filter(|_| human || on.subject.question.is_some()) {
            a href={ "/ui/inbox/" (task) } { "Answer it" }
        }
        @if let Some(child) = on.subject.run {
            a href={ "/ui/runs/" (child) } { "Show that run" }
        }
    }
}
