//! The part of a group's commit that is the same in every database: it is counted, tables are written
//! anew if a batch asks for that, and each batch receives its result.

use super::{Batch, StoreError, Write, wakes::wake_once};
use crate::{fault, metrics::Commits};

/// The result of a batch.
pub(super) type BatchResult = Result<(), StoreError>;

/// The results of the batches of a group that is durable, or the error of the whole group.
pub(super) type GroupResult = Result<Vec<BatchResult>, StoreError>;

/// Counts a transaction that took `took_us` microseconds.
pub(super) fn count(commits: &Commits, group: &[Batch], result: &GroupResult, took_us: u64) {
    let Ok(verdicts) = result else { return commits.failed.inc() };
    commits.whole.add(took_us);
    commits.batches.add(group.len() as u64);
    let of_run = |batch: &Batch| batch.run.as_ref().map_or(0, |run| run.entries.len() + 1);
    let rows: usize = group.iter().map(|batch| batch.writes.len() + of_run(batch)).sum();
    commits.rows.add(rows as u64);
    let refused = verdicts.iter().filter(|it| it.is_err()).count();
    commits.refused.add(refused as u64);
}

/// Sends each batch of a group its result, in order. Before that, calls `write_anew` for each batch
/// that was committed and asks for it; the batch receives the result of the call. The threads that
/// the results go to are woken after the last one.
pub(super) fn acknowledge(
    group: Vec<Batch>,
    result: GroupResult,
    mut write_anew: impl FnMut() -> BatchResult,
) {
    if result.is_ok() {
        fault::point("store.committed");
    }
    let mut verdicts = result.unwrap_or_else(|error| vec![Err(error); group.len()]);
    let asks = |batch: &Batch| matches!(*batch.writes, [.., Write::Rewrite]);
    for (batch, verdict) in group.iter().zip(&mut verdicts) {
        if verdict.is_ok() && asks(batch) {
            *verdict = write_anew();
        }
    }
    wake_once(|| {
        for (batch, verdict) in group.into_iter().zip(verdicts) {
            (batch.ack)(verdict);
        }
    });
    fault::point("store.acked");
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use futures::FutureExt as _;
    use tokio::sync::Notify;

    use super::*;
    use crate::store::wakes::wake;

    #[test]
    fn a_thread_is_woken_when_all_results_of_a_group_are_there() {
        let (came, (tell, told)) = (Arc::new(Notify::new()), mpsc::channel());
        let batch = |n: u32| {
            let (came, tell) = (Arc::clone(&came), tell.clone());
            let ack = Box::new(move |_| {
                wake(&came);
                tell.send((n, came.notified().now_or_never().is_some())).unwrap();
            });
            Batch { checks: Vec::new(), run: None, writes: Vec::new(), ack }
        };
        for result in [Ok(vec![Ok(()), Ok(())]), Err(StoreError::Closed)] {
            acknowledge(vec![batch(1), batch(2)], result, || Ok(()));
            assert_eq!(told.try_iter().collect::<Vec<_>>(), [(1, false), (2, false)]);
            assert!(came.notified().now_or_never().is_some());
        }
    }
}
