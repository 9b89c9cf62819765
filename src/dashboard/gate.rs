//! The checks around every request of a browser: the cookie, the form token, the headers of
//! security,
//! and errors as pages.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::{HeaderName, HeaderValue, Method, StatusCode, header, request::Parts},
    middleware::Next,
    response::{IntoResponse, Redirect, Response},
};

use super::{
    acts::cookie_of,
    desk::Desk,
    fields::Fields,
    headers::{cookie, escaped, is_secure, own_origin},
    page,
    sign_in::{By, LONGEST_MS, SignedIn},
};
use crate::door::{Arrival, Code, Problem, ProblemBody};

/// Scripts, styles, connections and forms of this origin only; nothing inline.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; \
require-trusted-types-for 'script'; trusted-types fragments";

/// Turns the cookie of a request into the token behind it, and a problem into a page.
pub(super) async fn surround(
    State(desk): State<Desk>,
    mut request: Request,
    next: Next,
) -> Response {
    let (method, path) = (request.method().clone(), path_of(&request));
    let by_bearer = request.uri().path() == super::sign_in::CODES;
    let (mut signed_in, mut fresh) = (false, None);
    if !by_bearer {
        request.headers_mut().remove(header::AUTHORIZATION);
        let (parts, body) = request.into_parts();
        let entered = enter(&desk, &parts).await;
        request = Request::from_parts(parts, body);
        if let Some(arrival) = request.extensions_mut().get_mut::<Arrival>() {
            // Pages have a sign-in: whoever got none is asked for it.
            arrival.person = None;
        }
        match entered {
            Ok(None) => {}
            Ok(Some((found, cookie))) => {
                let bearer = HeaderValue::try_from(format!("Bearer {}", found.token));
                if let Ok(bearer) = bearer {
                    request.headers_mut().insert(header::AUTHORIZATION, bearer);
                    request.extensions_mut().insert(found);
                    signed_in = true;
                    fresh = cookie;
                }
            }
            Err(problem) => return guarded(page::problem::bare(problem.body())),
        }
    }
    let live = path.starts_with("/ui/live/");
    let linked = path.starts_with("/ui/answer/");
    let response = next.run(request).await;
    let problem = response.extensions().get::<Arc<ProblemBody>>().cloned();
    let response = match problem {
        None => response,
        Some(_) if by_bearer || live => response,
        Some(body)
            if body.status() == StatusCode::UNAUTHORIZED && path != "/ui/login" && !linked =>
        {
            let to = match method == Method::GET && path != "/ui" {
                true => format!("/ui/login?next={}", escaped(&path)),
                false => "/ui/login".to_owned(),
            };
            Redirect::to(&to).into_response()
        }
        Some(body) => {
            let mut page = page::problem::shown(&body, signed_in);
            if let Some(after) = response.headers().get(header::RETRY_AFTER) {
                page.headers_mut().insert(header::RETRY_AFTER, after.clone());
            }
            page
        }
    };
    let mut response = guarded(response);
    if let Some(cookie) = fresh {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
    if linked {
        let none = HeaderValue::from_static("no-referrer");
        response.headers_mut().insert(header::REFERRER_POLICY, none);
    }
    response
}

/// Returns the sign-in of a request: the one of its cookie or, if a proxy names the person, one of
/// that person, with its cookie if it is a new one.
async fn enter(
    desk: &Desk,
    request: &Parts,
) -> Result<Option<(SignedIn, Option<HeaderValue>)>, Problem> {
    let (headers, path) = (&request.headers, request.uri.path());
    let arrival: Arrival = request.extensions.get().cloned().unwrap_or_default();
    if !desk.door.is_for_us(&arrival, &request.uri, headers) {
        // The door refuses it. No sign-in begins under a name that is not this host's.
        return Ok(None);
    }
    if path.starts_with("/ui/assets/") {
        // An asset needs no sign-in, and asking for one is no use of it: a page does so by itself.
        return Ok(None);
    }
    // So does a page that looks whether its stream goes on, and connects again.
    let by = match request.method == Method::HEAD || path.starts_with("/ui/live/") {
        true => By::Page,
        false => By::Person,
    };
    let known = match cookie(headers, desk.site.cookie()) {
        Some(cookie) => desk.sign_ins.find(cookie, by).await?,
        None => None,
    };
    let Some(token) = desk.door.person(&desk.engine, &arrival).await? else {
        return Ok(known.map(|known| (known, None)));
    };
    // The proxy's word holds: a cookie of somebody else, or of an earlier role, does not.
    if let Some(known) = known.filter(|known| desk.sign_ins.is_of(known, &token)) {
        return Ok(Some((known, None)));
    }
    // A picture or a script of another site is no visit.
    let mode = headers.get("sec-fetch-mode").is_none_or(|mode| mode == "navigate");
    let is_page = mode && request.method == Method::GET;
    if !is_page {
        return Ok(None);
    }
    let cookie = desk.sign_ins.open_named(&token).await?;
    // The person uses the sign-in only when its cookie comes back.
    let found = desk.sign_ins.find(&cookie, By::Page).await?;
    let secure = is_secure(&arrival, headers);
    let cookie = cookie_of(desk.site.cookie(), &cookie, LONGEST_MS / 1_000, secure);
    Ok(found.map(|found| (found, HeaderValue::try_from(cookie).ok())))
}

fn path_of(request: &Request) -> String {
    request.uri().path_and_query().map_or_else(String::new, ToString::to_string)
}

/// Sets the headers of security. `Referrer-Policy` is `same-origin`: nothing goes to another
/// origin, and with `no-referrer` a browser would send `Origin: null` with every form.
fn guarded(mut response: Response) -> Response {
    const HEADERS: [(HeaderName, &str); 5] = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::REFERRER_POLICY, "same-origin"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ];
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// Lets a form through if it comes from a page of this origin and carries the token of its sign-in.
pub(super) async fn form(State(desk): State<Desk>, request: Request, next: Next) -> Response {
    let checked = async {
        own_origin(request.headers())?;
        let (mut parts, body) = request.into_parts();
        let fields = Fields::read(&mut parts, body, &desk).await?;
        let signed_in = parts.extensions.get::<SignedIn>();
        if !signed_in.is_some_and(|it| it.is_own(fields.text("form"))) {
            let detail = "reload the page that has the form, and send it again";
            return Err(Problem::new(Code::FormRefused, detail));
        }
        parts.extensions.insert(fields);
        Ok(Request::from_parts(parts, axum::body::Body::empty()))
    };
    match checked.await {
        Ok(request) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}
