//! What the host holds ready for readers of events: in bytes, for each reader, for each token, and
//! in total.
//!
//! A reader holds the page that it is at, and the live events that it has not taken. Pages wait for
//! room; live events do not: a reader without room for one is cut off, and reads on from the store
//! when it takes the next. So a reader that takes nothing costs a page and what it was sent, however
//! long the history, and however many readers there are, all of them together stay in the total.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::engine::EventView;

/// The bytes that are held ready for all readers together.
const TOTAL: usize = 64 << 20;
/// The part of it that the readers of one token may have.
const SHARE: usize = TOTAL / 4;
/// The live bytes that a reader may be behind.
const BEHIND: usize = 2 << 20;
/// The live events that a reader may be behind.
const BUFFER: usize = 1_024;
/// What an event costs beside its data.
const OVERHEAD: usize = 128;

/// The room of all readers.
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
    /// The room of a reader that came with a token.
    pub(crate) fn room(&self, jti: &str) -> Room {
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
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

/// The room of one reader.
#[derive(Clone)]
pub(crate) struct Room {
    own: Arc<Semaphore>,
    share: Arc<Semaphore>,
    total: Arc<Semaphore>,
}

/// Bytes that are held; dropped, there is room for as many again.
pub struct Held(#[expect(dead_code, reason = "held, and given back when dropped")] Places);

type Places = [Option<OwnedSemaphorePermit>; 3];

impl Room {
    /// Waits for the room of a page.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub(crate) async fn page(&self, bytes: usize) -> Held {
        // One entry may be larger than a share: it waits for all of it.
        let bytes = places(bytes.min(SHARE));
        // Neither is ever closed.
        let share = Arc::clone(&self.share).acquire_many_owned(bytes).await.ok();
        let total = Arc::clone(&self.total).acquire_many_owned(bytes).await.ok();
        Held([share, total, None])
    }

    /// Takes the room of a live event, if there is some.
    fn live(&self, bytes: usize) -> Option<Held> {
        let own = places(bytes.min(BEHIND));
        let bytes = places(bytes.min(SHARE));
        let own = Arc::clone(&self.own).try_acquire_many_owned(own).ok()?;
        let share = Arc::clone(&self.share).try_acquire_many_owned(bytes).ok()?;
        let total = Arc::clone(&self.total).try_acquire_many_owned(bytes).ok()?;
        Some(Held([Some(own), Some(share), Some(total)]))
    }
}

fn places(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// A live event on its way to a reader.
pub(crate) struct Live {
    pub(crate) event: EventView,
    pub(crate) held: Held,
}

/// Where a run sends its events.
pub(crate) struct Subscriber {
    to: mpsc::Sender<Live>,
    room: Room,
}

impl Subscriber {
    /// A subscriber, and what it is sent.
    pub(crate) fn new(room: Room) -> (Self, mpsc::Receiver<Live>) {
        let (to, live) = mpsc::channel(BUFFER);
        (Self { to, room }, live)
    }

    /// Whether nobody reads any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.to.is_closed()
    }

    /// Sends an event that must not be missed; false if it cannot, and is to be cut off.
    pub(crate) fn send(&self, event: &EventView) -> bool {
        let bytes = OVERHEAD + event.kind.len() + event.data.len();
        let Some(held) = self.room.live(bytes) else { return false };
        self.to.try_send(Live { event: event.clone(), held }).is_ok()
    }

    /// Sends an event that may be missed, unless the reader is behind: half of the room is for what
    /// must not be, so that a flood of pieces cuts nobody off.
    pub(crate) fn offer(&self, event: &EventView) {
        let is_behind =
            self.to.capacity() <= BUFFER / 2 || self.room.own.available_permits() <= BEHIND / 2;
        if !is_behind {
            // One that is cut off by it reads on from the store with the next that it must not miss.
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
        // What it takes makes room.
        drop(live.try_recv().unwrap());
        assert!(large.send(&event(100_000)));
        assert!(!large.send(&event(100_000)));
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
        assert_eq!(readers.shares.lock().unwrap().len(), 2);
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
