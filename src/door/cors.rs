//! Calls from pages of configured origins: the preflight, and the headers that let a page read an
//! answer. Pages of the dashboard are never answered for another origin.

use std::net::SocketAddr;

use axum::{
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header},
    response::{IntoResponse as _, Response},
};

use super::{origin::Site, problem::Problem};

/// The methods that the API has.
const METHODS: &str = "GET, PUT, POST, DELETE";
/// The headers that a client of the API sends.
const SENT: &str = "authorization, content-type, idempotency-key, last-event-id, x-api-key, \
    anthropic-version, mcp-session-id, mcp-protocol-version, mcp-method, mcp-name";
/// The headers of an answer that a page may read.
const READ: &str = "location, retry-after, etag, content-disposition, mcp-session-id";
/// The time for which a browser keeps the answer to a preflight, in seconds.
const KEPT_S: &str = "600";

impl Site {
    /// Answers the preflight of a page. Returns `None` for any other request.
    pub(super) fn preflight(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
        reached: Option<SocketAddr>,
    ) -> Option<Response> {
        let asks = headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
        if method != Method::OPTIONS || !asks || !headers.contains_key(header::ORIGIN) {
            return None;
        }
        let origin = match self.check(uri, headers, false, reached) {
            Ok(()) => self.caller_of(uri, headers)?,
            Err(problem) => return Some(Problem::into_response(problem)),
        };
        let allowed = [
            (header::ACCESS_CONTROL_ALLOW_METHODS, METHODS),
            (header::ACCESS_CONTROL_ALLOW_HEADERS, SENT),
            (header::ACCESS_CONTROL_MAX_AGE, KEPT_S),
        ];
        let mut response = (StatusCode::NO_CONTENT, allowed).into_response();
        shared(response.headers_mut(), origin);
        Some(response)
    }

    /// Returns the configured origin whose page makes a request; none for one of the dashboard, or of
    /// this server itself.
    pub(super) fn caller_of(&self, uri: &Uri, headers: &HeaderMap) -> Option<HeaderValue> {
        let path = uri.path();
        if path == "/ui" || path.starts_with("/ui/") {
            return None;
        }
        let mut origins = headers.get_all(header::ORIGIN).iter();
        let (Some(origin), None) = (origins.next(), origins.next()) else { return None };
        let text = origin.to_str().ok()?.to_ascii_lowercase();
        self.is_known(&text).then(|| origin.clone())
    }
}

/// Lets a page of an origin read an answer. No credentials of the browser are involved.
pub(super) fn shared(headers: &mut HeaderMap, origin: HeaderValue) {
    const MORE: [(HeaderName, &str); 2] =
        [(header::ACCESS_CONTROL_EXPOSE_HEADERS, READ), (header::VARY, "origin")];
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    for (name, value) in MORE {
        headers.insert(name, HeaderValue::from_static(value));
    }
}
