//! What makes frames durable: one writer for all sessions, so that they share its commits.

use std::{sync::Arc, time::Duration};

use super::Hub;
use crate::{
    store::{Batch, Store, StoreError},
    tasks::Tasks,
};

/// How long it rests after a write failed.
const RETRY: Duration = Duration::from_secs(1);

/// The writer of every session's frames.
///
/// A frame gets its number when it is durable, and is handed out after that: a write that failed
/// leaves no gap, and nothing that was sent is forgotten.
pub struct Scribe {
    hub: Arc<Hub>,
    store: Arc<dyn Store>,
    tasks: Tasks,
}

impl Scribe {
    /// Writes what `hub` has for its sessions into `store`, until `tasks` is told to stop.
    pub fn start(hub: Arc<Hub>, store: Arc<dyn Store>, tasks: Tasks) {
        let scribe = Self { hub, store, tasks: tasks.clone() };
        tasks.spawn(scribe.serve());
    }

    async fn serve(self) {
        let stopping = self.tasks.stopping().clone();
        loop {
            tokio::select! {
                biased;
                () = stopping.cancelled() => return,
                () = self.hub.written_to() => {}
            }
            let (sessions, writes) = self.hub.write_out();
            if sessions.is_empty() {
                continue;
            }
            let (ack, acked) = tokio::sync::oneshot::channel();
            let batch = Batch {
                checks: Vec::new(),
                run: None,
                writes: writes.clone(),
                // Whoever waits for it is this task; it is gone only when the host stops.
                ack: Box::new(move |result| drop(ack.send(result))),
            };
            let store = Arc::clone(&self.store);
            // The queue may be full for a moment: waiting for room is not the runtime's work.
            let submitted = self.tasks.spawn_blocking(move || store.submit(batch)).await;
            let result = match submitted {
                Ok(()) => acked.await.unwrap_or(Err(StoreError::Closed)),
                Err(_) => Err(StoreError::Closed),
            };
            if let Err(error) = &result {
                tracing::error!(%error, "could not write what sessions are to be told");
                tokio::select! {
                    () = stopping.cancelled() => return,
                    () = tokio::time::sleep(RETRY) => {}
                }
            }
            self.hub.written(&sessions, &writes, result.is_ok());
        }
    }
}
