//! Opened tasks on their way to webhooks: one queue per webhook.
//!
//! The row of an announcement is in the batch that opens the task, so none is lost in a crash. It is
//! removed once its receiver has it, the task is over, or a day has passed. A receiver gets each at
//! least once, under the same id.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::{
    operator::{Inquiry, TaskWebhook},
    protocol::{RunId, TaskId},
    store::Write,
};

/// The announcements that may wait for one webhook.
pub(crate) const MOST: usize = 10_000;
/// The time after which an announcement is given up, in milliseconds.
pub(crate) const GIVEN_UP_MS: u64 = 86_400_000;

/// The webhooks of a host, by name.
#[derive(Default)]
pub(crate) struct Announcements(BTreeMap<String, WebhookQueue>);

/// The queue of one webhook.
pub(crate) struct WebhookQueue {
    pub(crate) webhook: TaskWebhook,
    /// There is something to post.
    pub(crate) wake: Notify,
    /// About how many announcements wait.
    pub(crate) waiting: AtomicUsize,
    /// The reason why the last one was not taken, until one is.
    pub(crate) trouble: Mutex<Option<String>>,
    /// The number of announcements that were given up or left out since the start.
    pub(crate) lost: AtomicUsize,
}

/// An announcement, as it is stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Announcement {
    pub(crate) task: TaskId,
    pub(crate) run: RunId,
    pub(crate) attempt: u32,
    pub(crate) blueprint: String,
    pub(crate) at_ms: u64,
}

/// A task that opens.
pub(crate) struct Opening<'a> {
    pub(crate) announcement: Announcement,
    pub(crate) agent: &'a str,
    pub(crate) inquiry: &'a Inquiry,
}

impl Announcements {
    /// Creates the queues of webhooks.
    pub(crate) fn new(webhooks: BTreeMap<String, TaskWebhook>) -> Self {
        let queue = |webhook| WebhookQueue {
            webhook,
            wake: Notify::new(),
            waiting: AtomicUsize::new(0),
            trouble: Mutex::default(),
            lost: AtomicUsize::new(0),
        };
        Self(webhooks.into_iter().map(|(name, webhook)| (name, queue(webhook))).collect())
    }

    /// Returns the queues by their names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&String, &WebhookQueue)> {
        self.0.iter()
    }

    /// Returns a queue.
    pub(crate) fn queue(&self, name: &str) -> Option<&WebhookQueue> {
        self.0.get(name)
    }

    /// Returns true if there is no webhook.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the writes that announce a task that opens to the subscribed receivers.
    pub(crate) fn announce(&self, opening: &Opening<'_>) -> Vec<Write> {
        let it = &opening.announcement;
        let value = serde_json::to_string(it).expect("an announcement is plain data");
        let mut writes = Vec::new();
        for (name, queue) in &self.0 {
            if !queue.webhook.wants(&it.blueprint, opening.agent, &opening.inquiry.by) {
                continue;
            }
            if queue.waiting.load(Ordering::Relaxed) >= MOST {
                queue.lost.fetch_add(1, Ordering::Relaxed);
                tracing::error!(webhook = name, task = %it.task, "too many tasks wait for it");
                continue;
            }
            writes.push(Write::PutKept {
                layer: layer(name),
                key: key(it),
                value: value.clone(),
                // Rows of a webhook that is no longer there go by themselves.
                expires_ms: Some(it.at_ms + 2 * GIVEN_UP_MS),
            });
        }
        writes
    }

    /// Notes that announcements are durable.
    pub(crate) fn added(&self) {
        for queue in self.0.values() {
            queue.wake.notify_one();
        }
    }
}

/// Returns the place of a webhook's rows among the values that are kept with an expiry. No layer of
/// middleware has a name with a space.
pub(crate) fn layer(webhook: &str) -> String {
    format!("task webhook {webhook}")
}

/// Returns the key of a row: the oldest come first.
pub(crate) fn key(it: &Announcement) -> String {
    format!("{:016x} {}", it.at_ms, id(it))
}

/// Returns the id of an announcement, by which a receiver knows it again.
pub(crate) fn id(it: &Announcement) -> String {
    format!("{}.{}", it.task, it.attempt)
}
