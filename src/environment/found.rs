//! A secret that was asked for: found, or missing with the reason.

use std::time::Duration;

use super::Secret;
use crate::protocol::SecretAccessOutcome;

/// How long a command or a vault may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// The longest secret, in bytes.
pub(super) const LONGEST: usize = 64 * 1024;

/// A secret that was there.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) secret: Secret,
    /// The id of its lease and how many seconds it lasts.
    pub(super) lease: Option<(String, u64)>,
}

/// A secret that was not: in words without any part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Missing {
    pub(super) outcome: SecretAccessOutcome,
    pub(super) reason: String,
}

impl Missing {
    pub(super) fn failed(reason: impl Into<String>) -> Self {
        Self { outcome: SecretAccessOutcome::Failed, reason: reason.into() }
    }

    pub(super) fn denied(reason: impl Into<String>) -> Self {
        Self { outcome: SecretAccessOutcome::Denied, reason: reason.into() }
    }
}
