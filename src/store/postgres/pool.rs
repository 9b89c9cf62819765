//! The readers: a few connections, each lent to one call at a time.

use std::time::Duration;

use super::{failed::Failed, session::Session, wire::Wire};
use crate::store::{
    StoreError,
    shelf::{Loan, Shelf},
    threads::may_wait,
};

/// The maximum time that a call waits for a connection.
const PATIENCE: Duration = Duration::from_secs(2);

/// A pool of connections for reads. They are opened when they are first needed.
pub struct Pool {
    wire: Wire,
    shelf: Shelf<Session>,
}

impl Pool {
    /// Creates a pool of at most `most` connections.
    pub fn new(wire: Wire, most: usize) -> Self {
        Self { wire, shelf: Shelf::new(most.max(1), Vec::new()) }
    }

    /// Reads. If the connection breaks, `read` is called once more, over a new one.
    ///
    /// # Errors
    /// Returns [`StoreError::Busy`] if no connection is free for two seconds, [`StoreError::Away`] if
    /// the database cannot be reached, [`StoreError::Closed`] after [`Pool::close`], and what `read`
    /// returns.
    pub fn read<T>(
        &self,
        context: &str,
        mut read: impl FnMut(&Session) -> Result<T, Failed>,
    ) -> Result<T, StoreError> {
        may_wait();
        let mut lent = self.shelf.lend(Some(PATIENCE))?;
        let mut tried_again = false;
        loop {
            let session = self.open(&mut lent).map_err(|error| error.into_error(context))?;
            match read(session) {
                Err(error) if error.ends_connection() => {
                    lent.connection = None;
                    // A call that was silent once may not take as long again.
                    if tried_again || matches!(error, Failed::Silent) {
                        return Err(error.into_error(context));
                    }
                    tried_again = true;
                }
                result => return result.map_err(|error| error.into_error(context)),
            }
        }
    }

    /// Reads within one snapshot of the database.
    ///
    /// # Errors
    /// See [`Pool::read`].
    pub fn snapshot<T>(
        &self,
        context: &str,
        mut read: impl FnMut(&Session) -> Result<T, Failed>,
    ) -> Result<T, StoreError> {
        self.read(context, |session| {
            session.batch("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")?;
            let result = read(session);
            match &result {
                Err(error) if error.ends_connection() => {}
                Ok(_) | Err(_) => session.batch("ROLLBACK")?,
            }
            result
        })
    }

    /// Closes all connections. Waits for those that are lent.
    pub fn close(&self) {
        self.shelf.close();
    }

    /// Fails if the pool is closed.
    ///
    /// # Errors
    /// Returns [`StoreError::Closed`].
    pub fn is_open(&self) -> Result<(), StoreError> {
        if self.shelf.is_closed() { Err(StoreError::Closed) } else { Ok(()) }
    }

    /// Returns the connection of a loan. Opens one if there is none, or if it broke while it was idle.
    fn open<'a>(&self, lent: &'a mut Loan<'_, Session>) -> Result<&'a Session, Failed> {
        lent.connection.take_if(|session| session.is_closed());
        match &mut lent.connection {
            Some(session) => Ok(session),
            none => Ok(none.insert(self.wire.reader()?)),
        }
    }
}
