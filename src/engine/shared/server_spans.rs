//! Spans of requests, which are no part of the journal: handed to the export of traces as they end.
//!
//! They are kept in memory until they are exported, up to a limit. A span beyond the limit is dropped
//! and counted, so a collector that is away costs neither time nor memory.

use std::sync::OnceLock;

use tokio::sync::mpsc::{self, Receiver, Sender};

use crate::protocol::TraceParent;

/// The maximum number of spans that wait for their export.
const WAITING: usize = 4_096;

/// A request that this host has answered, as a span of kind server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerSpan {
    /// The span.
    pub span: TraceParent,
    /// The span of the client that sent the request.
    pub parent: Option<TraceParent>,
    /// The span of the transport, if the client named another one as the parent.
    pub around: Option<TraceParent>,
    /// The name.
    pub name: String,
    /// When the request came, in milliseconds since the Unix epoch.
    pub began_ms: u64,
    /// The time until its answer, in microseconds.
    pub took_us: u64,
    /// The attributes.
    pub attributes: Vec<(&'static str, String)>,
    /// True if the request failed.
    pub is_failed: bool,
}

/// The way of spans to their export.
#[derive(Debug, Default)]
pub(crate) struct ServerSpans(OnceLock<Sender<ServerSpan>>);

impl ServerSpans {
    /// Returns the receiver of all spans from now on; `None` if there is one already.
    pub(crate) fn receive(&self) -> Option<Receiver<ServerSpan>> {
        let (sender, receiver) = mpsc::channel(WAITING);
        self.0.set(sender).ok().map(|()| receiver)
    }

    /// Returns true if spans are exported.
    pub(crate) fn is_open(&self) -> bool {
        self.0.get().is_some_and(|sender| !sender.is_closed())
    }

    /// Hands over a span. Returns false if there is no room for it.
    pub(crate) fn send(&self, span: ServerSpan) -> bool {
        self.0.get().is_some_and(|sender| sender.try_send(span).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(number: u8) -> ServerSpan {
        ServerSpan {
            span: TraceParent::of_request([number; 16], None),
            parent: None,
            around: None,
            name: String::new(),
            began_ms: 0,
            took_us: 0,
            attributes: Vec::new(),
            is_failed: false,
        }
    }

    #[test]
    fn a_span_beyond_the_limit_is_refused_and_those_before_it_stay() {
        let spans = ServerSpans::default();
        assert!(!spans.is_open() && !spans.send(span(0)));
        let mut receiver = spans.receive().unwrap();
        assert!(spans.is_open() && spans.receive().is_none());
        let taken = (0..WAITING + 2).filter(|_| spans.send(span(1))).count();
        assert_eq!(taken, WAITING);
        assert_eq!(receiver.try_recv().unwrap(), span(1));
        assert!(spans.send(span(2)));
        drop(receiver);
        assert!(!spans.is_open());
    }
}
