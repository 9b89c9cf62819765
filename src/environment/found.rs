//! The result of resolving a secret.

use std::time::Duration;

use super::Secret;
use crate::protocol::SecretAccessOutcome;

/// The timeout of a command or a vault.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// The maximum size of a secret, in bytes.
pub(super) const LONGEST: usize = 64 * 1024;

/// A resolved secret.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) secret: Secret,
    /// The id of the lease and its duration in seconds.
    pub(super) lease: Option<(String, u64)>,
}

/// A secret that could not be resolved. The reason contains no part of it.
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
