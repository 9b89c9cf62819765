//! The mailbox of one session: held attempts, frames and the current connection.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use tokio::sync::Mutex;

use super::{Frame, Link, Method, Note};
use crate::{
    protocol::{TaskId, Ticket},
    store::SessionRow,
};

/// The maximum number of open tasks of a session. Others wait.
pub const MOST_OPEN: usize = 256;
/// The maximum number of frames without acknowledgement. Beyond it, no new task is given.
const MOST_FRAMES: usize = 512;
/// The maximum size of these frames in bytes.
const MOST_BYTES: usize = 4 << 20;
/// The number of former attempts that are remembered, so that the session can still learn their
/// outcome.
const FORMER: usize = 1_024;

/// An attempt that a session holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldAttempt {
    /// The task.
    pub task: TaskId,
    /// Its epoch.
    pub epoch: u32,
    /// True if a client of the session was sent the attempt, or may have been.
    pub told: bool,
    /// True if the session acknowledged the attempt.
    pub delivered: bool,
}

impl HeldAttempt {
    /// An attempt that no client was told of yet.
    pub(super) fn new(task: TaskId, epoch: u32) -> Self {
        Self { task, epoch, told: false, delivered: false }
    }

    /// Returns true if a client of the session may know of the attempt.
    fn is_known(&self) -> bool {
        self.told || self.delivered
    }
}

/// The state of one session.
#[derive(Debug)]
pub(super) struct Mailbox {
    /// The stored row.
    pub(super) row: SessionRow,
    pub(super) held: BTreeMap<Ticket, HeldAttempt>,
    former: VecDeque<(Ticket, HeldAttempt)>,
    /// Notes without a number. The first `writing` of them are being written.
    pub(super) outbox: VecDeque<Note>,
    pub(super) writing: usize,
    pub(super) unacked: VecDeque<Frame>,
    bytes: usize,
    /// The last acknowledged frame number that is not in the store yet.
    pub(super) to_ack: Option<u64>,
    pub(super) link: Option<Arc<Link>>,
    pub(super) links: u64,
    /// The number of the last frame that was sent to a client since the start.
    pub(super) sent_seq: u64,
    /// The steady time until which the client of the last poll counts as connected.
    pub(super) polled_until_ms: u64,
    /// The steady time at which a client was last there; `None` if none was since the start.
    pub(super) seen_ms: Option<u64>,
    /// Held during a renewal of the session.
    pub(super) renewal: Arc<Mutex<()>>,
}

impl Mailbox {
    pub(super) fn new(row: SessionRow) -> Self {
        Self {
            row,
            held: BTreeMap::new(),
            former: VecDeque::new(),
            outbox: VecDeque::new(),
            writing: 0,
            unacked: VecDeque::new(),
            bytes: 0,
            to_ack: None,
            link: None,
            links: 0,
            sent_seq: 0,
            polled_until_ms: 0,
            seen_ms: None,
            renewal: Arc::default(),
        }
    }

    /// Returns true if a client has a connection, or polled a short while ago.
    pub(super) fn connected(&self, now_ms: u64) -> bool {
        self.link.is_some() || now_ms < self.polled_until_ms
    }

    /// Returns true if the session can take another task.
    pub(super) fn has_room(&self) -> bool {
        self.held.len() < MOST_OPEN
            && self.outbox.len() + self.unacked.len() < MOST_FRAMES
            && self.bytes < MOST_BYTES
    }

    /// Restores a stored frame. The frames of a session come in their order.
    pub(super) fn restore(&mut self, frame: Frame) {
        self.bytes += frame.note.size();
        let Note { method, ticket, epoch, task, .. } = frame.note;
        match method {
            Method::Spawn => {
                // It may have been sent before the restart.
                let held = HeldAttempt { told: true, ..HeldAttempt::new(task, epoch) };
                self.held.insert(ticket, held);
            }
            // The attempt is over, and its client is told already.
            Method::Cancel => drop(self.let_go(ticket)),
            Method::Answer => {}
        }
        self.unacked.push_back(frame);
    }

    /// Queues a note. It gets its number when it is durable.
    pub(super) fn push(&mut self, note: Note) {
        self.bytes += note.size();
        self.outbox.push_back(note);
    }

    /// Removes a queued spawn that is not being written yet. Returns true if there was one. An answer
    /// that is queued stays: its client has the spawn, and is told of the end by a cancel.
    pub(super) fn unsay(&mut self, ticket: Ticket) -> bool {
        let mut waiting = self.outbox.iter().skip(self.writing);
        let unsaid = waiting.position(|note| note.ticket == ticket && note.method == Method::Spawn);
        let Some(at) = unsaid else { return false };
        if let Some(note) = self.outbox.remove(self.writing + at) {
            self.bytes -= note.size();
        }
        true
    }

    /// Returns the first queued notes as the frames that they will become, and marks them as being
    /// written.
    pub(super) fn write_out(&mut self, most: usize) -> Vec<Frame> {
        self.writing = self.outbox.len().min(most);
        let notes = self.outbox.iter().take(self.writing).cloned();
        (self.row.last_seq + 1..).zip(notes).map(|(seq, note)| Frame { seq, note }).collect()
    }

    /// Handles the result of a write: the frames are durable, or the write failed.
    pub(super) fn written(&mut self, durable: bool) {
        if durable {
            for note in self.outbox.drain(..self.writing) {
                self.row.last_seq += 1;
                self.unacked.push_back(Frame { seq: self.row.last_seq, note });
            }
            if let Some(link) = &self.link {
                link.wake();
            }
        }
        self.writing = 0;
    }

    /// Drops the frames up to a number.
    pub(super) fn acknowledge(&mut self, seq: u64) {
        let seen = self.unacked.partition_point(|frame| frame.seq <= seq);
        for frame in self.unacked.drain(..seen) {
            self.bytes -= frame.note.size();
        }
        if seq > self.row.acked_seq {
            self.row.acked_seq = seq;
            self.to_ack = Some(seq);
        }
    }

    /// Returns the first frame with a number greater than `seq`.
    pub(super) fn after(&self, seq: u64) -> Option<&Frame> {
        let first = self.unacked.front()?.seq;
        let at = usize::try_from((seq + 1).saturating_sub(first)).ok()?;
        self.unacked.get(at)
    }

    /// Records that a frame is sent to a client.
    pub(super) fn tell(&mut self, frame: &Frame) {
        self.sent_seq = self.sent_seq.max(frame.seq);
        if frame.note.method != Method::Spawn {
            return;
        }
        let ticket = frame.note.ticket;
        let held = self.held.get_mut(&ticket).or_else(|| {
            let mut had = self.former.iter_mut().rev();
            had.find(|(it, _)| *it == ticket).map(|(_, held)| held)
        });
        if let Some(held) = held {
            held.told = true;
        }
    }

    /// Returns true if a frame asks for work on an attempt that is over: a client that polls has no
    /// use for it.
    pub(super) fn is_over(&self, frame: &Frame) -> bool {
        match frame.note.method {
            Method::Spawn | Method::Answer => !self.held.contains_key(&frame.note.ticket),
            Method::Cancel => false,
        }
    }

    /// Returns true if a frame is the spawn or an answer of an attempt that was answered after it: a
    /// client without numbers would get it again and again, and never the answer.
    pub(super) fn is_answered(&self, frame: &Frame) -> bool {
        let is_later = |it: &Frame| {
            it.seq > frame.seq
                && it.note.method == Method::Answer
                && it.note.ticket == frame.note.ticket
        };
        frame.note.method != Method::Cancel && self.unacked.iter().any(is_later)
    }

    /// Returns true if such a note waits, or is not acknowledged. Each answer to an attempt is another
    /// note.
    pub(super) fn has_note(&self, note: &Note) -> bool {
        let mut all = self.unacked.iter().map(|frame| &frame.note).chain(&self.outbox);
        all.any(|it| (it.method, it.ticket, &it.params) == (note.method, note.ticket, &note.params))
    }

    /// Returns true if a frame is a cancel that was sent to a client.
    pub(super) fn is_sent_cancel(&self, frame: &Frame) -> bool {
        frame.note.method == Method::Cancel && frame.seq <= self.sent_seq
    }

    /// Removes a held attempt and remembers it as a former one.
    pub(super) fn let_go(&mut self, ticket: Ticket) -> Option<HeldAttempt> {
        let held = self.held.remove(&ticket)?;
        if self.former.len() >= FORMER {
            self.former.pop_front();
        }
        self.former.push_back((ticket, held));
        Some(held)
    }

    /// Returns the attempt of a step that the session held before the one it may hold now. Those that
    /// no client was told of do not count.
    pub(super) fn former(&self, step: (u64, u32)) -> Option<u32> {
        self.last_former(step, false).map(|(ticket, _)| ticket.attempt)
    }

    fn last_former(&self, (run, step): (u64, u32), untold: bool) -> Option<(Ticket, u32)> {
        let mut had = self.former.iter().rev();
        let is_it = |(it, held): &&(Ticket, HeldAttempt)| {
            (it.run, it.step) == (run, step) && (untold || held.is_known())
        };
        had.find(is_it).map(|(ticket, held)| (*ticket, held.epoch))
    }

    /// Returns the attempt of a step that the session holds, or held last. Attempts that no client
    /// was told of count only if `untold`: a client that repeats a call means the one before.
    pub(super) fn attempt_of(
        &self,
        (run, step): (u64, u32),
        untold: bool,
    ) -> Option<(Ticket, u32)> {
        let from = Ticket { run, step, attempt: 0 };
        let to = Ticket { run, step, attempt: u32::MAX };
        let mut held = self.held.range(from..=to).rev();
        let has = held.find(|(_, held)| untold || held.is_known());
        let has = has.map(|(ticket, held)| (*ticket, held.epoch));
        has.or_else(|| self.last_former((run, step), untold))
    }
}
