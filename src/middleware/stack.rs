//! The stack: its classes of layers, their order, and the way down.

use async_trait::async_trait;
use futures::{FutureExt, TryFutureExt, future::BoxFuture};

use super::{Dispatch, DispatchObserver, Dispatched, Terminal, observe};
use crate::protocol::{Failure, failure::kind};

/// A transformer or a guard: it gets the dispatch and the rest of the stack.
#[async_trait]
pub trait DispatchLayer: Send + Sync {
    /// The name that logs use.
    fn name(&self) -> &'static str;

    /// Passes the dispatch on, or not; without a call of `next` its own answer is final.
    ///
    /// # Errors
    /// Its own refusal, or what came back from `next`.
    async fn dispatch(&self, dispatch: Dispatch, next: Next<'_>) -> Result<Dispatched, Failure>;
}

/// The layers that every dispatch passes through.
#[derive(Default)]
pub struct DispatchStack {
    observers: Vec<Box<dyn DispatchObserver>>,
    transformers: Vec<Box<dyn DispatchLayer>>,
    guards: Vec<Box<dyn DispatchLayer>>,
}

/// Collects the layers of a [`DispatchStack`].
#[derive(Default)]
pub struct StackBuilder(DispatchStack);

/// The rest of the stack, below one layer.
#[derive(Clone, Copy)]
pub struct Next<'a> {
    observers: &'a [Box<dyn DispatchObserver>],
    transformers: &'a [Box<dyn DispatchLayer>],
    guards: &'a [Box<dyn DispatchLayer>],
    terminal: &'a dyn Terminal,
}

impl StackBuilder {
    /// Adds an observer, inside the observers before it.
    #[must_use]
    pub fn observe(mut self, observer: impl DispatchObserver + 'static) -> Self {
        self.0.observers.push(Box::new(observer));
        self
    }

    /// Adds a transformer, inside the transformers before it.
    #[must_use]
    pub fn transform(mut self, layer: impl DispatchLayer + 'static) -> Self {
        self.0.transformers.push(Box::new(layer));
        self
    }

    /// Adds a guard, inside the guards before it.
    #[must_use]
    pub fn guard(mut self, layer: impl DispatchLayer + 'static) -> Self {
        self.0.guards.push(Box::new(layer));
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

    /// The layers' names, from the outermost to the innermost.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        let observers = self.observers.iter().map(|observer| observer.name());
        let layers = self.transformers.iter().chain(&self.guards).map(|layer| layer.name());
        observers.chain(layers)
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
            return observe::observe(&**observer, dispatch, Next { observers, ..self }).boxed();
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

/// A guard's failure keeps the kind that it names; one that names none is a refusal.
fn refused(mut failure: Failure) -> Failure {
    if failure.kind.is_empty() {
        kind::REFUSED.clone_into(&mut failure.kind);
    }
    failure
}

#[cfg(test)]
mod tests;
