//! The stack of dispatches: classes of layers, their order, and the way through them. Faults of
//! observers do not affect the dispatch.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
};

use async_trait::async_trait;
use futures::{FutureExt, TryFutureExt, future::BoxFuture};

use super::{About, Class, Dispatch, Dispatched, Short, TaskDone, Terminal};
use crate::protocol::{Failure, Json, failure::kind};

/// The final outcome of an attempt.
pub type Settled = Result<TaskDone, Box<Short>>;

/// A transformer or a guard of dispatches.
#[async_trait]
pub trait DispatchLayer: Send + Sync {
    /// Returns the name in logs.
    fn name(&self) -> &str;

    /// Handles a dispatch; without a call of `next` its own answer is final.
    ///
    /// # Errors
    /// Fails when it refuses, or with the error of `next`.
    async fn dispatch(&self, dispatch: Dispatch, next: Next<'_>) -> Result<Dispatched, Failure> {
        next.run(dispatch).await
    }

    /// Changes the input of an operator, before a prompt is rendered from it and stored. May be
    /// called again for the same task, and must then return the same.
    fn prepare(&self, _agent: &str, _operator: &str, input: Json) -> Json {
        input
    }

    /// Handles the outcome of an attempt that was parked: its worker reported, it timed out, or it
    /// was canceled. Called once for each outcome, on the thread that owns the run, so it must not
    /// block; possibly on another host than the one that dispatched it. If the engine refuses the
    /// result that came out of it, the attempt stays open and its next outcome is settled as well.
    ///
    /// # Errors
    /// Returns the failure of the attempt, or its own.
    fn settle(&self, _about: &About, _input: &Json, outcome: Settled) -> Settled {
        outcome
    }

    /// Handles a step that is read again while others go on from the result of its own operator:
    /// a delegate, say. Called on the thread that owns the run, so it must not block.
    fn take_up(&self, _about: &About, _input: &Json) {}
}

/// Observes dispatches, outside of all other layers.
///
/// The layer gets the dispatch before and the outcome after by reference, so it can change neither.
/// Its own faults do not change the outcome.
#[async_trait]
pub trait DispatchObserver: Send + Sync {
    /// Returns the name in logs.
    fn name(&self) -> &str;

    /// Returns false if the layer would do nothing at present: a dispatch then goes around it.
    fn is_on(&self) -> bool {
        true
    }

    /// Observes one dispatch: inspects it, runs it, and inspects the outcome.
    ///
    /// # Errors
    /// Returns its own fault, which is logged and changes nothing.
    async fn observe(&self, dispatch: Watched<'_>) -> Result<(), Failure>;

    /// Observes the outcome of an attempt that was parked; must not block.
    fn settled(&self, _about: &About, _outcome: &Settled) {}
}

/// One dispatch as an observer sees it.
pub struct Watched<'a> {
    slot: &'a mut Slot,
    rest: Next<'a>,
}

/// Holds a dispatch and its outcome while an observer runs.
struct Slot {
    dispatch: Option<Dispatch>,
    outcome: Option<Result<Dispatched, Failure>>,
}

impl<'a> Watched<'a> {
    /// Returns the dispatch, before it runs.
    pub fn dispatch(&self) -> &Dispatch {
        self.slot.dispatch.as_ref().expect("running a dispatch consumes the view of it")
    }

    /// Runs the dispatch and returns its outcome.
    pub async fn run(self) -> &'a Result<Dispatched, Failure> {
        let dispatch =
            self.slot.dispatch.take().expect("running a dispatch consumes the view of it");
        let outcome = self.rest.run(dispatch).await;
        self.slot.outcome.insert(outcome)
    }
}

/// Settles an outcome that is not parked in the same way as parked work is settled later.
pub(super) fn settle_now(
    layer: &dyn DispatchLayer,
    about: &About,
    input: &Json,
    outcome: Result<Dispatched, Failure>,
) -> Result<Dispatched, Failure> {
    if about.is_over() {
        return outcome;
    }
    let settled = match outcome {
        Ok(Dispatched::Parked) => return Ok(Dispatched::Parked),
        Ok(Dispatched::Done(done)) => layer.settle(about, input, Ok(done)),
        Ok(Dispatched::Short(short)) => layer.settle(about, input, Err(short)),
        Err(failure) => layer.settle(about, input, Err(Box::new(Short::from(failure)))),
    };
    let is_void = about.is_over();
    if is_void {
        // It was settled in another way meanwhile.
        about.give_up();
    }
    match settled {
        Ok(done) => Ok(Dispatched::Done(done)),
        Err(short) if short.usage.is_none() && short.effects.is_empty() => Err(short.failure),
        Err(short) => Ok(Dispatched::Short(short)),
    }
}

/// The layers that every dispatch passes through.
#[derive(Clone, Default)]
pub struct DispatchStack {
    observers: Vec<Arc<dyn DispatchObserver>>,
    transformers: Vec<Arc<dyn DispatchLayer>>,
    guards: Vec<Arc<dyn DispatchLayer>>,
}

/// Builds a [`DispatchStack`].
#[derive(Default)]
pub struct StackBuilder(DispatchStack);

/// The remaining stack, below one layer.
#[derive(Clone, Copy)]
pub struct Next<'a> {
    observers: &'a [Arc<dyn DispatchObserver>],
    transformers: &'a [Arc<dyn DispatchLayer>],
    guards: &'a [Arc<dyn DispatchLayer>],
    terminal: &'a dyn Terminal,
}

impl StackBuilder {
    /// Adds an observer, inside the observers before it.
    #[must_use]
    pub fn observe(mut self, observer: impl DispatchObserver + 'static) -> Self {
        self.0.observers.push(Arc::new(observer));
        self
    }

    /// Adds a transformer, inside the transformers before it.
    #[must_use]
    pub fn transform(mut self, layer: impl DispatchLayer + 'static) -> Self {
        self.0.transformers.push(Arc::new(layer));
        self
    }

    /// Adds a guard, inside the guards before it.
    #[must_use]
    pub fn guard(mut self, layer: impl DispatchLayer + 'static) -> Self {
        self.0.guards.push(Arc::new(layer));
        self
    }

    /// Adds every layer of another stack, each inside the layers of its class before it.
    #[must_use]
    pub fn with(mut self, other: &DispatchStack) -> Self {
        self.0.observers.extend(other.observers.iter().map(Arc::clone));
        self.0.transformers.extend(other.transformers.iter().map(Arc::clone));
        self.0.guards.extend(other.guards.iter().map(Arc::clone));
        self
    }

    /// Builds the stack.
    pub fn build(self) -> DispatchStack {
        self.0
    }
}

impl DispatchStack {
    /// Returns a builder of an empty stack.
    pub fn builder() -> StackBuilder {
        StackBuilder::default()
    }

    /// Sends a dispatch through every layer to the terminal; an empty stack calls the terminal
    /// directly.
    ///
    /// # Errors
    /// Fails when a guard or transformer refuses, or with the failure of the terminal.
    ///
    /// # Cancel safety
    /// Dropping the future drops the layer or terminal that is executing.
    pub fn run<'a>(
        &'a self,
        dispatch: Dispatch,
        terminal: &'a dyn Terminal,
    ) -> BoxFuture<'a, Result<Dispatched, Failure>> {
        let next = Next {
            observers: &self.observers,
            transformers: &self.transformers,
            guards: &self.guards,
            terminal,
        };
        next.run(dispatch)
    }

    /// Sends an input through every transformer and guard, before a prompt is rendered from it.
    pub fn prepare(&self, agent: &str, operator: &str, input: Json) -> Json {
        let layers = self.transformers.iter().chain(&self.guards);
        layers.fold(input, |input, layer| layer.prepare(agent, operator, input))
    }

    /// Sends the outcome of a parked attempt back through every layer, from the inside out. A layer
    /// that panics changes nothing.
    ///
    /// # Errors
    /// Returns the failure of the attempt, or a layer's own.
    pub fn settle(&self, about: &About, input: &Json, outcome: Settled) -> Settled {
        let layers = self.guards.iter().rev().chain(self.transformers.iter().rev());
        let outcome = layers.fold(outcome, |outcome, layer| {
            let before = outcome.clone();
            let settle = AssertUnwindSafe(|| layer.settle(about, input, outcome));
            catch_unwind(settle).unwrap_or_else(|_| {
                tracing::error!(layer = layer.name(), "a layer panicked when it settled a task");
                before
            })
        });
        for observer in self.observers.iter().rev() {
            if catch_unwind(AssertUnwindSafe(|| observer.settled(about, &outcome))).is_err() {
                tracing::warn!(observer = observer.name(), "an observer panicked");
            }
        }
        outcome
    }

    /// Passes a step that is read again while others go on from the result of its own operator.
    pub(crate) fn take_up(&self, about: &About, input: &Json) {
        for layer in self.guards.iter().rev().chain(self.transformers.iter().rev()) {
            if catch_unwind(AssertUnwindSafe(|| layer.take_up(about, input))).is_err() {
                tracing::error!(layer = layer.name(), "a layer panicked when it took up a step");
            }
        }
    }

    /// Returns true if an observer looks at dispatches at present.
    pub(crate) fn is_observed(&self) -> bool {
        self.observers.iter().any(|observer| observer.is_on())
    }

    /// Returns the layers with their classes, from the outermost to the innermost.
    pub fn layers(&self) -> impl Iterator<Item = (Class, &str)> {
        let observers = self.observers.iter().map(|layer| (Class::Observer, layer.name()));
        let transformers = self.transformers.iter().map(|layer| (Class::Transformer, layer.name()));
        let guards = self.guards.iter().map(|layer| (Class::Guard, layer.name()));
        observers.chain(transformers).chain(guards)
    }

    /// Returns the layers' names, from the outermost to the innermost.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.layers().map(|(_, name)| name)
    }
}

impl<'a> Next<'a> {
    /// Passes the dispatch to the next layer, or to the terminal.
    ///
    /// Returns the boxed future of the layer itself, so that a layer costs one allocation and
    /// futures do not nest by value.
    ///
    /// # Errors
    /// Fails when an inner layer refuses, or with the failure of the terminal.
    pub fn run(self, dispatch: Dispatch) -> BoxFuture<'a, Result<Dispatched, Failure>> {
        if let Some((observer, observers)) = self.observers.split_first() {
            let rest = Next { observers, ..self };
            return match observer.is_on() {
                true => observe(&**observer, dispatch, rest).boxed(),
                false => rest.run(dispatch),
            };
        }
        if let Some((layer, transformers)) = self.transformers.split_first() {
            return layer.dispatch(dispatch, Next { transformers, ..self });
        }
        if let Some((guard, guards)) = self.guards.split_first() {
            let guarded = guard.dispatch(dispatch, Next { guards, ..self });
            return guarded.map_err(refused).boxed();
        }
        // Before anybody is told of it: who leases it at once finds it so.
        dispatch.about.pass();
        self.terminal.dispatch(dispatch)
    }
}

/// Runs the remaining stack inside an observer.
async fn observe(
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
        // The dispatch was running, so the panic came from below the observer.
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

/// Returns the failure of a dispatch that its observer dropped while it was running; another
/// attempt may succeed.
fn abandoned(observer: &str) -> Failure {
    let message = format!("the observer {observer} dropped a dispatch that was running");
    Failure::new(kind::INTERRUPTED, message).retryable()
}

/// Marks the failure of a guard as a refusal, unless it has a kind of its own.
pub(super) fn refused(mut failure: Failure) -> Failure {
    if failure.kind.is_empty() {
        kind::REFUSED.clone_into(&mut failure.kind);
    }
    failure
}

#[cfg(test)]
mod tests;
