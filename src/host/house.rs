//! The housekeeping of a host: expired records, and ended runs beyond the retention policy.

use std::time::Duration;

use crate::{
    engine::{Engine, Sweeper},
    tasks::Tasks,
};

/// The interval at which expired records are deleted.
const HOUSEKEEPING: Duration = Duration::from_secs(3_600);
/// The time after which they are deleted first. A host that is often restarted would never delete them
/// otherwise, and one that was stopped for long has many.
const FIRST: Duration = Duration::from_secs(60);
/// The interval at which the retention policy is applied, when there is nothing left to delete.
const SWEEP: Duration = Duration::from_secs(15);
/// The pause between two steps of a sweep.
const BETWEEN_STEPS: Duration = Duration::from_millis(50);

/// Deletes expired records soon after the start, and then once an hour.
pub(super) fn keep(engine: &Engine, tasks: &Tasks) {
    let (engine, stopping) = (engine.clone(), tasks.stopping().clone());
    tasks.spawn(async move {
        let mut rest = FIRST;
        loop {
            tokio::select! {
                () = stopping.cancelled() => return,
                () = tokio::time::sleep(rest) => {}
            }
            rest = HOUSEKEEPING;
            if let Err(error) = engine.safe_mode().expire_answers().await {
                tracing::warn!(%error, "could not forget old answers");
            }
            if let Err(error) = engine.safe_mode().expire_kept().await {
                tracing::warn!(%error, "could not forget what layers kept");
            }
            if let Err(error) = engine.responses().let_go_left().await {
                tracing::warn!(%error, "could not let go what is not to be stored");
            }
            if let Err(error) = engine.sessions().forget_sessions().await {
                tracing::warn!(%error, "could not forget closed sessions");
            }
            if let Err(error) = engine.tokens().forget_tokens().await {
                tracing::warn!(%error, "could not forget expired tokens");
            }
        }
    });
}

/// Deletes ended runs according to the retention policy, a few at a time.
pub(super) fn sweep(engine: &Engine, tasks: &Tasks) {
    let (engine, stopping) = (engine.clone(), tasks.stopping().clone());
    tasks.spawn(async move {
        let mut sweeper = Sweeper::default();
        let mut rest = SWEEP;
        loop {
            tokio::select! {
                () = stopping.cancelled() => return,
                () = tokio::time::sleep(rest) => {}
            }
            rest = match engine.upkeep().sweep(&mut sweeper).await {
                Ok(true) => BETWEEN_STEPS,
                Ok(false) => SWEEP,
                Err(error) => {
                    tracing::warn!(%error, "could not let ended runs go");
                    SWEEP
                }
            };
        }
    });
}
