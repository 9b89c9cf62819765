//! The headers of one connection, which do not go on to the next one.

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};

/// The headers of a connection, which are not those of a message.
const HOPS: [HeaderName; 7] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Removes the headers of the connection.
pub(super) fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOPS) {
        headers.remove(name);
    }
}

/// Joins the cookies, which HTTP/2 may send one by one.
pub(super) fn join_cookies(headers: &mut HeaderMap) {
    let cookies: Vec<&[u8]> =
        headers.get_all(header::COOKIE).iter().map(|it| it.as_bytes()).collect();
    if cookies.len() < 2 {
        return;
    }
    if let Ok(joined) = HeaderValue::from_bytes(&cookies.join(&b"; "[..])) {
        headers.insert(header::COOKIE, joined);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(all: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        all.iter().map(pair).collect()
    }

    #[test]
    fn headers_of_a_connection_stay_behind() {
        let mut all = headers(&[
            ("connection", "close, x-private"),
            ("x-private", "1"),
            ("transfer-encoding", "chunked"),
            ("authorization", "Bearer x"),
        ]);
        strip(&mut all);
        assert_eq!(all, headers(&[("authorization", "Bearer x")]));
    }

    #[test]
    fn cookies_of_http2_are_joined() {
        let mut all = headers(&[("cookie", "a=1"), ("cookie", "b=2")]);
        join_cookies(&mut all);
        assert_eq!(all, headers(&[("cookie", "a=1; b=2")]));
    }
}
