//! The built-in layers that a configuration file or a blueprint can name.
//!
//! Each is one file: its keys, what it does, its tests. [`Means`] is what they are given.

pub(super) mod allow;
pub(super) mod audit;
pub(super) mod breaker;
pub(super) mod budget;
pub(super) mod memo;
pub(super) mod rate;
pub(super) mod redact;
mod span;

use std::sync::Arc;

pub use allow::{Guard, GuardSettings};
pub use audit::{Audit, AuditSettings};
pub use breaker::{BreakerSettings, CircuitBreaker};
pub use budget::{Budget, BudgetSettings};
pub use memo::{Cache, CacheSettings, Idempotency, IdempotencySettings};
pub use rate::{RateLimit, RateSettings};
pub use redact::{Redact, RedactSettings};
pub use span::Span;

use super::Keep;
use crate::{clock::Clock, tasks::Tasks};

/// What layers need of their host.
#[derive(Clone)]
pub struct Means {
    /// Where they keep what must outlive it.
    pub keep: Arc<dyn Keep>,
    /// The time.
    pub clock: Clock,
    /// Where they may block; without it they do where they are.
    pub tasks: Option<Tasks>,
}

impl Means {
    /// Means without a place to block.
    pub fn of(keep: Arc<dyn Keep>, clock: Clock) -> Self {
        Self { keep, clock, tasks: None }
    }
}
