//! What stands between callers and the three traits: around a dispatch, around state, around an
//! environment.
//!
//! A middleware gets what passes and the rest of the way, `next`; without a call of `next` its own
//! answer is final. Stacks put them in order: observers, transformers, guards, and then whoever is
//! wrapped. These stacks are for code that uses the traits without a host; a host has stacks of its
//! own, in the room `middleware`.

mod dispatch;
mod exec;
mod hooks;
mod store;

pub use dispatch::{DispatchMiddleware, DispatchNext, DispatchStack, DispatchStackBuilder};
pub use exec::{ExecMiddleware, ExecNext, ExecStack, ExecStackBuilder};
pub use hooks::{ByHook, DispatchHook, ExecHook, StoreHook};
pub use store::{
    Layered, StoreAnswer, StoreMiddleware, StoreOtherNext, StoreQuestion, StoreReadNext,
    StoreStack, StoreStackBuilder, StoreWriteNext,
};

/// The builder of a stack: three classes, each in the order of registration.
macro_rules! builder {
    ($(#[$doc:meta])* $builder:ident, $stack:ident, $middleware:ident) => {
        $(#[$doc])*
        #[derive(Default)]
        pub struct $builder {
            observers: Vec<std::sync::Arc<dyn $middleware>>,
            transformers: Vec<std::sync::Arc<dyn $middleware>>,
            guards: Vec<std::sync::Arc<dyn $middleware>>,
        }

        impl $builder {
            /// Adds one that watches: outermost, so that it sees what others refuse.
            #[must_use]
            pub fn observe(mut self, mw: std::sync::Arc<dyn $middleware>) -> Self {
                self.observers.push(mw);
                self
            }

            /// Adds one that changes what passes.
            #[must_use]
            pub fn transform(mut self, mw: std::sync::Arc<dyn $middleware>) -> Self {
                self.transformers.push(mw);
                self
            }

            /// Adds one that may refuse: innermost, so that it sees what was made of it.
            #[must_use]
            pub fn guard(mut self, mw: std::sync::Arc<dyn $middleware>) -> Self {
                self.guards.push(mw);
                self
            }

            /// The stack.
            pub fn build(self) -> $stack {
                let Self { observers, transformers, guards } = self;
                $stack { layers: observers.into_iter().chain(transformers).chain(guards).collect() }
            }
        }

        impl $stack {
            /// A stack without anything in it, to add some.
            pub fn builder() -> $builder {
                $builder::default()
            }
        }
    };
}
use builder;

#[cfg(test)]
mod tests;
