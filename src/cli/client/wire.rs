//! Requests as they are: whatever the answer is, it is the caller's to read.

use std::time::Duration;

use reqwest::{Method, Response};

use super::{ANSWER, Client};
use crate::mcp;

impl Client {
    /// Returns true if somebody answers at all within a time.
    pub async fn answers(&self, within: Duration) -> bool {
        let asked = self.request(Method::GET, "/healthz", &[]).map(|it| it.timeout(within));
        match asked {
            Ok(request) => request.send().await.is_ok(),
            Err(_) => false,
        }
    }

    /// Sends a request to a path with its query, and returns the answer, whatever it is.
    pub async fn raw(&self, request: mcp::Request) -> reqwest::Result<Response> {
        let mcp::Request { method, path, body, key, trace } = request;
        let method = Method::from_bytes(method.as_bytes()).unwrap_or(Method::GET);
        let mut request =
            self.http.request(method, self.wire(&path)).bearer_auth(&self.token).timeout(ANSWER);
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        if let Some(trace) = trace {
            request = request.header("traceparent", trace.to_string());
        }
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body);
        }
        request.send().await
    }

    /// Opens the stream of events at a path with its query, and returns the answer, whatever it is.
    pub async fn raw_events(&self, path: &str) -> reqwest::Result<Response> {
        let request = self.http.get(self.wire(path)).bearer_auth(&self.token);
        request.header("accept", "text/event-stream").send().await
    }

    fn wire(&self, path: &str) -> String {
        format!("{}{path}", self.wire.as_str().trim_end_matches('/'))
    }
}
