//! `/ui/login`: a pasted token, or the code of a link.

use axum::{
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Redirect, Response},
};
use maud::html;

use crate::{
    dashboard::{
        assets, desk::Desk, fields::Fields, headers, layout::document, sign_in::By, visitor::Theme,
    },
    door::Problem,
};

/// Shows the form. Whoever is signed in goes on to the page that is asked for. Without one the form
/// is shown all the same: this may be a link, whose code signs in anew and comes only with the
/// form.
pub(in crate::dashboard) async fn show(
    State(desk): State<Desk>,
    headers: HeaderMap,
    fields: Fields,
) -> Result<Response, Problem> {
    let asked = fields.given("next");
    let next = next(asked.unwrap_or_default());
    if asked.is_some()
        && let Some(cookie) = headers::cookie(&headers, desk.site.cookie())
        && let Some(signed_in) = desk.sign_ins.find(cookie, By::Page).await?
        && desk.engine.authenticate(&signed_in.token).is_ok()
    {
        return Ok(Redirect::to(next).into_response());
    }
    let theme = headers::cookie(&headers, "theme").map(Theme::of).unwrap_or_default();
    Ok(form(&desk, theme, next, None, StatusCode::OK))
}

/// Returns the page with the form, and why the last try failed.
pub(in crate::dashboard) fn form(
    desk: &Desk,
    theme: Theme,
    next: &str,
    wrong: Option<&str>,
    status: StatusCode,
) -> Response {
    let body = html! {
        main #main {
            div.card.narrow {
                h1.line { img src=(assets::path("moon.svg")) alt="" width="28" height="28"; "moonswarm" }
                @if let Some(wrong) = wrong { div.banner.bad role="alert" { (wrong) } }
                @if let Some((issuer, _)) = desk.door.people().and_then(|people| people.login()) {
                    p { a.button.main href={ "/ui/login/oidc?next=" (headers::escaped(next)) } {
                        "Sign in with " (host_of(issuer)) } }
                    p.dim.small { "Or with a token:" }
                }
                form.sign-in method="post" action="/ui/login" {
                    input type="hidden" name="next" value=(next);
                    div.field {
                        label for="token" { "Token" }
                        p.hint #token-hint { "One for the API. The first is in " code { "admin.token" }
                            " of the data directory." }
                        input type="password" id="token" name="token" required autocomplete="off"
                            spellcheck="false" aria-describedby="token-hint";
                    }
                    button.main { "Sign in" }
                }
                p.dim.small { "Or run " code { "moonswarm open" } " on the machine of the daemon: it "
                    "prints a link that signs in once." }
            }
        }
    };
    document("Sign in", theme, &["sign_in.js"], status, &body)
}

/// Returns the name of a provider for people: the host of its address.
fn host_of(issuer: &str) -> &str {
    let host = issuer.split_once("://").map_or(issuer, |(_, rest)| rest);
    host.split('/').next().unwrap_or(host)
}

/// Returns the page to go to after the sign-in: one of this dashboard.
pub(in crate::dashboard) fn next(asked: &str) -> &str {
    let fits = asked.starts_with("/ui") && !asked.contains(['\\', ':']);
    let own = asked.len() == 3 || asked.as_bytes().get(3).is_some_and(|it| b"/?".contains(it));
    // The page becomes the value of a header.
    let is_plain = asked.bytes().all(|byte| byte.is_ascii_graphic());
    if fits && own && is_plain { asked } else { "/ui" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_the_sign_in_nobody_is_sent_elsewhere() {
        for own in ["/ui", "/ui/runs?status=failed", "/ui?x=1"] {
            assert_eq!(next(own), own);
        }
        for other in [
            "//evil.example",
            "https://evil.example",
            "/uix",
            "/v1/runs",
            "/ui\\x",
            "",
            "/ui/\r\nx: y",
            "/ui/\u{1}",
            "/ui/ x",
            "/ui/é",
        ] {
            assert_eq!(next(other), "/ui", "{other:?}");
        }
    }
}
