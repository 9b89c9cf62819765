//! Sends the messages of one signal to its collector, again and again if it is away.

use std::{sync::Arc, time::Duration};

use prost::{Message as _, bytes::Bytes};
use tokio::time::sleep;

use super::{
    message::{ResourceSpans, ScopeSpans, Span, Traces, resource, scope},
    send::{Sender, Trouble},
    settings::Settings,
};
use crate::engine::Engine;

/// The maximum number of spans of a message.
const SPANS: usize = 512;
/// The maximum size of a message, unless a single span is larger, in bytes.
const BYTES: usize = 2 << 20;
/// The first pause after a failed export, and the longest.
const PAUSE: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(60);
/// The time for the last export when the host stops.
pub(super) const LAST: Duration = Duration::from_secs(2);

/// The export of one signal.
#[derive(Clone)]
pub(super) struct Exporter {
    pub(super) engine: Engine,
    pub(super) settings: Arc<Settings>,
    pub(super) signal: &'static str,
    pub(super) sender: Sender,
}

/// The fate of a message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// The collector took the message, or refused it for good.
    Done,
    /// The collector is away, and repeating makes no sense any more.
    GivenUp,
}

impl Exporter {
    /// Sends spans in one message, as [`Exporter::send`] does.
    pub(super) async fn send_spans(&self, spans: Vec<Span>, gives_up: impl Fn() -> bool) -> Fate {
        let items = spans.len() as u64;
        let scope_spans = vec![ScopeSpans { scope: Some(scope()), spans }];
        let resource = Some(resource(&self.settings.resource));
        let message = Traces { resource_spans: vec![ResourceSpans { resource, scope_spans }] };
        self.send(message.encode_to_vec().into(), items, gives_up).await
    }

    /// Sends a message until it is taken, or refused for good, or `gives_up` after a failure.
    pub(super) async fn send(&self, body: Bytes, items: u64, gives_up: impl Fn() -> bool) -> Fate {
        let mut pause = Pause::new();
        let mut told = false;
        loop {
            let error = match self.sender.send(body.clone()).await {
                Ok(refused) => {
                    let lost = refused.items.min(items);
                    if lost > 0 {
                        let (signal, reason) = (self.signal, refused.reason);
                        tracing::warn!(signal, reason, lost, "the collector refused a part");
                        self.count("refused", lost);
                    }
                    self.count("exported", items - lost);
                    return Fate::Done;
                }
                Err(error) => error,
            };
            let after = match &error {
                Trouble::Never { .. } => {
                    tracing::error!(%error, signal = self.signal, items, "the collector refused an export");
                    self.count("refused", items);
                    return Fate::Done;
                }
                Trouble::Later { after, .. } => *after,
            };
            self.engine.counts().export_failures.of([self.signal]).inc();
            // Once for an outage, not for each request.
            if !std::mem::replace(&mut told, true) {
                tracing::warn!(%error, signal = self.signal, "an export failed");
            }
            if gives_up() {
                return Fate::GivenUp;
            }
            pause.wait_for(after).await;
        }
    }

    pub(super) fn count(&self, outcome: &str, items: u64) {
        self.engine.counts().exports.of([self.signal, outcome]).add(items);
    }
}

/// The pause before the next try, which doubles with each.
pub(super) struct Pause(Duration);

impl Pause {
    pub(super) fn new() -> Self {
        Self(PAUSE)
    }

    pub(super) async fn wait(&mut self) {
        self.wait_for(None).await;
    }

    /// Waits for the pause, or for the time that the other side asks for, if that is longer.
    async fn wait_for(&mut self, asked: Option<Duration>) {
        sleep(self.next(asked)).await;
    }

    /// Returns the time to wait now, and doubles the pause.
    fn next(&mut self, asked: Option<Duration>) -> Duration {
        let own = self.0;
        self.0 = (own * 2).min(LONGEST);
        asked.unwrap_or_default().max(own)
    }
}

/// Splits spans into messages of a bounded size.
pub(super) fn parts(spans: Vec<Span>) -> Vec<Vec<Span>> {
    let mut parts: Vec<Vec<Span>> = Vec::new();
    let mut bytes = 0;
    for span in spans {
        let size = span.encoded_len();
        match parts.last_mut() {
            Some(part) if part.len() < SPANS && bytes + size <= BYTES => {
                bytes += size;
                part.push(span);
            }
            _ => {
                bytes = size;
                parts.push(vec![span]);
            }
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_grows_to_a_minute_and_a_collector_can_only_make_it_longer() {
        let mut pause = Pause::new();
        let seconds = Duration::from_secs_f64;
        assert_eq!(pause.next(Some(Duration::ZERO)), seconds(0.5));
        assert_eq!(pause.next(Some(seconds(0.7))), seconds(1.0));
        assert_eq!(pause.next(Some(seconds(30.0))), seconds(30.0));
        assert_eq!(pause.next(None), seconds(4.0));
        for _ in 0..10 {
            pause.next(Some(Duration::ZERO));
        }
        assert_eq!(pause.next(Some(Duration::ZERO)), LONGEST);
    }

    #[test]
    fn a_message_is_bounded_in_spans_and_in_bytes() {
        let small = |_| Span { name: "s".to_owned(), ..Span::default() };
        let sizes: Vec<_> = parts((0..1_100).map(small).collect()).iter().map(Vec::len).collect();
        assert_eq!(sizes, [512, 512, 76]);
        let large = |_| Span { name: "l".repeat(900 << 10), ..Span::default() };
        let sizes: Vec<_> = parts((0..5).map(large).collect()).iter().map(Vec::len).collect();
        assert_eq!(sizes, [2, 2, 1]);
    }
}
