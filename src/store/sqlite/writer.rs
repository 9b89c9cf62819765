//! The writer's thread: a bounded queue, and groups of whatever queued during the last commit.

use std::{
    sync::{
        Mutex, PoisonError,
        mpsc::{self, Receiver, RecvError, RecvTimeoutError, SyncSender},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use super::{committer::Committer, lock::Lock, write};
use crate::{
    fault,
    store::{Batch, StoreError},
};

/// Batches that may wait; a full queue holds its submitters back.
const WAITING: usize = 4096;
/// Rows of a group.
const GROUP_ROWS: usize = 256;
/// Bytes of a group.
const GROUP_BYTES: usize = 1024 * 1024;
/// How often it is tried whether writes that failed for want of room, or for a lock, work again.
const PROBE: Duration = Duration::from_millis(250);
/// How often an idle writer looks whether its files are still there.
const LOOK: Duration = Duration::from_millis(500);

/// The way to the writer's thread.
pub struct Queue {
    sender: Mutex<Option<SyncSender<Batch>>>,
    thread: Mutex<Option<JoinHandle<Result<(), StoreError>>>>,
}

impl Queue {
    /// Starts the thread; it owns the data directory until its queue is closed and drained.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(committer: Committer, lock: Lock) -> Result<Self, StoreError> {
        let (sender, batches) = mpsc::sync_channel(WAITING);
        let thread = thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || serve(&batches, committer, lock))
            .map_err(|error| StoreError::Database {
                context: "start the writer's thread".to_owned(),
                reason: error.to_string(),
            })?;
        Ok(Self { sender: Mutex::new(Some(sender)), thread: Mutex::new(Some(thread)) })
    }

    /// Queues a batch; blocks while the queue is full.
    pub fn submit(&self, batch: Batch) {
        // Cloned, so that the lock is not held while the queue is full.
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let refused = match sender {
            Some(sender) => sender.send(batch).err().map(|error| error.0),
            None => Some(batch),
        };
        if let Some(batch) = refused {
            (batch.ack)(Err(StoreError::Closed));
        }
    }

    /// Takes no more batches, waits until those that queued are committed, and ends the thread.
    ///
    /// # Errors
    /// When the log could not be written back; nothing is lost by that.
    pub fn close(&self) -> Result<(), StoreError> {
        drop(self.sender.lock().unwrap_or_else(PoisonError::into_inner).take());
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

fn panicked() -> StoreError {
    StoreError::Database {
        context: "close the database".to_owned(),
        reason: "the writer's thread panicked".to_owned(),
    }
}

fn serve(
    batches: &Receiver<Batch>,
    mut committer: Committer,
    lock: Lock,
) -> Result<(), StoreError> {
    let mut next = None;
    loop {
        let first = match next.take() {
            Some(batch) => batch,
            None if committer.is_waiting() => match batches.recv_timeout(PROBE) {
                Ok(batch) => batch,
                Err(RecvTimeoutError::Timeout) => {
                    committer.look();
                    committer.probe();
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => break,
            },
            None if committer.is_lost() => match batches.recv() {
                Ok(batch) => batch,
                Err(RecvError) => break,
            },
            None => match batches.recv_timeout(LOOK) {
                Ok(batch) => batch,
                Err(RecvTimeoutError::Timeout) => {
                    committer.look();
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => break,
            },
        };
        let (group, rest) = gather(first, batches);
        next = rest;
        committer.commit(group);
    }
    fault::point("store.checkpoint");
    let result = committer.checkpoint();
    fault::point("store.checkpointed");
    // The database is closed before somebody else may own the directory.
    drop(committer);
    drop(lock);
    result
}

/// The group that begins with `first`, and the batch that no longer fitted.
fn gather(first: Batch, batches: &Receiver<Batch>) -> (Vec<Batch>, Option<Batch>) {
    let (mut rows, mut bytes) = weight(&first);
    let mut group = vec![first];
    while let Ok(batch) = batches.try_recv() {
        let (more_rows, more_bytes) = weight(&batch);
        rows += more_rows;
        bytes += more_bytes;
        if rows > GROUP_ROWS || bytes > GROUP_BYTES {
            return (group, Some(batch));
        }
        group.push(batch);
    }
    (group, None)
}

/// Rows and about how many bytes a batch writes.
fn weight(batch: &Batch) -> (usize, usize) {
    let entries = batch.run.as_ref().map_or(&[][..], |run| &run.entries);
    let bytes = entries.iter().map(|row| row.bytes.len()).sum::<usize>()
        + batch.writes.iter().map(write::size).sum::<usize>();
    (entries.len() + batch.writes.iter().map(write::rows).sum::<usize>(), bytes)
}
