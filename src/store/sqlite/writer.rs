//! The writer thread, which commits what waits in its queue.

use std::time::Duration;

use super::committer::Committer;
use crate::{
    fault,
    store::{
        StoreError,
        fair::Weight,
        lock::Lock,
        queue::{Next, Queue, Waiting},
    },
};

/// The maximum size of a group.
const GROUP: Weight = Weight { rows: 256, bytes: 1024 * 1024 };
/// The interval of probes after a write failed because of a full disk or a lock.
const PROBE: Duration = Duration::from_millis(250);
/// The interval at which an idle writer checks that its files are still there.
const LOOK: Duration = Duration::from_millis(500);

/// Starts the thread, which owns the data directory until its queue is closed and drained.
///
/// # Errors
/// Fails when the system cannot create a thread.
pub fn start(committer: Committer, lock: Lock) -> Result<Queue, StoreError> {
    Queue::start(move |waiting| serve(waiting, committer, lock))
}

fn serve(waiting: &Waiting, mut committer: Committer, lock: Lock) -> Result<(), StoreError> {
    loop {
        let patience = match (committer.is_waiting(), committer.is_lost()) {
            (true, _) => Some(PROBE),
            (false, true) => None,
            (false, false) => Some(LOOK),
        };
        match waiting.next(patience, GROUP) {
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
    // Close the database before another process may own the directory.
    drop(committer);
    drop(lock);
    result
}
