//! Every spawned task of the host: one tracker, one tree of cancellation.

use std::{future::Future, time::Duration};

use tokio::{runtime::Handle, task::JoinHandle};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Spawns onto one runtime and waits for all of it at the end.
#[derive(Debug, Clone)]
pub struct Tasks {
    runtime: Handle,
    tracker: TaskTracker,
    stop: CancellationToken,
}

impl Tasks {
    /// Tasks on `runtime`.
    pub fn new(runtime: Handle) -> Self {
        Self { runtime, tracker: TaskTracker::new(), stop: CancellationToken::new() }
    }

    /// Runs a future to its end, also while the host is stopping, up to the grace.
    #[expect(clippy::disallowed_methods, reason = "this is where everything is spawned")]
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.runtime.spawn(self.tracker.track_future(future))
    }

    /// Runs a closure on a thread where it may block.
    #[expect(clippy::disallowed_methods, reason = "this is where everything is spawned")]
    pub fn spawn_blocking<F, T>(&self, work: F) -> JoinHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let guard = self.tracker.token();
        self.runtime.spawn_blocking(move || {
            let _guard = guard;
            work()
        })
    }

    /// Canceled when the host begins to stop.
    pub fn stopping(&self) -> &CancellationToken {
        &self.stop
    }

    /// Asks everything to stop and waits at most `grace` for it; says whether all ended.
    pub async fn stop(&self, grace: Duration) -> bool {
        self.stop.cancel();
        self.tracker.close();
        tokio::time::timeout(grace, self.tracker.wait()).await.is_ok()
    }
}
