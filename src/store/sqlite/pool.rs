//! The readers: a few read-only connections, each lent to one call at a time.

use std::ops::Deref;

use rusqlite::Connection;

use crate::store::{
    StoreError,
    shelf::{self, Shelf},
    threads::may_wait,
};

/// A pool of read-only connections.
pub struct Pool {
    shelf: Shelf<Connection>,
}

impl Pool {
    /// Creates a pool of `connections`.
    pub fn new(connections: Vec<Connection>) -> Self {
        Self { shelf: Shelf::new(connections.len(), connections) }
    }

    /// Borrows a connection. Blocks while all are lent.
    ///
    /// # Errors
    /// Returns [`StoreError::Closed`] after [`Pool::close`].
    pub fn lend(&self) -> Result<Loan<'_>, StoreError> {
        may_wait();
        self.shelf.lend(None).map(Loan)
    }

    /// Closes all connections. Waits for those that are lent.
    pub fn close(&self) {
        self.shelf.close();
    }
}

/// A borrowed connection. Returns to the pool when dropped.
pub struct Loan<'a>(shelf::Loan<'a, Connection>);

impl Deref for Loan<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.0.connection.as_ref().expect("all connections of the pool are open")
    }
}
