//! How far the stored runs are taken up.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

/// How far the taking up is.
#[derive(Debug, Default)]
pub(crate) struct TakingUp {
    /// Set while it goes on.
    pub(crate) reason: Mutex<Option<&'static str>>,
    pub(crate) taken: AtomicUsize,
    pub(crate) of: AtomicUsize,
}

impl TakingUp {
    pub(crate) fn set(&self, reason: Option<&'static str>) {
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = reason;
    }

    /// Says how far it is, while it goes on.
    pub(crate) fn told(&self) -> Option<String> {
        let reason = (*self.reason.lock().unwrap_or_else(PoisonError::into_inner))?;
        let (taken, of) = (self.taken.load(Ordering::Relaxed), self.of.load(Ordering::Relaxed));
        Some(format!("{reason}: {taken} of {of}"))
    }
}
