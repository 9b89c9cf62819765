//! The frame of every page.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use maud::{DOCTYPE, Markup, html};

use super::{
    assets,
    component::{text, time},
    visitor::{Theme, Visitor},
};
use crate::token::Verb;

/// An entry of the navigation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Nav {
    /// `/ui`
    Overview,
    /// `/ui/runs`
    Runs,
    /// `/ui/inbox`
    Inbox,
    /// `/ui/blueprints`
    Blueprints,
    /// `/ui/state`
    State,
    /// `/ui/triggers`
    Triggers,
    /// `/ui/operators`
    Operators,
    /// `/ui/usage`
    Usage,
    /// `/ui/tokens`
    Tokens,
    /// `/ui/system`
    System,
}

/// The entries, each with the verb without which it is not shown.
const NAV: [(Nav, &str, &str, Option<Verb>); 10] = [
    (Nav::Overview, "/ui", "Overview", None),
    (Nav::Runs, "/ui/runs", "Runs", Some(Verb::RunRead)),
    (Nav::Inbox, "/ui/inbox", "Inbox", Some(Verb::TaskList)),
    (Nav::Blueprints, "/ui/blueprints", "Blueprints", Some(Verb::BlueprintRead)),
    (Nav::State, "/ui/state", "State", Some(Verb::StateRead)),
    (Nav::Triggers, "/ui/triggers", "Triggers", Some(Verb::BlueprintRead)),
    (Nav::Operators, "/ui/operators", "Operators", Some(Verb::OperatorRead)),
    (Nav::Usage, "/ui/usage", "Usage", Some(Verb::RunRead)),
    (Nav::Tokens, "/ui/tokens", "Tokens", None),
    (Nav::System, "/ui/system", "System", Some(Verb::HostRead)),
];

/// A page to be framed.
pub(super) struct Page<'a> {
    /// The entry of the navigation that it belongs to.
    pub nav: Nav,
    /// The title.
    pub title: &'a str,
    /// The path of its live fragments.
    pub live: Option<String>,
    /// The content of `main`.
    pub body: Markup,
}

impl Page<'_> {
    /// Returns the response.
    pub(super) fn shown(self, visitor: &Visitor) -> Response {
        self.with_status(visitor, StatusCode::OK)
    }

    /// Returns the response with a status.
    pub(super) fn with_status(self, visitor: &Visitor, status: StatusCode) -> Response {
        let body = html! {
            a.skip href="#main" { "Skip to the content" }
            header.top {
                a.brand href="/ui" { img src=(assets::path("moon.svg")) alt=""; "moonswarm" }
                nav aria-label="Pages" {
                    @for (nav, path, name, verb) in NAV {
                        @if verb.is_none_or(|verb| visitor.may(verb)) {
                            a href=(path) aria-current=[(nav == self.nav).then_some("page")] { (name) }
                        }
                    }
                }
                @if self.live.is_some() { span #live role="status" {} }
                (who(visitor))
            }
            main #main data-live=[self.live] data-now=(visitor.now_ms) { (self.body) }
        };
        document(
            self.title,
            visitor.theme,
            &[
                "away.js",
                "live.js",
                "copy.js",
                "keys.js",
                "tree.js",
                "timeline.js",
                "graph.js",
                "times.js",
            ],
            status,
            &body,
        )
    }
}

/// Returns the menu of the person who is signed in.
fn who(visitor: &Visitor) -> Markup {
    let caller = &visitor.caller;
    // `admin/operator#1f2e` is an unnamed operator.
    let name = caller.subject.rsplit('/').next().and_then(|last| last.split('#').next());
    let name = name.unwrap_or_default();
    html! {
        details.who {
            summary { (text::short(name, 32)) }
            div {
                dl {
                    dt { "Subject" } dd { bdi { (text::short(&caller.subject, 120)) } }
                    dt { "Role" } dd { (caller.grant.role) }
                    dt { "Until" } dd { (time::of_ms(caller.expires_ms, visitor.now_ms)) }
                }
                form method="post" action="/ui/theme" {
                    (token(visitor))
                    input type="hidden" name="next" value=(visitor.at);
                    @for theme in [Theme::System, Theme::Light, Theme::Dark] {
                        button name="theme" value=(theme.as_str())
                            aria-pressed=(if theme == visitor.theme { "true" } else { "false" }) {
                            (theme.as_str())
                        }
                    }
                }
                form method="post" action="/ui/logout" {
                    (token(visitor))
                    button { "Sign out" }
                }
            }
        }
    }
}

/// Returns the hidden field without which a form is refused.
pub(super) fn token(visitor: &Visitor) -> Markup {
    html! { input type="hidden" name="form" value=(visitor.signed_in.form); }
}

/// Returns the hidden field by which a form that is sent twice is known.
pub(super) fn once() -> Markup {
    html! { input type="hidden" name="once" value=(uuid::Uuid::new_v4().simple()); }
}

/// Returns a whole document.
pub(super) fn document(
    title: &str,
    theme: Theme,
    scripts: &[&str],
    status: StatusCode,
    body: &Markup,
) -> Response {
    let page = html! {
        (DOCTYPE)
        html lang="en" data-theme=(theme.as_str()) {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (text::short(title, 120)) " · moonswarm" }
                link rel="icon" href=(assets::path("moon.svg")) type="image/svg+xml";
                @for sheet in ["tokens.css", "base.css", "components.css"] {
                    link rel="stylesheet" href=(assets::path(sheet));
                }
                @for script in scripts {
                    script type="module" src=(assets::path(script)) {}
                }
            }
            body { (body) }
        }
    };
    let kind = HeaderValue::from_static("text/html; charset=utf-8");
    (status, [(header::CONTENT_TYPE, kind)], page.into_string()).into_response()
}
