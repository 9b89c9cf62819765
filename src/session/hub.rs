//! The hub: all open sessions, and the attempts that they hold or that wait for one.
//!
//! Lives in memory; the store has the durable part. An attempt is placed once: with the session
//! that the run's seat selects, or in a queue, for a session of the operator or for room in one.
//! When a session opens or closes, or room appears, the attempts that wait for exactly that are
//! placed again.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{
    Fallback, Frame, HeldAttempt, LinkEnd, Method, Note, Outlook, Seat, Spawn,
    mailbox::Mailbox,
    place::{Assignment, Key},
    queue::Queues,
};
use crate::{
    clock::Clock,
    protocol::{SessionId, TaskId, Ticket},
    store::{FrameRow, SessionRow, Write},
    token::account,
};

/// The maximum number of open sessions.
const MOST_SESSIONS: usize = 10_000;
/// The maximum number of open sessions of one account.
const MOST_OF_ACCOUNT: usize = MOST_SESSIONS / 2;
/// The maximum number of frames of one session in a batch.
const WRITTEN: usize = 256;
/// The maximum number of sessions whose frames are in one batch.
const WRITERS: usize = 1_024;

/// The reason why a session cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The session does not exist or is closed.
    #[error("session {0} is not open")]
    NotOpen(SessionId),
    /// The frame number has not been used yet.
    #[error("frame {seq} cannot be acknowledged: the last frame is {last}")]
    Ahead {
        /// The number in the request.
        seq: u64,
        /// The number of the last frame.
        last: u64,
    },
    /// The limit of open sessions is reached.
    #[error("{MOST_SESSIONS} sessions are already open")]
    TooMany,
    /// The account has its share of open sessions.
    #[error("{MOST_OF_ACCOUNT} sessions of this account are already open")]
    TooManyOfAccount,
}

/// A summary of a session.
#[derive(Debug, Clone, PartialEq)]
pub struct Looks {
    /// The stored row.
    pub row: SessionRow,
    /// True if a client is connected.
    pub connected: bool,
    /// The number of tasks that the session holds.
    pub open_tasks: usize,
    /// The number of frames that are not acknowledged.
    pub unacknowledged: usize,
    /// The steady time at which a client was last there; `None` if none was since the start.
    pub seen_ms: Option<u64>,
}

/// The mailboxes of all open sessions.
#[derive(Debug)]
pub struct Hub {
    pub(super) inner: Mutex<Inner>,
    pub(super) clock: Clock,
    /// Notified when there is something to write.
    dirty: Notify,
    /// Notified when attempts that wait in the store could be placed now.
    hungry: Notify,
}

#[derive(Debug, Default)]
pub(super) struct Inner {
    /// The order in which others take over the tasks of a closed session.
    fallback: Vec<Fallback>,
    pub(super) sessions: HashMap<SessionId, Mailbox>,
    operators: HashMap<Arc<str>, BTreeSet<SessionId>>,
    places: HashMap<Ticket, Assignment>,
    pub(super) waiting: Queues,
    /// True if attempts wait that are not in `waiting`.
    more: bool,
    /// True if some of them could be placed now, however full `waiting` is.
    freed: bool,
    dirty: BTreeSet<SessionId>,
    /// The sessions that end because their lifetime has ended.
    pub(super) overdue: BTreeSet<SessionId>,
}

impl Default for Hub {
    fn default() -> Self {
        Self::new(Clock::system())
    }
}

impl Hub {
    /// Creates a hub without sessions.
    pub fn new(clock: Clock) -> Self {
        let (inner, dirty, hungry) = Default::default();
        Self { inner, clock, dirty, hungry }
    }

    /// Returns a hub that gives the tasks of a closed session to others, in this order. If it is empty,
    /// they wait.
    #[must_use]
    pub fn falling_back(self, order: &[Fallback]) -> Self {
        self.inner.lock().fallback = order.to_vec();
        self
    }

    /// Restores sessions and frames from the store.
    pub fn load(&self, sessions: Vec<SessionRow>, frames: Vec<FrameRow>) {
        let mut inner = self.inner.lock();
        for row in sessions {
            inner.insert(row);
        }
        for row in frames {
            let session = SessionId::new(row.session.clone());
            let Some(frame) = Frame::from_row(row) else { continue };
            let Some(mailbox) = inner.sessions.get_mut(&session) else { continue };
            mailbox.restore(frame);
        }
        let Inner { sessions, places, .. } = &mut *inner;
        for (session, mailbox) in &*sessions {
            for ticket in mailbox.held.keys() {
                places.insert(*ticket, Assignment::Held(session.clone()));
            }
        }
    }

    /// Restores an attempt that a session had acknowledged. Returns false if the session is gone.
    pub fn adopt(&self, session: &SessionId, ticket: Ticket, task: TaskId, epoch: u32) -> bool {
        let mut inner = self.inner.lock();
        let Some(mailbox) = inner.sessions.get_mut(session) else { return false };
        let held = HeldAttempt::new(task, epoch);
        mailbox.held.insert(ticket, HeldAttempt { told: true, delivered: true, ..held });
        inner.places.insert(ticket, Assignment::Held(session.clone()));
        true
    }

    /// Returns the attempts that are with a session or in a queue.
    pub fn placed(&self) -> Vec<Ticket> {
        self.inner.lock().places.keys().copied().collect()
    }

    /// Returns true if an attempt is with a session or in a queue.
    pub fn knows(&self, ticket: Ticket) -> bool {
        self.inner.lock().places.contains_key(&ticket)
    }

    /// Records that attempts wait in the store.
    pub fn expect_more(&self) {
        let mut inner = self.inner.lock();
        inner.more = true;
        self.after(inner);
    }

    /// Waits until attempts that wait in the store could be placed.
    ///
    /// # Cancel safety
    /// Cancel safe: no notification is lost.
    pub async fn hungry(&self) {
        self.hungry.notified().await;
        self.inner.lock().more = false;
    }

    /// Opens a session that is already stored.
    pub fn open(&self, row: SessionRow) {
        let operator: Arc<str> = row.operator.as_str().into();
        let session = SessionId::new(row.id.clone());
        let mut inner = self.inner.lock();
        inner.insert(row);
        inner.place_of_operator(operator, Some(&session));
        self.after(inner);
    }

    /// Checks that `principal` may open another session.
    ///
    /// # Errors
    /// Fails if the limit of all sessions, or of those of the principal's account, is reached.
    pub fn admit(&self, principal: &str) -> Result<(), SessionError> {
        let inner = self.inner.lock();
        if inner.sessions.len() >= MOST_SESSIONS {
            return Err(SessionError::TooMany);
        }
        let own = account(principal);
        let is_own = |it: &&Mailbox| account(&it.row.principal) == own;
        // As long as there are fewer altogether, none are counted.
        if inner.sessions.len() >= MOST_OF_ACCOUNT
            && inner.sessions.values().filter(is_own).count() >= MOST_OF_ACCOUNT
        {
            return Err(SessionError::TooManyOfAccount);
        }
        Ok(())
    }

    /// Closes a session and ends its connection with the given reason. Returns the attempts that
    /// the session held.
    pub fn close(&self, session: &SessionId, why: LinkEnd) -> Vec<Ticket> {
        let mut inner = self.inner.lock();
        let Some(mailbox) = inner.sessions.remove(session) else { return Vec::new() };
        if let Some(link) = &mailbox.link {
            link.end(why);
        }
        let operator: Arc<str> = mailbox.row.operator.as_str().into();
        if let Some(others) = inner.operators.get_mut(&operator) {
            others.remove(session);
        }
        let held: Vec<Ticket> = mailbox.held.into_keys().collect();
        for ticket in &held {
            inner.places.remove(ticket);
        }
        inner.dirty.remove(session);
        inner.overdue.remove(session);
        inner.place_line(&Key::Session(session.clone()));
        inner.place_of_operator(operator, None);
        self.after(inner);
        held
    }

    /// Returns the attempts that an acknowledgement of `seq` confirms as arrived. Call
    /// [`Hub::acknowledge`] after the runs have recorded them.
    ///
    /// # Errors
    /// Fails when the session is not open, or `seq` is greater than its last frame number.
    pub fn arrived(
        &self,
        session: &SessionId,
        seq: u64,
    ) -> Result<Vec<(Ticket, u32)>, SessionError> {
        let mut inner = self.inner.lock();
        let mailbox = inner.mailbox(session)?;
        let last = mailbox.row.last_seq;
        if seq > last {
            return Err(SessionError::Ahead { seq, last });
        }
        let frames = mailbox.unacked.iter().take_while(|frame| frame.seq <= seq);
        let spawns = frames.filter(|frame| frame.note.method == Method::Spawn);
        let waiting = spawns.filter_map(|frame| {
            let ticket = frame.note.ticket;
            let held = mailbox.held.get(&ticket).filter(|held| !held.delivered)?;
            Some((ticket, held.epoch))
        });
        Ok(waiting.collect())
    }

    /// Drops the frames up to a number. The acknowledgement becomes durable with a later write.
    pub fn acknowledge(&self, session: &SessionId, seq: u64) {
        let mut inner = self.inner.lock();
        let Ok(mailbox) = inner.mailbox(session) else { return };
        mailbox.acknowledge(seq);
        inner.dirty.insert(session.clone());
        inner.fill(session);
        self.after(inner);
    }

    /// Marks an attempt as delivered, after its run has recorded that.
    pub fn delivered(&self, session: &SessionId, ticket: Ticket) {
        let mut inner = self.inner.lock();
        if let Ok(mailbox) = inner.mailbox(session)
            && let Some(held) = mailbox.held.get_mut(&ticket)
        {
            held.delivered = true;
        }
    }

    /// Gives an attempt to a session, or queues it. Idempotent. An attempt that was given up
    /// meanwhile is skipped.
    pub fn spawn(&self, spawn: Spawn, given_up: &CancellationToken) {
        let mut inner = self.inner.lock();
        if given_up.is_cancelled() || inner.places.contains_key(&spawn.ticket) {
            return;
        }
        inner.place(spawn);
        self.after(inner);
    }

    /// Removes an ended attempt. With a `reason`, its session is sent a cancel, unless its spawn
    /// can still be withdrawn.
    pub fn retire(&self, ticket: Ticket, reason: Option<&str>) {
        let mut inner = self.inner.lock();
        match inner.places.remove(&ticket) {
            None => return,
            Some(Assignment::Waiting(key, number)) => drop(inner.waiting.remove(&key, number)),
            Some(Assignment::Held(session)) => {
                if let Some(mailbox) = inner.sessions.get_mut(&session) {
                    let held = mailbox.let_go(ticket);
                    if let (Some(held), Some(reason)) = (held, reason)
                        && !mailbox.unsay(ticket)
                    {
                        mailbox.push(cancel(ticket, held, reason));
                        inner.dirty.insert(session.clone());
                    }
                }
                inner.fill(&session);
            }
        }
        self.after(inner);
    }

    /// Sends a note to the session that holds the attempt. Returns false if no session holds it.
    pub fn tell(&self, note: Note) -> bool {
        let mut inner = self.inner.lock();
        let Some(Assignment::Held(session)) = inner.places.get(&note.ticket).cloned() else {
            return false;
        };
        let Some(mailbox) = inner.sessions.get_mut(&session) else { return false };
        mailbox.push(note);
        inner.dirty.insert(session);
        self.after(inner);
        true
    }

    /// Returns the session that holds an attempt.
    pub fn holder(&self, ticket: Ticket) -> Option<SessionId> {
        match self.inner.lock().places.get(&ticket)? {
            Assignment::Held(session) => Some(session.clone()),
            Assignment::Waiting(..) => None,
        }
    }

    /// Returns the attempt of a step that a session holds or held last, with its epoch. Held attempts
    /// that no client of the session was told of count only if `untold`.
    pub fn attempt_of(
        &self,
        session: &SessionId,
        (run, step): (u64, u32),
        untold: bool,
    ) -> Option<(Ticket, u32)> {
        self.inner.lock().sessions.get(session)?.attempt_of((run, step), untold)
    }

    /// Returns the attempts that a session holds.
    pub fn held(&self, session: &SessionId) -> Vec<Ticket> {
        let inner = self.inner.lock();
        let mailbox = inner.sessions.get(session);
        mailbox.map(|it| it.held.keys().copied().collect()).unwrap_or_default()
    }

    /// Records that a client of a session asked for attempts, and is told of them. Those that are over
    /// are skipped.
    pub fn told(&self, session: &SessionId, tickets: impl IntoIterator<Item = Ticket>) {
        let mut inner = self.inner.lock();
        let Ok(mailbox) = inner.mailbox(session) else { return };
        for ticket in tickets {
            if let Some(held) = mailbox.held.get_mut(&ticket) {
                held.told = true;
            }
        }
    }

    /// Returns where a task would be sent now.
    pub fn outlook(&self, ticket: Ticket, operator: &str, seat: &Seat) -> Outlook {
        let inner = self.inner.lock();
        let to = |session: &SessionId| {
            let now_ms = self.clock.steady_ms();
            let connected = inner.sessions.get(session).is_some_and(|it| it.connected(now_ms));
            Outlook::To { session: session.clone(), connected }
        };
        if let Some(Assignment::Held(session)) = inner.places.get(&ticket) {
            return to(session);
        }
        match inner.resolve(operator, seat) {
            Some(session) => to(&session),
            None => match (seat.delegate.as_ref().or(seat.holder.as_ref()), inner.of(operator)) {
                (Some(gone), _) => Outlook::Vacant(gone.clone()),
                (None, 0) => Outlook::NoSession,
                (None, several) => Outlook::Several(several),
            },
        }
    }

    /// Returns the operator of an open session.
    pub fn operator_of(&self, session: &SessionId) -> Option<String> {
        self.inner.lock().sessions.get(session).map(|mailbox| mailbox.row.operator.clone())
    }

    /// Returns the subject of the opener of an open session.
    pub fn opener(&self, session: &SessionId) -> Option<String> {
        self.inner.lock().sessions.get(session).map(|mailbox| mailbox.row.principal.clone())
    }

    /// Returns the summary of an open session.
    pub fn looks(&self, session: &SessionId) -> Option<Looks> {
        let now_ms = self.clock.steady_ms();
        self.inner.lock().sessions.get(session).map(|mailbox| looks(mailbox, now_ms))
    }

    /// Returns the summaries of all open sessions, the oldest first.
    pub fn all(&self) -> Vec<Looks> {
        let now_ms = self.clock.steady_ms();
        let inner = self.inner.lock();
        let mut all: Vec<Looks> = inner.sessions.values().map(|it| looks(it, now_ms)).collect();
        all.sort_by(|a, b| (a.row.created_ms, &a.row.id).cmp(&(b.row.created_ms, &b.row.id)));
        all
    }

    /// Returns the open sessions whose tokens have such an id.
    pub fn with_token(&self, is_such: impl Fn(&String) -> bool) -> Vec<SessionId> {
        let inner = self.inner.lock();
        let of = inner.sessions.iter().filter(|(_, it)| is_such(&it.row.jti));
        of.map(|(id, _)| id.clone()).collect()
    }

    /// Waits until there is something to write.
    pub(super) async fn written_to(&self) {
        self.dirty.notified().await;
    }

    /// Returns the pending writes and their sessions.
    pub(super) fn write_out(&self) -> (Vec<SessionId>, Vec<Write>) {
        let mut inner = self.inner.lock();
        let sessions: Vec<SessionId> = inner.dirty.iter().take(WRITERS).cloned().collect();
        let mut writes = Vec::new();
        for session in &sessions {
            let Some(mailbox) = inner.sessions.get_mut(session) else { continue };
            for frame in mailbox.write_out(WRITTEN) {
                writes.push(Write::PutFrame(Box::new(frame.row(session.as_str()))));
            }
            if let Some(seq) = mailbox.to_ack {
                writes.push(Write::AckFrames { session: session.to_string(), seq });
            }
        }
        (sessions, writes)
    }

    /// Handles the result of a write: the frames are durable, or the write failed.
    pub(super) fn written(&self, sessions: &[SessionId], writes: &[Write], durable: bool) {
        let mut inner = self.inner.lock();
        for session in sessions {
            let Some(mailbox) = inner.sessions.get_mut(session) else { continue };
            mailbox.written(durable);
            if durable {
                let wrote = writes.iter().find_map(|write| match write {
                    Write::AckFrames { session: of, seq } if of == session.as_str() => Some(*seq),
                    _ => None,
                });
                if mailbox.to_ack == wrote {
                    mailbox.to_ack = None;
                }
                if mailbox.outbox.is_empty() && mailbox.to_ack.is_none() {
                    inner.dirty.remove(session);
                }
            }
        }
        self.after(inner);
    }

    /// Releases the lock and notifies the tasks that the change concerns.
    fn after(&self, mut inner: MutexGuard<'_, Inner>) {
        if !inner.dirty.is_empty() {
            self.dirty.notify_one();
        }
        let freed = std::mem::take(&mut inner.freed);
        let is_hungry = freed || (inner.more && inner.waiting.is_half_free());
        if is_hungry && !inner.sessions.is_empty() {
            self.hungry.notify_one();
        }
    }
}

impl Inner {
    fn insert(&mut self, row: SessionRow) {
        let session = SessionId::new(row.id.clone());
        let operator: Arc<str> = row.operator.as_str().into();
        self.operators.entry(operator).or_default().insert(session.clone());
        self.sessions.insert(session, Mailbox::new(row));
    }

    pub(super) fn mailbox(&mut self, session: &SessionId) -> Result<&mut Mailbox, SessionError> {
        self.sessions.get_mut(session).ok_or_else(|| SessionError::NotOpen(session.clone()))
    }

    fn of(&self, operator: &str) -> usize {
        self.operators.get(operator).map_or(0, BTreeSet::len)
    }

    /// Returns the session that a task goes to.
    fn resolve(&self, operator: &str, seat: &Seat) -> Option<SessionId> {
        let starter = || {
            let starter = seat.starter.as_ref()?;
            (self.sessions.get(starter)?.row.operator == operator).then(|| starter.clone())
        };
        let only = || {
            let sessions = self.operators.get(operator)?;
            sessions.first().filter(|_| sessions.len() == 1).cloned()
        };
        seat.choose(&self.fallback, |id| self.sessions.contains_key(id), starter, only)
    }

    fn place(&mut self, spawn: Spawn) {
        let ticket = spawn.ticket;
        let key = match self.resolve(&spawn.operator, &spawn.seat) {
            None => Key::Operator(Arc::clone(&spawn.operator)),
            Some(session) => {
                let mailbox = self.sessions.get_mut(&session).expect("it was resolved");
                if mailbox.has_room() {
                    let direct = spawn.direct || mailbox.row.direct;
                    let params = spawn.full.filter(|_| direct).unwrap_or(spawn.thin);
                    let Spawn { task, epoch, nonce, timeout_ms, .. } = spawn;
                    mailbox.held.insert(ticket, HeldAttempt::new(task, epoch));
                    let method = Method::Spawn;
                    mailbox.push(Note { method, ticket, task, epoch, nonce, timeout_ms, params });
                    self.places.insert(ticket, Assignment::Held(session.clone()));
                    self.dirty.insert(session);
                    return;
                }
                Key::Session(session)
            }
        };
        match self.waiting.push(&key, spawn) {
            Some(number) => drop(self.places.insert(ticket, Assignment::Waiting(key, number))),
            // The attempt is in the store. It is read from there when there is room again.
            None => self.more = true,
        }
    }

    /// Gives a session the attempts that wait for room in it.
    fn fill(&mut self, session: &SessionId) {
        let key = Key::Session(session.clone());
        while self.sessions.get(session).is_some_and(Mailbox::has_room) {
            let Some(spawn) = self.waiting.pop(&key) else {
                self.freed |= self.waiting.was_left_out(&key);
                return;
            };
            self.place_again(spawn);
        }
    }

    /// Places all attempts of a queue again.
    fn place_line(&mut self, key: &Key) {
        for spawn in self.waiting.take(key) {
            self.place_again(spawn);
        }
        self.freed |= self.waiting.was_left_out(key);
    }

    /// Places the attempts that wait for a session of an operator again, after one was opened or closed:
    /// if there is exactly one now, or if they name the one that was opened. Otherwise none of them can
    /// move; but one that was left out may name it.
    fn place_of_operator(&mut self, operator: Arc<str>, opened: Option<&SessionId>) {
        let is_only = self.of(&operator) == 1;
        let key = Key::Operator(operator);
        let is_named =
            |session: &SessionId| self.waiting.any(&key, |spawn| spawn.seat.names(session));
        if is_only || opened.is_some_and(is_named) {
            self.place_line(&key);
        } else if opened.is_some() {
            self.freed |= self.waiting.was_left_out(&key);
        }
    }

    fn place_again(&mut self, spawn: Spawn) {
        self.places.remove(&spawn.ticket);
        self.place(spawn);
    }
}

fn looks(mailbox: &Mailbox, now_ms: u64) -> Looks {
    Looks {
        row: mailbox.row.clone(),
        connected: mailbox.connected(now_ms),
        open_tasks: mailbox.held.len(),
        unacknowledged: mailbox.unacked.len() + mailbox.outbox.len(),
        // A client with a connection is there now.
        seen_ms: mailbox.link.as_ref().map(|_| now_ms).or(mailbox.seen_ms),
    }
}

/// Returns the note that cancels an attempt.
fn cancel(ticket: Ticket, held: HeldAttempt, reason: &str) -> Note {
    let HeldAttempt { task, epoch, .. } = held;
    let params = serde_json::json!({ "task": task, "attempt": ticket.attempt, "reason": reason });
    let params = params.to_string().into();
    Note { method: Method::Cancel, ticket, task, epoch, nonce: 0, timeout_ms: None, params }
}
