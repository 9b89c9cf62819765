//! The memory that the host holds for readers of events: limited per reader, per token, and in
//! total.
//!
//! A reader holds its current page, and the live events that it has not consumed. Pages wait for
//! memory; live events do not: a reader without memory for one is detached, and continues from the
//! store when it asks for the next. So a reader that consumes nothing costs one page and the events
//! that it was sent, however long the history is, and all readers together stay within the total.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::engine::{EventView, view::events::SYNC};

/// The limit of all readers together, in bytes.
const TOTAL: usize = 64 << 20;
/// The limit of the readers of one token.
const SHARE: usize = TOTAL / 4;
/// The maximum size of the live events that a reader has not consumed, in bytes.
const BEHIND: usize = 2 << 20;
/// The maximum number of live events that a reader has not consumed.
const BUFFER: usize = 1_024;
/// The cost of an event in addition to its data, in bytes.
const OVERHEAD: usize = 128;

/// The memory of all readers.
pub(crate) struct Readers {
    total: Arc<Semaphore>,
    shares: Mutex<HashMap<String, Weak<Semaphore>>>,
}

impl Default for Readers {
    fn default() -> Self {
        Self { total: Arc::new(Semaphore::new(TOTAL)), shares: Mutex::default() }
    }
}

impl Readers {
    /// Returns the memory of a reader with a token.
    pub(crate) fn room(&self, jti: &str) -> Room {
        let mut shares = self.shares.lock();
        let known = shares.get(jti).and_then(Weak::upgrade);
        let share = known.unwrap_or_else(|| {
            shares.retain(|_, share| share.strong_count() > 0);
            let share = Arc::new(Semaphore::new(SHARE));
            shares.insert(jti.to_owned(), Arc::downgrade(&share));
            share
        });
        let own = Arc::new(Semaphore::new(BEHIND));
        Room { own, share, total: Arc::clone(&self.total) }
    }
}

/// The memory of one reader.
#[derive(Clone)]
pub(crate) struct Room {
    own: Arc<Semaphore>,
    share: Arc<Semaphore>,
    total: Arc<Semaphore>,
}

/// Memory that is held; released when dropped.
#[derive(Debug)]
pub struct PageMemory(Places);

impl PageMemory {
    /// Releases all but `bytes` of it.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        for held in self.0.iter_mut().flatten() {
            drop(held.split(held.num_permits().saturating_sub(bytes)));
        }
    }
}

type Places = [Option<OwnedSemaphorePermit>; 3];

impl Room {
    /// Waits for the memory of a page.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub(crate) async fn page(&self, bytes: usize) -> PageMemory {
        // One entry may be larger than a share: then it waits for the whole share.
        let bytes = places(bytes.min(SHARE));
        // Neither semaphore is ever closed.
        let share = Arc::clone(&self.share).acquire_many_owned(bytes).await.ok();
        let total = Arc::clone(&self.total).acquire_many_owned(bytes).await.ok();
        PageMemory([share, total, None])
    }

    /// Takes the memory of a live event, if it is available.
    fn live(&self, bytes: usize) -> Option<PageMemory> {
        let own = places(bytes.min(BEHIND));
        let bytes = places(bytes.min(SHARE));
        let own = Arc::clone(&self.own).try_acquire_many_owned(own).ok()?;
        let share = Arc::clone(&self.share).try_acquire_many_owned(bytes).ok()?;
        let total = Arc::clone(&self.total).try_acquire_many_owned(bytes).ok()?;
        Some(PageMemory([Some(own), Some(share), Some(total)]))
    }
}

fn places(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// A live event for a reader.
pub(crate) struct Live {
    pub(crate) event: EventView,
    pub(crate) held: PageMemory,
}

/// A subscriber of a run's events.
pub(crate) struct Subscriber {
    to: mpsc::Sender<Live>,
    room: Room,
    /// True if it takes one durable event, and is detached with the next.
    of_changes: bool,
}

impl Subscriber {
    /// Returns a subscriber, and the receiver of its events.
    pub(crate) fn new(room: Room) -> (Self, mpsc::Receiver<Live>) {
        let (to, live) = mpsc::channel(BUFFER);
        (Self { to, room, of_changes: false }, live)
    }

    /// Returns a subscriber for a reader that only wants to know that something durable happened.
    pub(crate) fn of_changes(room: Room) -> (Self, mpsc::Receiver<Live>) {
        let (to, live) = mpsc::channel(1);
        (Self { to, room, of_changes: true }, live)
    }

    /// Returns true if the receiver was dropped.
    pub(crate) fn is_closed(&self) -> bool {
        self.to.is_closed()
    }

    /// Returns true if it is detached because its reader did not keep up.
    pub(crate) fn is_slow(&self) -> bool {
        !self.of_changes && !self.is_closed()
    }

    /// Sends an event that must not be lost; returns false if the subscriber must be detached.
    pub(crate) fn send(&self, event: &EventView) -> bool {
        if self.of_changes && event.seq.is_none() && event.kind != SYNC {
            return true;
        }
        let bytes = OVERHEAD + event.kind.len() + event.data.len();
        let Some(held) = self.room.live(bytes) else { return false };
        self.to.try_send(Live { event: event.clone(), held }).is_ok()
    }

    /// Sends an event that may be lost, unless the reader is behind: half of the memory is reserved
    /// for events that must not be lost, so that a flood of deltas detaches nobody.
    pub(crate) fn offer(&self, event: &EventView) {
        let is_behind =
            self.to.capacity() <= BUFFER / 2 || self.room.own.available_permits() <= BEHIND / 2;
        if !is_behind && !self.of_changes {
            // If this fails, the reader is detached with the next event that must not be lost.
            self.send(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Json;

    fn event(bytes: usize) -> EventView {
        let data = Json::from(serde_json::Value::from("x".repeat(bytes)));
        EventView { seq: Some(1), kind: "log".into(), at: String::new(), data }
    }

    #[test]
    fn a_reader_that_takes_nothing_is_cut_off_by_events_and_by_bytes() {
        let readers = Readers::default();
        let (many, _small) = Subscriber::new(readers.room("a"));
        assert_eq!((0..2_000).filter(|_| many.send(&event(10))).count(), BUFFER);
        let (large, mut live) = Subscriber::new(readers.room("a"));
        let sent = (0..2_000).filter(|_| large.send(&event(100_000))).count();
        assert_eq!(sent, BEHIND / (100_000 + 2 + 3 + OVERHEAD));
        // Consuming an event releases memory.
        drop(live.try_recv().unwrap());
        assert!(large.send(&event(100_000)));
        assert!(!large.send(&event(100_000)));
    }

    #[tokio::test]
    async fn a_page_that_is_smaller_than_expected_gives_back_the_rest() {
        let readers = Readers::default();
        let mut page = readers.room("a").page(SHARE).await;
        assert_eq!(readers.room("a").share.available_permits(), 0);
        page.shrink(10);
        assert_eq!(readers.room("a").share.available_permits(), SHARE - 10);
        page.shrink(20);
        assert_eq!(readers.total.available_permits(), TOTAL - 10);
        drop(page);
        assert_eq!(readers.total.available_permits(), TOTAL);
    }

    #[test]
    fn what_may_be_missed_leaves_half_of_the_room() {
        let (subscriber, live) = Subscriber::new(Readers::default().room("a"));
        (0..2_000).for_each(|_| subscriber.offer(&event(10)));
        assert_eq!(live.len(), BUFFER / 2);
        let (subscriber, live) = Subscriber::new(Readers::default().room("a"));
        (0..100).for_each(|_| subscriber.offer(&event(100_000)));
        assert!(live.len() <= BEHIND / 2 / 100_000 + 1, "{}", live.len());
        assert!(subscriber.send(&event(100_000)));
    }

    #[test]
    fn all_readers_of_a_token_have_its_share_and_others_theirs() {
        let readers = Readers::default();
        let open = |jti: &str| Subscriber::new(readers.room(jti));
        let mine: Vec<_> = (0..20).map(|_| open("a")).collect();
        let large = event(1 << 20);
        let sent: usize =
            mine.iter().map(|(it, _)| (0..2).filter(|_| it.send(&large)).count()).sum();
        assert!((14..=16).contains(&sent), "{sent}");
        let (other, _live) = open("b");
        assert!(other.send(&large));
        let all: Vec<_> = (0..10).map(|n| open(&n.to_string())).collect();
        let sent = all.iter().flat_map(|it| [it; 8]).filter(|(it, _)| it.send(&large)).count();
        assert!(sent < TOTAL >> 20, "{sent}");
        drop((mine, all));
        assert!(open("c").0.send(&large));
        assert_eq!(readers.shares.lock().len(), 2);
    }

    #[test]
    fn a_reader_of_changes_is_sent_one_durable_event() {
        let (subscriber, mut live) = Subscriber::of_changes(Readers::default().room("a"));
        let delta = EventView { seq: None, kind: "model.delta".into(), ..event(10) };
        subscriber.offer(&event(10));
        assert!(subscriber.send(&delta) && live.is_empty(), "what may be lost is not for it");
        assert!(subscriber.send(&event(10)));
        assert!(!subscriber.send(&event(10)) && !subscriber.is_slow(), "it is detached");
        assert_eq!(live.try_recv().unwrap().event.seq, Some(1));
        assert!(live.try_recv().is_err());
    }

    #[tokio::test]
    async fn a_page_waits_for_room_and_one_larger_than_a_share_for_all_of_it() {
        let readers = Readers::default();
        let room = readers.room("a");
        let half = room.page(SHARE / 2).await;
        let mut large = std::pin::pin!(room.page(usize::MAX));
        assert!(futures::poll!(&mut large).is_pending());
        drop(half);
        let held = large.await;
        assert_eq!(room.share.available_permits(), 0);
        drop(held);
        assert_eq!(room.share.available_permits(), SHARE);
        assert_eq!(room.total.available_permits(), TOTAL);
    }
}
