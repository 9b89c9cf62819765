//! The lifetimes of sessions: how they are extended, and when they end.

use std::sync::Arc;

use tokio::sync::Mutex;

use super::{Hub, SessionError};
use crate::protocol::SessionId;

/// How a renewal moved the end of a session, in Unix milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extended {
    /// The end before it.
    pub before_ms: u64,
    /// The end since.
    pub until_ms: u64,
}

impl Hub {
    /// Returns the lock that is held during a renewal of a session: the next one begins when it is
    /// stored.
    ///
    /// # Errors
    /// Fails when the session is not open.
    pub fn renewal(&self, session: &SessionId) -> Result<Arc<Mutex<()>>, SessionError> {
        Ok(Arc::clone(&self.inner.lock().mailbox(session)?.renewal))
    }

    /// Extends the lifetime of a session. Never shortens it.
    ///
    /// # Errors
    /// Fails when the session is not open, or ends already because its lifetime has ended.
    pub fn extend(&self, session: &SessionId, expires_ms: u64) -> Result<Extended, SessionError> {
        let mut inner = self.inner.lock();
        if inner.overdue.contains(session) {
            return Err(SessionError::NotOpen(session.clone()));
        }
        let mailbox = inner.mailbox(session)?;
        let before_ms = mailbox.row.expires_ms;
        let until_ms = before_ms.max(expires_ms);
        mailbox.row.expires_ms = until_ms;
        Ok(Extended { before_ms, until_ms })
    }

    /// Takes an extension back that could not be stored, unless the end was moved again since.
    pub fn unextend(&self, session: &SessionId, Extended { before_ms, until_ms }: Extended) {
        if let Ok(mailbox) = self.inner.lock().mailbox(session)
            && mailbox.row.expires_ms == until_ms
        {
            mailbox.row.expires_ms = before_ms;
        }
    }

    /// Returns true if the lifetime of a session has ended. It can no longer be extended then, until
    /// [`Hub::remains`] is called.
    pub fn expire(&self, session: &SessionId, now_ms: u64) -> bool {
        let mut inner = self.inner.lock();
        let is_over = inner.sessions.get(session).is_some_and(|it| it.row.expires_ms <= now_ms);
        if is_over {
            inner.overdue.insert(session.clone());
        }
        is_over
    }

    /// Notes that a session could not be ended after its lifetime: it can be extended again.
    pub fn remains(&self, session: &SessionId) {
        self.inner.lock().overdue.remove(session);
    }

    /// Returns the time when an open session ends, in Unix milliseconds.
    pub fn expiry(&self, session: &SessionId) -> Option<u64> {
        self.inner.lock().sessions.get(session).map(|mailbox| mailbox.row.expires_ms)
    }

    /// Returns the sessions whose lifetime has ended.
    pub fn expired(&self, now_ms: u64) -> Vec<SessionId> {
        let inner = self.inner.lock();
        let over = inner.sessions.iter().filter(|(_, it)| it.row.expires_ms <= now_ms);
        over.map(|(id, _)| id.clone()).collect()
    }
}
