//! The readers: a few connections, each lent to one call at a time.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::{failed::Failed, session::Session, wire::Wire};
use crate::store::{StoreError, threads::may_wait};

/// The maximum time that a call waits for a connection.
const PATIENCE: Duration = Duration::from_secs(2);

/// A pool of connections for reads. They are opened when they are first needed.
pub struct Pool {
    wire: Wire,
    most: usize,
    shelf: Mutex<Shelf>,
    returned: Condvar,
}

#[derive(Default)]
struct Shelf {
    idle: Vec<Session>,
    lent: usize,
    closed: bool,
}

impl Pool {
    /// Creates a pool of at most `most` connections.
    pub fn new(wire: Wire, most: usize) -> Self {
        Self { wire, most: most.max(1), shelf: Mutex::default(), returned: Condvar::new() }
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
        let mut lent = self.lend()?;
        let mut tried_again = false;
        loop {
            let session = lent.session(&self.wire).map_err(|error| error.into_error(context))?;
            match read(session) {
                Err(error) if error.ends_connection() => {
                    lent.session = None;
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
        let mut shelf = self.shelf.lock();
        shelf.closed = true;
        self.returned.notify_all();
        while shelf.lent > 0 {
            self.returned.wait(&mut shelf);
        }
        shelf.idle.clear();
    }

    /// Fails if the pool is closed.
    ///
    /// # Errors
    /// Returns [`StoreError::Closed`].
    pub fn is_open(&self) -> Result<(), StoreError> {
        if self.shelf.lock().closed { Err(StoreError::Closed) } else { Ok(()) }
    }

    fn lend(&self) -> Result<Loan<'_>, StoreError> {
        let mut shelf = self.shelf.lock();
        let mut late = false;
        loop {
            if shelf.closed {
                return Err(StoreError::Closed);
            }
            if shelf.lent < self.most {
                shelf.lent += 1;
                let session = shelf.idle.pop().filter(|session| !session.is_closed());
                return Ok(Loan { pool: self, session });
            }
            if late {
                return Err(StoreError::Busy);
            }
            late = self.returned.wait_for(&mut shelf, PATIENCE).timed_out();
        }
    }
}

/// A borrowed connection. Returns to the pool when dropped.
struct Loan<'a> {
    pool: &'a Pool,
    session: Option<Session>,
}

impl Loan<'_> {
    fn session(&mut self, wire: &Wire) -> Result<&Session, Failed> {
        match &mut self.session {
            Some(session) => Ok(session),
            none => Ok(none.insert(wire.reader()?)),
        }
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        let mut shelf = self.pool.shelf.lock();
        shelf.lent -= 1;
        shelf.idle.extend(self.session.take().filter(|session| !session.is_closed()));
        self.pool.returned.notify_all();
    }
}
