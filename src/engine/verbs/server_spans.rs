//! The spans of requests that this host answers.

use tokio::sync::mpsc::Receiver;

use crate::{
    engine::{shared::server_spans::ServerSpan, verbs::engine::SpanVerbs},
    protocol::TraceParent,
};

impl SpanVerbs<'_> {
    /// Returns the spans of requests that end from now on, for their export; `None` for a later call.
    pub fn receive(&self) -> Option<Receiver<ServerSpan>> {
        self.engine.shared().server_spans.receive()
    }

    /// Returns the span of a request that begins, within that of its client, and the time in
    /// milliseconds since the Unix epoch; `None` if no traces are exported.
    pub fn begin(&self, parent: Option<TraceParent>) -> Option<(TraceParent, u64)> {
        let shared = self.engine.shared();
        let sampling = *shared.traced.get()?;
        if !shared.server_spans.is_open() {
            return None;
        }
        let request = *uuid::Uuid::new_v4().as_bytes();
        let span = sampling.of(TraceParent::of_request(request, parent), parent);
        Some((span, shared.clock.now_ms()))
    }

    /// Exports the span of a request that has ended, if its trace is recorded.
    pub fn end(&self, span: ServerSpan) {
        let shared = self.engine.shared();
        if span.span.sampled && !shared.server_spans.send(span) {
            shared.counts.exports.of(["traces", "dropped"]).inc();
        }
    }
}
