//! The readers: a few read-only connections, each lent to one call at a time.

use std::ops::Deref;

use parking_lot::{Condvar, Mutex};
use rusqlite::Connection;

use crate::store::{StoreError, threads::may_wait};

/// A pool of read-only connections.
pub struct Pool {
    shelf: Mutex<Shelf>,
    returned: Condvar,
}

struct Shelf {
    idle: Vec<Connection>,
    lent: usize,
    closed: bool,
}

impl Pool {
    /// Creates a pool of `connections`.
    pub fn new(connections: Vec<Connection>) -> Self {
        let shelf = Shelf { idle: connections, lent: 0, closed: false };
        Self { shelf: Mutex::new(shelf), returned: Condvar::new() }
    }

    /// Borrows a connection. Blocks while all are lent.
    ///
    /// # Errors
    /// Returns [`StoreError::Closed`] after [`Pool::close`].
    pub fn lend(&self) -> Result<Loan<'_>, StoreError> {
        may_wait();
        let mut shelf = self.shelf.lock();
        loop {
            if shelf.closed {
                return Err(StoreError::Closed);
            }
            if let Some(connection) = shelf.idle.pop() {
                shelf.lent += 1;
                return Ok(Loan { pool: self, connection: Some(connection) });
            }
            self.returned.wait(&mut shelf);
        }
    }

    /// Closes all connections. Waits for those that are lent.
    pub fn close(&self) {
        let mut shelf = self.shelf.lock();
        shelf.closed = true;
        self.returned.notify_all();
        while shelf.lent > 0 {
            self.returned.wait(&mut shelf);
        }
        shelf.idle.clear();
    }
}

/// A borrowed connection. Returns to the pool when dropped.
pub struct Loan<'a> {
    pool: &'a Pool,
    connection: Option<Connection>,
}

impl Deref for Loan<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection.as_ref().expect("a loan holds its connection until it is dropped")
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        let mut shelf = self.pool.shelf.lock();
        shelf.lent -= 1;
        shelf.idle.extend(self.connection.take());
        self.pool.returned.notify_all();
    }
}
