//! A run that another node drives: who waits for it, and what waits for it to come home.

use std::sync::Arc;

use crate::engine::{
    run::{loan::Share, readers::Subscriber, reply::Waiter},
    shared::{lending::HelperLink, lent::Patience, message::RunMsg},
};

/// A run that another node drives.
pub(crate) struct Away {
    link: Arc<HelperLink>,
    /// Its place at the helper.
    _share: Share,
    /// The messages that wait until it is home.
    pub(crate) held: Vec<RunMsg>,
    waiters: Vec<Waiter>,
    subscribers: Vec<Subscriber>,
    /// The patience with which it was recalled.
    recalled: Option<Patience>,
}

impl Away {
    /// Returns a run that was just lent.
    pub(crate) fn new(link: Arc<HelperLink>, share: Share, waiters: Vec<Waiter>) -> Self {
        let (held, subscribers) = (Vec::new(), Vec::new());
        Self { link, _share: share, held, waiters, subscribers, recalled: None }
    }

    /// Recalls the run, unless it was recalled with as little patience before.
    pub(crate) fn recall(&mut self, run: u64, patience: Patience) {
        if self.recalled.is_none_or(|before| patience < before) {
            self.recalled = Some(patience);
            self.link.recall(run, patience);
        }
    }

    /// Adds somebody who waits for the run.
    pub(crate) fn wait(&mut self, waiter: Waiter) {
        self.waiters.retain(|waiter| !waiter.reply.is_closed());
        self.waiters.push(waiter);
    }

    /// Adds somebody who follows the run.
    pub(crate) fn watch(&mut self, run: u64, subscriber: Subscriber) {
        self.subscribers.retain(|subscriber| !subscriber.is_closed());
        self.subscribers.push(subscriber);
        self.link.watch(run);
    }

    /// Lets those who follow the run read what is stored of it.
    pub(crate) fn stir(&mut self) {
        self.subscribers.clear();
    }
}
