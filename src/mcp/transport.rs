//! The way from a tool to the HTTP API.

use std::sync::Arc;

use async_trait::async_trait;
use axum::body::Bytes;
use futures::stream::BoxStream;
use serde_json::Value;
use tokio::sync::watch;

use super::answer::{Broken, Trouble};
use crate::{door::percent_encoded, protocol::TraceParent};

/// A request of a tool.
#[derive(Debug)]
pub struct Request {
    /// The method.
    pub method: &'static str,
    /// The path with its query.
    pub path: String,
    /// The body, which is JSON.
    pub body: Option<Vec<u8>>,
    /// The idempotency key.
    pub key: Option<String>,
    /// The span in which the client sends it.
    pub trace: Option<TraceParent>,
}

/// The answer of the API.
#[derive(Debug)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// The content type.
    pub kind: String,
    /// The body.
    pub body: Bytes,
}

/// The body of an answer, in pieces of any length as they come.
pub type Pieces = BoxStream<'static, Result<Bytes, Broken>>;

/// Sends requests to the API with the credential of one client.
#[async_trait]
pub trait Transport: Send + Sync {
    /// Sends a request and returns its answer, whatever its status is.
    async fn send(&self, request: Request) -> Result<Reply, Broken>;

    /// Opens the stream of events at a path with its query.
    ///
    /// # Errors
    /// Fails when the host does not answer, or refuses.
    async fn stream(&self, path: &str) -> Result<Pieces, Broken>;

    /// Returns the count of changes of blueprints, if it can be followed without asking for it.
    fn moves(&self) -> Option<watch::Receiver<u64>>;
}

/// A way to the API whose requests belong to a span of the client.
pub(super) struct Traced {
    way: Arc<dyn Transport>,
    trace: TraceParent,
}

impl Traced {
    /// Returns the way with the span that the client named; as it is, if it named none.
    pub(super) fn of(way: Arc<dyn Transport>, named: Option<&str>) -> Arc<dyn Transport> {
        match named.and_then(TraceParent::parse) {
            Some(trace) => Arc::new(Self { way, trace }),
            None => way,
        }
    }
}

#[async_trait]
impl Transport for Traced {
    async fn send(&self, request: Request) -> Result<Reply, Broken> {
        self.way.send(Request { trace: Some(self.trace), ..request }).await
    }

    async fn stream(&self, path: &str) -> Result<Pieces, Broken> {
        self.way.stream(path).await
    }

    fn moves(&self) -> Option<watch::Receiver<u64>> {
        self.way.moves()
    }
}

/// A path with a query, percent-encoded.
#[derive(Debug)]
pub(super) struct Path(String);

impl Path {
    pub(super) fn new(path: &str) -> Self {
        Self(path.to_owned())
    }

    /// Appends a segment.
    pub(super) fn at(mut self, segment: &str) -> Self {
        self.0.push('/');
        self.0.push_str(&percent_encoded(segment));
        self
    }

    /// Adds a parameter, if it has a value.
    pub(super) fn with(mut self, name: &str, value: Option<impl ToString>) -> Self {
        let Some(value) = value else { return self };
        self.0.push(if self.0.contains('?') { '&' } else { '?' });
        self.0.push_str(name);
        self.0.push('=');
        self.0.push_str(&percent_encoded(&value.to_string()));
        self
    }
}

impl dyn Transport + '_ {
    /// Sends a GET.
    pub(super) async fn get(&self, path: Path) -> Result<Value, Trouble> {
        json(self.ask("GET", path, None).await?)
    }

    /// Opens a stream of events.
    pub(super) async fn open(&self, path: Path) -> Result<Pieces, Broken> {
        self.stream(&path.0).await
    }

    /// Sends a POST.
    pub(super) async fn post(&self, path: Path, body: &Value) -> Result<Value, Trouble> {
        json(self.ask("POST", path, Some(body)).await?)
    }

    /// Sends a POST that has its effect once for each key.
    pub(super) async fn post_once(
        &self,
        path: Path,
        body: &Value,
        key: Option<String>,
    ) -> Result<Value, Trouble> {
        let body = Some(body.to_string().into_bytes());
        let request = Request { method: "POST", path: path.0, body, key, trace: None };
        json(success(self.send(request).await?)?)
    }

    /// Sends a PUT.
    pub(super) async fn put(&self, path: Path, body: &Value) -> Result<Value, Trouble> {
        json(self.ask("PUT", path, Some(body)).await?)
    }

    /// Sends a request and returns its answer, if its status is a success.
    pub(super) async fn ask(
        &self,
        method: &'static str,
        path: Path,
        body: Option<&Value>,
    ) -> Result<Reply, Trouble> {
        let body = body.map(|body| body.to_string().into_bytes());
        success(self.send(Request { method, path: path.0, body, key: None, trace: None }).await?)
    }
}

fn success(reply: Reply) -> Result<Reply, Trouble> {
    match reply.status {
        200..300 => Ok(reply),
        status => Err(Trouble::refused(status, &reply.body)),
    }
}

fn json(reply: Reply) -> Result<Value, Trouble> {
    if reply.body.is_empty() {
        return Ok(Value::Object(serde_json::Map::new()));
    }
    serde_json::from_slice(&reply.body)
        .map_err(|error| Trouble::Broken(Broken(format!("its answer is not JSON: {error}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_model_writes_stays_in_its_segment() {
        let path = Path::new("/v1/runs")
            .at("../tokens?x=1")
            .with("q", Some("a&b=é"))
            .with("none", None::<u32>);
        assert_eq!(path.0, "/v1/runs/..%2Ftokens%3Fx%3D1?q=a%26b%3D%C3%A9");
    }
}
