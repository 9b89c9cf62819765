//! The buttons of a run.

use maud::{Markup, html};

use crate::{
    dashboard::{
        component::command::{self, Request},
        layout,
        visitor::Visitor,
    },
    engine::{RunView, shell},
    store::RunStatus,
    token::{Verb, permits},
};

/// The id of the form of a signal.
const SIGNAL: &str = "signal-form";

/// Returns what stays as it is when the buttons are rendered anew: the field by which a signal that
/// is sent twice is known.
pub(super) fn kept(view: &RunView) -> Markup {
    html! {
        @if view.ended_at.is_none() {
            input type="hidden" form=(SIGNAL) name="once" value=(uuid::Uuid::new_v4().simple());
        }
    }
}

/// Returns the buttons that the token and the run's status allow.
pub(super) fn of(visitor: &Visitor, view: &RunView) -> Markup {
    let may = |verb| visitor.caller.may(verb, view.id).is_ok();
    let open = view.ended_at.is_none();
    let paused = view.status == RunStatus::Paused;
    let id = view.id.to_string();
    html! {
        div #run-acts.acts {
            @if open && paused && may(Verb::RunResume) {
                form method="post" action={ "/ui/runs/" (id) "/resume" } {
                    (layout::token(visitor))
                    button.main { "Resume" }
                }
                (command::same(&visitor.url, &format!("moonswarm resume {id}"), &post(&id, "resume", None)))
            }
            @if open && !paused && may(Verb::RunPause) { (with_reason(visitor, &id, "pause", "Pause", false)) }
            @if open && may(Verb::RunSignal) { (signal(visitor, view)) }
            @if !open && visitor.may(Verb::RunStart) { (rerun(visitor, &id)) }
            @if !open && visitor.may(Verb::RunStart) && visitor.may(Verb::BlueprintRead) {
                @let version = format!("{}@{}", view.blueprint, view.hash.get(..16).unwrap_or(&view.hash));
                a.button href={ "/ui/blueprints/" (crate::dashboard::headers::escaped(&version)) "?from=" (id) } { "Run with another input …" }
            }
            @if view.steps > 0 && may(Verb::RunFork) { a.button href={ "/ui/runs/" (id) "/fork" } { "Fork …" } }
            @if open && may(Verb::RunCancel) { (with_reason(visitor, &id, "cancel", "Cancel", true)) }
            @if !open && permits(visitor.caller.grant.role, Verb::RunDelete) { (delete(visitor, &id)) }
        }
    }
}

fn post<'a>(id: &str, act: &str, body: Option<String>) -> Request<'a> {
    Request { method: "POST", path: format!("/v1/runs/{id}/{act}"), body }
}

fn rerun(visitor: &Visitor, id: &str) -> Markup {
    html! {
        details data-key="rerun" {
            summary { "Run again …" }
            form method="post" action={ "/ui/runs/" (id) "/rerun" } {
                (layout::token(visitor))
                (layout::once())
                div.field {
                    label for="rerun-version" { "Version" }
                    select id="rerun-version" name="version" {
                        option value="same" { "of this run" }
                        option value="newest" { "the newest" }
                    }
                }
                button.main { "Run again" }
            }
            (command::same(&visitor.url, &format!("moonswarm rerun {id}"), &post(id, "rerun", None)))
        }
    }
}

/// Returns the button to the page that asks for a token.
fn delete(visitor: &Visitor, id: &str) -> Markup {
    html! {
        form method="post" action="/ui/runs/bulk" {
            (layout::token(visitor))
            input type="hidden" name="act" value="delete";
            input type="hidden" name="which" value="ids";
            input type="hidden" name="id" value=(id);
            button.danger { "Delete …" }
        }
    }
}

fn with_reason(visitor: &Visitor, id: &str, act: &str, label: &str, danger: bool) -> Markup {
    let field = format!("{act}-reason");
    let body = Some(r#"{"reason":"why"}"#.to_owned());
    html! {
        details data-key=(act) {
            summary.danger[danger] { (label) " …" }
            form method="post" action={ "/ui/runs/" (id) "/" (act) } {
                (layout::token(visitor))
                div.field {
                    label for=(field) { "Reason" }
                    input type="text" id=(field) name="reason" maxlength="500";
                }
                button.main.danger[danger] { (label) " this run" }
            }
            (command::same(&visitor.url, &format!("moonswarm {act} {id} --reason why"), &post(id, act, body)))
        }
    }
}

fn signal(visitor: &Visitor, view: &RunView) -> Markup {
    let id = view.id.to_string();
    let waited = view.waiting_on.iter().find(|on| on.kind == "signal");
    let name = waited.and_then(|on| on.subject.name.as_deref()).unwrap_or_default();
    let line = format!(
        "moonswarm signal {id} {} true",
        shell::operand(if name.is_empty() { "NAME" } else { name })
    );
    let act = format!(
        "signals/{}",
        crate::dashboard::headers::escaped(if name.is_empty() { "NAME" } else { name })
    );
    html! {
        details data-key="signal" {
            summary { "Signal …" }
            form id=(SIGNAL) method="post" action={ "/ui/runs/" (id) "/signal" } {
                (layout::token(visitor))
                div.field {
                    label for="signal-name" { "Name" }
                    input type="text" id="signal-name" name="name" required value=(name);
                }
                div.field {
                    label for="signal-payload" { "Payload, as JSON" }
                    textarea.mono id="signal-payload" name="payload" spellcheck="false" { "\ntrue" }
                }
                button.main { "Send the signal" }
            }
            (command::same(&visitor.url, &line, &post(&id, &act, Some("true".to_owned()))))
        }
    }
}
