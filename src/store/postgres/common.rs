//! What the lanes of a host share.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use super::{lane::Lane, owner, stats_fold::EndedRuns};
use crate::{
    metrics::Commits,
    store::{Health, StoreError, lock::Lock},
};

/// What the lanes of a host share.
pub struct Common {
    health: watch::Sender<Health>,
    /// The lanes that cannot write at the moment.
    waiting: Mutex<BTreeSet<i16>>,
    pub commits: Arc<Commits>,
    pub closing: Arc<AtomicBool>,
    /// Held by every lane during a group, and alone by the one that writes the tables anew.
    pub tables: RwLock<()>,
    pub ended: EndedRuns,
    /// The lanes that have not ended.
    open: AtomicUsize,
    /// The data directory, which is given back when the last lane has ended.
    _lock: Option<Lock>,
}

impl Common {
    /// Creates it for so many lanes.
    pub fn new(
        lanes: usize,
        health: watch::Sender<Health>,
        closing: Arc<AtomicBool>,
        lock: Option<Lock>,
    ) -> Arc<Self> {
        Arc::new(Self {
            health,
            waiting: Mutex::default(),
            commits: Arc::default(),
            closing,
            tables: RwLock::new(()),
            ended: EndedRuns::default(),
            open: AtomicUsize::new(lanes),
            _lock: lock,
        })
    }

    /// Returns the reason why nothing is written any more.
    pub fn lost(&self) -> Option<StoreError> {
        match &*self.health.borrow() {
            Health::Lost(error) => Some(error.clone()),
            Health::Well | Health::Waiting(_) => None,
        }
    }

    /// Ends all writing, for good.
    pub fn lose(&self, error: StoreError) {
        owner::lose(&self.health, error);
    }

    /// A lane cannot write at the moment.
    pub fn waits(&self, lane: Lane, error: &StoreError) {
        self.waiting.lock().insert(lane.number);
        self.health.send_if_modified(|health| match health {
            Health::Lost(_) => false,
            Health::Waiting(_) => {
                *health = Health::Waiting(error.clone());
                true
            }
            Health::Well => {
                tracing::error!(%error, "nothing is written until that is over");
                *health = Health::Waiting(error.clone());
                true
            }
        });
    }

    /// A lane has written.
    pub fn wrote(&self, lane: Lane) {
        let mut waiting = self.waiting.lock();
        waiting.remove(&lane.number);
        if !waiting.is_empty() {
            return;
        }
        self.health.send_if_modified(|health| match health {
            Health::Waiting(_) => {
                tracing::info!("the database can be written again");
                *health = Health::Well;
                true
            }
            Health::Well | Health::Lost(_) => false,
        });
    }

    /// A lane ends. Returns true for the last one.
    pub fn end(&self) -> bool {
        self.open.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_health_is_well_again_when_no_lane_waits() {
        let (sender, health) = watch::channel(Health::Well);
        let common = Common::new(2, sender, Arc::default(), None);
        let [a, b] = [0, 1].map(|number| Lane { node: 1, number });
        common.waits(a, &StoreError::Full);
        common.waits(b, &StoreError::Full);
        common.wrote(b);
        assert!(matches!(*health.borrow(), Health::Waiting(_)));
        common.wrote(a);
        assert!(matches!(*health.borrow(), Health::Well));
        assert!(!common.end() && common.end());
    }
}
