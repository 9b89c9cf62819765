//! Batches on their way to the disk: which rows of the journal are settled.
//!
//! Rows of several runs are numbered when they are made, and become durable in another order. A reader
//! that follows the whole journal stops at the first row that may still come.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::{Notify, futures::Notified};

use crate::store::Store;

/// The batches on their way.
#[derive(Default)]
pub(crate) struct InFlight {
    bounds: Mutex<Bounds>,
    changed: Notify,
}

#[derive(Default)]
struct Bounds {
    /// The number of the last batch.
    last: u64,
    /// The last row before each batch that is on its way.
    open: BTreeMap<u64, u64>,
}

/// A batch that is made, or on its way. Dropped when its fate is known.
pub(crate) struct Flight {
    of: Arc<InFlight>,
    number: u64,
}

impl InFlight {
    /// Notes a batch. Called before its rows get their numbers.
    pub(crate) fn begin(self: &Arc<Self>, store: &dyn Store) -> Flight {
        let mut bounds = self.bounds.lock();
        bounds.last += 1;
        let (number, bound) = (bounds.last, store.last_lsn());
        bounds.open.insert(number, bound);
        Flight { of: Arc::clone(self), number }
    }

    /// Returns the number up to which every row is durable, or never will be.
    pub(crate) fn settled(&self, store: &dyn Store) -> u64 {
        let bounds = self.bounds.lock();
        // Later batches have later bounds.
        bounds.open.first_key_value().map_or_else(|| store.last_lsn(), |(_, bound)| *bound)
    }

    /// Returns a future that completes when a batch is settled after this call.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.of.bounds.lock().open.remove(&self.number);
        self.of.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Memory, Writer as _};

    #[test]
    fn rows_are_settled_up_to_the_first_batch_that_is_on_its_way() {
        let (store, flights) = (Memory::new(), Arc::new(InFlight::default()));
        assert_eq!(flights.settled(&store), 0);
        let first = flights.begin(&store);
        let row = store.next_lsn();
        let second = flights.begin(&store);
        let later = store.next_lsn();
        assert_eq!(flights.settled(&store), row - 1);
        drop(second);
        assert_eq!(flights.settled(&store), row - 1, "the second is durable, the first may come");
        drop(first);
        assert_eq!(flights.settled(&store), later);
    }
}
