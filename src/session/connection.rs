//! The connections of sessions: sockets, and the polls of clients that have none.
//!
//! A session has one connection at a time: a newer one replaces it. A poll is a connection that
//! lasts for one request, so a session also counts as connected for a while after it.

use std::sync::Arc;

use super::{Frame, Hub, Link, LinkEnd, Note, SessionError};
use crate::protocol::{SessionId, Ticket};

/// The time after a poll, or another call without a socket, for which a session counts as
/// connected.
const POLL_GRACE_MS: u64 = 90_000;

impl Hub {
    /// Attaches a connection to a session. An earlier connection is ended.
    ///
    /// Sending continues after frame `seen`, or after the last acknowledged frame, whichever is
    /// later.
    ///
    /// # Errors
    /// Fails when the session is not open, or `seen` is greater than its last frame number.
    pub fn connect(
        &self,
        session: &SessionId,
        seen: Option<u64>,
    ) -> Result<Arc<Link>, SessionError> {
        let now_ms = self.clock.steady_ms();
        let mut inner = self.inner.lock();
        let mailbox = inner.mailbox(session)?;
        let last = mailbox.row.last_seq;
        if let Some(seq) = seen.filter(|seq| *seq > last) {
            return Err(SessionError::Ahead { seq, last });
        }
        mailbox.links += 1;
        mailbox.polled_until_ms = 0;
        mailbox.seen_ms = Some(now_ms);
        let sent = seen.unwrap_or(0).max(mailbox.row.acked_seq);
        let link = Arc::new(Link::new(session.clone(), mailbox.links, sent));
        link.wake();
        if let Some(old) = mailbox.link.replace(Arc::clone(&link)) {
            old.end(LinkEnd::Replaced);
        }
        Ok(link)
    }

    /// Detaches a connection, unless a newer one has replaced it.
    pub fn disconnect(&self, link: &Link) {
        self.detach(link, 0);
    }

    /// Detaches a poll in the same way. The session counts as connected for a while after it.
    pub fn end_poll(&self, link: &Link) {
        self.detach(link, self.clock.steady_ms() + POLL_GRACE_MS);
    }

    fn detach(&self, link: &Link, until_ms: u64) {
        let now_ms = self.clock.steady_ms();
        let mut inner = self.inner.lock();
        if let Ok(mailbox) = inner.mailbox(link.session())
            && mailbox.link.as_ref().is_some_and(|own| own.number() == link.number())
        {
            mailbox.link = None;
            mailbox.polled_until_ms = until_ms;
            mailbox.seen_ms = Some(now_ms);
        }
    }

    /// Records a call of a client that has no socket: the session counts as connected for a while.
    pub fn touch(&self, session: &SessionId) {
        let now_ms = self.clock.steady_ms();
        let mut inner = self.inner.lock();
        let Ok(mailbox) = inner.mailbox(session) else { return };
        mailbox.seen_ms = Some(now_ms);
        if mailbox.link.is_none() {
            mailbox.polled_until_ms = now_ms + POLL_GRACE_MS;
        }
    }

    /// Returns the next frame for a connection and marks it as sent.
    pub fn next(&self, link: &Link) -> Option<Frame> {
        let mut inner = self.inner.lock();
        let mailbox = inner.mailbox(link.session()).ok()?;
        if mailbox.link.as_ref().is_none_or(|own| own.number() != link.number()) {
            return None;
        }
        let frame = mailbox.after(link.sent())?.clone();
        link.mark_sent(frame.seq);
        mailbox.tell(&frame);
        Some(frame)
    }

    /// Returns the next frame for a poll and marks it as sent. Spawns and answers of attempts that
    /// are over are left out. A client that sends no numbers (`is_unnumbered`) gets the last answer to
    /// an attempt in place of what came before it.
    pub fn next_polled(&self, link: &Link, is_unnumbered: bool) -> Option<Frame> {
        loop {
            let frame = self.next(link)?;
            if !self.is_needless(link.session(), &frame, is_unnumbered) {
                return Some(frame);
            }
        }
    }

    /// Acknowledges the oldest frames, as far as they are spawns and answers of attempts that are
    /// over: a client that polls need not do that itself. For a client that sends no numbers
    /// (`is_unnumbered`), a cancel that was sent counts as well: it would come again for ever, and
    /// keep back all that is after it.
    pub fn drop_over(&self, session: &SessionId, is_unnumbered: bool) {
        let seen = {
            let mut inner = self.inner.lock();
            let Ok(mailbox) = inner.mailbox(session) else { return };
            let over = mailbox.unacked.iter().take_while(|frame| {
                mailbox.is_over(frame) || (is_unnumbered && mailbox.is_sent_cancel(frame))
            });
            over.last().map(|frame| frame.seq)
        };
        if let Some(seq) = seen {
            self.acknowledge(session, seq);
        }
    }

    /// Returns true if a session holds an attempt that was not delivered yet, whether or not its frame
    /// was sent.
    pub fn is_undelivered(&self, session: &SessionId, ticket: Ticket) -> bool {
        let mut inner = self.inner.lock();
        let held = inner.mailbox(session).ok().and_then(|it| it.held.get(&ticket));
        held.is_some_and(|held| !held.delivered)
    }

    /// Returns the attempt of a step that the session held before the one it may hold now, and that
    /// its client was told of. Those of before a restart are not known.
    pub fn former(&self, session: &SessionId, step: (u64, u32)) -> Option<u32> {
        self.inner.lock().mailbox(session).ok()?.former(step)
    }

    /// Sends a note that may have been lost with the memory of the host, unless the same one is still
    /// with its session.
    pub fn tell_again(&self, note: Note) {
        let Some(session) = self.holder(note.ticket) else { return };
        let is_there = {
            let mut inner = self.inner.lock();
            inner.mailbox(&session).is_ok_and(|it| it.has_note(&note))
        };
        if !is_there {
            self.tell(note);
        }
    }

    fn is_needless(&self, session: &SessionId, frame: &Frame, is_unnumbered: bool) -> bool {
        let mut inner = self.inner.lock();
        let Ok(mailbox) = inner.mailbox(session) else { return false };
        mailbox.is_over(frame) || (is_unnumbered && mailbox.is_answered(frame))
    }
}
