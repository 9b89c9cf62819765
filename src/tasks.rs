//! Every spawned task of the host: one tracker, one tree of cancellation.
//!
//! Owns the place where spawned work runs: a runtime or, in a simulation, a driver that polls it.

mod driven;

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    runtime::{EnterGuard, Handle},
    task::{JoinError, JoinHandle},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use driven::Driver;

/// Spawns onto one runtime, and waits for all of it at the end.
#[derive(Debug, Clone)]
pub struct Tasks {
    place: Executor,
    tracker: TaskTracker,
    stop: CancellationToken,
}

/// The place where spawned work runs.
#[derive(Debug, Clone)]
enum Executor {
    Runtime(Handle),
    Driven(Driver),
}

/// Spawned work, as a future of its result.
#[derive(Debug)]
pub struct Spawned<T>(Waits<T>);

#[derive(Debug)]
enum Waits<T> {
    Runtime(JoinHandle<T>),
    Driven(tokio::sync::oneshot::Receiver<T>),
}

/// The reason why spawned work has no result.
#[derive(Debug, thiserror::Error)]
pub enum Unfinished {
    /// The task panicked, or its runtime ended.
    #[error("finish a spawned task")]
    Runtime(#[from] JoinError),
    /// Its driver dropped it.
    #[error("finish a spawned task: it was given up")]
    GivenUp,
}

impl Tasks {
    /// Enters the runtime, for a future that is polled on a thread of its own; nothing in a
    /// simulation.
    pub fn enter(&self) -> Option<EnterGuard<'_>> {
        match &self.place {
            Executor::Runtime(runtime) => Some(runtime.enter()),
            Executor::Driven(_) => None,
        }
    }

    /// Returns tasks on `runtime`.
    pub fn new(runtime: Handle) -> Self {
        Self::at(Executor::Runtime(runtime))
    }

    /// Returns tasks that run when, and in the order in which, their driver polls them.
    pub fn driven() -> (Self, Driver) {
        let driver = Driver::default();
        (Self::at(Executor::Driven(driver.clone())), driver)
    }

    fn at(place: Executor) -> Self {
        Self { place, tracker: TaskTracker::new(), stop: CancellationToken::new() }
    }

    /// Runs a future to its end. While the host stops, the future continues for up to the grace
    /// period.
    #[expect(clippy::disallowed_methods, reason = "this is where everything is spawned")]
    pub fn spawn<F>(&self, future: F) -> Spawned<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let future = self.tracker.track_future(future);
        Spawned(match &self.place {
            Executor::Runtime(runtime) => Waits::Runtime(runtime.spawn(future)),
            Executor::Driven(driver) => Waits::Driven(driver.add(future).1),
        })
    }

    /// Runs a closure on a thread that may block.
    #[expect(clippy::disallowed_methods, reason = "this is where everything is spawned")]
    pub fn spawn_blocking<F, T>(&self, work: F) -> Spawned<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let guard = self.tracker.token();
        let work = move || {
            let _guard = guard;
            work()
        };
        Spawned(match &self.place {
            Executor::Runtime(runtime) => Waits::Runtime(runtime.spawn_blocking(work)),
            Executor::Driven(driver) => Waits::Driven(driver.add(async move { work() }).1),
        })
    }

    /// Returns the token that is canceled when the host begins to stop.
    pub fn stopping(&self) -> &CancellationToken {
        &self.stop
    }

    /// Cancels everything and waits at most `grace` for it; returns true if all work ended.
    pub async fn stop(&self, grace: Duration) -> bool {
        self.stop.cancel();
        self.tracker.close();
        tokio::time::timeout(grace, self.tracker.wait()).await.is_ok()
    }
}

impl<T> Future for Spawned<T> {
    type Output = Result<T, Unfinished>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Waits::Runtime(handle) => Pin::new(handle).poll(context).map_err(Unfinished::from),
            Waits::Driven(result) => {
                Pin::new(result).poll(context).map_err(|_| Unfinished::GivenUp)
            }
        }
    }
}
