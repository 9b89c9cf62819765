//! Keeps reads off the threads that advance runs.
//!
//! While such a thread waits for the disk, none of its runs advances. It therefore holds a
//! [`MovingRuns`] guard, and in a build with debug assertions a read under the guard panics.

use std::{cell::Cell, marker::PhantomData};

thread_local! {
    static MOVES_RUNS: Cell<u32> = const { Cell::new(0) };
}

/// Marks its thread as one that advances runs and must not block on a read, until dropped.
pub struct MovingRuns(PhantomData<*const ()>);

impl MovingRuns {
    /// Marks this thread.
    pub fn begin() -> Self {
        MOVES_RUNS.set(MOVES_RUNS.get() + 1);
        Self(PhantomData)
    }
}

impl Drop for MovingRuns {
    fn drop(&mut self) {
        MOVES_RUNS.set(MOVES_RUNS.get().saturating_sub(1));
    }
}

/// Panics in debug builds if this thread must not block on a read.
pub(super) fn may_wait() {
    debug_assert!(MOVES_RUNS.get() == 0, "a shard's thread must not read the store");
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::store::{Memory, Reader as _};

    #[test]
    fn a_thread_that_moves_runs_on_cannot_read() {
        let store = Memory::new();
        let read = || catch_unwind(AssertUnwindSafe(|| store.header(1).unwrap())).is_ok();
        assert!(read());
        let moving = MovingRuns::begin();
        assert!(!read());
        drop(moving);
        assert!(read());
    }
}
