//! The built-in layers that a configuration file or a blueprint can declare.
//!
//! Each is one file: its settings, its behavior, its tests. [`Means`] is what they need from the
//! host.

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

/// The services of the host that layers need.
#[derive(Clone)]
pub struct Means {
    /// The storage that outlives the host.
    pub keep: Arc<dyn Keep>,
    /// The clock.
    pub clock: Clock,
    /// Runs blocking work; without it, layers block their own thread.
    pub tasks: Option<Tasks>,
}

impl Means {
    /// Returns means without a place for blocking work.
    pub fn of(keep: Arc<dyn Keep>, clock: Clock) -> Self {
        Self { keep, clock, tasks: None }
    }
}
