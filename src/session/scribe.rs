//! Writes frames to the store: one task for all sessions, so that they share its commits.

use std::{sync::Arc, time::Duration};

use super::Hub;
use crate::{
    store::{Store, commit},
    tasks::Tasks,
};

/// The delay after a failed write.
const RETRY: Duration = Duration::from_secs(1);

/// Writes the frames of all sessions.
///
/// A frame gets its number when it is durable, and is sent after that. So a failed write leaves no
/// gap, and no sent frame is lost.
pub struct FrameWriter {
    hub: Arc<Hub>,
    store: Arc<dyn Store>,
    tasks: Tasks,
}

impl FrameWriter {
    /// Starts to write the frames of `hub` into `store`, until `tasks` is stopped.
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
            let result = commit(&*self.store, Vec::new(), None, writes.clone()).await;
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
