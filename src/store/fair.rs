//! The write order of batches: runs take turns.
//!
//! The batches of one run keep their order, as do the batches that belong to no run. Across runs,
//! the order is not that of submission: otherwise a run that works ahead of its commits would put
//! its whole backlog before the next step of every other run.
//!
//! | the next batch of a run is | it waits in the queue | served |
//! |---|---|---|
//! | light, and no other batch of the run waited | `prompt` | first |
//! | heavy, or others of the run waited before it | `patient` | next, at least every second group |

use std::collections::{HashMap, VecDeque};

use super::{Batch, Check};

/// The maximum number of rows of one run in a group, unless its first batch alone has more.
const QUANTUM_ROWS: usize = 64;
/// The maximum number of bytes of one run in a group, unless its first batch alone has more.
const QUANTUM_BYTES: usize = 128 * 1024;

/// The rows and the approximate number of bytes of a write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Weight {
    pub(super) rows: usize,
    pub(super) bytes: usize,
}

impl Weight {
    const QUANTUM: Self = Self { rows: QUANTUM_ROWS, bytes: QUANTUM_BYTES };

    fn and(self, more: Self) -> Self {
        Self { rows: self.rows + more.rows, bytes: self.bytes + more.bytes }
    }

    fn fits(self, limit: Self) -> bool {
        self.rows <= limit.rows && self.bytes <= limit.bytes
    }
}

/// Returns the run whose order a batch keeps; `None` for a batch that belongs to no run.
pub(super) fn run_of(batch: &Batch) -> Option<u64> {
    let checked = batch.checks.iter().find_map(|check| match check {
        Check::RunAt { run, .. } => Some(*run),
        Check::TokenLive(_) | Check::KeyFree { .. } | Check::MetaIs { .. } => None,
    });
    batch.run.as_ref().map(|run| run.header.num).or(checked)
}

/// The waiting batches, by run.
pub(super) struct FairQueue<T> {
    lanes: HashMap<Option<u64>, VecDeque<(Weight, T)>>,
    prompt: VecDeque<Option<u64>>,
    patient: VecDeque<Option<u64>>,
    /// True if the last group had nothing from `patient` although it was not empty.
    passed_over: bool,
    len: usize,
    bytes: usize,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self {
            lanes: HashMap::new(),
            prompt: VecDeque::new(),
            patient: VecDeque::new(),
            passed_over: false,
            len: 0,
            bytes: 0,
        }
    }
}

impl<T> FairQueue<T> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the approximate number of bytes of all waiting batches.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn push(&mut self, run: Option<u64>, weight: Weight, item: T) {
        self.len += 1;
        self.bytes += weight.bytes;
        let lane = self.lanes.entry(run).or_default();
        lane.push_back((weight, item));
        if lane.len() == 1 {
            self.line_up(run, weight.fits(Weight::QUANTUM));
        }
    }

    /// Removes the next group: at least one batch, and as many as `limit` allows.
    pub(super) fn take_group(&mut self, limit: Weight) -> Vec<T> {
        let mut group = Vec::new();
        let (mut taken, mut served_patient) = (Weight::default(), false);
        let mut patient_first = std::mem::take(&mut self.passed_over);
        loop {
            let from_patient =
                (patient_first && !self.patient.is_empty()) || self.prompt.is_empty();
            patient_first = false;
            let line = if from_patient { &mut self.patient } else { &mut self.prompt };
            let Some(run) = line.pop_front() else { break };
            let before = group.len();
            self.take_of(run, limit, &mut taken, &mut group);
            if group.len() == before {
                // It no longer fits, and becomes the first of the next group.
                let line = if from_patient { &mut self.patient } else { &mut self.prompt };
                line.push_front(run);
                break;
            }
            served_patient |= from_patient;
        }
        self.len -= group.len();
        self.bytes -= taken.bytes;
        self.passed_over = !served_patient && !self.patient.is_empty();
        group
    }

    /// Takes one run's share of a group, and queues the run again if more of its batches wait.
    fn take_of(&mut self, run: Option<u64>, limit: Weight, taken: &mut Weight, group: &mut Vec<T>) {
        let Some(lane) = self.lanes.get_mut(&run) else { return };
        let (mut share, before) = (Weight::default(), group.len());
        while let Some((weight, _)) = lane.front() {
            let (more, all) = (share.and(*weight), taken.and(*weight));
            let fits_group = group.is_empty() || all.fits(limit);
            let fits_share = group.len() == before || more.fits(Weight::QUANTUM);
            if !fits_group || !fits_share {
                break;
            }
            (share, *taken) = (more, all);
            group.extend(lane.pop_front().map(|(_, item)| item));
        }
        match lane.front() {
            None => drop(self.lanes.remove(&run)),
            Some((next, _)) if group.len() > before => {
                // The host's own writes are many small batches from many sources.
                let prompt = run.is_none() && next.fits(Weight::QUANTUM);
                self.line_up(run, prompt);
            }
            Some(_) => {}
        }
    }

    fn line_up(&mut self, run: Option<u64>, prompt: bool) {
        if prompt {
            self.prompt.push_back(run);
        } else {
            self.patient.push_back(run);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Weight = Weight { rows: 256, bytes: 1 << 20 };

    fn rows(rows: usize) -> Weight {
        Weight { rows, bytes: rows * 100 }
    }

    #[test]
    fn a_backlog_does_not_stand_before_somebody_elses_first_batch() {
        let mut queue = FairQueue::default();
        for n in 0..100 {
            queue.push(Some(1), rows(250), (1, n));
        }
        queue.push(Some(2), rows(3), (2, 0));
        assert_eq!(queue.take_group(LIMIT), [(2, 0), (1, 0)]);
        queue.push(Some(3), rows(20), (3, 0));
        assert_eq!(queue.take_group(LIMIT), [(3, 0)]);
        assert_eq!(queue.take_group(LIMIT), [(1, 1)]);
        assert_eq!(queue.len(), 98);
    }

    #[test]
    fn long_runs_take_turns_and_each_keeps_its_order() {
        let mut queue = FairQueue::default();
        for run in 1..=3 {
            for n in 0..3 {
                queue.push(Some(run), rows(256), (run, n));
            }
        }
        let mut order = Vec::new();
        while !queue.is_empty() {
            order.extend(queue.take_group(LIMIT));
        }
        let expected: Vec<_> = (0..3).flat_map(|n| (1..=3).map(move |run| (run, n))).collect();
        assert_eq!(order, expected);
    }

    #[test]
    fn many_small_runs_do_not_keep_a_long_one_from_its_turn() {
        let mut queue = FairQueue::default();
        queue.push(Some(1), rows(256), 1);
        let (mut groups, mut next) = (0, 2);
        loop {
            for _ in 0..200 {
                queue.push(Some(next), rows(3), next);
                next += 1;
            }
            groups += 1;
            if queue.take_group(LIMIT).contains(&1) {
                break;
            }
        }
        assert!(groups <= 2, "it waited for {groups} groups");
    }

    #[test]
    fn what_is_larger_than_a_group_is_a_group_of_its_own() {
        let mut queue = FairQueue::default();
        queue.push(Some(1), Weight { rows: 1, bytes: 64 << 20 }, "large");
        queue.push(Some(1), rows(1), "after it");
        queue.push(None, rows(1), "the host's");
        assert_eq!(queue.take_group(LIMIT), ["the host's"]);
        assert_eq!(queue.take_group(LIMIT), ["large"]);
        assert_eq!(queue.take_group(LIMIT), ["after it"]);
        assert!(queue.take_group(LIMIT).is_empty() && queue.is_empty());
    }
}
