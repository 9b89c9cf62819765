//! The OpenAPI document, the page that displays it, and the documentation of every error.

use axum::{
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Redirect, Response},
};

use super::app::Api;

/// A page without external resources. A browser cannot send a token when it navigates, so the page
/// is also the body of the 401: it contains nothing about this host, asks for a token, keeps it in
/// the tab and fetches `/openapi.json` with it.
const PAGE: &str = include_str!("docs.html");

/// The answer to a program that asks for nothing in particular.
const ROOT: &str = "\
moonswarm: a host for durable swarms from Lua blueprints

  /ui            the dashboard, for a browser
  /docs          the API, for a browser
  /openapi.json  the API, for programs
  /healthz       whether the server runs

Every route but / and /healthz needs a header `Authorization: Bearer <token>`.
The first token is in admin.token of the data directory.
";

/// Says where to begin. A browser is sent to the dashboard.
#[utoipa::path(
    get, path = "/", operation_id = "root", tag = "host",
    responses(
        (status = 200, description = "A few lines of text.", body = String, content_type = "text/plain"),
        (status = 303, description = "To `/ui`, for a client that accepts HTML.", headers(("location" = String, description = "`/ui`"))),
    ),
)]
pub(super) async fn root(headers: HeaderMap) -> Response {
    let accepts = headers.get_all(header::ACCEPT).iter();
    let mut accepts = accepts.filter_map(|it| it.to_str().ok());
    match accepts.any(|it| it.contains("text/html")) {
        true => Redirect::to("/ui").into_response(),
        false => ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], ROOT).into_response(),
    }
}

/// This document.
#[utoipa::path(
    get, path = "/openapi.json", operation_id = "openapi", tag = "host",
    responses((status = 200, description = "OpenAPI 3.1.", body = Object)),
)]
pub(super) async fn openapi(State(api): State<Api>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], (api.openapi)()).into_response()
}

/// Shows the API to a person.
#[utoipa::path(
    get, path = "/docs", operation_id = "docs", tag = "host",
    responses((status = 200, description = "A page. It comes with 401 as well, to enter a token.", body = String, content_type = "text/html")),
)]
pub(super) async fn docs() -> Response {
    page(StatusCode::OK)
}

/// Returns the page with a status. Its script and its style carry a nonce that is generated for
/// this response; nothing else may run.
pub(super) fn page(status: StatusCode) -> Response {
    let nonce = uuid::Uuid::new_v4().simple().to_string();
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::try_from(policy).expect("it is ASCII")),
        (header::WWW_AUTHENTICATE, HeaderValue::from_static(r#"Bearer realm="moonswarm""#)),
    ];
    (status, headers, PAGE.replace("{{nonce}}", &nonce)).into_response()
}

/// The codes of every error, with what helps: where the `type` of a problem points.
#[utoipa::path(
    get, path = "/docs/errors", operation_id = "docs_errors", tag = "host",
    responses((status = 200, description = "Markdown.", body = String, content_type = "text/markdown")),
)]
pub(super) async fn errors() -> Response {
    let headers = [(header::CONTENT_TYPE, "text/markdown; charset=utf-8")];
    (headers, include_str!("../../docs/errors.md")).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_page_loads_nothing_from_elsewhere_and_runs_only_its_own_script() {
        let response = page(StatusCode::UNAUTHORIZED);
        let policy =
            response.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap().to_owned();
        let nonce = policy.split("'nonce-").nth(1).unwrap().split('\'').next().unwrap().to_owned();
        let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        let page = String::from_utf8(body.to_vec()).unwrap();
        assert_eq!(page.matches(&format!("nonce=\"{nonce}\"")).count(), 2);
        assert_eq!(page.matches("<script").count() + page.matches("<style").count(), 2);
        for elsewhere in ["http://", "https://", "src=", " style=", "onclick=", "innerHTML"] {
            assert!(!page.contains(elsewhere), "{elsewhere}");
        }
    }
}
