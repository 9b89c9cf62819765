//! The mailbox of a shard: two lanes, of which the urgent one is emptied first.
//!
//! | lane | messages |
//! |---|---|
//! | urgent | stops of the shard; cancels and pauses of a run |
//! | ordinary | everything else, in order; a cancel behind an unanswered call of its connection |
//!
//! The sender determines the treatment of a full mailbox:
//!
//! | sender | refused | waits | its messages are limited by |
//! |---|---|---|---|
//! | callers: the API, embedders ([`Mail::offer`]) | from [`ASKED`] on, with `overloaded` | never | that number |
//! | the writer: acks of commits | never | never | the writer's queue, and the batches of a run that are being written |
//! | operators: ends of attempts | never | never | the open attempts |
//! | shards: children, signals and cancels between runs | never | never | the open steps, and the content of the outbox |
//!
//! A shard handles no message while the writer's queue is full; its thread is not blocked. The
//! writer never waits for a shard, so there is no deadlock.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{engine::shared::message::Msg, store};

/// The maximum number of callers' messages in each lane of a shard, which handles as many in a few
/// tenths of a second.
const ASKED: usize = 4_096;

/// The sending side of a mailbox.
#[derive(Clone)]
pub(crate) struct Mail(Arc<Shelf>);

/// The receiving side of a mailbox. Once it is dropped, messages are discarded.
pub(crate) struct Mailbox(Arc<Shelf>);

#[derive(Default)]
struct Shelf {
    lanes: Mutex<Lanes>,
    came: Arc<Notify>,
}

#[derive(Default)]
struct Lanes {
    urgent: Lane,
    ordinary: Lane,
    closed: bool,
}

#[derive(Default)]
struct Lane {
    /// Each message, and whether it came from a caller.
    messages: VecDeque<(Msg, bool)>,
    asked: usize,
}

impl Lane {
    fn pop(&mut self) -> Option<Msg> {
        let (message, asked) = self.messages.pop_front()?;
        self.asked -= usize::from(asked);
        Some(message)
    }
}

impl Shelf {
    /// Puts a message into its lane, or with `in_order` into the ordinary one; returns a caller's
    /// message if the lane is full.
    #[expect(clippy::result_large_err, reason = "what is given back is what was given")]
    fn put(&self, message: Msg, asked: bool, in_order: bool) -> Result<(), Msg> {
        let mut lanes = self.lanes.lock();
        if lanes.closed {
            drop(lanes);
            // The shard is gone: a caller that waits for a reply notices that.
            drop(message);
            return Ok(());
        }
        let is_urgent = !in_order && message.is_urgent();
        let lane = if is_urgent { &mut lanes.urgent } else { &mut lanes.ordinary };
        if asked && lane.asked >= ASKED {
            return Err(message);
        }
        lane.asked += usize::from(asked);
        lane.messages.push_back((message, asked));
        drop(lanes);
        store::wake(&self.came);
        Ok(())
    }
}

impl Mail {
    /// Sends the shard a message that must not be lost.
    pub(crate) fn send(&self, message: Msg) {
        // Only a caller's message is ever returned.
        drop(self.0.put(message, false, false));
    }

    /// Sends the shard the message of a caller; returns it if the lane is full.
    #[expect(clippy::result_large_err, reason = "what is given back is what was given")]
    pub(crate) fn offer(&self, message: Msg) -> Result<(), Msg> {
        self.0.put(message, true, false)
    }

    /// Sends the shard the message of a caller, behind everything in the ordinary lane; returns it if
    /// that is full.
    #[expect(clippy::result_large_err, reason = "what is given back is what was given")]
    pub(crate) fn offer_in_order(&self, message: Msg) -> Result<(), Msg> {
        self.0.put(message, true, true)
    }
}

impl Mailbox {
    /// Returns both sides of a mailbox.
    pub(crate) fn new() -> (Mail, Self) {
        let shelf = Arc::new(Shelf::default());
        (Mail(Arc::clone(&shelf)), Self(shelf))
    }

    /// Returns the next message, if there is one.
    pub(crate) fn take(&mut self) -> Option<Msg> {
        let mut lanes = self.0.lanes.lock();
        lanes.urgent.pop().or_else(|| lanes.ordinary.pop())
    }

    /// Waits for the next message.
    ///
    /// # Cancel safety
    /// May be dropped at any time; no message is lost.
    pub(crate) async fn next(&mut self) -> Msg {
        loop {
            if let Some(message) = self.take() {
                return message;
            }
            self.0.came.notified().await;
        }
    }

    /// Returns true if there are no messages.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        let lanes = self.0.lanes.lock();
        lanes.urgent.messages.is_empty() && lanes.ordinary.messages.is_empty()
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        let mut lanes = self.0.lanes.lock();
        lanes.closed = true;
        let unheard = (std::mem::take(&mut lanes.urgent), std::mem::take(&mut lanes.ordinary));
        drop(lanes);
        // Dropped outside the lock, with the reply channels: a caller that is woken may send
        // another message.
        drop(unheard);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tokio::sync::oneshot;

    use super::*;
    use crate::engine::shared::message::Internal;

    fn wake(run: u64) -> Msg {
        Msg::Run(run, Internal::Wake.into())
    }

    fn cancel(run: u64) -> Msg {
        let (by, reason) = ("test".to_owned(), String::new());
        Msg::Run(run, Internal::CancelFrom { sender: (0, 0), by, reason }.into())
    }

    fn runs(mailbox: &mut Mailbox) -> Vec<u64> {
        let all = std::iter::from_fn(|| mailbox.take());
        all.map(|message| if let Msg::Run(run, _) = message { run } else { 0 }).collect()
    }

    #[test]
    fn cancels_and_stops_go_before_what_waits() {
        let (mail, mut mailbox) = Mailbox::new();
        mail.send(wake(1));
        mail.send(wake(2));
        mail.send(cancel(3));
        mail.send(Msg::Stop(oneshot::channel().0));
        assert_eq!(runs(&mut mailbox), [3, 0, 1, 2]);
        assert!(mailbox.is_empty());
    }

    #[test]
    fn callers_are_refused_when_it_is_full_and_nothing_of_the_engine_is_lost() {
        let (mail, mut mailbox) = Mailbox::new();
        let taken = (0..ASKED + 10).filter(|_| mail.offer(wake(1)).is_ok()).count();
        assert_eq!(taken, ASKED);
        for _ in 0..ASKED {
            mail.send(wake(2));
        }
        assert!(mail.offer(cancel(3)).is_ok(), "a cancel has a lane of its own");
        let all = runs(&mut mailbox);
        assert_eq!(all.len(), 2 * ASKED + 1);
        assert!(mail.offer(wake(1)).is_ok(), "there is room again");
    }

    #[test]
    fn what_is_offered_in_order_overtakes_nothing() {
        let (mail, mut mailbox) = Mailbox::new();
        assert!(mail.offer(wake(1)).is_ok());
        assert!(mail.offer_in_order(cancel(2)).is_ok());
        assert!(mail.offer(cancel(3)).is_ok());
        assert_eq!(runs(&mut mailbox), [3, 1, 2]);
    }

    #[test]
    fn a_shard_is_woken_after_the_last_of_the_messages_that_are_sent_together() {
        let (mail, mut mailbox) = Mailbox::new();
        store::wake_once(|| {
            mail.send(wake(1));
            assert!(mail.offer(wake(2)).is_ok());
            assert!(mailbox.0.came.notified().now_or_never().is_none());
            mail.send(cancel(3));
        });
        assert!(mailbox.0.came.notified().now_or_never().is_some());
        assert_eq!(runs(&mut mailbox), [3, 1, 2]);
    }

    #[test]
    fn who_asks_a_shard_that_is_gone_notices() {
        let (mail, mailbox) = Mailbox::new();
        let (before, after) = (oneshot::channel(), oneshot::channel());
        mail.send(Msg::Stop(before.0));
        drop(mailbox);
        mail.send(Msg::Stop(after.0));
        for mut waits in [before.1, after.1] {
            assert!(matches!(waits.try_recv(), Err(oneshot::error::TryRecvError::Closed)));
        }
    }
}
