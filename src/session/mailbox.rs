//! One session in memory: what it holds, what it was told, and who listens for it.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use super::{Frame, Link, Method, Note};
use crate::{
    protocol::{TaskId, Ticket},
    store::SessionRow,
};

/// The most tasks that a session has open; further ones wait as tasks.
pub const MOST_OPEN: usize = 256;
/// Frames that a session may leave unacknowledged before it is given nothing new.
const MOST_FRAMES: usize = 512;
/// Their bytes.
const MOST_BYTES: usize = 4 << 20;
/// Attempts that a session had and that are remembered, so that it is told what became of them.
const FORMER: usize = 1_024;

/// An attempt that a session has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The task.
    pub task: TaskId,
    /// Its epoch.
    pub epoch: u32,
    /// Whether the session said that it has it.
    pub delivered: bool,
}

/// A session.
#[derive(Debug)]
pub(super) struct Mailbox {
    /// As it is stored.
    pub(super) row: SessionRow,
    pub(super) held: BTreeMap<Ticket, Held>,
    former: VecDeque<(Ticket, u32)>,
    /// Notes without a number; the first `writing` of them are on their way to the disk.
    pub(super) outbox: VecDeque<Note>,
    pub(super) writing: usize,
    pub(super) unacked: VecDeque<Frame>,
    bytes: usize,
    /// Frames up to here were acknowledged, and the store does not know yet.
    pub(super) to_ack: Option<u64>,
    pub(super) link: Option<Arc<Link>>,
    pub(super) links: u64,
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
        }
    }

    /// Whether it can be given another task.
    pub(super) fn has_room(&self) -> bool {
        self.held.len() < MOST_OPEN
            && self.outbox.len() + self.unacked.len() < MOST_FRAMES
            && self.bytes < MOST_BYTES
    }

    /// Puts a stored frame back.
    pub(super) fn restore(&mut self, frame: Frame) {
        self.bytes += frame.note.size();
        if frame.note.method == Method::Spawn {
            let Note { ticket, epoch, task, .. } = frame.note;
            self.held.insert(ticket, Held { task, epoch, delivered: false });
        }
        self.unacked.push_back(frame);
    }

    /// Takes a note; it gets its number when it is durable.
    pub(super) fn push(&mut self, note: Note) {
        self.bytes += note.size();
        self.outbox.push_back(note);
    }

    /// Takes a spawn back that nobody was told of; says whether there was one.
    pub(super) fn unsay(&mut self, ticket: Ticket) -> bool {
        let unsaid = self.outbox.iter().skip(self.writing).position(|note| note.ticket == ticket);
        let Some(at) = unsaid else { return false };
        if let Some(note) = self.outbox.remove(self.writing + at) {
            self.bytes -= note.size();
        }
        true
    }

    /// Notes that wait for the disk, as the frames that they become.
    pub(super) fn write_out(&mut self, most: usize) -> Vec<Frame> {
        self.writing = self.outbox.len().min(most);
        let notes = self.outbox.iter().take(self.writing).cloned();
        (self.row.last_seq + 1..).zip(notes).map(|(seq, note)| Frame { seq, note }).collect()
    }

    /// What was written out is on the disk, or is not.
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

    /// Forgets the frames up to a number.
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

    /// The frame that follows a number.
    pub(super) fn after(&self, seq: u64) -> Option<&Frame> {
        let first = self.unacked.front()?.seq;
        let at = usize::try_from((seq + 1).saturating_sub(first)).ok()?;
        self.unacked.get(at)
    }

    /// Forgets an attempt, but for who had it.
    pub(super) fn let_go(&mut self, ticket: Ticket) -> Option<Held> {
        let held = self.held.remove(&ticket)?;
        if self.former.len() >= FORMER {
            self.former.pop_front();
        }
        self.former.push_back((ticket, held.epoch));
        Some(held)
    }

    /// The attempt of a step that it has, or had last.
    pub(super) fn attempt_of(&self, run: u64, step: u32) -> Option<(Ticket, u32)> {
        let from = Ticket { run, step, attempt: 0 };
        let to = Ticket { run, step, attempt: u32::MAX };
        let has =
            self.held.range(from..=to).next_back().map(|(ticket, held)| (*ticket, held.epoch));
        has.or_else(|| {
            let mut had = self.former.iter().rev();
            had.find(|(ticket, _)| (ticket.run, ticket.step) == (run, step)).copied()
        })
    }
}
