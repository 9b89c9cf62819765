//! Which threads may wait for a read.
//!
//! A thread that moves runs on must not: while it waits, none of its runs goes on. It says so while
//! it does, and a build with debug assertions ends with a panic where a read begins all the same.

use std::{cell::Cell, marker::PhantomData};

/// Reads that still happen where runs are moved on.
const EXCEPTIONS: &[&str] = &["a called program", "a file", "a related run", "a copy of a flow"];

thread_local! {
    static MOVES_RUNS: Cell<u32> = const { Cell::new(0) };
}

/// While it lives, its thread moves runs on, and must not wait for a read.
pub struct MovingRuns(PhantomData<*const ()>);

impl MovingRuns {
    /// Says that this thread moves runs on from now.
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

/// Reads although the thread moves runs on, by the name of an exception.
pub fn excepted<T>(name: &str, read: impl FnOnce() -> T) -> T {
    debug_assert!(EXCEPTIONS.contains(&name), "{name:?} is no exception");
    let moves = MOVES_RUNS.replace(0);
    let result = read();
    MOVES_RUNS.set(moves);
    result
}

/// Notices a read on a thread that must not wait for it.
pub(super) fn may_wait() {
    debug_assert!(MOVES_RUNS.get() == 0, "a read of the store where runs are moved on");
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
        assert!(excepted("a file", || read()));
        assert!(!read());
        drop(moving);
        assert!(read());
    }
}
