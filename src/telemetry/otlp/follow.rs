//! Follows the journal and exports the spans that end; exports the metrics at intervals.

use std::{future::Future, sync::Arc};

use prost::Message as _;
use tokio::time::{sleep, timeout};

use super::{
    exporter::{Exporter, Fate, LAST, Pause, parts},
    known::{Ended, Known},
    metrics,
    open_step::Style,
    requests::Requests,
    send::Sender,
    settings::{Endpoint, Settings},
};
use crate::{
    engine::{Engine, EngineError, JournalFeed},
    tasks::Tasks,
};

/// The key under which the place in the journal is kept.
const PLACE: &str = "otlp.traces";
/// The number of pages after which the place is kept.
const PAGES: usize = 16;

/// Starts the export.
pub fn start(engine: &Engine, tasks: &Tasks, settings: Settings) {
    let settings = Arc::new(settings);
    let exporter = |signal, endpoint: &Option<Endpoint>| {
        let sender = Sender::new(endpoint.as_ref()?);
        let sender = sender.inspect_err(|error| {
            tracing::error!(%error, signal, "nothing is exported: the client could not be made");
        });
        // An alert that looks for growth needs the series before its first event.
        drop(engine.counts().export_failures.of([signal]));
        for outcome in ["exported", "refused", "dropped"] {
            drop(engine.counts().exports.of([signal, outcome]));
        }
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
        if let Some(requests) = Requests::begin(exporter.clone()) {
            tasks.spawn(requests.serve(tasks.stopping().clone()));
        }
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

/// The export of traces.
struct Follower {
    exporter: Exporter,
    style: Arc<Style>,
    feed: JournalFeed,
    /// The place up to which everything is exported, as it is stored.
    kept: u64,
    known: Known,
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
                let since_ms = self.engine.counts().since_ms;
                let message = metrics::message(&scrape, &self.settings.resource, since_ms);
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
                let gives_up = || once || self.is_far_behind();
                match self.exporter.send_spans(part, gives_up).await {
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
