//! The headers of a browser: its cookies, the origin of a form, and the use of TLS.

use axum::http::{HeaderMap, header};

pub(super) use crate::door::percent_encoded as escaped;
use crate::door::{Arrival, Code, Problem};

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

/// Returns true if the browser reached this host over TLS: as the host knows, or as the origin of
/// its page says.
pub(super) fn is_secure(arrival: &Arrival, headers: &HeaderMap) -> bool {
    let origin = headers.get(header::ORIGIN);
    arrival.secure || origin.is_some_and(|value| value.as_bytes().starts_with(b"https://"))
}

/// Returns a cookie of a request.
pub(super) fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = all.flat_map(|value| value.split(';')).filter_map(|it| it.split_once('='));
    pairs.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

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
