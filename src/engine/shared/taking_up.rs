//! The progress of taking up the stored runs.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

/// The progress of taking up the stored runs.
#[derive(Debug, Default)]
pub(crate) struct TakingUp {
    /// Set while it is in progress.
    pub(crate) reason: Mutex<Option<&'static str>>,
    pub(crate) taken: AtomicUsize,
    pub(crate) of: AtomicUsize,
}

impl TakingUp {
    pub(crate) fn set(&self, reason: Option<&'static str>) {
        *self.reason.lock() = reason;
    }

    /// Describes the progress, while it lasts.
    pub(crate) fn told(&self) -> Option<String> {
        let reason = (*self.reason.lock())?;
        let (taken, of) = (self.taken.load(Ordering::Relaxed), self.of.load(Ordering::Relaxed));
        Some(format!("{reason}: {taken} of {of}"))
    }
}
