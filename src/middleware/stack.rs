//! The stack: its classes of layers, their order, and the way down, with a wall between the faults
//! of observers and the dispatch.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
};

use async_trait::async_trait;
use futures::{FutureExt, TryFutureExt, future::BoxFuture};

use super::{About, Class, Dispatch, Dispatched, Short, TaskDone, Terminal};
use crate::protocol::{Failure, Json, failure::kind};

/// What came of an attempt, once nobody works on it any more.
pub type Settled = Result<TaskDone, Box<Short>>;

/// A transformer or a guard: it gets the dispatch and the rest of the stack.
#[async_trait]
pub trait DispatchLayer: Send + Sync {
    /// The name that logs use.
    fn name(&self) -> &str;

    /// Passes the dispatch on, or not; without a call of `next` its own answer is final.
    ///
    /// # Errors
    /// Its own refusal, or what came back from `next`.
    async fn dispatch(&self, dispatch: Dispatch, next: Next<'_>) -> Result<Dispatched, Failure> {
        next.run(dispatch).await
    }

    /// Changes what an operator is given, before a prompt is rendered from it and stored. May be
    /// called again for the same task, and must then do the same.
    fn prepare(&self, _agent: &str, _operator: &str, input: Json) -> Json {
        input
    }

    /// Looks at what came of an attempt that was parked: its worker reported, it timed out, it
    /// was canceled. Called once, by whoever decides about the run, so it must not wait; maybe by
    /// another host than the one that dispatched it.
    ///
    /// # Errors
    /// The attempt's failure, or its own.
    fn settle(&self, _about: &About, _input: &Json, outcome: Settled) -> Settled {
        outcome
    }
}

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

/// Settles what is not parked the way that parked work is settled later.
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

/// Collects the layers of a [`DispatchStack`].
#[derive(Default)]
pub struct StackBuilder(DispatchStack);

/// The rest of the stack, below one layer.
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

    /// The stack.
    pub fn build(self) -> DispatchStack {
        self.0
    }
}

impl DispatchStack {
    /// A stack without layers, to add some.
    pub fn builder() -> StackBuilder {
        StackBuilder::default()
    }

    /// Takes a dispatch through every layer to the terminal; without layers it is the terminal.
    ///
    /// # Errors
    /// A guard's or transformer's refusal, or the terminal's failure.
    ///
    /// # Cancel safety
    /// Dropping the future drops whatever layer or terminal it was in.
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

    /// Takes an input through every transformer, before a prompt is rendered from it.
    pub fn prepare(&self, agent: &str, operator: &str, input: Json) -> Json {
        let layers = self.transformers.iter().chain(&self.guards);
        layers.fold(input, |input, layer| layer.prepare(agent, operator, input))
    }

    /// Takes what came of a parked attempt back through every layer, from the inside out. A layer
    /// that panics changes nothing.
    ///
    /// # Errors
    /// The attempt's failure, or a layer's own.
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

    /// The layers with their classes, from the outermost to the innermost.
    pub fn layers(&self) -> impl Iterator<Item = (Class, &str)> {
        let observers = self.observers.iter().map(|layer| (Class::Observer, layer.name()));
        let transformers = self.transformers.iter().map(|layer| (Class::Transformer, layer.name()));
        let guards = self.guards.iter().map(|layer| (Class::Guard, layer.name()));
        observers.chain(transformers).chain(guards)
    }

    /// The layers' names, from the outermost to the innermost.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.layers().map(|(_, name)| name)
    }
}

impl<'a> Next<'a> {
    /// Passes the dispatch on to the next layer, or to the terminal.
    ///
    /// It hands on the box that the layer's own future is in, so that a layer costs one
    /// allocation and futures do not nest by value.
    ///
    /// # Errors
    /// A refusal below, or the terminal's failure.
    pub fn run(self, dispatch: Dispatch) -> BoxFuture<'a, Result<Dispatched, Failure>> {
        if let Some((observer, observers)) = self.observers.split_first() {
            return observe(&**observer, dispatch, Next { observers, ..self }).boxed();
        }
        if let Some((layer, transformers)) = self.transformers.split_first() {
            return layer.dispatch(dispatch, Next { transformers, ..self });
        }
        if let Some((guard, guards)) = self.guards.split_first() {
            let guarded = guard.dispatch(dispatch, Next { guards, ..self });
            return guarded.map_err(refused).boxed();
        }
        self.terminal.dispatch(dispatch)
    }
}

/// Runs the rest of the stack under an observer's eyes.
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

/// A guard's failure keeps the kind that it names; one that names none is a refusal.
pub(super) fn refused(mut failure: Failure) -> Failure {
    if failure.kind.is_empty() {
        kind::REFUSED.clone_into(&mut failure.kind);
    }
    failure
}

#[cfg(test)]
mod tests;
