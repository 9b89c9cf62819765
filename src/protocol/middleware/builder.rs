//! The builders of the stacks, which differ in what they stack only.

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
pub(super) use builder;
