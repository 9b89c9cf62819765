//! The connection of a client to its session.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering},
};

use tokio::sync::Notify;

use crate::protocol::SessionId;

/// A connection of a session: how far frames were sent, and why it must end.
#[derive(Debug)]
pub struct Link {
    session: SessionId,
    number: u64,
    sent: AtomicU64,
    wake: Notify,
    end: OnceLock<LinkEnd>,
}

/// The reason why a connection ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkEnd {
    /// A newer connection replaced it.
    Replaced,
    /// The session was closed.
    Closed(String),
    /// Its token was revoked.
    Revoked,
    /// The token has expired.
    Expired,
    /// The client does not read its frames.
    Slow,
    /// The client sends nothing and does not answer a ping.
    Silent,
    /// The client violated the WebSocket protocol.
    Broken(u16, String),
    /// The host is stopping.
    Stopping,
}

impl LinkEnd {
    /// The WebSocket close code.
    pub fn code(&self) -> u16 {
        match self {
            Self::Closed(_) => 1000,
            Self::Stopping | Self::Silent => 1001,
            Self::Slow => 1013,
            Self::Broken(code, _) => *code,
            Self::Replaced => 4000,
            Self::Revoked => 4001,
            Self::Expired => 4002,
        }
    }

    /// Returns the reason for a person. Clients can tell the kinds apart by the code.
    pub fn reason(&self) -> &str {
        match self {
            Self::Replaced => "a newer connection of this session took over",
            Self::Closed(reason) | Self::Broken(_, reason) => reason,
            Self::Revoked => "the token was revoked",
            Self::Expired => "the token has expired; renew it with session/renew in time",
            Self::Slow => "frames are not taken in time; come back and resume",
            Self::Silent => "no answer to a ping; come back and resume",
            Self::Stopping => "the host is stopping; come back and resume",
        }
    }
}

impl Link {
    pub(super) fn new(session: SessionId, number: u64, sent: u64) -> Self {
        Self {
            session,
            number,
            sent: AtomicU64::new(sent),
            wake: Notify::new(),
            end: OnceLock::new(),
        }
    }

    /// Returns the session.
    pub fn session(&self) -> &SessionId {
        &self.session
    }

    /// Returns the number of the connection within the session, from 1.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the number of the last frame that was sent over it.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Acquire)
    }

    pub(super) fn mark_sent(&self, seq: u64) {
        self.sent.store(seq, Ordering::Release);
    }

    /// Ends the connection. Only the first reason counts.
    pub fn end(&self, end: LinkEnd) {
        // Fails if a reason is already set, which then stays.
        let _ = self.end.set(end);
        self.wake.notify_one();
    }

    /// Returns the reason to end, if there is one.
    pub fn ended(&self) -> Option<&LinkEnd> {
        self.end.get()
    }

    pub(super) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Waits until there may be something to send, or a reason to end.
    ///
    /// # Cancel safety
    /// Cancel safe: a wake-up is not lost.
    pub async fn woken(&self) {
        self.wake.notified().await;
    }
}
