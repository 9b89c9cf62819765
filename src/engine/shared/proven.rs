//! A value whose `Send` and `Sync` are proved once.

use std::ops::Deref;

/// A value that threads may share, which was proved when it was made.
///
/// The compiler proves `Send` for each future that is called through a trait, and each time it walks
/// through all types that the future refers to. Behind a trait object there is nothing to walk
/// through. Nearly all futures of the engine refer to its parts: a check of the crate takes two
/// thirds of the time so. A use costs an indirect call.
pub(crate) struct Proven<T: 'static>(Box<dyn Deref<Target = T> + Send + Sync>);

impl<T: Send + Sync> Proven<T> {
    /// Wraps a value.
    pub(crate) fn new(value: T) -> Self {
        Self(Box::new(Plain(value)))
    }
}

impl<T> Deref for Proven<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

struct Plain<T>(T);

impl<T> Deref for Plain<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}
