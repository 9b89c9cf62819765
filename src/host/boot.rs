//! How the starts before this one ended: well, or soon and badly.
//!
//! A start is counted as a death before it does anything, and counted off again by the next one,
//! if it ended in order: with an error too, on a full disk for example.

use std::time::Duration;

use super::HostError;
use crate::{
    engine::{Engine, EngineError},
    store::{Batch, Store, StoreError, Write},
    tasks::Tasks,
};

/// Starts in a row that ended badly, before the host is careful.
const CRASHES: u32 = 3;
/// A host that lives this long after its runs are up has not died at its start.
const SETTLED: Duration = Duration::from_secs(30);
/// Where the number of bad ends is kept.
const STREAK: &str = "bad_ends";
/// Where it is kept how far the wall clock was ahead of the steady one.
const OFFSET: &str = "clock_offset_ms";

/// This start.
#[derive(Clone, Copy)]
pub(super) struct Boot {
    streak: u32,
    died: bool,
}

impl Boot {
    /// Counts this start as one that ends badly, until it is known better.
    pub(super) async fn begin(
        store: &dyn Store,
        died: bool,
        counts: bool,
    ) -> Result<Self, HostError> {
        let counted: u32 = number(store, STREAK)?.unwrap_or(0);
        let streak = counted.saturating_sub(u32::from(!died));
        if counts && streak + 1 != counted {
            match put_meta(store, STREAK, (streak + 1).to_string()).await {
                // The host waits for room, with its door open.
                Err(error @ (StoreError::Full | StoreError::Locked)) => {
                    tracing::warn!(%error, "could not count this start");
                }
                result => result?,
            }
        }
        Ok(Self { streak, died })
    }

    /// Whether the host died so often in a row that its runs are to be taken up with care.
    pub(super) fn is_a_crash_loop(&self) -> bool {
        self.streak >= CRASHES
    }

    /// Whether the host before this one died.
    pub(super) fn follows_a_death(&self) -> bool {
        self.died
    }

    /// Notes once the host has settled.
    pub(super) fn watch(engine: &Engine, tasks: &Tasks) {
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
    engine.put_meta(STREAK, "0").await?;
    engine.forget_suspects().await
}

/// How far the wall clock was ahead of the steady one when the last process looked.
pub(super) fn clock_offset(store: &dyn Store) -> Result<i64, StoreError> {
    Ok(number(store, OFFSET)?.unwrap_or(0))
}

/// Keeps how far the wall clock is ahead of the steady one, which times in the store are of.
pub(super) fn keep_clock_offset(engine: &Engine, tasks: &Tasks) {
    let (engine, stopping) = (engine.clone(), tasks.stopping().clone());
    tasks.spawn(async move {
        let mut kept = engine.clock_offset_ms();
        loop {
            tokio::select! {
                () = stopping.cancelled() => return,
                () = tokio::time::sleep(crate::clock::LOOK) => {}
            }
            let offset = engine.clock_offset_ms();
            if offset != kept {
                tracing::warn!(by_ms = offset - kept, "the wall clock was set");
                match engine.put_meta(OFFSET, &offset.to_string()).await {
                    Ok(()) => kept = offset,
                    Err(error) => tracing::debug!(%error, "could not note that the clock was set"),
                }
            }
        }
    });
}

fn number<T: std::str::FromStr>(store: &dyn Store, key: &str) -> Result<Option<T>, StoreError> {
    Ok(store.meta(key)?.and_then(|text| text.parse().ok()))
}

/// Keeps a value about the host, durably.
pub(super) async fn put_meta(
    store: &dyn Store,
    key: &str,
    value: String,
) -> Result<(), StoreError> {
    let (ack, acked) = tokio::sync::oneshot::channel();
    store.submit(Batch {
        checks: Vec::new(),
        run: None,
        writes: vec![Write::PutMeta { key: key.to_owned(), value }],
        ack: Box::new(move |result| drop(ack.send(result))),
    });
    acked.await.unwrap_or(Err(StoreError::Closed))
}
