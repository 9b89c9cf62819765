//! The judge of what goes over the links: a run is driven by one node at a time.
//!
//! Sees every message on its way, and compares what was said with the runs that each engine has in
//! memory. The checker judges the history; this is about what no history shows.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tokio::sync::mpsc;

use super::{Host, helper::Helper};
use crate::{
    clock::Clock,
    engine::{FromHelper, ToHelper},
    store::{Memory, PROVISIONAL, Reader as _, Write},
};

/// How much was lent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lent {
    /// The runs.
    pub runs: u64,
    /// The batches of them that were committed.
    pub batches: u64,
}

/// What was said on the links of one life of the host.
pub(super) struct LinkBook {
    clock: Clock,
    /// The store of the host.
    store: Arc<Memory>,
    /// The number of the last link.
    last: u64,
    /// The number of the last batch that came over the link of another helper.
    last_stray: u64,
    /// What was lent, over all lives of the host.
    lent: Lent,
    /// The batches that the host received for runs that were lent, by link and number, each with its
    /// run, until their fate is known.
    under_way: BTreeMap<(u64, u64), u64>,
    /// Those of runs that were not: they had been given back, or were lent to another helper.
    late: BTreeMap<(u64, u64), u64>,
    /// The runs that were given back, by link.
    given_back: BTreeSet<(u64, u64)>,
    /// The ends of broken links: no helper hears what the host says there.
    deaf: Vec<(u64, mpsc::UnboundedReceiver<ToHelper>)>,
    /// What happened on the links, to be read.
    story: Vec<String>,
    /// What was wrong.
    findings: BTreeSet<String>,
}

/// A message of a helper, for people.
fn shown(message: &FromHelper) -> String {
    match message {
        FromHelper::Parcel { number, parcel } => {
            let rows = parcel.run.as_ref().map_or(0, |run| run.entries.len());
            format!("batch {number} of run {:?}, {rows} rows", parcel.about())
        }
        FromHelper::Home { .. } | FromHelper::Load { .. } => format!("{message:?}"),
    }
}

impl LinkBook {
    pub(super) fn new(clock: Clock, store: Arc<Memory>) -> Self {
        Self {
            clock,
            store,
            last: 0,
            last_stray: 0,
            lent: Lent::default(),
            under_way: BTreeMap::new(),
            late: BTreeMap::new(),
            given_back: BTreeSet::new(),
            deaf: Vec::new(),
            story: Vec::new(),
            findings: BTreeSet::new(),
        }
    }

    /// The number of the next link.
    pub(super) fn next_link(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// The number of the next batch that comes over the link of another helper, which gives none like it.
    pub(super) fn next_stray(&mut self) -> u64 {
        self.last_stray += 1;
        u64::MAX - self.last_stray
    }

    /// Notes what the host receives over a link; `is_stray` if it is of a helper without one.
    pub(super) fn received(&mut self, link: u64, message: &FromHelper, is_stray: bool) {
        let word = if is_stray { "over the link of" } else { "from" };
        self.tell(&format!("{word} helper {link}: {}", shown(message)));
        match message {
            FromHelper::Load { .. } => {}
            FromHelper::Home { run, .. } => drop(self.given_back.insert((link, *run))),
            FromHelper::Parcel { number, parcel } => {
                let Some(run) = parcel.about() else {
                    return self.find(format!("a helper writes for its runs only: {parcel:?}"));
                };
                let is_late = is_stray || self.given_back.contains(&(link, run));
                let place = if is_late { &mut self.late } else { &mut self.under_way };
                place.insert((link, *number), run);
                let is_alien = |write: &&Write| {
                    matches!(write, Write::PutTask(row)
                        if ["queue", "human"].contains(&row.kind.as_str())
                            || ["host", "one"].contains(&row.agent.as_str()))
                };
                if let Some(alien) = parcel.writes.iter().find(is_alien) {
                    self.find(format!(
                        "a helper leaves to the host what only the host can do: {alien:?}"
                    ));
                }
            }
        }
    }

    /// Notes what the host said.
    fn said(&mut self, link: u64, message: &ToHelper) {
        match message {
            ToHelper::Take { run, .. } => {
                self.lent.runs += 1;
                if self.store.header(*run).unwrap().is_none() {
                    self.find(format!("a run is lent once its start is stored: run {run}"));
                }
            }
            ToHelper::Recall { .. } => {}
            ToHelper::Settled { number, result } => {
                self.lent.batches += u64::from(result.is_ok());
                self.under_way.remove(&(link, *number));
                if let Some(run) = self.late.remove(&(link, *number))
                    && result.is_ok()
                {
                    self.find(format!(
                        "a batch of a run that was given back is refused: one of run {run} was not"
                    ));
                }
            }
        }
    }

    /// A link broke: whatever the host says there goes nowhere.
    pub(super) fn broke(&mut self, link: u64, to: mpsc::UnboundedReceiver<ToHelper>) {
        self.deaf.push((link, to));
        self.tell(&format!("the link to helper {link} breaks"));
    }

    /// Every link is lost, with the host; the next has this store.
    pub(super) fn lost(&mut self, store: Arc<Memory>) {
        self.store = store;
        self.under_way.clear();
        self.late.clear();
        self.given_back.clear();
        self.deaf.clear();
    }

    /// Takes what the host said on its way, and looks at who drives what.
    pub(super) fn watch(&mut self, host: &Host, nodes: &mut [Helper]) {
        self.overhear(nodes);
        let mut found = BTreeSet::new();
        for (shard, _) in &host.shards {
            for run in shard.runs.keys().chain(shard.loading.keys()) {
                if shard.away.contains_key(run) {
                    found.insert(format!("run {run} is away, and the host drives it"));
                }
                if self.under_way.values().any(|of| of == run) {
                    found.insert(format!("the host drives run {run}, and a batch is under way"));
                }
            }
        }
        let away: BTreeSet<u64> = host.lent().into_iter().collect();
        for run in nodes.iter().filter(|node| node.is_linked()).flat_map(Helper::runs) {
            if !away.contains(&run) {
                found.insert(format!("run {run} is home, and a helper drives it"));
            }
        }
        if nodes.iter().any(|node| node.limited.live() > 0) {
            found.insert("a helper works on an attempt of an agent with a limit".to_owned());
        }
        for what in found {
            self.find(format!("a run is driven by one node: {what}"));
        }
    }

    /// Takes what the host said since to the helpers' ends of their links.
    fn overhear(&mut self, nodes: &mut [Helper]) {
        for link in nodes.iter_mut().filter_map(|node| node.link.as_mut()) {
            while let Ok(message) = link.to.try_recv() {
                self.tell(&format!("to helper {}: {message:?}", link.number));
                self.said(link.number, &message);
                link.orders.push_back(message);
            }
        }
        let mut deaf = std::mem::take(&mut self.deaf);
        for (link, to) in &mut deaf {
            while let Ok(message) = to.try_recv() {
                self.tell(&format!("to nobody, helper {link} is gone: {message:?}"));
                self.said(*link, &message);
            }
        }
        self.deaf = deaf;
    }

    /// Once everything went well: no run that has ended is away, and when all have ended nobody has any.
    pub(super) fn look_at_the_end(&mut self, host: &Host, unfinished: &BTreeSet<u64>) {
        let lent = host.lent().into_iter().filter(|run| !unfinished.contains(run));
        let mut found: Vec<String> =
            lent.map(|run| format!("run {run} has ended, and is still away")).collect();
        let helpers = host.engine.shared().lending.helpers();
        let runs: usize = helpers.iter().map(|(_, runs)| runs).sum();
        if unfinished.is_empty() && runs > 0 {
            found.push(format!("every run has ended, and the helpers have {runs}"));
        }
        let stored = self.store.commits(0);
        let rows = stored.iter().flat_map(|commit| &commit.rows);
        let provisional = rows.filter(|row| row.lsn >= PROVISIONAL);
        found.extend(provisional.map(|row| format!("row {row:?} has no number of the host's")));
        for what in found {
            self.find(format!("what is lent comes home: {what}"));
        }
    }

    /// Adds to the story of the links.
    pub(super) fn tell(&mut self, what: &str) {
        let (now_ms, position) = (self.clock.now_ms(), self.store.position());
        self.story.push(format!("{now_ms:>14} #{position:<4} {what}"));
    }

    fn find(&mut self, what: String) {
        self.findings.insert(what);
    }

    pub(super) fn story(&self) -> &[String] {
        &self.story
    }

    pub(super) fn findings(&self) -> impl Iterator<Item = &String> {
        self.findings.iter()
    }

    pub(super) fn lent(&self) -> Lent {
        self.lent
    }
}
