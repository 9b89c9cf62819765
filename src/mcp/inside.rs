//! The way of a tool to the API of the same process.

use std::convert::Infallible;

use async_trait::async_trait;
use axum::{
    Router,
    body::{Body, Bytes, to_bytes},
    extract::Request as HttpRequest,
    http::{HeaderMap, HeaderName, HeaderValue, header, request::Parts},
    response::Response,
};
use futures::StreamExt as _;
use tokio::sync::watch;
use tower::ServiceExt as _;

use super::{
    answer::Broken,
    transport::{Pieces, Reply, Request, Transport},
};
use crate::door::Arrival;

/// The maximum size of an answer of the API to a tool.
const ANSWER: usize = 32 << 20;

/// The header of the span in which a request is sent.
pub(super) const TRACE: HeaderName = HeaderName::from_static("traceparent");

/// The API of this process, with the credential of one request.
pub(super) struct Inside {
    api: Router,
    moves: watch::Receiver<u64>,
    headers: HeaderMap,
    arrival: Arrival,
}

impl Inside {
    /// Takes the credential of a request, and the way on which it arrived.
    pub(super) fn new(api: Router, mut moves: watch::Receiver<u64>, of: &Parts) -> Self {
        // What has changed before this request is known to it.
        moves.mark_unchanged();
        let mut headers = HeaderMap::new();
        for name in [header::AUTHORIZATION, TRACE] {
            if let Some(value) = of.headers.get(&name) {
                headers.insert(name, value.clone());
            }
        }
        let arrival = of.extensions.get::<Arrival>().cloned().unwrap_or_default();
        Self { api, moves, headers, arrival: arrival.inside() }
    }

    async fn answer(&self, mut request: HttpRequest) -> Response {
        request.extensions_mut().insert(self.arrival.clone());
        let never = |error: Infallible| match error {};
        self.api.clone().oneshot(request).await.unwrap_or_else(never)
    }
}

#[async_trait]
impl Transport for Inside {
    async fn send(&self, request: Request) -> Result<Reply, Broken> {
        let Request { method, path, body, key, trace } = request;
        let mut asked = HttpRequest::builder().method(method).uri(path);
        if let Some(headers) = asked.headers_mut() {
            headers.extend(self.headers.clone());
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            // The span of the message is nearer to its cause than that of the request around it.
            if let Some(trace) = trace
                && let Ok(trace) = HeaderValue::try_from(trace.to_string())
            {
                headers.insert(TRACE, trace);
            }
            if let Some(key) = key {
                let key = HeaderValue::try_from(key).map_err(|_| {
                    Broken("an idempotency key has visible ASCII characters only".to_owned())
                })?;
                headers.insert("idempotency-key", key);
            }
        }
        let body = body.map_or_else(Body::empty, Body::from);
        let asked = asked.body(body).map_err(|error| Broken(error.to_string()))?;
        let (parts, body) = self.answer(asked).await.into_parts();
        let body: Bytes =
            to_bytes(body, ANSWER).await.map_err(|error| Broken(error.to_string()))?;
        let kind = parts.headers.get(header::CONTENT_TYPE);
        let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default().to_owned();
        Ok(Reply { status: parts.status.as_u16(), kind, body })
    }

    async fn stream(&self, path: &str) -> Result<Pieces, Broken> {
        let mut asked = HttpRequest::builder().uri(path);
        if let Some(headers) = asked.headers_mut() {
            headers.extend(self.headers.clone());
        }
        let asked = asked.body(Body::empty()).map_err(|error| Broken(error.to_string()))?;
        let answer = self.answer(asked).await;
        let status = answer.status();
        if !status.is_success() {
            return Err(Broken(format!("it refused with {status}")));
        }
        let pieces = answer.into_body().into_data_stream();
        Ok(pieces.map(|piece| piece.map_err(|error| Broken(error.to_string()))).boxed())
    }

    fn moves(&self) -> Option<watch::Receiver<u64>> {
        Some(self.moves.clone())
    }
}
