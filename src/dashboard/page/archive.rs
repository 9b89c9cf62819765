//! Archiving a blueprint and restoring it, with the token that the form carries.

use axum::{
    extract::{Path, State},
    response::Redirect,
};
use maud::{Markup, html};

use crate::{
    dashboard::{
        again,
        component::{command, text, time},
        desk::Desk,
        fields::Fields,
        headers::escaped,
        layout,
        visitor::Visitor,
    },
    door::Problem,
    engine::{BlueprintView, shell},
    token::{Verb, permits},
};

/// Returns the form; nothing for a role that may not do it with any token.
pub(in crate::dashboard) fn form(visitor: &Visitor, view: &BlueprintView) -> Markup {
    let (act, label) = match view.archived_at {
        None => ("archive", "Archive"),
        Some(_) => ("restore", "Restore"),
    };
    html! {
        @if permits(visitor.caller.grant.role, Verb::BlueprintWrite) {
            div.acts {
                details data-key=(act) {
                    summary { (label) " …" }
                    form method="post" action={ "/ui/blueprints/" (escaped(&view.name)) "/" (act) } {
                        (layout::token(visitor))
                        @match view.archived_at {
                            None => { p { "Nothing starts under its name until it is restored, its triggers stop, and its runs go on." } }
                            Some(_) => { p { "Its name stands again for this version, and its triggers begin anew." } }
                        }
                        (again::field("archive-token"))
                        button.main { (label) " this blueprint" }
                    }
                    (command::same(&visitor.url, &format!("moonswarm blueprints {act} {}", shell::quoted(&view.name)), &command::Request {
                        method: "POST",
                        path: format!("/v1/blueprints/{}/{act}", escaped(&view.name)),
                        body: None,
                    }))
                }
            }
        }
    }
}

/// Returns what a page says of an archived blueprint, or of the act before it.
pub(in crate::dashboard) fn note(view: &BlueprintView, fields: &Fields, now_ms: u64) -> Markup {
    html! {
        @if let Some(at) = &view.archived_at {
            div.banner.warn role="status" { "Archived " (time::of(at, now_ms)) ": nothing starts under the name "
                (text::line(&view.name, 80)) " until it is restored." }
        } @else if fields.given("done") == Some("restore") {
            div.banner.ok role="status" { "The blueprint is restored." }
        }
    }
}

/// Archives a blueprint.
pub(in crate::dashboard) async fn archive(
    State(desk): State<Desk>,
    _: Visitor,
    Path(name): Path<String>,
    fields: Fields,
) -> Result<Redirect, Problem> {
    let caller = again::caller(&desk, &fields)?;
    Ok(back(&desk.engine.blueprints().archive(&caller, &name).await?, "archive"))
}

/// Restores an archived blueprint.
pub(in crate::dashboard) async fn restore(
    State(desk): State<Desk>,
    _: Visitor,
    Path(name): Path<String>,
    fields: Fields,
) -> Result<Redirect, Problem> {
    let caller = again::caller(&desk, &fields)?;
    Ok(back(&desk.engine.blueprints().restore(&caller, &name).await?, "restore"))
}

/// Returns to the version: the name of an archived blueprint stands for none.
fn back(view: &BlueprintView, done: &str) -> Redirect {
    let version = format!("{}@{}", view.name, view.hash.get(..16).unwrap_or(&view.hash));
    Redirect::to(&format!("/ui/blueprints/{}?done={done}", escaped(&version)))
}
