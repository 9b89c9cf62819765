//! The path of batches: submitted, durable, acknowledged.

use std::{collections::VecDeque, sync::Arc};

use async_trait::async_trait;
use parking_lot::Mutex;

use super::tables::Tables;
use crate::store::{
    Ack, Batch, Health, JournalRow, Numbers, Relay, StoreError, Write, Writer,
    fair::{FairQueue, Weight, run_of},
};

/// A store in memory. Commits and acknowledges at once, or only on request.
#[derive(Default)]
pub struct Memory {
    pub(super) inner: Arc<Mutex<Inner>>,
    held: bool,
    numbers: Numbers,
    /// The writer of a store that only reads the data.
    pub(super) relay: Option<Arc<Relay>>,
    /// The number of entries that were read.
    #[cfg(test)]
    pub(crate) entries_read: std::sync::atomic::AtomicUsize,
    /// The largest number of entries that were read at once.
    #[cfg(test)]
    pub(crate) most_read: std::sync::atomic::AtomicUsize,
}

/// A batch that became durable.
#[derive(Debug, Clone)]
pub struct Commit {
    /// The position among all commits, from 1.
    pub position: u64,
    /// The run that it belongs to, if any.
    pub run: Option<u64>,
    /// The rows added to the journal.
    pub rows: Vec<JournalRow>,
    /// The other writes.
    pub writes: Vec<Write>,
}

#[derive(Default)]
pub(super) struct Inner {
    pub(super) tables: Tables,
    waiting: FairQueue<Batch>,
    acks: VecDeque<(Ack, Result<(), StoreError>)>,
    commits: Vec<Commit>,
    failure: Option<StoreError>,
    /// The approximate bytes of all batches that were ever submitted.
    written: u64,
}

/// The memory that a row takes beside its bytes.
const ROW: usize = 256;

impl Memory {
    /// Creates an empty store that commits and acknowledges every batch at once.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty store in which batches wait for [`Memory::commit`], and results for
    /// [`Memory::acknowledge`].
    pub fn held() -> Self {
        Self { held: true, ..Self::default() }
    }

    /// Creates a store that reads the same data, and whose batches go to `relay`. A crash ends both.
    #[must_use]
    pub fn reading(&self, relay: Arc<Relay>) -> Self {
        Self { inner: Arc::clone(&self.inner), relay: Some(relay), ..Self::default() }
    }

    /// Returns the number of batches that wait for a commit.
    pub fn waiting(&self) -> usize {
        self.inner.lock().waiting.len()
    }

    /// Returns the number of results that wait to be sent.
    pub fn unacknowledged(&self) -> usize {
        self.inner.lock().acks.len()
    }

    /// Returns the position of the last commit.
    pub fn position(&self) -> u64 {
        self.inner.lock().commits.len() as u64
    }

    /// Returns the commits with positions over `after`, in order, across crashes.
    pub fn commits(&self, after: u64) -> Vec<Commit> {
        let inner = self.inner.lock();
        inner.commits.iter().filter(|commit| commit.position > after).cloned().collect()
    }

    /// Returns the approximate bytes of all batches that were ever submitted, across crashes. The
    /// store holds at most these.
    pub fn written(&self) -> u64 {
        self.inner.lock().written
    }

    /// Makes about the next `group` batches durable together, or fails them all. Takes them in the
    /// order of a real database's writer.
    pub fn commit(&self, group: usize) {
        let mut inner = self.inner.lock();
        let mut left = group.min(inner.waiting.len());
        while left > 0 {
            let rows = Weight { rows: left, bytes: usize::MAX };
            let batches = inner.waiting.take_group(rows);
            left = left.saturating_sub(batches.len());
            for batch in batches {
                let (ack, verdict) = inner.take_in(batch);
                inner.acks.push_back((ack, verdict));
            }
        }
    }

    /// Sends the next result. Returns false if there is none.
    pub fn acknowledge(&self) -> bool {
        let next = self.inner.lock().acks.pop_front();
        // The callback may submit again, so the lock must be released first.
        match next {
            Some((ack, verdict)) => {
                ack(verdict);
                true
            }
            None => false,
        }
    }

    /// Makes all commits fail with `error` from now on, or succeed again.
    pub fn fail_with(&self, error: Option<StoreError>) {
        self.inner.lock().failure = error;
    }

    /// Returns the store after a crash, with everything that was durable. Waiting batches are lost
    /// without an acknowledgement.
    #[must_use]
    pub fn crash(&self) -> Self {
        let mut inner = self.inner.lock();
        let tables = std::mem::take(&mut inner.tables);
        let commits = std::mem::take(&mut inner.commits);
        let unheard = std::mem::take(&mut inner.waiting);
        drop(unheard);
        inner.acks.clear();
        inner.failure = Some(StoreError::Closed);
        let written = inner.written;
        let (last_run, last_lsn) = tables.high_water();
        let inner = Inner { tables, commits, written, ..Inner::default() };
        Self {
            inner: Arc::new(Mutex::new(inner)),
            held: self.held,
            numbers: Numbers::after(last_run, last_lsn),
            relay: None,
            #[cfg(test)]
            entries_read: Default::default(),
            #[cfg(test)]
            most_read: Default::default(),
        }
    }
}

impl Inner {
    fn take_in(&mut self, batch: Batch) -> (Ack, Result<(), StoreError>) {
        let Batch { checks, run, writes, ack } = batch;
        if let Some(error) = &self.failure {
            return (ack, Err(error.clone()));
        }
        let verdict = self.tables.apply(&checks, run.as_ref(), &writes);
        if verdict.is_ok() {
            let position = self.commits.len() as u64 + 1;
            let (run, rows) =
                run.map_or((None, Vec::new()), |run| (Some(run.header.num), run.entries));
            self.commits.push(Commit { position, run, rows, writes });
        }
        (ack, verdict)
    }
}

#[async_trait]
impl Writer for Memory {
    async fn room(&self) {
        // The queue of a simulation has no limit.
        if let Some(relay) = &self.relay {
            relay.room().await;
        }
    }

    fn submit(&self, batch: Batch) {
        if let Some(relay) = &self.relay {
            return relay.submit(batch);
        }
        let Weight { rows, bytes } = batch.weight();
        self.inner.lock().written += rows.max(1).saturating_mul(ROW).saturating_add(bytes) as u64;
        if self.held {
            // Every batch has the same weight, because the batches of a simulation are small.
            let weight = Weight { rows: 1, bytes: 0 };
            self.inner.lock().waiting.push(run_of(&batch), weight, batch);
            return;
        }
        let (ack, verdict) = self.inner.lock().take_in(batch);
        ack(verdict);
    }

    fn numbers(&self) -> &Numbers {
        self.relay.as_ref().map_or(&self.numbers, |relay| relay.numbers())
    }

    fn health(&self) -> Health {
        self.relay.as_ref().map_or(Health::Well, |relay| relay.health())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{
        Reader as _,
        conformance::{batch, conformance},
    };

    conformance!(((), Arc::new(Memory::new())));

    fn note(value: &str) -> Vec<Write> {
        vec![Write::PutMeta { key: "k".to_owned(), value: value.to_owned() }]
    }

    #[test]
    fn a_crash_leaves_what_was_durable_and_tells_nobody_anything() {
        let store = Memory::held();
        let verdicts = ["1", "2", "3"].map(|value| {
            let (batch, verdict) = batch(vec![], None, note(value));
            store.submit(batch);
            verdict
        });
        assert_eq!(store.meta("k").unwrap(), None, "nothing is durable before its commit");
        store.commit(2);
        assert!(store.acknowledge());
        assert!(verdicts[0].try_recv().unwrap().is_ok());
        assert!(verdicts[1].try_recv().is_err(), "it is durable, and nobody was told");
        let after = store.crash();
        assert_eq!(after.meta("k").unwrap().as_deref(), Some("2"));
        assert_eq!((after.waiting(), after.unacknowledged(), after.position()), (0, 0, 2));
        assert!(verdicts[2].recv().is_err(), "its submitter died with the process");
    }

    #[test]
    fn a_reserved_number_is_given_to_nobody_after_a_crash() {
        let store = Memory::held();
        let (batch, _verdict) = batch(vec![], None, vec![Write::ReserveRun { num: 5 }]);
        store.submit(batch);
        store.commit(1);
        assert_eq!(store.crash().next_run(), 6);
    }

    #[test]
    fn a_failing_commit_writes_nothing_and_a_later_one_does() {
        let store = Memory::held();
        let (first, refused) = batch(vec![], None, note("1"));
        store.submit(first);
        store.fail_with(Some(StoreError::Full));
        store.commit(1);
        assert!(store.acknowledge() && !store.acknowledge());
        assert!(matches!(refused.recv().unwrap(), Err(StoreError::Full)));
        assert_eq!(store.meta("k").unwrap(), None);
        store.fail_with(None);
        let (second, accepted) = batch(vec![], None, note("2"));
        store.submit(second);
        store.commit(1);
        store.acknowledge();
        assert!(accepted.recv().unwrap().is_ok());
        assert_eq!(store.meta("k").unwrap().as_deref(), Some("2"));
    }
}
