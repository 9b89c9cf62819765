//! The built-in layers that a configuration file or a blueprint can declare.
//!
//! Each is one file: its settings, its behavior, its tests. [`Means`] is what they need from the
//! host.

pub(super) mod allow;
pub(super) mod audit;
pub(super) mod breaker;
pub(super) mod budget;
mod keyed;
pub(super) mod memo;
pub(super) mod rate;
pub(super) mod redact;
mod span;
mod unusable;

use std::{
    any::{Any, TypeId},
    collections::HashMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;

pub use allow::{Guard, GuardSettings};
pub use audit::{Audit, AuditSettings};
pub use breaker::{BreakerSettings, CircuitBreaker};
pub use budget::{Budget, BudgetSettings, Per};
pub use memo::{Cache, CacheSettings, Idempotency, IdempotencySettings};
pub use rate::{RateLimit, RateSettings};
pub use redact::{Redact, RedactSettings};
pub use span::Span;
pub(super) use unusable::Unusable;

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
    /// The memory of layers.
    pub(crate) memory: Arc<LayerMemory>,
}

/// The memory of layers by type and name: those of one name, such as a blueprint's in two of its
/// versions, count together, as they do in storage. It is dropped with the last layer that has it.
#[derive(Default)]
pub(crate) struct LayerMemory(Mutex<HashMap<(TypeId, String), Weak<dyn Any + Send + Sync>>>);

impl Means {
    /// Returns means without a place for blocking work.
    pub fn of(keep: Arc<dyn Keep>, clock: Clock) -> Self {
        Self { keep, clock, tasks: None, memory: Arc::default() }
    }

    /// Returns the memory of the layers of this name.
    fn memory<T: Default + Send + Sync + 'static>(&self, name: &str) -> Arc<T> {
        let mut known = self.memory.0.lock();
        let at = (TypeId::of::<T>(), name.to_owned());
        let found = known.get(&at).and_then(Weak::upgrade);
        if let Some(found) = found.and_then(|it| it.downcast::<T>().ok()) {
            return found;
        }
        known.retain(|_, it| it.strong_count() > 0);
        let new = Arc::<T>::default();
        let all: Arc<dyn Any + Send + Sync> = Arc::<T>::clone(&new);
        known.insert(at, Arc::downgrade(&all));
        new
    }
}
