//! The runs whose spans are being made: a bounded memory, which is read again from the journal.

use std::sync::Arc;

use hashlink::LruCache;

use super::{
    message::Span,
    open_step::Style,
    spans::{RunTrace, refers_to},
};
use crate::{
    engine::{Engine, EngineError, VersionFacts},
    journal::Fact,
    protocol::{Sampling, TraceParent},
    store::FeedRow,
};

/// The maximum number of runs, of other runs and of versions that are remembered.
const KNOWN: usize = 4_096;
/// The maximum size of the runs that are remembered, in bytes.
const MEMORY: usize = 64 << 20;
/// The maximum number of entries of a run that are read at once.
const WINDOW: u32 = 1_024;

/// The identity of a run: its nonce, and the span that it was started in.
type Identity = (u64, Option<TraceParent>);

/// The runs that the export has read, as far as later spans need them.
pub(super) struct Known {
    /// The runs, each after its last entry; `None` for one that was deleted.
    runs: LruCache<u64, Option<RunTrace>>,
    /// The approximate size of the runs.
    size: usize,
    /// The runs that others refer to; `None` for one that was deleted.
    others: LruCache<u64, Option<Identity>>,
    versions: LruCache<String, Arc<VersionFacts>>,
}

/// The spans that end with a page of the journal.
#[derive(Default)]
pub(super) struct Ended {
    /// The spans that are exported.
    pub(super) spans: Vec<Span>,
    /// The number of entries of runs that were deleted.
    pub(super) left_out: u64,
}

impl Known {
    pub(super) fn new() -> Self {
        Self {
            runs: LruCache::new(KNOWN + 1),
            size: 0,
            others: LruCache::new(KNOWN),
            versions: LruCache::new(KNOWN),
        }
    }

    /// Takes a row; adds the spans that end with it.
    ///
    /// # Errors
    /// Fails when the store cannot be read.
    pub(super) async fn take(
        &mut self,
        (engine, row): (&Engine, &FeedRow),
        (style, sampling): (&Arc<Style>, Sampling),
        ended: &mut Ended,
    ) -> Result<(), EngineError> {
        if let Some(other) = refers_to(&row.entry) {
            self.look_up(engine, other).await?;
        }
        if !self.runs.contains_key(&row.run) {
            let run = self.read(engine, row, style).await?;
            self.size += run.as_ref().map_or(0, RunTrace::size);
            self.runs.insert(row.run, run);
            self.make_room();
        }
        let Self { runs, others, .. } = self;
        let Some(run) = runs.get_mut(&row.run).and_then(Option::as_mut) else {
            ended.left_out += 1;
            return Ok(());
        };
        let (before, start) = (run.size(), ended.spans.len());
        run.take(&row.entry, &|run, step| span_of(others, run, step), &mut ended.spans);
        if !sampling.of(run.own(), run.started_in()).sampled {
            ended.spans.truncate(start);
        }
        self.size = self.size + run.size() - before;
        if matches!(row.entry.fact, Fact::RunEnded(_)) {
            self.forget(row.run);
        }
        Ok(())
    }

    /// Reads a run and its entries before a row; `None` if it was deleted.
    async fn read(
        &mut self,
        engine: &Engine,
        row: &FeedRow,
        style: &Arc<Style>,
    ) -> Result<Option<RunTrace>, EngineError> {
        let Some(header) = engine.run_header(row.run).await? else { return Ok(None) };
        let version = match self.versions.get(&header.hash) {
            Some(version) => Arc::clone(version),
            None => {
                let version = Arc::new(engine.version_facts(&header.hash).await);
                self.versions.insert(header.hash.clone(), Arc::clone(&version));
                version
            }
        };
        let mut run = RunTrace::new(&header, version, Arc::clone(style));
        // What ended before was exported by the reader that read it first.
        let mut exported = Vec::new();
        let (mut after, upto) = (0, row.entry.seq.saturating_sub(1));
        while after < upto {
            let window = engine.window(row.run, after, upto.min(after + WINDOW)).await?;
            let Some(last) = window.last() else { break };
            after = last.seq;
            for entry in &window {
                if let Some(other) = refers_to(entry) {
                    self.look_up(engine, other).await?;
                }
                let others = &self.others;
                run.take(entry, &|run, step| span_of(others, run, step), &mut exported);
                exported.clear();
            }
        }
        Ok(Some(run))
    }

    async fn look_up(&mut self, engine: &Engine, run: u64) -> Result<(), EngineError> {
        if self.others.get(&run).is_none() {
            let found = engine.run_header(run).await?;
            let first = engine.window(run, 0, 1).await?.into_iter().next();
            let identity = found.zip(first).map(|(it, first)| (it.nonce, first.additions.trace()));
            self.others.insert(run, identity);
        }
        Ok(())
    }

    /// Forgets the runs that were not read for the longest time, if there are too many.
    fn make_room(&mut self) {
        while self.runs.len() > KNOWN || (self.size > MEMORY && self.runs.len() > 1) {
            let Some((_, run)) = self.runs.remove_lru() else { return };
            self.size -= run.map_or(0, |run| run.size());
        }
    }

    fn forget(&mut self, run: u64) {
        if let Some(run) = self.runs.remove(&run).flatten() {
            self.size -= run.size();
        }
    }
}

fn span_of(others: &LruCache<u64, Option<Identity>>, run: u64, step: u32) -> Option<TraceParent> {
    let (nonce, started_in) = (*others.peek(&run)?)?;
    Some(TraceParent::of_step(run, nonce, started_in, step))
}
