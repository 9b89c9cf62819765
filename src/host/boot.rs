//! How the starts before this one ended: well, or soon and badly.

use std::time::Duration;

use super::HostError;
use crate::{
    engine::{Engine, EngineError},
    store::{Batch, Reader as _, Sqlite, StoreError, Write, Writer as _},
    tasks::Tasks,
};

/// Starts in a row that ended badly, before the host is careful.
const CRASHES: u32 = 3;
/// A host that lives this long has not died at its start.
const SETTLED: Duration = Duration::from_secs(30);
/// Where the number of bad ends is kept.
const STREAK: &str = "bad_ends";

/// This start.
pub(super) struct Boot {
    streak: u32,
}

impl Boot {
    /// Counts this start as one that ends badly, until it is known better.
    pub(super) async fn begin(store: &Sqlite, counts: bool) -> Result<Self, HostError> {
        let streak = store.meta(STREAK)?.and_then(|text| text.parse().ok()).unwrap_or(0);
        if counts {
            put_meta(store, STREAK, (streak + 1).to_string()).await?;
        }
        Ok(Self { streak })
    }

    /// Whether the host died so often in a row that its runs are to be taken up with care.
    pub(super) fn is_a_crash_loop(&self) -> bool {
        self.streak >= CRASHES
    }

    /// Notes once the host has settled.
    pub(super) fn watch(&self, engine: &Engine, tasks: &Tasks) {
        let (engine, stopping) = (engine.clone(), tasks.stopping().clone());
        tasks.spawn(async move {
            tokio::select! {
                () = stopping.cancelled() => {}
                () = tokio::time::sleep(SETTLED) => {
                    if let Err(error) = end_well(&engine).await {
                        tracing::warn!(%error, "could not note that the host has settled");
                    }
                }
            }
        });
    }
}

/// Notes that the host settled, or ends as it should.
pub(super) async fn end_well(engine: &Engine) -> Result<(), EngineError> {
    engine.put_meta(STREAK, "0").await
}

/// Keeps a value about the host, durably.
pub(super) async fn put_meta(store: &Sqlite, key: &str, value: String) -> Result<(), StoreError> {
    let (ack, acked) = tokio::sync::oneshot::channel();
    store.submit(Batch {
        checks: Vec::new(),
        run: None,
        writes: vec![Write::PutMeta { key: key.to_owned(), value }],
        ack: Box::new(move |result| drop(ack.send(result))),
    });
    acked.await.unwrap_or(Err(StoreError::Closed))
}
