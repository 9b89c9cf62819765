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
    sync::oneshot,
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

/// A future without its type. A runtime has many functions for each type that it runs: with one type,
/// the program has them once.
type Piece = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Spawned work, as a future of its result.
#[derive(Debug)]
pub struct Spawned<T> {
    /// Nothing once it is known that there is none.
    result: Option<oneshot::Receiver<T>>,
    /// Says why there is none, if a runtime does the work.
    end: Option<JoinHandle<()>>,
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
    pub fn spawn<F>(&self, future: F) -> Spawned<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let (piece, result) = telling(future);
        Spawned { result: Some(result), end: self.begin(piece) }
    }

    #[expect(clippy::disallowed_methods, reason = "this is where everything is spawned")]
    fn begin(&self, piece: Piece) -> Option<JoinHandle<()>> {
        let piece = self.tracker.track_future(piece);
        match &self.place {
            Executor::Runtime(runtime) => Some(runtime.spawn(piece)),
            Executor::Driven(driver) => {
                driver.push(Box::pin(piece));
                None
            }
        }
    }

    /// Runs a closure on a thread that may block.
    pub fn spawn_blocking<F, T>(&self, work: F) -> Spawned<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let (tell, result) = oneshot::channel();
        let work = move || {
            let value = work();
            // Nobody may wait for it.
            let _ = tell.send(value);
        };
        Spawned { result: Some(result), end: self.begin_blocking(Box::new(work)) }
    }

    #[expect(clippy::disallowed_methods, reason = "this is where everything is spawned")]
    fn begin_blocking(&self, work: Box<dyn FnOnce() + Send>) -> Option<JoinHandle<()>> {
        let guard = self.tracker.token();
        let work = move || {
            let _guard = guard;
            work();
        };
        match &self.place {
            Executor::Runtime(runtime) => Some(runtime.spawn_blocking(work)),
            Executor::Driven(driver) => {
                driver.push(Box::pin(async move { work() }));
                None
            }
        }
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

/// Returns a future as a piece that sends its result.
fn telling<F>(future: F) -> (Piece, oneshot::Receiver<F::Output>)
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let (tell, result) = oneshot::channel();
    let piece = async move {
        let value = future.await;
        // Nobody may wait for it.
        let _ = tell.send(value);
    };
    (Box::pin(piece), result)
}

impl<T> Future for Spawned<T> {
    type Output = Result<T, Unfinished>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(result) = &mut self.result {
            match std::task::ready!(Pin::new(result).poll(context)) {
                Ok(value) => return Poll::Ready(Ok(value)),
                Err(_) => self.result = None,
            }
        }
        let Some(end) = &mut self.end else { return Poll::Ready(Err(Unfinished::GivenUp)) };
        let ended = std::task::ready!(Pin::new(end).poll(context));
        Poll::Ready(Err(ended.map_or_else(Unfinished::from, |()| Unfinished::GivenUp)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fails() {
        panic!("a defect");
    }

    #[tokio::test]
    async fn a_result_comes_back_and_a_panic_is_the_reason_why_there_is_none() {
        let tasks = Tasks::new(Handle::current());
        assert_eq!(tasks.spawn(async { 1 }).await.unwrap(), 1);
        assert_eq!(tasks.spawn_blocking(|| 2).await.unwrap(), 2);
        for panics in [tasks.spawn(async { fails() }), tasks.spawn_blocking(fails)] {
            let Err(Unfinished::Runtime(error)) = panics.await else { panic!("no reason") };
            assert!(error.is_panic(), "{error}");
        }
        drop(tasks.spawn(async { 3 }));
        assert!(tasks.stop(Duration::from_secs(30)).await);
    }
}
