//! The writer's thread: a bounded queue in which runs take turns, and groups of whatever queued
//! during the last commit.

use std::{
    pin::pin,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use tokio::sync::Notify;

use super::{committer::Committer, lock::Lock};
use crate::{
    fault,
    store::{
        Batch, StoreError,
        fair::{FairQueue, Weight, run_of},
    },
};

/// Batches that may wait before there is no room; those who own runs let them rest then.
const WAITING: usize = 4096;
/// Bytes that may wait, beside one batch of any size.
const WAITING_BYTES: usize = 64 << 20;
/// What is written with one commit.
const GROUP: Weight = Weight { rows: 256, bytes: 1024 * 1024 };
/// How often it is tried whether writes that failed for want of room, or for a lock, work again.
const PROBE: Duration = Duration::from_millis(250);
/// How often an idle writer looks whether its files are still there.
const LOOK: Duration = Duration::from_millis(500);

/// The way to the writer's thread.
pub struct Queue {
    waiting: Arc<Waiting>,
    thread: Mutex<Option<JoinHandle<Result<(), StoreError>>>>,
}

/// The batches that wait for the writer.
#[derive(Default)]
struct Waiting {
    state: Mutex<State>,
    /// A batch came, or the queue was closed.
    filled: Condvar,
    /// There is room again, or the queue was closed.
    emptied: Notify,
}

#[derive(Default)]
struct State {
    batches: FairQueue<Batch>,
    closed: bool,
}

/// What the writer does next.
enum Next {
    Commit(Vec<Batch>),
    /// Nothing came for as long as it was patient.
    Idle,
    End,
}

impl Queue {
    /// Starts the thread; it owns the data directory until its queue is closed and drained.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(committer: Committer, lock: Lock) -> Result<Self, StoreError> {
        let waiting = Arc::new(Waiting::default());
        let batches = Ending(Arc::clone(&waiting));
        let thread = thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || {
                let batches = batches;
                serve(&batches.0, committer, lock)
            })
            .map_err(|error| StoreError::Database {
                context: "start the writer's thread".to_owned(),
                reason: error.to_string(),
            })?;
        Ok(Self { waiting, thread: Mutex::new(Some(thread)) })
    }

    /// Queues a batch, also while there is no room.
    pub fn submit(&self, batch: Batch) {
        if let Err(batch) = self.waiting.push(batch) {
            (batch.ack)(Err(StoreError::Closed));
        }
    }

    /// Returns once there is room, or nothing is taken any more.
    pub async fn room(&self) {
        self.waiting.room().await;
    }

    /// Takes no more batches, waits until those that queued are committed, and ends the thread.
    ///
    /// # Errors
    /// When the log could not be written back; nothing is lost by that.
    pub fn close(&self) -> Result<(), StoreError> {
        self.waiting.close();
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        match thread.take() {
            // The last owner may be let go inside an ack; the thread ends by itself then.
            Some(thread) if thread.thread().id() != thread::current().id() => {
                thread.join().unwrap_or_else(|_| Err(panicked()))
            }
            Some(_) | None => Ok(()),
        }
    }
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[expect(clippy::result_large_err, reason = "what is given back is what was given")]
    fn push(&self, batch: Batch) -> Result<(), Batch> {
        let weight = batch.weight();
        let mut state = self.lock();
        if state.closed {
            return Err(batch);
        }
        state.batches.push(run_of(&batch), weight, batch);
        drop(state);
        self.filled.notify_one();
        Ok(())
    }

    fn has_room(&self) -> bool {
        let state = self.lock();
        let is_full = state.batches.len() >= WAITING || state.batches.bytes() >= WAITING_BYTES;
        state.closed || !is_full
    }

    async fn room(&self) {
        loop {
            let mut emptied = pin!(self.emptied.notified());
            // Whoever makes room from here on is heard.
            emptied.as_mut().enable();
            if self.has_room() {
                return;
            }
            emptied.await;
        }
    }

    /// Waits for batches, for so long where it is given.
    fn next(&self, patience: Option<Duration>) -> Next {
        let mut state = self.lock();
        while state.batches.is_empty() {
            if state.closed {
                return Next::End;
            }
            let Some(patience) = patience else {
                state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let (after, waited) =
                self.filled.wait_timeout(state, patience).unwrap_or_else(PoisonError::into_inner);
            state = after;
            if waited.timed_out() && state.batches.is_empty() && !state.closed {
                return Next::Idle;
            }
        }
        let group = state.batches.take_group(GROUP);
        drop(state);
        self.emptied.notify_waiters();
        Next::Commit(group)
    }

    fn close(&self) {
        self.lock().closed = true;
        self.filled.notify_all();
        self.emptied.notify_waiters();
    }
}

/// The queue as the thread has it: however the thread ends, nobody waits for it any more.
struct Ending(Arc<Waiting>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.close();
        // What is left is dropped unheard: whoever submitted it notices that its ack is gone.
        let left = std::mem::take(&mut self.0.lock().batches);
        drop(left);
    }
}

fn panicked() -> StoreError {
    StoreError::Database {
        context: "close the database".to_owned(),
        reason: "the writer's thread panicked".to_owned(),
    }
}

fn serve(waiting: &Waiting, mut committer: Committer, lock: Lock) -> Result<(), StoreError> {
    loop {
        let patience = match (committer.is_waiting(), committer.is_lost()) {
            (true, _) => Some(PROBE),
            (false, true) => None,
            (false, false) => Some(LOOK),
        };
        match waiting.next(patience) {
            Next::Commit(group) => committer.commit(group),
            Next::Idle => {
                committer.look();
                if committer.is_waiting() {
                    committer.probe();
                }
            }
            Next::End => break,
        }
    }
    fault::point("store.checkpoint");
    let result = committer.checkpoint();
    fault::point("store.checkpointed");
    // The database is closed before somebody else may own the directory.
    drop(committer);
    drop(lock);
    result
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn batch() -> Batch {
        Batch { checks: Vec::new(), run: None, writes: Vec::new(), ack: Box::new(|_| {}) }
    }

    #[tokio::test]
    async fn a_full_queue_takes_what_comes_and_says_when_there_is_room() {
        let waiting = Arc::new(Waiting::default());
        for _ in 0..WAITING {
            assert!(waiting.room().now_or_never().is_some());
            assert!(waiting.push(batch()).is_ok());
        }
        assert!(waiting.push(batch()).is_ok(), "who cannot wait is not held up");
        assert!(waiting.room().now_or_never().is_none());
        let (room, group) = tokio::join!(waiting.room(), async { waiting.next(None) });
        let Next::Commit(group) = group else { panic!("there was something") };
        assert!(group.len() > 1 && room == ());
        while !waiting.lock().batches.is_empty() {
            waiting.next(None);
        }
        (0..=WAITING).for_each(|_| assert!(waiting.push(batch()).is_ok()));
        let ((), ()) = tokio::join!(waiting.room(), async { waiting.close() });
        assert!(waiting.push(batch()).is_err());
    }
}
