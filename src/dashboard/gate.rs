//! What surrounds every request of a browser: the cookie, the form token, the headers of security,
//! and errors as pages.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Redirect, Response},
};

use super::{desk::Desk, fields::Fields, page, sign_in::SignedIn};
use crate::door::{Code, Problem, ProblemBody};

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
    let by_bearer = request.uri().path() == super::mount::CODES;
    let mut signed_in = false;
    if !by_bearer {
        request.headers_mut().remove(header::AUTHORIZATION);
        if let Some(cookie) = cookie(request.headers(), desk.site.cookie()).map(str::to_owned) {
            match desk.sign_ins.find(&cookie).await {
                Ok(Some(found)) => {
                    let bearer = HeaderValue::try_from(format!("Bearer {}", found.token));
                    if let Ok(bearer) = bearer {
                        request.headers_mut().insert(header::AUTHORIZATION, bearer);
                        request.extensions_mut().insert(found);
                        signed_in = true;
                    }
                }
                Ok(None) => {}
                Err(problem) => return guarded(page::problem::bare(problem.body())),
            }
        }
    }
    let live = path.starts_with("/ui/live/");
    let response = next.run(request).await;
    let problem = response.extensions().get::<Arc<ProblemBody>>().cloned();
    let response = match problem {
        None => response,
        Some(_) if by_bearer || live => response,
        Some(body) if body.status() == StatusCode::UNAUTHORIZED && path != "/ui/login" => {
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
    guarded(response)
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

/// Requires that a form was sent by a page of the same origin.
///
/// # Errors
/// Returns `origin_not_allowed`.
pub(super) fn own_origin(headers: &HeaderMap) -> Result<(), Problem> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let origin = text(header::ORIGIN).and_then(|origin| origin.split_once("://"));
    match (origin, text(header::HOST)) {
        (Some((_, origin)), Some(host)) if origin.eq_ignore_ascii_case(host) => Ok(()),
        _ => Err(Problem::new(
            Code::OriginNotAllowed,
            "a form is sent by a page of this server: its Origin must be the server's own",
        )),
    }
}

/// Returns true if the browser reached this host over TLS.
pub(super) fn is_secure(headers: &HeaderMap) -> bool {
    let is = |name: &str, word: &[u8]| {
        headers.get(name).is_some_and(|value| value.as_bytes().starts_with(word))
    };
    is("origin", b"https://") || is("x-forwarded-proto", b"https")
}

/// Returns a cookie of a request.
pub(super) fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = all.flat_map(|value| value.split(';')).filter_map(|it| it.split_once('='));
    pairs.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
}

/// Returns a text as a part of a query.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                out.push(char::from(byte));
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(all: &[(HeaderName, &'static str)]) -> HeaderMap {
        all.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn a_form_needs_the_origin_of_the_host_it_is_sent_to() {
        let host = (header::HOST, "localhost:7700");
        let own = |origin: &'static str| {
            own_origin(&headers(&[host.clone(), (header::ORIGIN, origin)])).is_ok()
        };
        assert!(own("http://localhost:7700") && own("https://LOCALHOST:7700"));
        assert!(!own("null") && !own("http://localhost:7701") && !own("http://evil.example"));
        assert!(own_origin(&headers(&[host])).is_err());
    }

    #[test]
    fn a_cookie_is_found_by_its_whole_name() {
        let all = headers(&[(header::COOKIE, "xa=1; a=2;b=3"), (header::COOKIE, "c=4")]);
        assert_eq!(
            [cookie(&all, "a"), cookie(&all, "b"), cookie(&all, "c")],
            [Some("2"), Some("3"), Some("4")]
        );
        assert_eq!(cookie(&all, "d"), None);
    }

    #[test]
    fn a_text_in_a_query_is_only_a_text() {
        assert_eq!(escaped("/ui/runs?a=b&c=\"é"), "%2Fui%2Fruns%3Fa%3Db%26c%3D%22%C3%A9");
    }
}
