//! The writers of a host: a thread and a queue for each lane.

use std::sync::Arc;

use super::{committer::Committer, common::Common, failed::Failed, lane::Lane, wire::Wire};
use crate::store::{
    Batch, StoreError,
    fair::Weight,
    queue::{Next, Queue},
};

/// The maximum size of a group.
const GROUP: Weight = Weight { rows: 512, bytes: 2 << 20 };

/// Opens a connection for each lane of a host.
///
/// # Errors
/// Fails when the database cannot be reached.
pub fn connect(
    wire: &Wire,
    lanes: &[Lane],
    common: &Arc<Common>,
) -> Result<Vec<Committer>, StoreError> {
    let open = |lane: &Lane| Committer::new(wire.clone(), *lane, Arc::clone(common));
    let opened: Result<Vec<_>, Failed> = lanes.iter().map(open).collect();
    let opened = opened.and_then(|lanes| {
        lanes.first().map_or(Ok(()), Committer::count_ended)?;
        Ok(lanes)
    });
    opened.map_err(|error| error.into_error("open the database"))
}

/// The queues of the lanes, in the order of their numbers.
pub struct Writers(Vec<Queue>);

impl Writers {
    /// Starts the threads of the lanes.
    ///
    /// # Errors
    /// Fails when the system cannot create a thread.
    pub fn start(lanes: Vec<Committer>) -> Result<Self, StoreError> {
        let count = lanes.len();
        let start = |mut lane: Committer| {
            Queue::start_one_of(count, move |waiting| {
                loop {
                    match waiting.next(None, GROUP) {
                        Next::Commit(group) => lane.commit(group),
                        Next::Idle => {}
                        Next::End => break,
                    }
                }
                lane.end()
            })
        };
        lanes.into_iter().map(start).collect::<Result<_, _>>().map(Self)
    }

    /// Queues a batch in its lane.
    pub fn submit(&self, batch: Batch) {
        self.0[Lane::of(&batch, self.0.len())].submit(batch);
    }

    /// Queues batches in their lanes.
    pub fn submit_all(&self, batches: Vec<Batch>) {
        let mut lanes: Vec<_> = self.0.iter().map(|_| Vec::new()).collect();
        for batch in batches {
            lanes[Lane::of(&batch, self.0.len())].push(batch);
        }
        for (queue, batches) in self.0.iter().zip(lanes).filter(|(_, them)| !them.is_empty()) {
            queue.submit_all(batches);
        }
    }

    /// Waits until no queue is full, or all are closed.
    pub async fn room(&self) {
        for queue in &self.0 {
            queue.room().await;
        }
    }

    /// Takes no more batches, waits until those that queued are committed, and ends the threads.
    ///
    /// # Errors
    /// Fails when the database could not be given up. No data is lost.
    pub fn close(&self) -> Result<(), StoreError> {
        // A batch that follows from another one of another lane finds that one closed too.
        self.0.iter().for_each(Queue::shut);
        let results: Vec<_> = self.0.iter().map(Queue::close).collect();
        results.into_iter().collect()
    }
}
