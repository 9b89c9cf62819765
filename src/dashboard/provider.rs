//! `/ui/login/oidc`: signing in with an OpenID Connect provider, by the authorization code flow.
//!
//! The attempt is a cookie that lives for ten minutes and goes to these two routes only. It is `Lax`,
//! because the provider's page sends the browser back; the cookie of the sign-in is `Strict`, so the
//! last page goes on by itself, as a navigation of this site.

use axum::{
    extract::State,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Redirect, Response},
};
use maud::html;

use super::{
    acts::{cookie_of, set},
    desk::Desk,
    fields::Fields,
    headers,
    layout::document,
    page::login,
    sign_in::LONGEST_MS,
    visitor::Theme,
};
use crate::door::{ATTEMPT_MS, Arrival, Attempt, Code, Problem, Tokens};

/// The path at which an attempt begins.
pub(super) const BEGIN: &str = "/ui/login/oidc";

/// Sends the browser to the provider.
pub(super) async fn begin(
    State(desk): State<Desk>,
    arrival: Arrival,
    headers: HeaderMap,
    fields: Fields,
) -> Result<Response, Problem> {
    let theme = headers::cookie(&headers, "theme").map(Theme::of).unwrap_or_default();
    let next = login::next(fields.text("next"));
    let (people, origin) = provider(&desk)?;
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let own = origin.split_once("://").map_or(origin, |(_, host)| host);
    if !host.eq_ignore_ascii_case(own) && fields.text("at") != "own" {
        // The provider sends the browser to the configured origin, which has other cookies.
        let to = format!("{origin}{BEGIN}?at=own&next={}", headers::escaped(next));
        return Ok(Redirect::to(&to).into_response());
    }
    let attempt = Attempt::new(desk.door.clock.now_ms(), next);
    match people.begin(&attempt).await {
        Ok(to) => {
            let secure = headers::is_secure(&arrival, &headers) || origin.starts_with("https:");
            let cookie = attempt_cookie(&desk, attempt.cookie(), ATTEMPT_MS / 1_000, secure);
            Ok((set(cookie), [NEVER_STORED], Redirect::to(&to)).into_response())
        }
        Err(problem) => {
            let wrong = problem.body().detail();
            Ok(login::form(&desk, theme, next, Some(wrong), problem.status()))
        }
    }
}

/// Signs in the person whom the provider sends back.
pub(super) async fn finish(
    State(desk): State<Desk>,
    arrival: Arrival,
    headers: HeaderMap,
    fields: Fields,
) -> Result<Response, Problem> {
    let theme = headers::cookie(&headers, "theme").map(Theme::of).unwrap_or_default();
    let (people, origin) = provider(&desk)?;
    let secure = headers::is_secure(&arrival, &headers) || origin.starts_with("https:");
    let gone = attempt_cookie(&desk, "", 0, secure);
    let again = |wrong: &str, next: &str, status: StatusCode| {
        let form = login::form(&desk, theme, next, Some(wrong), status);
        Ok((set(gone.clone()), [NEVER_STORED], form).into_response())
    };
    let cookie = headers::cookie(&headers, &name(&desk));
    let attempt = cookie.and_then(|it| Attempt::read(it, desk.door.clock.now_ms()));
    let Some(attempt) = attempt.filter(|attempt| attempt.is_of(fields.text("state"))) else {
        let wrong = "this sign-in did not begin in this browser, or more than ten minutes ago; \
                     sign in again";
        return again(wrong, "/ui", StatusCode::UNAUTHORIZED);
    };
    // The cookie is the browser's word.
    let next = login::next(attempt.next()).to_owned();
    if !fields.text("error").is_empty() {
        let error =
            fields.text("error").chars().filter(|it| it.is_ascii_alphanumeric() || *it == '_');
        let wrong = format!("the provider refused: {}", error.take(64).collect::<String>());
        return again(&wrong, &next, StatusCode::UNAUTHORIZED);
    }
    let issuer = Some(fields.text("iss")).filter(|issuer| !issuer.is_empty());
    let answer = (fields.text("code"), issuer);
    let signed_in = match people.finish(&desk.engine, &attempt, answer, arrival.client).await {
        Ok((token, id_token)) => desk.sign_ins.open_with(&token, Some(&id_token)).await,
        Err(problem) => Err(problem),
    };
    let cookie = match signed_in {
        Ok(cookie) => cookie_of(desk.site.cookie(), &cookie, LONGEST_MS / 1_000, secure),
        Err(problem) => return again(problem.body().detail(), &next, problem.status()),
    };
    let body = html! {
        main #main { div.card.narrow { p { "You are signed in. " a href=(next) { "Continue" } } } }
    };
    let page = document("Signed in", theme, &[], StatusCode::OK, &body);
    let onward = HeaderValue::try_from(format!("0; url={next}"));
    let onward = onward.expect("a page of the dashboard is ASCII");
    let mut page = (set(gone), [NEVER_STORED], page).into_response();
    let own = HeaderValue::try_from(cookie).expect("a cookie is ASCII");
    page.headers_mut().append(header::SET_COOKIE, own);
    page.headers_mut().insert(header::REFRESH, onward);
    Ok(page)
}

/// Returns the tokens of people, and the origin to which their provider sends browsers back.
fn provider(desk: &Desk) -> Result<(&Tokens, &str), Problem> {
    let found = desk.door.people().and_then(|people| Some((people, people.login()?.1)));
    found.ok_or_else(|| Problem::new(Code::NoRoute, "there is no such page"))
}

const NEVER_STORED: (HeaderName, &str) = (header::CACHE_CONTROL, "no-store");

/// Returns the name of the cookie of an attempt.
fn name(desk: &Desk) -> String {
    format!("{}_oidc", desk.site.cookie())
}

fn attempt_cookie(desk: &Desk, value: &str, seconds: u64, secure: bool) -> String {
    let (name, secure) = (name(desk), if secure { "; Secure" } else { "" });
    format!("{name}={value}; Path={BEGIN}; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}")
}
