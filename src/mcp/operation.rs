//! A request of a client, from its arrival to its answer: counted, and a span of kind server if traces
//! are exported.
//!
//! Names are bounded: a method that this server does not know is [`OTHER`], and a tool or prompt is
//! named only if there is one of that name.

use std::sync::{Arc, OnceLock};

use axum::http::{HeaderMap, Version, request::Parts};
use rmcp::{
    ErrorData, RoleServer,
    model::{ProtocolVersion, RequestId, RequestMetaObject},
    service::RequestContext,
};

use super::{answer::cut, inside::TRACE, sessions::HEADER};
use crate::{
    clock::Stopwatch,
    engine::{Engine, ServerSpan},
    protocol::TraceParent,
};

/// The maximum length of an attribute, in bytes. An id or an address that a client chose may be long.
const LONGEST: usize = 512;
/// The outcome of a request that has its result.
const COMPLETED: &str = "completed";
/// The error of a tool that has failed, as the conventions name it.
const TOOL_ERROR: &str = "tool_error";
/// The error of a request whose client is gone, or has canceled it.
const CANCELED: &str = "canceled";

/// The tool or prompt of a request, once it is known that there is one.
#[derive(Debug, Clone, Default)]
pub(super) struct Target(Arc<OnceLock<String>>);

impl Target {
    /// Sets the name. Only the first one counts.
    pub(super) fn set(&self, name: &str) {
        let _ = self.0.set(name.to_owned());
    }

    fn get(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}

/// The facts of a request that name its operation.
pub(super) struct About<'a> {
    /// The method.
    pub(super) method: &'static str,
    /// The id.
    pub(super) id: &'a RequestId,
    /// The metadata.
    pub(super) meta: Option<&'a RequestMetaObject>,
    /// The revision of the protocol.
    pub(super) version: Option<ProtocolVersion>,
    /// The headers around it, and the version of HTTP.
    pub(super) http: Option<(&'a HeaderMap, Version)>,
}

impl<'a> About<'a> {
    /// Returns what the context of a request says.
    pub(super) fn of(context: &'a RequestContext<RoleServer>, method: &'static str) -> Self {
        let parts = context.extensions.get::<Parts>();
        Self {
            method,
            id: &context.id,
            meta: Some(&context.meta),
            version: context.protocol_version(),
            http: parts.map(|parts| (&parts.headers, parts.version)),
        }
    }

    fn header(&self, name: &str) -> Option<&'a str> {
        self.http?.0.get(name)?.to_str().ok()
    }
}

/// A request that is being handled. One that is dropped before its end was canceled.
pub(super) struct Operation<'a> {
    engine: &'a Engine,
    watch: Stopwatch,
    method: &'static str,
    target: Target,
    open: Option<Box<OpenSpan>>,
    has_ended: bool,
}

/// The span of a request that is being handled.
struct OpenSpan {
    span: TraceParent,
    parent: Option<TraceParent>,
    around: Option<TraceParent>,
    began_ms: u64,
    attributes: Vec<(&'static str, String)>,
}

impl<'a> Operation<'a> {
    /// Begins to handle a request.
    pub(super) fn begin(engine: &'a Engine, about: &About<'_>) -> Self {
        let named = about.meta.and_then(|meta| meta.get_traceparent()).and_then(TraceParent::parse);
        let around = about.header(TRACE.as_str()).and_then(TraceParent::parse);
        let parent = named.or(around);
        let open = engine.spans().begin(parent).map(|(span, began_ms)| {
            Box::new(OpenSpan {
                span,
                parent,
                around: around.filter(|around| Some(*around) != parent),
                began_ms,
                attributes: attributes(about),
            })
        });
        let (method, target) = (about.method, Target::default());
        Self { engine, watch: Stopwatch::start(), method, target, open, has_ended: false }
    }

    /// Returns the span in which the request is handled, if traces are exported.
    pub(super) fn span(&self) -> Option<TraceParent> {
        self.open.as_ref().map(|open| open.span)
    }

    /// Returns the place for the name of the tool or prompt.
    pub(super) fn target(&self) -> &Target {
        &self.target
    }

    /// Adds the address of a resource.
    pub(super) fn with_uri(mut self, uri: &str) -> Self {
        if let Some(open) = &mut self.open {
            open.attributes.push(("mcp.resource.uri", cut(uri, LONGEST).to_owned()));
        }
        self
    }

    /// Ends with the result of the method.
    pub(super) fn end<T>(self, result: Result<T, ErrorData>) -> Result<T, ErrorData> {
        match &result {
            Ok(_) => self.end_as(None, false),
            Err(error) => {
                let code = error.code.0.to_string();
                self.end_as(Some(&code), true);
            }
        }
        result
    }

    /// Ends with the result of a tool.
    pub(super) fn end_tool(self, is_error: bool) {
        self.end_as(is_error.then_some(TOOL_ERROR), false);
    }

    fn end_as(mut self, error: Option<&str>, is_code: bool) {
        self.close(error, is_code);
    }

    fn close(&mut self, error: Option<&str>, is_code: bool) {
        self.has_ended = true;
        let (method, took_us, target) = (self.method, self.watch.micros(), self.target.get());
        let outcome = error.unwrap_or(COMPLETED);
        self.engine.counts().mcp.answer(method, target.unwrap_or_default(), outcome, took_us);
        let Some(open) = self.open.take() else { return };
        let OpenSpan { span, parent, around, began_ms, mut attributes } = *open;
        if let Some(target) = target {
            let key =
                if method == "prompts/get" { "gen_ai.prompt.name" } else { "gen_ai.tool.name" };
            attributes.push((key, target.to_owned()));
        }
        if let Some(error) = error {
            attributes.push(("error.type", error.to_owned()));
            if is_code {
                attributes.push(("rpc.response.status_code", error.to_owned()));
            }
        }
        let name = target.map_or_else(|| method.to_owned(), |target| format!("{method} {target}"));
        let is_failed = error.is_some();
        let span =
            ServerSpan { span, parent, around, name, began_ms, took_us, attributes, is_failed };
        self.engine.spans().end(span);
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.close(Some(CANCELED), false);
        }
    }
}

fn attributes(about: &About<'_>) -> Vec<(&'static str, String)> {
    let mut attributes = vec![
        ("mcp.method.name", about.method.to_owned()),
        ("jsonrpc.request.id", cut(&about.id.to_string(), LONGEST).to_owned()),
    ];
    if about.method == "tools/call" {
        attributes.push(("gen_ai.operation.name", "execute_tool".to_owned()));
    }
    if let Some(version) = &about.version {
        attributes.push(("mcp.protocol.version", cut(version.as_str(), LONGEST).to_owned()));
    }
    if let Some(session) = about.header(HEADER) {
        attributes.push(("mcp.session.id", cut(session, LONGEST).to_owned()));
    }
    if let Some((_, version)) = about.http {
        attributes.push(("network.transport", "tcp".to_owned()));
        attributes.push(("network.protocol.name", "http".to_owned()));
        let version = if version == Version::HTTP_2 { "2" } else { "1.1" };
        attributes.push(("network.protocol.version", version.to_owned()));
    }
    attributes
}
