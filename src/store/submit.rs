//! Submitting a batch and waiting for its result.

use tokio::sync::oneshot;

use super::{Batch, Check, RunWrite, StoreError, Write, Writer};

/// Commits a batch: waits until the queue of the writer is not full, and then for the result.
///
/// # Errors
/// Returns the refusal or the failure of the commit, and [`StoreError::Closed`] if the store was
/// closed before there was a result.
///
/// # Cancel safety
/// Dropped after the batch is in the queue, it is committed all the same.
pub async fn commit(
    writer: &(impl Writer + ?Sized),
    checks: Vec<Check>,
    run: Option<RunWrite>,
    writes: Vec<Write>,
) -> Result<(), StoreError> {
    let (ack, acked) = oneshot::channel();
    // The receiver is gone if the future was dropped.
    let ack = Box::new(move |result| drop(ack.send(result)));
    writer.room().await;
    writer.submit(Batch { checks, run, writes, ack });
    acked.await.unwrap_or(Err(StoreError::Closed))
}
