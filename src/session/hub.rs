//! Every open session, and the attempts that are with one or wait for one.
//!
//! In memory; the store has what survives. An attempt is placed once: with the session that its
//! run's seats say, or in line for a session or for room in one. What changes the answer (a
//! session opens or closes, room appears) places again whoever waits for exactly that.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{
    End, Frame, Held, Link, Method, Note, Outlook, Seat, Spawn,
    mailbox::Mailbox,
    place::{Key, Place},
};
use crate::{
    protocol::{SessionId, TaskId, Ticket},
    store::{FrameRow, SessionRow, Write},
};

/// Sessions that may be open.
const MOST_SESSIONS: usize = 10_000;
/// Attempts that wait in memory; further ones are read from the store when there is room.
const MOST_WAITING: usize = 10_000;
/// Frames of one session that are written together.
const WRITTEN: usize = 256;
/// Sessions whose frames are written together.
const WRITERS: usize = 1_024;

/// Why a session cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// There is none, or it is closed.
    #[error("session {0} is not open")]
    NotOpen(SessionId),
    /// A number that was never given out.
    #[error("frame {seq} cannot be acknowledged: the last frame is {last}")]
    Ahead {
        /// The number that was named.
        seq: u64,
        /// The last one.
        last: u64,
    },
    /// There are as many as there may be.
    #[error("{MOST_SESSIONS} sessions are already open")]
    TooMany,
}

/// How a session looks from outside.
#[derive(Debug, Clone, PartialEq)]
pub struct Looks {
    /// As it is stored.
    pub row: SessionRow,
    /// Whether somebody is connected.
    pub connected: bool,
    /// Tasks that it has.
    pub open_tasks: usize,
    /// Frames that it has not acknowledged.
    pub unacknowledged: usize,
}

/// The sessions.
#[derive(Debug, Default)]
pub struct Hub {
    inner: Mutex<Inner>,
    /// There is something to write.
    dirty: Notify,
    /// Attempts wait in the store that would find a place now.
    hungry: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    sessions: HashMap<SessionId, Mailbox>,
    operators: HashMap<Arc<str>, BTreeSet<SessionId>>,
    places: HashMap<Ticket, Place>,
    waiting: HashMap<Key, VecDeque<Spawn>>,
    waits: usize,
    /// Whether attempts wait that are not in `waiting`.
    more: bool,
    dirty: BTreeSet<SessionId>,
}

impl Hub {
    /// Takes up what the store has.
    pub fn load(&self, sessions: Vec<SessionRow>, frames: Vec<FrameRow>) {
        let mut inner = self.lock();
        for row in sessions {
            inner.insert(row);
        }
        for row in frames {
            let session = SessionId::new(row.session.clone());
            let Some(frame) = Frame::from_row(row) else { continue };
            let Some(mailbox) = inner.sessions.get_mut(&session) else { continue };
            let spawned = (frame.note.method == Method::Spawn).then_some(frame.note.ticket);
            mailbox.restore(frame);
            if let Some(ticket) = spawned {
                inner.places.insert(ticket, Place::Held(session));
            }
        }
    }

    /// Takes up an attempt that a session had said to have; false if the session is gone.
    pub fn adopt(&self, session: &SessionId, ticket: Ticket, task: TaskId, epoch: u32) -> bool {
        let mut inner = self.lock();
        let Some(mailbox) = inner.sessions.get_mut(session) else { return false };
        mailbox.held.insert(ticket, Held { task, epoch, delivered: true });
        inner.places.insert(ticket, Place::Held(session.clone()));
        true
    }

    /// The attempts that sessions have, as far as is known.
    pub fn placed(&self) -> Vec<Ticket> {
        self.lock().places.keys().copied().collect()
    }

    /// Whether an attempt is with a session or in line.
    pub fn knows(&self, ticket: Ticket) -> bool {
        self.lock().places.contains_key(&ticket)
    }

    /// Says that attempts wait in the store.
    pub fn expect_more(&self) {
        let mut inner = self.lock();
        inner.more = true;
        if !inner.sessions.is_empty() {
            self.hungry.notify_one();
        }
    }

    /// Waits until attempts that wait in the store would find a place.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn hungry(&self) {
        self.hungry.notified().await;
        self.lock().more = false;
    }

    /// Opens a session that is stored already.
    pub fn open(&self, row: SessionRow) {
        let operator: Arc<str> = row.operator.as_str().into();
        let mut inner = self.lock();
        inner.insert(row);
        inner.place_line(&Key::Operator(operator));
        self.after(inner);
    }

    /// Whether another session may be opened.
    ///
    /// # Errors
    /// When there are too many.
    pub fn admit(&self) -> Result<(), SessionError> {
        if self.lock().sessions.len() < MOST_SESSIONS { Ok(()) } else { Err(SessionError::TooMany) }
    }

    /// Closes a session: whoever is connected is told why. Answers with the attempts that it had.
    pub fn close(&self, session: &SessionId, why: End) -> Vec<Ticket> {
        let mut inner = self.lock();
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
        inner.place_line(&Key::Session(session.clone()));
        inner.place_line(&Key::Operator(operator));
        self.after(inner);
        held
    }

    /// Connects to a session. Whoever was connected before is sent away.
    ///
    /// Frames after `seen` follow, or all that were not acknowledged.
    ///
    /// # Errors
    /// When the session is not open, or has no frame of that number.
    pub fn connect(
        &self,
        session: &SessionId,
        seen: Option<u64>,
    ) -> Result<Arc<Link>, SessionError> {
        let mut inner = self.lock();
        let mailbox = inner.mailbox(session)?;
        let last = mailbox.row.last_seq;
        if let Some(seq) = seen.filter(|seq| *seq > last) {
            return Err(SessionError::Ahead { seq, last });
        }
        mailbox.links += 1;
        let sent = seen.unwrap_or(0).max(mailbox.row.acked_seq);
        let link = Arc::new(Link::new(session.clone(), mailbox.links, sent));
        link.wake();
        if let Some(old) = mailbox.link.replace(Arc::clone(&link)) {
            old.end(End::Replaced);
        }
        Ok(link)
    }

    /// A connection is gone.
    pub fn disconnect(&self, link: &Link) {
        let mut inner = self.lock();
        if let Ok(mailbox) = inner.mailbox(link.session())
            && mailbox.link.as_ref().is_some_and(|own| own.number() == link.number())
        {
            mailbox.link = None;
        }
    }

    /// The next frame for a connection, which counts as handed out.
    pub fn next(&self, link: &Link) -> Option<Frame> {
        let mut inner = self.lock();
        let mailbox = inner.mailbox(link.session()).ok()?;
        if mailbox.link.as_ref().is_none_or(|own| own.number() != link.number()) {
            return None;
        }
        let frame = mailbox.after(link.sent())?.clone();
        link.mark_sent(frame.seq);
        Some(frame)
    }

    /// The attempts that an acknowledgement says have arrived; [`Hub::acknowledge`] follows once
    /// the runs know.
    ///
    /// # Errors
    /// When the session is not open, or has no frame of that number.
    pub fn arrived(
        &self,
        session: &SessionId,
        seq: u64,
    ) -> Result<Vec<(Ticket, u32)>, SessionError> {
        let mut inner = self.lock();
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

    /// Forgets the frames up to a number, durably a little later.
    pub fn acknowledge(&self, session: &SessionId, seq: u64) {
        let mut inner = self.lock();
        let Ok(mailbox) = inner.mailbox(session) else { return };
        mailbox.acknowledge(seq);
        inner.dirty.insert(session.clone());
        inner.fill(session);
        self.after(inner);
    }

    /// The run knows that a session has an attempt.
    pub fn delivered(&self, session: &SessionId, ticket: Ticket) {
        let mut inner = self.lock();
        if let Ok(mailbox) = inner.mailbox(session)
            && let Some(held) = mailbox.held.get_mut(&ticket)
        {
            held.delivered = true;
        }
    }

    /// Gives an attempt to a session, or puts it in line. Doing it again changes nothing; an
    /// attempt that was given up meanwhile is left out.
    pub fn spawn(&self, spawn: Spawn, given_up: &CancellationToken) {
        let mut inner = self.lock();
        if given_up.is_cancelled() || inner.places.contains_key(&spawn.ticket) {
            return;
        }
        inner.place(spawn);
        self.after(inner);
    }

    /// An attempt is over. With a `reason` its session is told to stop.
    pub fn retire(&self, ticket: Ticket, reason: Option<&str>) {
        let mut inner = self.lock();
        match inner.places.remove(&ticket) {
            None => return,
            Some(Place::Waiting) => inner.waits -= 1,
            Some(Place::Held(session)) => {
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

    /// Tells the session that has an attempt something; false if none has it.
    pub fn tell(&self, note: Note) -> bool {
        let mut inner = self.lock();
        let Some(Place::Held(session)) = inner.places.get(&note.ticket).cloned() else {
            return false;
        };
        let Some(mailbox) = inner.sessions.get_mut(&session) else { return false };
        mailbox.push(note);
        inner.dirty.insert(session);
        self.after(inner);
        true
    }

    /// The session that has an attempt.
    pub fn holder(&self, ticket: Ticket) -> Option<SessionId> {
        match self.lock().places.get(&ticket)? {
            Place::Held(session) => Some(session.clone()),
            Place::Waiting => None,
        }
    }

    /// The attempt of a step that a session has or had last, with its epoch.
    pub fn attempt_of(&self, session: &SessionId, run: u64, step: u32) -> Option<(Ticket, u32)> {
        self.lock().sessions.get(session)?.attempt_of(run, step)
    }

    /// What a session has.
    pub fn held(&self, session: &SessionId) -> Vec<(Ticket, Held)> {
        let inner = self.lock();
        let held = inner.sessions.get(session).map(|mailbox| &mailbox.held);
        held.into_iter().flatten().map(|(ticket, held)| (*ticket, *held)).collect()
    }

    /// How a task's way to a session looks now.
    pub fn outlook(&self, ticket: Ticket, operator: &str, seat: &Seat) -> Outlook {
        let inner = self.lock();
        let to = |session: &SessionId| {
            let connected = inner.sessions.get(session).is_some_and(|it| it.link.is_some());
            Outlook::To { session: session.clone(), connected }
        };
        if let Some(Place::Held(session)) = inner.places.get(&ticket) {
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

    /// The operator that an open session is.
    pub fn operator_of(&self, session: &SessionId) -> Option<String> {
        self.lock().sessions.get(session).map(|mailbox| mailbox.row.operator.clone())
    }

    /// The subject of whoever opened an open session.
    pub fn opener(&self, session: &SessionId) -> Option<String> {
        self.lock().sessions.get(session).map(|mailbox| mailbox.row.principal.clone())
    }

    /// How an open session looks.
    pub fn looks(&self, session: &SessionId) -> Option<Looks> {
        self.lock().sessions.get(session).map(looks)
    }

    /// How every open session looks, oldest first.
    pub fn all(&self) -> Vec<Looks> {
        let mut all: Vec<Looks> = self.lock().sessions.values().map(looks).collect();
        all.sort_by(|a, b| (a.row.created_ms, &a.row.id).cmp(&(b.row.created_ms, &b.row.id)));
        all
    }

    /// Lets a session live longer.
    pub fn extend(&self, session: &SessionId, expires_ms: u64) {
        if let Ok(mailbox) = self.lock().mailbox(session) {
            mailbox.row.expires_ms = mailbox.row.expires_ms.max(expires_ms);
        }
    }

    /// The sessions whose time is over.
    pub fn expired(&self, now_ms: u64) -> Vec<SessionId> {
        let inner = self.lock();
        let over = inner.sessions.iter().filter(|(_, it)| it.row.expires_ms <= now_ms);
        over.map(|(id, _)| id.clone()).collect()
    }

    /// The open sessions that were opened with one of these tokens.
    pub fn opened_with(&self, jtis: &[String]) -> Vec<SessionId> {
        let inner = self.lock();
        let of = inner.sessions.iter().filter(|(_, it)| jtis.contains(&it.row.jti));
        of.map(|(id, _)| id.clone()).collect()
    }

    /// Waits until there is something to write.
    pub(super) async fn written_to(&self) {
        self.dirty.notified().await;
    }

    /// What is to be written, and for whom.
    pub(super) fn write_out(&self) -> (Vec<SessionId>, Vec<Write>) {
        let mut inner = self.lock();
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

    /// What was written out is on the disk, or is not.
    pub(super) fn written(&self, sessions: &[SessionId], writes: &[Write], durable: bool) {
        let mut inner = self.lock();
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

    /// Lets those know whom a change concerns.
    fn after(&self, inner: MutexGuard<'_, Inner>) {
        if !inner.dirty.is_empty() {
            self.dirty.notify_one();
        }
        if inner.more && inner.waits < MOST_WAITING / 2 && !inner.sessions.is_empty() {
            self.hungry.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn insert(&mut self, row: SessionRow) {
        let session = SessionId::new(row.id.clone());
        let operator: Arc<str> = row.operator.as_str().into();
        self.operators.entry(operator).or_default().insert(session.clone());
        self.sessions.insert(session, Mailbox::new(row));
    }

    fn mailbox(&mut self, session: &SessionId) -> Result<&mut Mailbox, SessionError> {
        self.sessions.get_mut(session).ok_or_else(|| SessionError::NotOpen(session.clone()))
    }

    fn of(&self, operator: &str) -> usize {
        self.operators.get(operator).map_or(0, BTreeSet::len)
    }

    /// The session that a task goes to.
    ///
    /// | the run says | it goes to |
    /// |---|---|
    /// | a delegate | the delegate, or nobody |
    /// | who holds the seat | the holder, or nobody |
    /// | nothing, and a session of the operator started it | that session |
    /// | nothing | the only session of the operator, if there is one |
    fn resolve(&self, operator: &str, seat: &Seat) -> Option<SessionId> {
        let open = |id: &SessionId| self.sessions.get(id);
        if let Some(named) = seat.delegate.as_ref().or(seat.holder.as_ref()) {
            return open(named).map(|_| named.clone());
        }
        let starter = seat.starter.as_ref();
        let own = starter.filter(|id| open(id).is_some_and(|it| it.row.operator == operator));
        own.cloned().or_else(|| match self.operators.get(operator) {
            Some(sessions) if sessions.len() == 1 => sessions.first().cloned(),
            Some(_) | None => None,
        })
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
                    mailbox.held.insert(ticket, Held { task, epoch, delivered: false });
                    let method = Method::Spawn;
                    mailbox.push(Note { method, ticket, task, epoch, nonce, timeout_ms, params });
                    self.places.insert(ticket, Place::Held(session.clone()));
                    self.dirty.insert(session);
                    return;
                }
                Key::Session(session)
            }
        };
        if self.waits >= MOST_WAITING {
            // It is in the store, and is read from there when others have left the line.
            self.more = true;
            return;
        }
        self.waits += 1;
        self.places.insert(ticket, Place::Waiting);
        self.waiting.entry(key).or_default().push_back(spawn);
    }

    /// Gives a session what waits for room in it.
    fn fill(&mut self, session: &SessionId) {
        let key = Key::Session(session.clone());
        while self.sessions.get(session).is_some_and(Mailbox::has_room) {
            let Some(line) = self.waiting.get_mut(&key) else { return };
            let Some(spawn) = line.pop_front() else {
                self.waiting.remove(&key);
                return;
            };
            self.place_again(spawn);
        }
    }

    /// Places everybody in a line again.
    fn place_line(&mut self, key: &Key) {
        for spawn in self.waiting.remove(key).into_iter().flatten() {
            self.place_again(spawn);
        }
    }

    fn place_again(&mut self, spawn: Spawn) {
        // Whoever was retired left its entry in the line.
        if self.places.get(&spawn.ticket) == Some(&Place::Waiting) {
            self.places.remove(&spawn.ticket);
            self.waits -= 1;
            self.place(spawn);
        }
    }
}

fn looks(mailbox: &Mailbox) -> Looks {
    Looks {
        row: mailbox.row.clone(),
        connected: mailbox.link.is_some(),
        open_tasks: mailbox.held.len(),
        unacknowledged: mailbox.unacked.len() + mailbox.outbox.len(),
    }
}

/// The note that an attempt is over.
fn cancel(ticket: Ticket, held: Held, reason: &str) -> Note {
    let Held { task, epoch, .. } = held;
    let params = serde_json::json!({ "task": task, "attempt": ticket.attempt, "reason": reason });
    let params = params.to_string().into();
    Note { method: Method::Cancel, ticket, task, epoch, nonce: 0, timeout_ms: None, params }
}
