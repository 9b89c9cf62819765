//! The changes of a run, for readers who look at it anew after each.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::events::subscribe;
use crate::{
    engine::{
        Caller, Engine, EngineError, EventView,
        run::readers::{Live, Room, Subscriber},
        shared::shards::Shared,
    },
    protocol::RunId,
    store::StoreError,
    token::Verb,
};

/// Tells that a run has changed, and nothing of how.
///
/// It costs the run one event for each wait, and the store one header, however much has happened:
/// the events between two waits are neither sent nor read.
pub struct Moves {
    shared: Arc<Shared>,
    run: RunId,
    room: Room,
    live: Option<mpsc::Receiver<Live>>,
}

impl Moves {
    /// Returns the changes of a run.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or there is no such run.
    pub async fn of(engine: &Engine, caller: &Caller, run: RunId) -> Result<Self, EngineError> {
        caller.may(Verb::RunRead, run)?;
        engine.header(run).await?;
        let shared = Arc::clone(&engine.inner.shared);
        let room = shared.readers.room(&caller.jti);
        Ok(Self { shared, run, room, live: None })
    }

    /// Waits until the run has a durable event with a number over `after`; returns false if none can
    /// follow.
    ///
    /// # Errors
    /// Fails when the store cannot be read.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn next(&mut self, after: u32) -> Result<bool, EngineError> {
        loop {
            let Some(live) = &mut self.live else {
                let (subscriber, live) = Subscriber::of_changes(self.room.clone());
                subscribe(&self.shared, self.run, subscriber).await;
                // Read after that, so that no change is between them.
                let Some(seq) = self.last().await? else { return Ok(false) };
                self.live = Some(live);
                if seq > after {
                    return Ok(true);
                }
                continue;
            };
            match live.recv().await.map(|told| told.event) {
                Some(EventView { seq: Some(seq), kind, .. }) if seq > after => {
                    // The run sends no more until somebody waits again.
                    self.live = None;
                    return Ok(kind != "run.ended");
                }
                Some(EventView { seq: Some(_), .. }) => {}
                // It was detached, or the run was read again: the store has what happened.
                Some(_) | None => self.live = None,
            }
        }
    }

    /// Returns the number of the run's last event; none if nothing can follow it.
    async fn last(&self) -> Result<Option<u32>, EngineError> {
        let (shared, run) = (Arc::clone(&self.shared), self.run.num());
        let read = self.shared.tasks.spawn_blocking(move || shared.store.header(run));
        let header: Result<_, StoreError> = read.await.map_err(|_| EngineError::Stopping)?;
        Ok(header?.filter(|header| !header.status.is_ended()).map(|header| header.seq))
    }
}
