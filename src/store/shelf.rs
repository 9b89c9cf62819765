//! A limited number of connections, each lent to one call at a time.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::StoreError;

/// Connections that can be lent.
pub(super) struct Shelf<T> {
    most: usize,
    state: Mutex<State<T>>,
    returned: Condvar,
}

struct State<T> {
    idle: Vec<T>,
    lent: usize,
    closed: bool,
}

impl<T> Shelf<T> {
    /// Creates a shelf that lends at most `most` connections at a time, of which `idle` are open.
    pub(super) fn new(most: usize, idle: Vec<T>) -> Self {
        let state = Mutex::new(State { idle, lent: 0, closed: false });
        Self { most, state, returned: Condvar::new() }
    }

    /// Borrows a connection; one that is not open yet if no open one is left. Waits while all are
    /// lent, at most for `patience` where it is given.
    ///
    /// # Errors
    /// Returns [`StoreError::Closed`] after [`Shelf::close`], and [`StoreError::Busy`] if all are lent
    /// for that long.
    pub(super) fn lend(&self, patience: Option<Duration>) -> Result<Loan<'_, T>, StoreError> {
        let mut state = self.state.lock();
        let mut late = false;
        loop {
            if state.closed {
                return Err(StoreError::Closed);
            }
            if state.lent < self.most {
                state.lent += 1;
                return Ok(Loan { connection: state.idle.pop(), shelf: self });
            }
            if late {
                return Err(StoreError::Busy);
            }
            match patience {
                Some(patience) => {
                    late = self.returned.wait_for(&mut state, patience).timed_out();
                }
                None => self.returned.wait(&mut state),
            }
        }
    }

    /// Closes all connections. Waits for those that are lent.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        self.returned.notify_all();
        while state.lent > 0 {
            self.returned.wait(&mut state);
        }
        state.idle.clear();
    }

    /// Returns true after [`Shelf::close`].
    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }
}

/// A borrowed connection. Returns to the shelf when dropped.
pub(super) struct Loan<'a, T> {
    /// The connection, if it is open.
    pub connection: Option<T>,
    shelf: &'a Shelf<T>,
}

impl<T> Drop for Loan<'_, T> {
    fn drop(&mut self) {
        let mut state = self.shelf.state.lock();
        state.lent -= 1;
        state.idle.extend(self.connection.take());
        self.shelf.returned.notify_all();
    }
}
