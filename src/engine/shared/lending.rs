//! The book of the runs that other nodes drive for this one.
//!
//! A run is lent when its start is stored. From then on its helper alone drives it, and every batch of
//! it comes over the helper's link, where it gets the numbers of its rows and is committed. A batch for
//! a run that is not lent over the same link is refused, so it does not matter what a helper goes on to
//! do whose link is broken: the run goes on here as soon as the batches that had come are settled.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
};

use hashlink::LruCache;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::{
    engine::{
        run::loan::{HomeReason, Place, Share},
        shared::lent::{Lend, Patience, ToHelper},
    },
    fault::{self, Break},
    metrics::{Counter, Scrape},
    protocol::Json,
    store::{Parcel, Renumbering, Store, StoreError},
};

/// The maximum number of runs that one helper has.
const MOST_LENT: usize = 10_000;
/// The number of versions of blueprints that are remembered as not worth lending.
const KEPT_HOMELY: usize = 1_024;
/// The time for which they are, in milliseconds.
const HOMELY_MS: u64 = 600_000;
/// With this many waiting runs for each thread, a node has more than it can do.
const BEHIND: usize = 2;

/// The book of the runs that other nodes drive.
pub(crate) struct Lending {
    rule: Lend,
    threads: usize,
    links: Mutex<Vec<Arc<HelperLink>>>,
    /// The number of the last link.
    last: AtomicU64,
    /// The number of runs that could have been lent and are in the memory of this process.
    here: Arc<AtomicUsize>,
    /// The versions whose runs needed this process, with the time on the steady clock.
    homely: Mutex<LruCache<String, u64>>,
    counts: LendingCounts,
}

/// The counters of what was lent.
#[derive(Default)]
struct LendingCounts {
    lent: Counter,
    over: Counter,
    needs: Counter,
    recalled: Counter,
}

/// The state in which a run comes home, as far as its batches told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rest {
    /// The run goes on at once.
    Now,
    /// The run is woken at this time, in Unix milliseconds.
    Until(u64),
    /// Nothing of the run is due.
    Idle,
    /// The run has ended.
    Ended,
}

/// The link to a helper.
pub(crate) struct HelperLink {
    /// The number of the link.
    number: u64,
    /// The number of the node.
    node: i64,
    to: mpsc::UnboundedSender<ToHelper>,
    runs: Mutex<LentRuns>,
    /// The places that are taken.
    count: Arc<AtomicUsize>,
    waiting: AtomicU32,
    tight: AtomicBool,
}

#[derive(Default)]
struct LentRuns {
    is_closed: bool,
    by_number: BTreeMap<u64, LentRun>,
}

/// A run that a helper has.
struct LentRun {
    hash: String,
    numbers: Renumbering,
    /// The number of its batches whose fate is open.
    in_flight: usize,
    /// The state in the last stored header.
    stored: Option<Rest>,
    /// Set once it is to come home.
    leaves: Option<HomeReason>,
    /// True while somebody here follows its events.
    watched: bool,
}

/// The consequence of something that happened to a lent run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing follows.
    Nothing,
    /// Its followers find more in the store.
    Stirred,
    /// The run is home.
    Home(Rest, HomeReason),
}

impl Lending {
    pub(crate) fn new(rule: Lend, threads: usize) -> Self {
        Self {
            rule,
            threads,
            links: Mutex::default(),
            last: AtomicU64::new(0),
            here: Arc::default(),
            homely: Mutex::new(LruCache::new(KEPT_HOMELY)),
            counts: LendingCounts::default(),
        }
    }

    /// Returns true if there may be somebody to lend to.
    pub(crate) fn is_open(&self) -> bool {
        self.rule != Lend::Off && !self.links.lock().is_empty()
    }

    /// Decides who drives a run that could be lent. `waiting` runs wait for a thread of this process.
    pub(crate) fn choose(&self, hash: &str, waiting: usize, tight: bool, now_ms: u64) -> Place {
        match self.helper(waiting, tight).filter(|_| !self.is_homely(hash, now_ms)) {
            Some(link) => {
                // Until it says anew how much it has to do.
                link.waiting.fetch_add(1, Ordering::Relaxed);
                Place::There(link.number, Share::of(&link.count))
            }
            None => Place::Here(self.keep()),
        }
    }

    fn is_homely(&self, hash: &str, now_ms: u64) -> bool {
        let since = self.homely.lock().get(hash).copied();
        since.is_some_and(|since| now_ms.saturating_sub(since) < HOMELY_MS)
    }

    fn helper(&self, waiting: usize, tight: bool) -> Option<Arc<HelperLink>> {
        let is_behind = tight || waiting >= BEHIND * self.threads;
        if self.rule == Lend::Off || self.rule == Lend::Auto && !is_behind {
            return None;
        }
        let links = self.links.lock();
        let takes = |link: &&Arc<HelperLink>| {
            let has_time = match self.rule {
                Lend::Even => true,
                Lend::Auto | Lend::Off => {
                    usize::try_from(link.waiting.load(Ordering::Relaxed)).unwrap_or(usize::MAX)
                        <= waiting / 2
                }
            };
            has_time && !link.tight.load(Ordering::Relaxed)
        };
        let least = links.iter().filter(takes).min_by_key(|link| link.lent())?;
        let most = match self.rule {
            // With as many runs here as there, the next one stays.
            Lend::Even => self.here.load(Ordering::Relaxed),
            Lend::Auto | Lend::Off => MOST_LENT,
        };
        (least.lent() < most.min(MOST_LENT)).then(|| Arc::clone(least))
    }

    /// Counts a run that could have been lent, and stays.
    pub(crate) fn keep(&self) -> Share {
        Share::of(&self.here)
    }

    /// Adds a helper.
    pub(crate) fn join(&self, node: i64, to: mpsc::UnboundedSender<ToHelper>) -> Arc<HelperLink> {
        let link = Arc::new(HelperLink {
            number: self.last.fetch_add(1, Ordering::Relaxed) + 1,
            node,
            to,
            runs: Mutex::default(),
            count: Arc::default(),
            waiting: AtomicU32::new(0),
            tight: AtomicBool::new(false),
        });
        self.links.lock().push(Arc::clone(&link));
        link
    }

    /// Returns a link that is there.
    pub(crate) fn link(&self, number: u64) -> Option<Arc<HelperLink>> {
        self.links.lock().iter().find(|link| link.number == number).cloned()
    }

    /// Removes a helper: it is lent nothing more. Returns what becomes of its runs.
    pub(crate) fn part(&self, link: &Arc<HelperLink>) -> Vec<(u64, Effect)> {
        self.links.lock().retain(|it| !Arc::ptr_eq(it, link));
        let mut runs = link.runs.lock();
        runs.is_closed = true;
        let numbers: Vec<u64> = runs.by_number.keys().copied().collect();
        let leave = |run| (run, runs.leaves(run, HomeReason::Over));
        numbers.into_iter().map(leave).collect()
    }

    /// Counts a run that was lent.
    pub(crate) fn count_lent(&self) {
        self.counts.lent.inc();
    }

    /// Counts a run that came home.
    pub(crate) fn count_home(&self, why: HomeReason) {
        let LendingCounts { over, needs, recalled, .. } = &self.counts;
        match why {
            HomeReason::Over => over.inc(),
            HomeReason::Needs => needs.inc(),
            HomeReason::Recalled => recalled.inc(),
        }
    }

    /// Adds the numbers to a reading of the metrics.
    pub(crate) fn measure(&self, scrape: &mut Scrape) {
        let runs: usize = self.helpers().iter().map(|(_, runs)| runs).sum();
        scrape.count("moonswarm_lent_runs", &[], runs as u64);
        let LendingCounts { lent, over, needs, recalled } = &self.counts;
        scrape.count("moonswarm_lent_total", &[], lent.get());
        for (why, count) in [("over", over), ("needs", needs), ("recalled", recalled)] {
            scrape.count("moonswarm_home_total", &[why], count.get());
        }
    }

    /// Notes that runs of a version need what only this process has.
    pub(crate) fn stays(&self, hash: &str, now_ms: u64) {
        self.homely.lock().insert(hash.to_owned(), now_ms);
    }

    /// Returns the numbers of the nodes that help, each with the number of runs that it has.
    pub(crate) fn helpers(&self) -> Vec<(i64, usize)> {
        self.links.lock().iter().map(|link| (link.node, link.lent())).collect()
    }
}

impl HelperLink {
    fn lent(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Lends a run, with the grant of who published its version; returns false if the link is broken.
    pub(crate) fn take(&self, run: u64, hash: &str, publisher: Option<Json>) -> bool {
        let mut runs = self.runs.lock();
        if runs.is_closed {
            return false;
        }
        let lent = LentRun {
            hash: hash.to_owned(),
            numbers: Renumbering::default(),
            in_flight: 0,
            stored: None,
            leaves: None,
            watched: false,
        };
        runs.by_number.insert(run, lent);
        self.say(ToHelper::Take { run, publisher });
        true
    }

    /// Asks for a run.
    pub(crate) fn recall(&self, run: u64, patience: Patience) {
        self.say(ToHelper::Recall { run, patience });
    }

    /// Says something to the helper. After the end of the link nobody hears it.
    pub(crate) fn say(&self, message: ToHelper) {
        drop(self.to.send(message));
    }

    /// Notes that somebody follows the events of a run.
    pub(crate) fn watch(&self, run: u64) {
        if let Some(lent) = self.runs.lock().by_number.get_mut(&run) {
            lent.watched = true;
        }
    }

    /// Notes how much the helper has to do.
    pub(crate) fn loaded(&self, waiting: u32, tight: bool) {
        self.waiting.store(waiting, Ordering::Relaxed);
        self.tight.store(tight, Ordering::Relaxed);
    }

    /// Gives the rows of a batch of a run their numbers, and counts the batch as on its way.
    ///
    /// # Errors
    /// Returns [`StoreError::Moved`] for a run that the helper does not have.
    pub(crate) fn begin(
        &self,
        run: u64,
        parcel: &mut Parcel,
        store: &dyn Store,
    ) -> Result<(), StoreError> {
        let mut runs = self.runs.lock();
        let lent = runs.by_number.get_mut(&run).filter(|lent| lent.leaves.is_none());
        if lent.is_none() && fault::is_broken(Break::CommitUnlentBatches) {
            return Renumbering::default().apply(parcel, store);
        }
        let lent = lent.ok_or(StoreError::Moved { run })?;
        lent.numbers.apply(parcel, store)?;
        lent.in_flight += 1;
        Ok(())
    }

    /// Notes the fate of a batch of a run: `stored` is what the header in it says, if it is stored. With
    /// `is_lost`, the rows in it are not.
    pub(crate) fn settled(&self, run: u64, stored: Option<Rest>, is_lost: bool) -> Effect {
        let mut runs = self.runs.lock();
        let Some(lent) = runs.by_number.get_mut(&run) else { return Effect::Nothing };
        lent.in_flight -= 1;
        lent.stored = stored.or(lent.stored);
        if is_lost {
            lent.numbers.forget();
        }
        if lent.leaves.is_some() && lent.in_flight == 0 {
            return runs.end(run);
        }
        match std::mem::take(&mut lent.watched) {
            true => Effect::Stirred,
            false => Effect::Nothing,
        }
    }

    /// Notes that the helper no longer has a run. Returns the version of one that needs this process.
    pub(crate) fn gives_back(&self, run: u64, why: HomeReason) -> (Effect, Option<String>) {
        let mut runs = self.runs.lock();
        let lent = runs.by_number.get(&run);
        let needs = lent.filter(|_| why == HomeReason::Needs).map(|lent| lent.hash.clone());
        (runs.leaves(run, why), needs)
    }
}

impl LentRuns {
    fn leaves(&mut self, run: u64, why: HomeReason) -> Effect {
        let Some(lent) = self.by_number.get_mut(&run) else { return Effect::Nothing };
        lent.leaves.get_or_insert(why);
        if lent.in_flight > 0 && !fault::is_broken(Break::TakeBackEarly) {
            return Effect::Nothing;
        }
        self.end(run)
    }

    fn end(&mut self, run: u64) -> Effect {
        let Some(lent) = self.by_number.remove(&run) else { return Effect::Nothing };
        let why = lent.leaves.unwrap_or(HomeReason::Over);
        let rest = match (lent.stored, why) {
            (Some(Rest::Ended), _) => Rest::Ended,
            (Some(rest), HomeReason::Over) => rest,
            (Some(_) | None, _) => Rest::Now,
        };
        Effect::Home(rest, why)
    }
}
