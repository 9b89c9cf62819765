//! Changes on their way to stores that are not the host's: one lane per scope.
//!
//! A change by an effect or a worker is a row of the outbox, in the commit that accepts it. The lane
//! of its scope makes the oldest one, removes its row durably, and only then makes the next. What
//! the store cannot take is tried again, with longer and longer pauses, and what is behind it
//! waits. `deliveries` does the work.

use std::{
    collections::BTreeMap,
    fmt,
    sync::atomic::{AtomicU32, AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::store::{ForeignStores, OutboxRow};

/// The changes that may be on their way to one scope.
pub(crate) const MOST: usize = 10_000;

/// The trouble of changes whose scope no store keeps any more.
const NO_STORE: &str = "this host has no store for it";

/// The bit that tells the number of a change in the outbox from the numbers of signals.
const OURS: u32 = 1 << 30;

/// The lanes of a host, by scope.
pub(crate) struct Lanes {
    by_scope: BTreeMap<String, Lane>,
    /// The scopes that changes wait for, and that no store of this host keeps.
    orphans: BTreeMap<String, usize>,
    next: AtomicU32,
}

/// The lane of one scope.
#[derive(Default)]
pub(crate) struct Lane {
    /// There is a change to make.
    pub(crate) wake: Notify,
    /// The number of changes that were made since the host started.
    pub(crate) made: watch::Sender<u64>,
    /// About how many changes wait.
    pub(crate) waiting: AtomicUsize,
    trouble: Mutex<Option<Trouble>>,
    /// The changes that the store refused since the host started, and the last reason.
    pub(crate) refused: Mutex<Option<(u64, String)>>,
}

/// The reason why the first change of a lane has not been made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trouble {
    pub(crate) error: String,
    pub(crate) failures: u32,
}

/// In words: the error, and how often it was tried.
impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.failures {
            0 => f.write_str(&self.error),
            failures => write!(f, "{} (tried {failures} times)", self.error),
        }
    }
}

/// A lane, as `doctor` shows it.
pub(crate) struct LaneView {
    pub(crate) scope: String,
    pub(crate) waiting: usize,
    pub(crate) trouble: Option<Trouble>,
    /// The changes that the store refused since the host started, and the last reason.
    pub(crate) refused: Option<(u64, String)>,
}

impl Lanes {
    /// Returns the lanes of stores, with what was on its way to them when the host ended.
    pub(crate) fn open(stores: &ForeignStores, rows: &[OutboxRow]) -> Self {
        let by_scope: BTreeMap<String, Lane> =
            stores.keys().map(|scope| (scope.clone(), Lane::default())).collect();
        let mut orphans: BTreeMap<String, usize> = BTreeMap::new();
        let mut next = 0;
        for row in rows {
            let Some((scope, _)) = row.errand.change_of() else { continue };
            next = next.max((row.step & !OURS) + 1);
            match by_scope.get(scope) {
                Some(lane) => drop(lane.waiting.fetch_add(1, Ordering::Relaxed)),
                None => *orphans.entry(scope.to_owned()).or_default() += 1,
            }
        }
        for (scope, waiting) in &orphans {
            tracing::warn!(scope, waiting, "changes wait for a store that this host does not have");
        }
        Self { by_scope, orphans, next: AtomicU32::new(next) }
    }

    /// Returns the lane of a scope.
    pub(crate) fn lane(&self, scope: &str) -> Option<&Lane> {
        self.by_scope.get(scope)
    }

    /// Returns the scopes.
    pub(crate) fn scopes(&self) -> Vec<String> {
        self.by_scope.keys().cloned().collect()
    }

    /// Returns the number of the next change in the outbox.
    pub(crate) fn number(&self) -> u32 {
        OURS | (self.next.fetch_add(1, Ordering::Relaxed) & (OURS - 1))
    }

    /// Returns true if a scope takes no further change for now.
    pub(crate) fn is_full(&self, scope: &str) -> bool {
        let waiting = |lane: &Lane| lane.waiting.load(Ordering::Relaxed) >= MOST;
        self.by_scope.get(scope).is_some_and(waiting)
    }

    /// A change of a scope is durable in the outbox.
    pub(crate) fn added(&self, scope: &str) {
        if let Some(lane) = self.by_scope.get(scope) {
            lane.waiting.fetch_add(1, Ordering::Relaxed);
            lane.wake.notify_one();
        }
    }

    /// Returns true if no change can be on its way.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_scope.is_empty() && self.orphans.is_empty()
    }

    /// Returns the reason why changes of a scope wait.
    pub(crate) fn trouble(&self, scope: &str) -> Option<Trouble> {
        let no_store = || Trouble { error: NO_STORE.to_owned(), failures: 0 };
        match self.by_scope.get(scope) {
            Some(lane) => lane.trouble.lock().clone(),
            None => self.orphans.contains_key(scope).then(no_store),
        }
    }

    /// Keeps that a change of a scope could not be made, until the next one is.
    pub(crate) fn failed(&self, scope: &str, error: String) {
        if let Some(lane) = self.by_scope.get(scope) {
            let mut trouble = lane.trouble.lock();
            let failures = trouble.as_ref().map_or(0, |it| it.failures).saturating_add(1);
            *trouble = Some(Trouble { error, failures });
        }
    }

    /// A change of a scope was made.
    pub(crate) fn succeeded(&self, scope: &str) {
        if let Some(lane) = self.by_scope.get(scope) {
            *lane.trouble.lock() = None;
        }
    }

    /// Returns every lane.
    pub(crate) fn views(&self) -> Vec<LaneView> {
        let view = |(scope, lane): (&String, &Lane)| LaneView {
            scope: scope.clone(),
            waiting: lane.waiting.load(Ordering::Relaxed),
            trouble: lane.trouble.lock().clone(),
            refused: lane.refused.lock().clone(),
        };
        let orphan = |(scope, waiting): (&String, &usize)| LaneView {
            scope: scope.clone(),
            waiting: *waiting,
            trouble: self.trouble(scope),
            refused: None,
        };
        let orphans = self.orphans.iter().map(orphan);
        self.by_scope.iter().map(view).chain(orphans).collect()
    }
}
