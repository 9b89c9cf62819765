//! The batches that wait for a writer: a bounded queue in which runs take turns. Those that were queued
//! during a commit are written as one group.

use std::{
    pin::pin,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

use super::{
    Batch, StoreError,
    fair::{FairQueue, Weight, run_of},
};

/// Waiting batches from which on the queue counts as full.
const WAITING: usize = 4096;
/// The maximum number of waiting bytes, in addition to one batch of any size.
const WAITING_BYTES: usize = 64 << 20;

/// The queue of the writer thread.
pub(super) struct Queue {
    waiting: Arc<Waiting>,
    thread: Mutex<Option<JoinHandle<Result<(), StoreError>>>>,
}

impl Queue {
    /// Starts a writer's thread, which ends when its queue is closed and drained.
    ///
    /// # Errors
    /// Fails when the system cannot create a thread.
    pub(super) fn start(
        serve: impl FnOnce(&Waiting) -> Result<(), StoreError> + Send + 'static,
    ) -> Result<Self, StoreError> {
        Self::start_one_of(1, serve)
    }

    /// Starts the thread of one of several writers, whose queues share the memory for waiting batches.
    ///
    /// # Errors
    /// Fails when the system cannot create a thread.
    pub(super) fn start_one_of(
        queues: usize,
        serve: impl FnOnce(&Waiting) -> Result<(), StoreError> + Send + 'static,
    ) -> Result<Self, StoreError> {
        let most_bytes = WAITING_BYTES / queues.max(1);
        let waiting = Arc::new(Waiting { most_bytes, ..Waiting::default() });
        let batches = Ending(Arc::clone(&waiting));
        let thread = thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || {
                let batches = batches;
                serve(&batches.0)
            })
            .map_err(|error| StoreError::Database {
                context: "start the writer's thread".to_owned(),
                reason: error.to_string(),
            })?;
        Ok(Self { waiting, thread: Mutex::new(Some(thread)) })
    }

    /// Queues a batch, also while the queue is full.
    pub(super) fn submit(&self, batch: Batch) {
        self.submit_all(vec![batch]);
    }

    /// Queues batches in their order, also while the queue is full. The writer finds all of them at
    /// once.
    pub(super) fn submit_all(&self, batches: Vec<Batch>) {
        for batch in self.waiting.push(batches) {
            (batch.ack)(Err(StoreError::Closed));
        }
    }

    /// Waits until the queue is not full, or closed.
    pub(super) async fn room(&self) {
        self.waiting.room().await;
    }

    /// Takes no more batches.
    pub(super) fn shut(&self) {
        self.waiting.close();
    }

    /// Takes no more batches, waits until those that queued are committed, and ends the thread.
    ///
    /// # Errors
    /// Fails when the writer's last act fails. No data is lost.
    pub(super) fn close(&self) -> Result<(), StoreError> {
        self.waiting.close();
        let mut thread = self.thread.lock();
        match thread.take() {
            // The last owner may be dropped inside an ack, on this thread. The thread then ends by
            // itself.
            Some(thread) if thread.thread().id() != thread::current().id() => {
                thread.join().unwrap_or_else(|_| Err(panicked()))
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// The batches that wait for the writer.
pub(super) struct Waiting {
    state: Mutex<State>,
    /// The number of waiting bytes from which on the queue counts as full.
    most_bytes: usize,
    /// Notified when a batch was queued, or the queue was closed.
    filled: Condvar,
    /// There is room again, or the queue was closed.
    emptied: Notify,
}

impl Default for Waiting {
    fn default() -> Self {
        let (state, filled, emptied) = (Mutex::default(), Condvar::default(), Notify::default());
        Self { state, most_bytes: WAITING_BYTES, filled, emptied }
    }
}

#[derive(Default)]
struct State {
    batches: FairQueue<Batch>,
    closed: bool,
}

/// The next action of the writer.
pub(super) enum Next {
    Commit(Vec<Batch>),
    /// No batch arrived within the timeout.
    Idle,
    End,
}

impl Waiting {
    /// Queues batches; returns them if the queue is closed.
    fn push(&self, batches: Vec<Batch>) -> Vec<Batch> {
        let weights: Vec<_> = batches.iter().map(Batch::weight).collect();
        let mut state = self.state.lock();
        if state.closed {
            return batches;
        }
        for (batch, weight) in batches.into_iter().zip(weights) {
            state.batches.push(run_of(&batch), weight, batch);
        }
        drop(state);
        self.filled.notify_one();
        Vec::new()
    }

    fn has_room(&self) -> bool {
        let state = self.state.lock();
        let is_full = state.batches.len() >= WAITING || state.batches.bytes() >= self.most_bytes;
        state.closed || !is_full
    }

    async fn room(&self) {
        loop {
            let mut emptied = pin!(self.emptied.notified());
            // Registered before the check, so that no wake-up is missed.
            emptied.as_mut().enable();
            if self.has_room() {
                return;
            }
            emptied.await;
        }
    }

    /// Waits for batches, for so long where it is given, and takes a group of at most `most`.
    pub(super) fn next(&self, patience: Option<Duration>, most: Weight) -> Next {
        let mut state = self.state.lock();
        while state.batches.is_empty() {
            if state.closed {
                return Next::End;
            }
            let Some(patience) = patience else {
                self.filled.wait(&mut state);
                continue;
            };
            let waited = self.filled.wait_for(&mut state, patience);
            if waited.timed_out() && state.batches.is_empty() && !state.closed {
                return Next::Idle;
            }
        }
        let group = state.batches.take_group(most);
        drop(state);
        self.emptied.notify_waiters();
        Next::Commit(group)
    }

    fn close(&self) {
        self.state.lock().closed = true;
        self.filled.notify_all();
        self.emptied.notify_waiters();
    }
}

/// The thread's side of the queue. However the thread ends, nobody waits for it any longer.
struct Ending(Arc<Waiting>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.close();
        // The remaining batches are dropped without a result. Their submitters notice that the ack
        // is gone.
        let left = std::mem::take(&mut self.0.state.lock().batches);
        drop(left);
    }
}

fn panicked() -> StoreError {
    StoreError::Database {
        context: "close the database".to_owned(),
        reason: "the writer's thread panicked".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures::FutureExt as _;

    use super::*;

    const GROUP: Weight = Weight { rows: 256, bytes: 1 << 20 };

    fn batch() -> Batch {
        Batch { checks: Vec::new(), run: None, writes: Vec::new(), ack: Box::new(|_| {}) }
    }

    #[tokio::test]
    async fn a_full_queue_takes_what_comes_and_says_when_there_is_room() {
        let waiting = Arc::new(Waiting::default());
        for _ in 0..WAITING {
            assert!(waiting.room().now_or_never().is_some());
            assert!(waiting.push(vec![batch()]).is_empty());
        }
        assert!(waiting.push(vec![batch()]).is_empty(), "who cannot wait is not held up");
        assert!(waiting.room().now_or_never().is_none());
        let ((), group) = tokio::join!(waiting.room(), async { waiting.next(None, GROUP) });
        let Next::Commit(group) = group else { panic!("there was something") };
        assert!(group.len() > 1);
        while !waiting.state.lock().batches.is_empty() {
            waiting.next(None, GROUP);
        }
        assert!(waiting.push((0..=WAITING).map(|_| batch()).collect()).is_empty());
        let ((), ()) = tokio::join!(waiting.room(), async { waiting.close() });
        assert_eq!(waiting.push(vec![batch()]).len(), 1);
    }

    #[test]
    fn what_is_queued_together_is_one_group_in_its_order_and_a_closed_queue_refuses_all_of_it() {
        let (tell, told) = mpsc::channel();
        let groups = tell.clone();
        let queue = Queue::start(move |waiting: &Waiting| {
            while let Next::Commit(group) = waiting.next(None, GROUP) {
                groups.send((0, group.len())).unwrap();
                group.into_iter().for_each(|batch| (batch.ack)(Ok(())));
            }
            Ok(())
        });
        let queue = queue.unwrap();
        let three = || -> Vec<Batch> {
            let noting = |n: u32| {
                let tell = tell.clone();
                let ack = Box::new(move |result: Result<(), StoreError>| {
                    tell.send((n, usize::from(result.is_ok()))).unwrap();
                });
                Batch { ack, ..batch() }
            };
            (1..=3).map(noting).collect()
        };
        queue.submit_all(three());
        queue.close().unwrap();
        queue.submit_all(three());
        let told: Vec<_> = told.try_iter().collect();
        assert_eq!(told, [(0, 3), (1, 1), (2, 1), (3, 1), (1, 0), (2, 0), (3, 0)]);
    }
}
