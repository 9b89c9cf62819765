//! The outcome of earlier starts: orderly, or a crash soon after the start.
//!
//! A start is counted as a crash before it does anything else. The next start takes it back if this
//! one ended in an orderly way, which includes errors such as a full disk.

use std::{sync::Arc, time::Duration};

use super::HostError;
use crate::{
    engine::{Engine, EngineError, Retention},
    store::{Store, StoreError, Upkeep, Write, commit},
    tasks::Tasks,
};

/// The number of consecutive crashes after which the host takes up runs with care.
const CRASHES: u32 = 3;
/// A host that lives this long after its runs are taken up has not crashed at its start.
const SETTLED: Duration = Duration::from_secs(30);
/// The key of the number of crashes.
const STREAK: &str = "bad_ends";
/// The key of the offset between the wall clock and the steady clock, where the store has no clock.
const OFFSET: &str = "clock_offset_ms";
/// The key of the offset between the clock of the store and the steady clock: the next host may have another
/// machine, with another wall clock.
const OF_STORE: &str = "clock_of_store_ms";
/// The key of the retention of the last daemon: age, number, size.
const RETENTION: &str = "retention";
/// Differences between the clocks of two machines that are no step of either, in milliseconds.
const SAME_MS: u64 = 1_000;

/// One start of the host.
#[derive(Clone, Copy)]
pub(super) struct Boot {
    streak: u32,
    died: bool,
}

impl Boot {
    /// Counts this start as a crash until the opposite is known.
    pub(super) async fn begin(
        store: &dyn Store,
        died: bool,
        counts: bool,
    ) -> Result<Self, HostError> {
        let counted: u32 = number(store, STREAK)?.unwrap_or(0);
        let streak = counted.saturating_sub(u32::from(!died));
        if counts && streak + 1 != counted {
            match put_meta(store, STREAK, (streak + 1).to_string()).await {
                // The host starts anyway and waits for space.
                Err(error @ (StoreError::Full | StoreError::Locked)) => {
                    tracing::warn!(%error, "could not count this start");
                }
                result => result?,
            }
        }
        Ok(Self { streak, died })
    }

    /// Returns true if the host crashed so often in a row that its runs must be taken up with care.
    pub(super) fn is_a_crash_loop(&self) -> bool {
        self.streak >= CRASHES
    }

    /// Returns true if the previous host crashed.
    pub(super) fn follows_a_death(&self) -> bool {
        self.died
    }

    /// Records when the host has settled.
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

/// Records that the host settled, or ends in an orderly way.
pub(super) async fn end_well(engine: &Engine) -> Result<(), EngineError> {
    engine.safe_mode().put_meta(STREAK, "0").await?;
    engine.safe_mode().forget_suspects().await
}

/// Returns the retention that holds for a host. That of a daemon is stored. A host for the time of
/// one command does not read the daemon's configuration: without one of its own, it has that of the
/// last daemon.
pub(super) async fn retention(
    store: &dyn Store,
    own: Option<Retention>,
    is_daemon: bool,
) -> Result<Retention, HostError> {
    let kept = store.meta(RETENTION)?.and_then(|text| serde_json::from_str::<[u64; 3]>(&text).ok());
    let kept = kept.map_or_else(Retention::default, |[age_ms, runs, bytes]| Retention {
        age_ms,
        runs,
        bytes,
    });
    if !is_daemon {
        return Ok(own.unwrap_or(kept));
    }
    let own = own.unwrap_or_default();
    if own != kept {
        let text = format!("[{},{},{}]", own.age_ms, own.runs, own.bytes);
        match put_meta(store, RETENTION, text).await {
            Err(error @ (StoreError::Full | StoreError::Locked)) => {
                tracing::warn!(%error, "could not note the retention");
            }
            result => result?,
        }
    }
    Ok(own)
}

/// Returns the offset between the wall clock and the steady clock, as of the last look of the
/// previous process. Blocks.
pub(super) fn clock_offset(store: &dyn Store, upkeep: &dyn Upkeep) -> Result<i64, StoreError> {
    let of_store = match number::<i64>(store, OF_STORE)? {
        Some(of_store) => upkeep.clock_ahead_ms()?.map(|ahead| of_store - ahead),
        None => None,
    };
    match of_store {
        Some(offset) if offset.unsigned_abs() < SAME_MS => Ok(0),
        Some(offset) => Ok(offset),
        None => Ok(number(store, OFFSET)?.unwrap_or(0)),
    }
}

/// Stores the offset between the wall clock and the steady clock, on which the times in the store
/// depend, or that between the clock of the store and the steady clock.
pub(super) fn keep_clock_offset(engine: &Engine, upkeep: &Arc<dyn Upkeep>, tasks: &Tasks) {
    let (engine, stopping) = (engine.clone(), tasks.stopping().clone());
    let (upkeep, blocking) = (Arc::clone(upkeep), tasks.clone());
    tasks.spawn(async move {
        let mut kept = engine.clock_offset_ms();
        // The first look compares the clocks, once.
        let mut is_stored = false;
        loop {
            tokio::select! {
                () = stopping.cancelled() => return,
                () = tokio::time::sleep(crate::clock::LOOK) => {}
            }
            let offset = engine.clock_offset_ms();
            if offset == kept && is_stored {
                continue;
            }
            if offset != kept {
                tracing::warn!(by_ms = offset - kept, "the wall clock was set");
            }
            let compared = Arc::clone(&upkeep);
            let ahead = blocking.spawn_blocking(move || compared.clock_ahead_ms()).await;
            let (key, value) = match ahead {
                Ok(Ok(Some(ahead))) => (OF_STORE, ahead + offset),
                Ok(Ok(None)) if offset == kept => {
                    is_stored = true;
                    continue;
                }
                Ok(Ok(None)) => (OFFSET, offset),
                Ok(Err(error)) => {
                    tracing::debug!(%error, "could not compare the clocks");
                    continue;
                }
                Err(_) => return,
            };
            match engine.safe_mode().put_meta(key, &value.to_string()).await {
                Ok(()) => (kept, is_stored) = (offset, true),
                Err(error) => tracing::debug!(%error, "could not note that the clock was set"),
            }
        }
    });
}

fn number<T: std::str::FromStr>(store: &dyn Store, key: &str) -> Result<Option<T>, StoreError> {
    Ok(store.meta(key)?.and_then(|text| text.parse().ok()))
}

/// Stores a value about the host durably.
pub(super) async fn put_meta(
    store: &dyn Store,
    key: &str,
    value: String,
) -> Result<(), StoreError> {
    commit(store, Vec::new(), None, vec![Write::PutMeta { key: key.to_owned(), value }]).await
}
