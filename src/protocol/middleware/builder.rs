//! The builders of the stacks, which differ only in the trait that they stack.

/// Defines the builder of a stack: three classes, each in the order of registration.
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
            /// Adds an observer: outermost, so that it sees what others refuse.
            #[must_use]
            pub fn observe(mut self, mw: std::sync::Arc<dyn $middleware>) -> Self {
                self.observers.push(mw);
                self
            }

            /// Adds a transformer, which changes requests.
            #[must_use]
            pub fn transform(mut self, mw: std::sync::Arc<dyn $middleware>) -> Self {
                self.transformers.push(mw);
                self
            }

            /// Adds a guard, which may refuse: innermost, so that it sees the transformed request.
            #[must_use]
            pub fn guard(mut self, mw: std::sync::Arc<dyn $middleware>) -> Self {
                self.guards.push(mw);
                self
            }

            /// Builds the stack.
            pub fn build(self) -> $stack {
                let Self { observers, transformers, guards } = self;
                $stack { layers: observers.into_iter().chain(transformers).chain(guards).collect() }
            }
        }

        impl $stack {
            /// Returns a builder of an empty stack.
            pub fn builder() -> $builder {
                $builder::default()
            }
        }
    };
}
pub(super) use builder;
