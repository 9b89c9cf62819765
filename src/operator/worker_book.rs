//! The pull workers that were active a while ago, for people. Nothing is decided by it.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::blueprint::Labels;

/// The maximum number of workers that are remembered; the one that was seen longest ago goes first.
const MOST: usize = 4_096;
/// A worker that was not seen for this long is forgotten, in milliseconds.
const REMEMBERED_MS: u64 = 3_600_000;

/// Workers by queue and name.
type Workers = BTreeMap<String, BTreeMap<String, WorkerSeen>>;

/// The workers by queue and name.
#[derive(Debug, Default)]
pub struct WorkerBook {
    workers: Mutex<Workers>,
}

/// A worker of a queue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkerSeen {
    /// The queue.
    pub queue: String,
    /// The name that it gave itself.
    pub worker: String,
    /// Its labels, once it has asked for work.
    pub labels: Labels,
    /// When it was first seen, in Unix milliseconds.
    pub first_ms: u64,
    /// When it asked for work or sent a heartbeat last, in Unix milliseconds.
    pub last_ms: u64,
}

impl WorkerBook {
    /// Records that a worker asks for work, with its labels, or is at work.
    pub fn note(&self, queue: &str, worker: &str, labels: Option<&Labels>, now_ms: u64) {
        let mut workers = self.workers.lock();
        if let Some(seen) = workers.get_mut(queue).and_then(|of| of.get_mut(worker)) {
            seen.last_ms = seen.last_ms.max(now_ms);
            if let Some(labels) = labels.filter(|labels| **labels != seen.labels) {
                seen.labels.clone_from(labels);
            }
            return;
        }
        make_room(&mut workers, now_ms);
        let seen = WorkerSeen {
            queue: queue.to_owned(),
            worker: worker.to_owned(),
            labels: labels.cloned().unwrap_or_default(),
            first_ms: now_ms,
            last_ms: now_ms,
        };
        workers.entry(queue.to_owned()).or_default().insert(worker.to_owned(), seen);
    }

    /// Returns the workers, by queue and name.
    pub fn list(&self, now_ms: u64) -> Vec<WorkerSeen> {
        let workers = self.workers.lock();
        let all = workers.values().flat_map(BTreeMap::values);
        all.filter(|it| !is_past(it, now_ms)).cloned().collect()
    }
}

fn is_past(seen: &WorkerSeen, now_ms: u64) -> bool {
    now_ms.saturating_sub(seen.last_ms) >= REMEMBERED_MS
}

fn make_room(workers: &mut Workers, now_ms: u64) {
    let is_full = |workers: &Workers| workers.values().map(BTreeMap::len).sum::<usize>() >= MOST;
    if !is_full(workers) {
        return;
    }
    for of in workers.values_mut() {
        of.retain(|_, seen| !is_past(seen, now_ms));
    }
    if is_full(workers)
        && let Some(oldest) =
            workers.values().flat_map(BTreeMap::values).min_by_key(|it| it.last_ms)
    {
        let (queue, worker) = (oldest.queue.clone(), oldest.worker.clone());
        workers.get_mut(&queue).and_then(|of| of.remove(&worker));
    }
    workers.retain(|_, of| !of.is_empty());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_remembered_for_an_hour_and_never_too_many() {
        let book = WorkerBook::default();
        let gpu: Labels = serde_json::from_str(r#"{"gpu":"a100"}"#).unwrap();
        book.note("q", "ann", Some(&gpu), 5);
        book.note("q", "ann", None, 9);
        let [ann] = book.list(9).try_into().unwrap();
        assert_eq!((ann.labels, ann.first_ms, ann.last_ms), (gpu, 5, 9));
        assert!(book.list(9 + REMEMBERED_MS).is_empty());
        for n in 0..MOST as u64 {
            book.note("q", &format!("w{n}"), None, 10 + n);
        }
        let all = book.list(10);
        assert_eq!(all.len(), MOST);
        assert!(all.iter().all(|it| it.worker != "ann"), "it was seen longest ago");
    }
}
