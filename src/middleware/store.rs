//! The boundary of state: every operation, in one form.
//!
//! State is read and written within a run's transition, so its layers are synchronous and must not
//! block. All operations are in one list, and every one passes through the stack.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use super::{Class, stack::refused};
use crate::protocol::{Failure, Json, RunId};

/// The operations on state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoreOp {
    /// Read a value.
    Read,
    /// Write a value.
    Write,
    /// Delete a key.
    Delete,
    /// List keys.
    List,
    /// Search values.
    Search,
    /// Change a value relative to its current one: add, append, merge.
    Reduce,
    /// Link two keys.
    Link,
    /// Remove a link.
    Unlink,
    /// Follow links.
    Traverse,
    /// Clear transient values.
    Clear,
}

impl StoreOp {
    /// Every operation.
    pub const ALL: [Self; 10] = [
        Self::Read,
        Self::Write,
        Self::Delete,
        Self::List,
        Self::Search,
        Self::Reduce,
        Self::Link,
        Self::Unlink,
        Self::Traverse,
        Self::Clear,
    ];

    /// Returns the name in logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Delete => "delete",
            Self::List => "list",
            Self::Search => "search",
            Self::Reduce => "reduce",
            Self::Link => "link",
            Self::Unlink => "unlink",
            Self::Traverse => "traverse",
            Self::Clear => "clear",
        }
    }
}

/// One operation on state.
#[derive(Debug, Clone, PartialEq)]
pub struct StoreCall {
    /// The operation.
    pub op: StoreOp,
    /// The run, if the operation belongs to one.
    pub run: Option<RunId>,
    /// The subject that performs it.
    pub principal: Arc<str>,
    /// The scope: `run:…`, `global`.
    pub scope: String,
    /// The key, the prefix or the query.
    pub key: String,
    /// The value that is written or added; for a link, its JSON form.
    pub value: Option<Json>,
}

/// The result of an operation: a value, a list of keys, null.
pub type Stored = Result<Json, Failure>;

/// A transformer or a guard of state.
pub trait StoreLayer: Send + Sync {
    /// Returns the name in logs.
    fn name(&self) -> &str;

    /// Handles an operation; without a call of `next` its own answer is final.
    ///
    /// # Errors
    /// Fails when it refuses, or with the error of `next`.
    fn store(&self, call: StoreCall, next: StoreNext<'_>) -> Stored;
}

/// Observes operations on state.
pub trait StoreObserver: Send + Sync {
    /// Returns the name in logs.
    fn name(&self) -> &str;

    /// Observes an operation as it was requested, and its outcome.
    fn stored(&self, call: &StoreCall, outcome: &Stored);
}

/// The layers that every operation on state passes through.
#[derive(Clone, Default)]
pub struct StoreStack {
    observers: Vec<Arc<dyn StoreObserver>>,
    transformers: Vec<Arc<dyn StoreLayer>>,
    guards: Vec<Arc<dyn StoreLayer>>,
}

/// Builds a [`StoreStack`].
#[derive(Default)]
pub struct StoreStackBuilder(StoreStack);

/// The remaining stack, below one layer.
pub struct StoreNext<'a> {
    transformers: &'a [Arc<dyn StoreLayer>],
    guards: &'a [Arc<dyn StoreLayer>],
    terminal: &'a mut dyn FnMut(StoreCall) -> Stored,
}

impl StoreStackBuilder {
    /// Adds an observer, inside the observers before it.
    #[must_use]
    pub fn observe(mut self, observer: impl StoreObserver + 'static) -> Self {
        self.0.observers.push(Arc::new(observer));
        self
    }

    /// Adds a transformer, inside the transformers before it.
    #[must_use]
    pub fn transform(mut self, layer: impl StoreLayer + 'static) -> Self {
        self.0.transformers.push(Arc::new(layer));
        self
    }

    /// Adds a guard, inside the guards before it.
    #[must_use]
    pub fn guard(mut self, layer: impl StoreLayer + 'static) -> Self {
        self.0.guards.push(Arc::new(layer));
        self
    }

    /// Adds every layer of another stack, each inside the layers of its class before it.
    #[must_use]
    pub fn with(mut self, other: &StoreStack) -> Self {
        self.0.observers.extend(other.observers.iter().map(Arc::clone));
        self.0.transformers.extend(other.transformers.iter().map(Arc::clone));
        self.0.guards.extend(other.guards.iter().map(Arc::clone));
        self
    }

    /// Builds the stack.
    pub fn build(self) -> StoreStack {
        self.0
    }
}

impl StoreStack {
    /// Returns a builder of an empty stack.
    pub fn builder() -> StoreStackBuilder {
        StoreStackBuilder::default()
    }

    /// Returns true if there are no layers.
    pub fn is_empty(&self) -> bool {
        self.observers.is_empty() && self.transformers.is_empty() && self.guards.is_empty()
    }

    /// Sends an operation through every layer to the terminal; an empty stack calls the terminal
    /// directly.
    ///
    /// # Errors
    /// Fails when a layer refuses, or with the failure of the terminal.
    pub fn run(&self, call: StoreCall, terminal: &mut dyn FnMut(StoreCall) -> Stored) -> Stored {
        let asked = (!self.observers.is_empty()).then(|| call.clone());
        let next = StoreNext { transformers: &self.transformers, guards: &self.guards, terminal };
        let outcome = next.run(call);
        if let Some(asked) = asked {
            for observer in self.observers.iter().rev() {
                let watch = AssertUnwindSafe(|| observer.stored(&asked, &outcome));
                if catch_unwind(watch).is_err() {
                    tracing::warn!(observer = observer.name(), "an observer panicked");
                }
            }
        }
        outcome
    }

    /// Returns the layers with their classes, from the outermost to the innermost.
    pub fn layers(&self) -> impl Iterator<Item = (Class, &str)> {
        let observers = self.observers.iter().map(|layer| (Class::Observer, layer.name()));
        let transformers = self.transformers.iter().map(|layer| (Class::Transformer, layer.name()));
        let guards = self.guards.iter().map(|layer| (Class::Guard, layer.name()));
        observers.chain(transformers).chain(guards)
    }
}

impl StoreNext<'_> {
    /// Passes the operation to the next layer, or to state.
    ///
    /// # Errors
    /// Fails when an inner layer refuses, or with the failure of state.
    pub fn run(self, call: StoreCall) -> Stored {
        let Self { transformers, guards, terminal } = self;
        if let Some((layer, transformers)) = transformers.split_first() {
            return layer.store(call, StoreNext { transformers, guards, terminal });
        }
        if let Some((guard, guards)) = guards.split_first() {
            let guarded = guard.store(call, StoreNext { transformers, guards, terminal });
            return guarded.map_err(refused);
        }
        terminal(call)
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::protocol::failure::kind;

    fn call(op: StoreOp) -> StoreCall {
        StoreCall {
            op,
            run: None,
            principal: "root".into(),
            scope: "global".into(),
            key: "k".into(),
            value: None,
        }
    }

    struct Refuses(StoreOp);

    impl StoreLayer for Refuses {
        fn name(&self) -> &str {
            "refuses"
        }

        fn store(&self, call: StoreCall, next: StoreNext<'_>) -> Stored {
            if call.op == self.0 { Err(Failure::new("", "no")) } else { next.run(call) }
        }
    }

    struct Renames;

    impl StoreLayer for Renames {
        fn name(&self) -> &str {
            "renames"
        }

        fn store(&self, mut call: StoreCall, next: StoreNext<'_>) -> Stored {
            call.key = "other".into();
            next.run(call)
        }
    }

    #[derive(Clone, Default)]
    struct Saw(Arc<Mutex<Vec<(StoreOp, String, bool)>>>);

    impl StoreObserver for Saw {
        fn name(&self) -> &str {
            "saw"
        }

        fn stored(&self, call: &StoreCall, outcome: &Stored) {
            self.0.lock().push((call.op, call.key.clone(), outcome.is_ok()));
        }
    }

    struct Panics;

    impl StoreObserver for Panics {
        fn name(&self) -> &str {
            "panics"
        }

        fn stored(&self, _: &StoreCall, _: &Stored) {
            panic!("on purpose")
        }
    }

    #[test]
    fn every_operation_passes_every_layer_and_observers_see_a_refusal_too() {
        for op in StoreOp::ALL {
            let saw = Saw::default();
            let stack = StoreStack::builder()
                .observe(saw.clone())
                .observe(Panics)
                .transform(Renames)
                .guard(Refuses(op))
                .build();
            let mut reached = Vec::new();
            for each in StoreOp::ALL {
                let outcome = stack.run(call(each), &mut |call| {
                    reached.push((call.op, call.key));
                    Ok(Json::null())
                });
                assert_eq!(outcome.is_err(), each == op);
            }
            assert_eq!(reached.len(), StoreOp::ALL.len() - 1);
            assert!(reached.iter().all(|(reached, key)| *reached != op && key == "other"));
            let seen = saw.0.lock().clone();
            let expected: Vec<_> =
                StoreOp::ALL.iter().map(|each| (*each, "k".to_owned(), *each != op)).collect();
            assert_eq!(seen, expected);
        }
    }

    #[test]
    fn a_guard_that_names_no_kind_refuses() {
        let stack = StoreStack::builder().guard(Refuses(StoreOp::Read)).build();
        let failure = stack.run(call(StoreOp::Read), &mut |_| Ok(Json::null())).unwrap_err();
        assert_eq!(failure.kind, kind::REFUSED);
        let names: Vec<_> = stack.layers().map(|(class, name)| (class.as_str(), name)).collect();
        assert_eq!(names, [("guard", "refuses")]);
    }
}
