//! Exports the spans of requests. They are in memory only: a kill of the process loses those that were
//! not sent, and an outage of the collector those for which there is no room.

use tokio::{
    sync::mpsc::{Receiver, error::TryRecvError},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    exporter::{Exporter, Fate, LAST, parts},
    message::{self, Link, Span, SpanKind, Status, StatusCode},
};
use crate::{engine::ServerSpan, protocol::TraceParent};

/// The maximum number of spans that are taken at once.
const TAKEN: usize = 2_048;

/// The export of spans of requests.
pub(super) struct Requests {
    exporter: Exporter,
    ended: Receiver<ServerSpan>,
    /// The spans that are being sent.
    taken: Vec<Span>,
}

impl Requests {
    /// Begins to take the spans of the requests that end; `None` if another export takes them.
    pub(super) fn begin(exporter: Exporter) -> Option<Self> {
        let ended = exporter.engine.spans().receive()?;
        Some(Self { exporter, ended, taken: Vec::new() })
    }

    /// Exports spans until the host stops.
    pub(super) async fn serve(mut self, stopping: CancellationToken) {
        tokio::select! {
            () = stopping.cancelled() => {}
            () = self.follow() => return,
        }
        // The last requests end while the host stops; whoever is late is not waited for.
        let _ = timeout(LAST, self.finish()).await;
    }

    async fn follow(&mut self) {
        while let Some(first) = self.ended.recv().await {
            self.taken.push(shown(first));
            sleep(self.exporter.settings.delay).await;
            self.take();
            self.export(false).await;
        }
    }

    /// Sends what has ended, until a request fails.
    async fn finish(&mut self) {
        self.take();
        while !self.taken.is_empty() && self.export(true).await == Fate::Done {
            self.take();
        }
    }

    /// Takes what has ended.
    fn take(&mut self) {
        while self.taken.len() < TAKEN {
            match self.ended.try_recv() {
                Ok(span) => self.taken.push(shown(span)),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return,
            }
        }
    }

    /// Sends what was taken; with `once`, until a request fails.
    async fn export(&mut self, once: bool) -> Fate {
        for part in parts(self.taken.clone()) {
            let items = part.len();
            if self.exporter.send_spans(part, || once).await == Fate::GivenUp {
                self.exporter.count("dropped", self.taken.len() as u64);
                return Fate::GivenUp;
            }
            self.taken.drain(..items);
        }
        Fate::Done
    }
}

/// Returns a span as it is sent.
fn shown(ended: ServerSpan) -> Span {
    let ServerSpan { span, parent, around, began_ms, took_us, is_failed, .. } = ended;
    let start = began_ms.saturating_mul(1_000_000);
    let link = |to: TraceParent| Link {
        trace_id: to.trace.to_vec(),
        span_id: to.span.to_vec(),
        attributes: Vec::new(),
    };
    let failed = || Status { message: String::new(), code: StatusCode::Error.into() };
    Span {
        trace_id: span.trace.to_vec(),
        span_id: span.span.to_vec(),
        parent_span_id: parent.map(|it| it.span.to_vec()).unwrap_or_default(),
        name: ended.name,
        kind: SpanKind::Server.into(),
        start_time_unix_nano: start,
        end_time_unix_nano: start.saturating_add(took_us.saturating_mul(1_000)),
        attributes: ended
            .attributes
            .into_iter()
            .map(|(key, value)| message::text(key, value))
            .collect(),
        links: around.into_iter().map(link).collect(),
        status: is_failed.then(failed),
        flags: u32::from(span.sampled),
        ..Span::default()
    }
}
