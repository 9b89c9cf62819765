//! The conversion of errors to responses: the only place that assigns HTTP statuses.

use std::sync::Arc;

use axum::{
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    blueprint::Finding,
    engine::{Breach, Checked, EngineError, Exceeded, FailureView},
    protocol::Code,
    store::StoreError,
};

/// An error response: `application/problem+json`.
#[derive(Debug, Clone)]
pub(crate) struct Problem(Box<Inner>);

#[derive(Debug, Clone)]
struct Inner {
    code: Code,
    body: ProblemBody,
    headers: Vec<(HeaderName, HeaderValue)>,
}

/// The reason for the refusal of a request (RFC 9457).
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Problem)]
pub(crate) struct ProblemBody {
    /// The documentation of the code: `/docs/errors#code`.
    r#type: String,
    /// The title of the code, which is always the same.
    title: &'static str,
    /// The HTTP status.
    status: u16,
    /// A stable word.
    code: &'static str,
    /// The cause of this error, for a person.
    detail: String,
    /// The kind of the thing that was not found: `run`, `task`, `blueprint`, …
    #[serde(skip_serializing_if = "Option::is_none")]
    what: Option<&'static str>,
    /// The path in the body: `$.agents.coder`.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    /// Every breach of a schema.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    violations: Vec<Breach>,
    /// The findings of the blueprint.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<FindingBody>)]
    findings: Vec<Finding>,
    /// The error that the flow raised.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<FailureView>,
    /// Which quota is used up.
    #[serde(skip_serializing_if = "Option::is_none")]
    quota: Option<Exceeded>,
}

impl ProblemBody {
    /// Returns the HTTP status.
    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// Returns the code, as a word.
    pub(crate) fn code(&self) -> &'static str {
        self.code
    }

    /// Returns the title of the code.
    pub(crate) fn title(&self) -> &'static str {
        self.title
    }

    /// Returns the cause of this error.
    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    /// Returns every breach of a schema.
    pub(crate) fn violations(&self) -> &[Breach] {
        &self.violations
    }

    /// Returns the findings of the blueprint.
    pub(crate) fn findings(&self) -> &[Finding] {
        &self.findings
    }
}

/// One thing that is wrong with a blueprint.
#[derive(Debug, ToSchema)]
#[schema(as = Finding)]
#[expect(dead_code, reason = "the schema of `Finding` in the OpenAPI document")]
pub(crate) struct FindingBody {
    /// The file, relative to the bundle.
    file: String,
    /// The line, from 1.
    line: u32,
    /// The column, from 1, in characters.
    column: u32,
    /// A stable code: docs/errors.md explains each.
    code: String,
    /// `error`, `warning` or `note`.
    severity: String,
    /// The problem, in one line.
    message: String,
    /// The repair, in one line.
    hint: Option<String>,
}

impl Problem {
    /// Creates a problem with `code`. `detail` describes the occurrence.
    pub(crate) fn new(code: Code, detail: impl Into<String>) -> Self {
        let body = ProblemBody {
            r#type: format!("/docs/errors#{}", code),
            title: code.title(),
            status: code.status(),
            code: code.as_str(),
            detail: detail.into(),
            what: None,
            path: None,
            violations: Vec::new(),
            findings: Vec::new(),
            failure: None,
            quota: None,
        };
        Self(Box::new(Inner { code, body, headers: Vec::new() }))
    }

    /// Sets the path in the body.
    pub(crate) fn at(mut self, path: impl Into<String>) -> Self {
        self.0.body.path = Some(path.into());
        self
    }

    /// Puts the path, if there is one, below the field of a body.
    pub(crate) fn within(mut self, field: &str) -> Self {
        if let Some(path) = &mut self.0.body.path {
            path.replace_range(.."$".len(), &format!("$.{field}"));
        }
        self
    }

    /// Sets the `Retry-After` header, at least 1 second.
    pub(crate) fn retry_after(self, seconds: u64) -> Self {
        self.header(header::RETRY_AFTER, HeaderValue::from(seconds.max(1)))
    }

    /// Adds a header.
    pub(crate) fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.0.headers.push((name, value));
        self
    }

    /// Creates a problem for a request without a valid bearer.
    pub(crate) fn unauthenticated(code: Code, detail: impl Into<String>) -> Self {
        let challenge = HeaderValue::from_static(r#"Bearer realm="moonswarm""#);
        Self::new(code, detail).header(header::WWW_AUTHENTICATE, challenge)
    }

    /// Creates a problem from the findings that keep a blueprint from running.
    pub(crate) fn findings(findings: Vec<Finding>) -> Self {
        let detail = match findings.as_slice() {
            [only] => format!("{}:{}:{}: {}", only.file, only.line, only.column, only.message),
            many => format!("there are {} findings", many.len()),
        };
        let mut problem = Self::new(Code::BlueprintInvalid, detail);
        problem.0.body.findings = findings;
        problem
    }

    /// Returns the HTTP status.
    pub(crate) fn status(&self) -> StatusCode {
        status_of(self.0.code)
    }

    /// Returns the body.
    pub(crate) fn body(&self) -> &ProblemBody {
        &self.0.body
    }

    /// Returns the code.
    pub(crate) fn code(&self) -> Code {
        self.0.code
    }

    /// Returns the path in the body.
    #[cfg(test)]
    pub(crate) fn path(&self) -> Option<&str> {
        self.0.body.path.as_deref()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let Inner { code, body, headers } = *self.0;
        let text = serde_json::to_vec(&body).expect("a problem is plain data");
        let kind = HeaderValue::from_static("application/problem+json");
        let mut response = (status_of(code), [(header::CONTENT_TYPE, kind)], text).into_response();
        response.headers_mut().extend(headers);
        // Used by the door for routes whose clients expect another shape.
        response.extensions_mut().insert(Arc::new(body));
        response
    }
}

impl From<EngineError> for Problem {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::NotFound { what, id } => {
                let mut problem = Self::new(Code::NotFound, format!("there is no {what} {id}"));
                problem.0.body.what = Some(what);
                problem
            }
            EngineError::Findings(findings) => Self::findings(findings),
            EngineError::Invalid { what, violations } => invalid(what, violations),
            EngineError::BadRequest(detail) => Self::new(Code::BadRequest, detail),
            EngineError::Refused(refusal) => Self::new(refusal.code(), refusal.to_string()),
            EngineError::Unauthenticated(detail) => {
                Self::unauthenticated(Code::Unauthenticated, detail)
            }
            EngineError::Conflict { code, message } => Self::new(code, message),
            EngineError::Busy { code, message, retry_after_s } => {
                Self::new(code, message).retry_after(retry_after_s)
            }
            EngineError::Quota(exceeded) => {
                let mut problem = Self::new(Code::QuotaExceeded, exceeded.to_string());
                if let Some(after) = exceeded.retry_after_s {
                    problem = problem.retry_after(after);
                }
                problem.0.body.quota = Some(*exceeded);
                problem
            }
            EngineError::TooLarge { what, size, limit } => {
                let detail = format!("{what} has {size} bytes; at most {limit} are allowed");
                Self::new(Code::TooLarge, detail)
            }
            EngineError::Guarded(failure) => Self::new(Code::Forbidden, failure.message),
            EngineError::Flow(failure) => {
                let mut problem = Self::new(Code::FlowFailed, failure.to_string());
                problem.0.body.failure = Some(failure.into());
                problem
            }
            EngineError::Store(error) => storage(&error),
            EngineError::Thread { .. } => {
                Self::new(Code::Internal, "a thread could not be started")
            }
            EngineError::Keys(reason) => {
                tracing::error!(%reason, "failed to keep the keys");
                Self::new(Code::Storage, "the keys could not be written; the log says why")
            }
            EngineError::Stopping => {
                Self::new(Code::Stopping, "the host is stopping; another start takes over")
                    .retry_after(1)
            }
        }
    }
}

fn status_of(code: Code) -> StatusCode {
    StatusCode::from_u16(code.status()).expect("the statuses of the codes are statuses")
}

fn invalid(what: Checked, violations: Vec<Breach>) -> Problem {
    let detail = match violations.first() {
        Some(first) => {
            format!("{what} does not match its schema at {}: {}", first.path, first.message)
        }
        None => format!("{what} does not match its schema"),
    };
    let mut problem = Problem::new(what.code(), detail);
    problem.0.body.path = violations.first().map(|first| first.path.clone());
    problem.0.body.violations = violations;
    problem
}

/// Converts a store error. The store's message goes only to the log, because it may contain file
/// names and statements.
fn storage(error: &StoreError) -> Problem {
    match error {
        StoreError::Revoked { .. } => Problem::unauthenticated(
            Code::TokenRevoked,
            "the token was revoked before this could be stored",
        ),
        StoreError::KeyUsed { .. } => Problem::new(
            Code::IdempotencyMismatch,
            "this Idempotency-Key came before with another request",
        ),
        StoreError::Revision { key, expected, found } => Problem::new(
            Code::RevisionMismatch,
            format!("{key:?} has revision {found}, not {expected}; read it and try again"),
        ),
        StoreError::StateRefused { key, reason } => {
            Problem::new(Code::StateRefused, format!("{key:?}: {reason}"))
        }
        StoreError::Full => {
            Problem::new(Code::StorageFull, "nothing was changed; free some space and ask again")
                .retry_after(1)
        }
        StoreError::Locked => {
            let detail = "nothing was changed; end what has the database open and ask again";
            Problem::new(Code::StorageLocked, detail).retry_after(1)
        }
        StoreError::Busy => {
            let detail = "all connections to the database are in use; ask again";
            Problem::new(Code::StorageAway, detail).retry_after(1)
        }
        StoreError::Away { context, reason } => {
            tracing::warn!(context, reason, "the database is away under a request");
            let detail = "the database cannot be reached at the moment; look at the state before a \
                          request that changes something is repeated";
            Problem::new(Code::StorageAway, detail).retry_after(2)
        }
        StoreError::Unfit { reason, .. } => Problem::new(Code::Conflict, reason.clone()),
        StoreError::Fenced => {
            let detail = "another host has taken the database over; ask that one";
            Problem::new(Code::StorageAway, detail).retry_after(5)
        }
        StoreError::Damaged { what, reason } => {
            tracing::error!(what, reason, "a damaged row under a request");
            Problem::new(Code::Damaged, format!("failed to read {what}"))
        }
        other => {
            tracing::error!(error = %other, "the storage failed under a request");
            Problem::new(Code::Storage, "nothing is known to have changed; the log says more")
        }
    }
}

/// The shape of a route's errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// A problem (RFC 9457).
    Problem,
    /// The shape for clients of the Responses API and of chat completions.
    Models,
    /// The shape for clients of the Messages API.
    Messages,
}

/// The error of a request of a client of model APIs.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ModelError)]
pub(crate) struct ModelErrorBody<'a> {
    /// The refusal.
    error: ModelRefusal<'a>,
}

/// A refusal, as clients of model APIs read it.
#[derive(Debug, Serialize, ToSchema)]
struct ModelRefusal<'a> {
    /// The cause of this error, for a person.
    message: &'a str,
    /// `invalid_request_error`, `not_found_error`, `server_error`, …
    r#type: &'static str,
    /// The parameter: `input[2].call_id`.
    param: Option<&'a str>,
    /// A stable word; docs/errors.md has them.
    code: &'static str,
}

impl ProblemBody {
    /// Returns the status for clients of model APIs, which expect 400 for every invalid body.
    pub(crate) fn model_status(&self) -> u16 {
        if self.status == 422 { 400 } else { self.status }
    }

    /// Returns the body for clients of model APIs: `{error: {message, type, param, code}}`.
    pub(crate) fn model_error(&self) -> ModelErrorBody<'_> {
        let kind = match self.status {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        };
        let param = self.path.as_deref().map(|path| path.trim_start_matches(['$', '.']));
        let error = ModelRefusal {
            message: &self.detail,
            r#type: kind,
            param: param.filter(|it| !it.is_empty()),
            code: self.code,
        };
        ModelErrorBody { error }
    }
}

/// The error of a request of a client of the Messages API.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = MessageError)]
pub(crate) struct MessageErrorBody<'a> {
    /// `error`.
    r#type: &'static str,
    /// The refusal.
    error: MessageRefusal<'a>,
}

/// A refusal, as clients of the Messages API read it.
#[derive(Debug, Serialize, ToSchema)]
struct MessageRefusal<'a> {
    /// `invalid_request_error`, `not_found_error`, `api_error`, …
    r#type: &'static str,
    /// The cause of this error, for a person.
    message: &'a str,
    /// A stable word; docs/errors.md has them.
    code: &'static str,
}

impl ProblemBody {
    /// Returns the body for clients of the Messages API: `{type: "error", error: {type, message}}`.
    fn message_error(&self) -> MessageErrorBody<'_> {
        let kind = match self.status {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            500.. => "api_error",
            _ => "invalid_request_error",
        };
        let error = MessageRefusal { r#type: kind, message: &self.detail, code: self.code };
        MessageErrorBody { r#type: "error", error }
    }
}

/// Returns the code of a refusal, whoever refused; none for other responses.
pub(crate) fn code_of(response: &Response) -> Option<&'static str> {
    response.extensions().get::<Arc<ProblemBody>>().map(|body| body.code)
}

/// Converts a response for clients of model APIs: a problem becomes `{"error": …}`.
pub(crate) fn for_models(response: Response, shape: Shape) -> Response {
    let Some(body) = response.extensions().get::<Arc<ProblemBody>>().cloned() else {
        return response;
    };
    let (mut parts, _) = response.into_parts();
    parts.status = StatusCode::from_u16(body.model_status()).unwrap_or(parts.status);
    parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    parts.headers.remove(header::CONTENT_LENGTH);
    let text = match shape {
        Shape::Messages => serde_json::to_string(&body.message_error()),
        Shape::Models | Shape::Problem => serde_json::to_string(&body.model_error()),
    };
    let text = text.expect("a refusal is plain data");
    Response::from_parts(parts, text.into())
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fmt::Write as _};

    use serde_json::Value;

    use super::*;

    async fn shown(problem: Problem) -> (StatusCode, axum::http::HeaderMap, serde_json::Value) {
        let response = problem.into_response();
        let (parts, body) = response.into_parts();
        let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        (parts.status, parts.headers, serde_json::from_slice(&bytes).unwrap())
    }

    #[tokio::test]
    async fn a_breach_of_a_schema_names_every_place() {
        let violations =
            vec![Breach { path: "$.ok".to_owned(), message: "is not a boolean".to_owned() }];
        let error = EngineError::Invalid { what: Checked::Result, violations };
        let (status, headers, body) = shown(error.into()).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
        assert_eq!(headers[header::CONTENT_TYPE], "application/problem+json");
        assert_eq!(
            body,
            serde_json::json!({
                "type": "/docs/errors#invalid_result", "title": "Result does not match its schema",
                "status": 422, "code": "invalid_result",
                "detail": "the result does not match its schema at $.ok: is not a boolean", "path": "$.ok",
                "violations": [{"path": "$.ok", "message": "is not a boolean"}],
            })
        );
    }

    #[tokio::test]
    async fn what_the_storage_says_is_not_shown() {
        let error = StoreError::Database { context: "append".into(), reason: "secret.db".into() };
        let (status, _, body) = shown(EngineError::Store(error).into()).await;
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
        assert!(!body.to_string().contains("secret.db"));
    }

    #[tokio::test]
    async fn a_revoked_token_and_a_missing_one_are_challenged() {
        let revoked = EngineError::Store(StoreError::Revoked { jti: "j".to_owned() });
        for error in [revoked, EngineError::Unauthenticated("no".to_owned())] {
            let (status, headers, _) = shown(error.into()).await;
            assert_eq!(status, StatusCode::UNAUTHORIZED);
            assert!(headers.contains_key(header::WWW_AUTHENTICATE));
        }
    }

    #[tokio::test]
    async fn busy_says_when_to_come_back() {
        let error = EngineError::Busy {
            code: Code::SignalQueueFull,
            message: "1,000 signals wait".to_owned(),
            retry_after_s: 3,
        };
        let (status, headers, body) = shown(error.into()).await;
        assert_eq!(
            (status, &body["code"]),
            (StatusCode::TOO_MANY_REQUESTS, &"signal_queue_full".into())
        );
        assert_eq!(headers[header::RETRY_AFTER], "3");
    }

    /// The page with the headings of [`Code::ALL`], in its order, and the table of findings; the
    /// help of a code is taken from the page as it is.
    fn page(docs: &str) -> String {
        let (api, _) = docs.split_once("\n## Findings").unwrap_or((docs, ""));
        let mut sections = api.split("\n### ");
        let mut page = sections.next().unwrap().trim_end().to_owned();
        let mut helps: BTreeMap<&str, &str> =
            sections.map(|it| it.split_once('\n').expect("a section has lines")).collect();
        for code in Code::ALL.iter().copied() {
            let help = helps.remove(code.as_str()).unwrap_or_else(|| panic!("no {code}"));
            let (_, help) = help.trim().split_once("\n\n").expect("a title, and what helps");
            let (status, title) = (code.status(), code.title());
            write!(page, "\n\n### {code}\n\n{status} {title}.\n\n{help}").unwrap();
        }
        assert!(helps.is_empty(), "these codes do not exist: {helps:?}");
        page.push_str("\n\n## Findings of `moonswarm check`\n\n");
        page.push_str("[findings.md](findings.md) has a wrong and a right example of each.\n\n");
        page.push_str("| code | meaning |\n|---|---|\n");
        for (code, meaning) in crate::blueprint::code::ALL {
            writeln!(page, "| {code} | {meaning} |").unwrap();
        }
        page
    }

    #[test]
    fn the_page_of_errors_is_made_from_the_tables() {
        let docs = include_str!("../../docs/errors.md");
        let page = page(docs);
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/errors.md");
            return std::fs::write(path, page).unwrap();
        }
        assert!(docs == page, "docs/errors.md differs; UPDATE_GOLDEN=1 writes it");
    }

    #[test]
    fn the_example_of_a_problem_is_one() {
        let docs = include_str!("../../docs/errors.md");
        let (_, json) = docs.split_once("```json\n").unwrap();
        let problem: Value = serde_json::from_str(json.split_once("```").unwrap().0).unwrap();
        let code = Code::InvalidResult;
        assert_eq!(problem["code"], code.as_str());
        assert_eq!(problem["type"], format!("/docs/errors#{code}"));
        assert_eq!(problem["title"], code.title());
        assert_eq!(problem["status"], code.status());
    }
}
