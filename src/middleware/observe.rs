//! Observers, and the wall between their faults and the dispatch.

use std::panic::{AssertUnwindSafe, resume_unwind};

use async_trait::async_trait;
use futures::FutureExt;

use super::{About, Dispatch, Dispatched, Next, Settled};
use crate::protocol::{Failure, failure::kind};

/// Watches dispatches from outside everything else.
///
/// It sees the dispatch before and the outcome after, both by reference: it can change neither.
/// Whatever it does wrong, the outcome stands.
#[async_trait]
pub trait DispatchObserver: Send + Sync {
    /// The name that logs use.
    fn name(&self) -> &str;

    /// Watches one dispatch: looks at it, lets it run, looks at what came of it.
    ///
    /// # Errors
    /// Its own fault, which is logged and changes nothing.
    async fn observe(&self, dispatch: Watched<'_>) -> Result<(), Failure>;

    /// Looks at what came of an attempt that was parked; it must not wait.
    fn settled(&self, _about: &About, _outcome: &Settled) {}
}

/// One dispatch as an observer sees it.
pub struct Watched<'a> {
    slot: &'a mut Slot,
    rest: Next<'a>,
}

/// Where a dispatch and its outcome are kept while an observer watches.
struct Slot {
    dispatch: Option<Dispatch>,
    outcome: Option<Result<Dispatched, Failure>>,
}

impl<'a> Watched<'a> {
    /// The dispatch, before it runs.
    pub fn dispatch(&self) -> &Dispatch {
        self.slot.dispatch.as_ref().expect("running a dispatch consumes the view of it")
    }

    /// Lets it run and shows what came of it.
    pub async fn run(self) -> &'a Result<Dispatched, Failure> {
        let dispatch =
            self.slot.dispatch.take().expect("running a dispatch consumes the view of it");
        let outcome = self.rest.run(dispatch).await;
        self.slot.outcome.insert(outcome)
    }
}

/// Runs the rest of the stack under an observer's eyes.
pub(super) async fn observe(
    observer: &dyn DispatchObserver,
    dispatch: Dispatch,
    rest: Next<'_>,
) -> Result<Dispatched, Failure> {
    let mut slot = Slot { dispatch: Some(dispatch), outcome: None };
    let watching = observer.observe(Watched { slot: &mut slot, rest });
    let watched = AssertUnwindSafe(watching).catch_unwind().await;
    match (slot.outcome, slot.dispatch, watched) {
        (Some(outcome), _, watched) => {
            note_fault(observer, &watched);
            outcome
        }
        (None, Some(dispatch), watched) => {
            note_fault(observer, &watched);
            rest.run(dispatch).await
        }
        // The dispatch was under way, so the panic came from below the observer.
        (None, None, Err(panic)) => resume_unwind(panic),
        (None, None, Ok(_)) => Err(abandoned(observer.name())),
    }
}

fn note_fault(
    observer: &dyn DispatchObserver,
    watched: &Result<Result<(), Failure>, Box<dyn std::any::Any + Send>>,
) {
    match watched {
        Ok(Ok(())) => {}
        Ok(Err(fault)) => {
            tracing::warn!(observer = observer.name(), %fault, "an observer failed");
        }
        Err(_) => tracing::warn!(observer = observer.name(), "an observer panicked"),
    }
}

/// An observer that stops polling a running dispatch has destroyed it; a new attempt may help.
fn abandoned(observer: &str) -> Failure {
    let message = format!("the observer {observer} dropped a dispatch that was running");
    Failure::new(kind::INTERRUPTED, message).retryable()
}
