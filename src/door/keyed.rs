//! The routes that honour an `Idempotency-Key`: only their requests can be sent again.

use axum::http::{HeaderMap, Method};

/// The header of a key.
const HEADER: &str = "idempotency-key";

/// Routes by method and path, as in the table of the service behind the door.
#[derive(Debug, Clone, Default)]
pub struct KeyedRoutes(Vec<(Method, String)>);

impl KeyedRoutes {
    /// Creates the set from methods and paths. A segment in braces stands for any text.
    pub fn new(routes: impl IntoIterator<Item = (Method, String)>) -> Self {
        Self(routes.into_iter().collect())
    }

    /// Returns true if a request has a key, and its route honours it.
    pub(super) fn take(&self, method: &Method, path: &str, headers: &HeaderMap) -> bool {
        headers.contains_key(HEADER)
            && self.0.iter().any(|(of, route)| of == method && is_of(path, route))
    }
}

fn is_of(path: &str, route: &str) -> bool {
    let mut segments = path.split('/');
    let fits = |segment: &str| {
        let given = segments.next();
        match segment.starts_with('{') {
            true => given.is_some_and(|it| !it.is_empty()),
            false => given == Some(segment),
        }
    };
    route.split('/').all(fits) && segments.next().is_none()
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn a_request_is_keyed_if_its_route_honours_the_key_that_it_has() {
        let routes = KeyedRoutes::new([
            (Method::POST, "/v1/runs".to_owned()),
            (Method::POST, "/v1/runs/{run}/signals/{name}".to_owned()),
        ]);
        let mut headers = HeaderMap::new();
        assert!(!routes.take(&Method::POST, "/v1/runs", &headers));
        headers.insert(HEADER, HeaderValue::from_static("k"));
        for (method, path, is_keyed) in [
            (Method::POST, "/v1/runs", true),
            (Method::GET, "/v1/runs", false),
            (Method::POST, "/v1/runs/", false),
            (Method::POST, "/v1/runs/run_1/signals/go", true),
            (Method::POST, "/v1/runs/run_1/signals/", false),
            (Method::POST, "/v1/runs/run_1/signals/go/on", false),
            (Method::POST, "/v1/dispatch", false),
        ] {
            assert_eq!(routes.take(&method, path, &headers), is_keyed, "{method} {path}");
        }
    }
}
