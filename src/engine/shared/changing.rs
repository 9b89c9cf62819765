//! Changes of shared state, each by one task at a time.
//!
//! A run that is read again asks for the changes of its open steps once more, while the task of its last
//! life may be under way. What makes a change once is its receipt in the store, which is removed when the
//! step has ended. So the next task waits for the one before, and the step ends with the last one alone.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// With so many entries, those of tasks that have ended go.
const SWEPT: usize = 1_024;

/// The lock that a task holds while it makes the change of a step.
type Gate = AsyncMutex<()>;

/// The changes that are under way, by run and step.
#[derive(Default)]
pub(crate) struct Changing(Mutex<HashMap<(u64, u32), Weak<Gate>>>);

impl Changing {
    /// Waits until no other task makes the change of a step.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub(crate) async fn alone(&self, step: (u64, u32)) -> OwnedMutexGuard<()> {
        let gate = {
            let mut gates = self.0.lock();
            if gates.len() >= SWEPT {
                gates.retain(|_, gate| gate.strong_count() > 0);
            }
            let gate = gates.get(&step).and_then(Weak::upgrade).unwrap_or_default();
            gates.insert(step, Arc::downgrade(&gate));
            gate
        };
        gate.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn one_task_at_a_time_makes_the_change_of_a_step() {
        let changing = Changing::default();
        let first = changing.alone((1, 2)).now_or_never().unwrap();
        assert!(changing.alone((1, 2)).now_or_never().is_none());
        assert!(changing.alone((1, 3)).now_or_never().is_some());
        drop(first);
        assert!(changing.alone((1, 2)).now_or_never().is_some());
        for step in 0..=2 * SWEPT {
            drop(changing.alone((2, u32::try_from(step).unwrap())).now_or_never());
        }
        assert!(changing.0.lock().len() <= SWEPT);
    }
}
