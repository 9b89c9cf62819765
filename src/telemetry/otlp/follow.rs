//! Follows the journal and exports the spans that end; exports the metrics at intervals.

use std::{future::Future, sync::Arc, time::Duration};

use prost::{Message as _, bytes::Bytes};
use tokio::time::{sleep, timeout};

use super::{
    known::{Ended, Known},
    message::{ResourceSpans, ScopeSpans, Span, Traces, resource, scope},
    metrics,
    open_step::Style,
    send::{Sender, Trouble},
    settings::{Endpoint, Settings},
};
use crate::{
    engine::{Engine, EngineError, JournalFeed},
    tasks::Tasks,
};

/// The key under which the place in the journal is kept.
const PLACE: &str = "otlp.traces";
/// The maximum number of spans of a message.
const SPANS: usize = 512;
/// The maximum size of a message, unless a single span is larger, in bytes.
const BYTES: usize = 2 << 20;
/// The number of pages after which the place is kept.
const PAGES: usize = 16;
/// The first pause after a failed export, and the longest.
const PAUSE: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(60);
/// The time for the last export when the host stops.
const LAST: Duration = Duration::from_secs(2);

/// Starts the export.
pub fn start(engine: &Engine, tasks: &Tasks, settings: Settings) {
    let settings = Arc::new(settings);
    let exporter = |signal, endpoint: &Option<Endpoint>| {
        let sender = Sender::new(endpoint.as_ref()?);
        let sender = sender.inspect_err(|error| {
            tracing::error!(%error, signal, "nothing is exported: the client could not be made");
        });
        let (engine, settings) = (engine.clone(), Arc::clone(&settings));
        Some(Exporter { engine, settings, signal, sender: sender.ok()? })
    };
    if let Some(exporter) = exporter("metrics", &settings.metrics) {
        let stopping = tasks.stopping().clone();
        tasks.spawn(async move {
            tokio::select! {
                () = stopping.cancelled() => {}
                () = exporter.metrics() => return,
            }
            // What was counted since the last reading; late is never.
            let _ = timeout(LAST, exporter.reading()).await;
        });
    }
    if let Some(exporter) = exporter("traces", &settings.traces) {
        engine.set_traced(settings.sampling);
        let stopping = tasks.stopping().clone();
        tasks.spawn(async move {
            let begun = tokio::select! {
                () = stopping.cancelled() => return,
                begun = exporter.begin() => begun,
            };
            let Some(mut follower) = begun else { return };
            tokio::select! {
                () = stopping.cancelled() => {}
                () = follower.follow() => return,
            }
            // What is not exported in time is exported by the next process.
            let _ = timeout(LAST, follower.finish()).await;
        });
    }
}

/// The export of one signal.
struct Exporter {
    engine: Engine,
    settings: Arc<Settings>,
    signal: &'static str,
    sender: Sender,
}

/// The export of traces.
struct Follower {
    exporter: Exporter,
    style: Arc<Style>,
    feed: JournalFeed,
    /// The place up to which everything is exported, as it is stored.
    kept: u64,
    known: Known,
}

/// The fate of a message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// The collector took the message, or refused it for good.
    Done,
    /// The collector is away, and repeating makes no sense any more.
    GivenUp,
}

impl Exporter {
    async fn metrics(&self) {
        loop {
            sleep(self.settings.interval).await;
            if self.reading().await == Some(EngineEnd) {
                return;
            }
        }
    }

    /// Exports a reading of the metrics once: the next one has everything that this one has.
    async fn reading(&self) -> Option<EngineEnd> {
        match self.engine.upkeep().reading().await {
            Ok(scrape) => {
                let message = metrics::message(&scrape, &self.settings.resource);
                let fate = self.send(message.encode_to_vec().into(), 1, || true).await;
                if fate == Fate::GivenUp {
                    self.count("dropped", 1);
                }
                None
            }
            Err(EngineError::Stopping) => Some(EngineEnd),
            Err(error) => {
                tracing::warn!(%error, "could not read the metrics for their export");
                None
            }
        }
    }

    /// Returns the follower at the place where the last process stopped; `None` if the host stops.
    async fn begin(self) -> Option<Follower> {
        let feed = retry("find where the export of traces stopped", async || {
            let feed = self.engine.journal_feed(PLACE).await?;
            // From now on a kill loses nothing.
            self.engine.keep_place(PLACE, feed.place()).await?;
            Ok(feed)
        });
        let feed = feed.await?;
        let Settings { latest_only, contents, .. } = *self.settings;
        let style = Style { latest_only, contents, operators: self.engine.operator_facts() };
        let (kept, known) = (feed.place(), Known::new());
        Some(Follower { exporter: self, style: Arc::new(style), feed, kept, known })
    }

    /// Sends a message until it is taken, or refused for good, or `gives_up` after a failure.
    async fn send(&self, body: Bytes, items: u64, gives_up: impl Fn() -> bool) -> Fate {
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

    fn count(&self, outcome: &str, items: u64) {
        self.engine.counts().exports.of([self.signal, outcome]).add(items);
    }
}

/// The engine has stopped.
#[derive(PartialEq, Eq)]
struct EngineEnd;

impl Follower {
    async fn follow(&mut self) {
        let mut pause = Pause::new();
        loop {
            self.feed.ready().await;
            sleep(self.exporter.settings.delay).await;
            match self.catch_up(false).await {
                Ok(()) => pause = Pause::new(),
                Err(EngineError::Stopping) => return,
                Err(error) => {
                    tracing::warn!(%error, "could not follow the journal for the export of traces");
                    self.rewind();
                    pause.wait().await;
                }
            }
        }
    }

    /// Exports once what is settled when the host stops.
    async fn finish(&mut self) {
        self.rewind();
        if let Err(error) = self.catch_up(true).await {
            tracing::debug!(%error, "the last spans are exported by the next process");
        }
    }

    /// Goes back to the place up to which everything is exported.
    fn rewind(&mut self) {
        self.feed.rewind(self.kept);
        self.known = Known::new();
    }

    /// Exports the pages up to the last settled row; with `once`, until a request fails.
    async fn catch_up(&mut self, once: bool) -> Result<(), EngineError> {
        let mut pages = 0;
        loop {
            self.stay_near();
            let (rows, is_last) = self.feed.page().await?;
            let mut ended = Ended::default();
            for row in &rows {
                let (engine, sampling) = (&self.exporter.engine, self.exporter.settings.sampling);
                self.known.take((engine, row), (&self.style, sampling), &mut ended).await?;
            }
            self.exporter.engine.counts().export_left_out.add(ended.left_out);
            for part in parts(ended.spans) {
                let items = part.len() as u64;
                let body = self.message(part).encode_to_vec().into();
                let gives_up = || once || self.is_far_behind();
                match self.exporter.send(body, items, gives_up).await {
                    Fate::Done => {}
                    Fate::GivenUp if once => return Ok(()),
                    Fate::GivenUp => self.exporter.count("dropped", items),
                }
            }
            pages += 1;
            if is_last || pages % PAGES == 0 {
                self.keep().await?;
            }
            if is_last {
                return Ok(());
            }
        }
    }

    async fn keep(&mut self) -> Result<(), EngineError> {
        if self.feed.place() != self.kept {
            self.exporter.engine.keep_place(PLACE, self.feed.place()).await?;
            self.kept = self.feed.place();
        }
        Ok(())
    }

    fn is_far_behind(&self) -> bool {
        self.feed.behind() > self.exporter.settings.most_behind
    }

    /// Leaves out what cannot be caught up with.
    fn stay_near(&mut self) {
        if self.is_far_behind() {
            let left_out = self.feed.skip();
            // The runs that are remembered lack these entries.
            self.known = Known::new();
            self.exporter.engine.counts().export_left_out.add(left_out);
            tracing::warn!(
                left_out,
                "the export of traces was too far behind; entries are left out"
            );
        }
    }

    fn message(&self, spans: Vec<Span>) -> Traces {
        let scope_spans = vec![ScopeSpans { scope: Some(scope()), spans }];
        let resource = Some(resource(&self.exporter.settings.resource));
        Traces { resource_spans: vec![ResourceSpans { resource, scope_spans }] }
    }
}

/// The pause before the next try, which doubles with each.
struct Pause(Duration);

impl Pause {
    fn new() -> Self {
        Self(PAUSE)
    }

    async fn wait(&mut self) {
        self.wait_for(None).await;
    }

    /// Waits for the time that the other side asks for, or else for the pause.
    async fn wait_for(&mut self, asked: Option<Duration>) {
        sleep(asked.unwrap_or(self.0)).await;
        self.0 = (self.0 * 2).min(LONGEST);
    }
}

/// Tries until it succeeds; `None` if the host stops.
async fn retry<T, F: Future<Output = Result<T, EngineError>>>(
    what: &str,
    attempt: impl Fn() -> F,
) -> Option<T> {
    let mut pause = Pause::new();
    loop {
        match attempt().await {
            Ok(done) => return Some(done),
            Err(EngineError::Stopping) => return None,
            Err(error) => tracing::warn!(%error, "could not {what}"),
        }
        pause.wait().await;
    }
}

/// Splits spans into messages of a bounded size.
fn parts(spans: Vec<Span>) -> Vec<Vec<Span>> {
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
    fn a_message_is_bounded_in_spans_and_in_bytes() {
        let small = |_| Span { name: "s".to_owned(), ..Span::default() };
        let sizes: Vec<_> = parts((0..1_100).map(small).collect()).iter().map(Vec::len).collect();
        assert_eq!(sizes, [512, 512, 76]);
        let large = |_| Span { name: "l".repeat(900 << 10), ..Span::default() };
        let sizes: Vec<_> = parts((0..5).map(large).collect()).iter().map(Vec::len).collect();
        assert_eq!(sizes, [2, 2, 1]);
    }
}
