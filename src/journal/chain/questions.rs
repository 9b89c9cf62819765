//! Read-only queries on a chain.

use std::collections::BTreeMap;

use super::{Chain, Spent};
use crate::protocol::Json;

impl Chain {
    /// Returns the first queued signal with a name.
    pub fn first_signal(&self, name: &str) -> Option<&Json> {
        self.signals.get(name)?.front()
    }

    /// Returns all queued signals, by name and then in order of arrival.
    pub fn signals(&self) -> Vec<(String, Json)> {
        let mut names: Vec<_> = self.signals.keys().collect();
        names.sort();
        let of = |name: &String| {
            let name = name.clone();
            self.signals[&name].iter().map(move |payload| (name.clone(), payload.clone()))
        };
        names.into_iter().flat_map(of).collect()
    }

    /// Returns the step that has waited longest for a signal with this name.
    pub fn first_waiter(&self, name: &str) -> Option<u32> {
        self.waiters.get(name)?.front().copied()
    }

    /// Returns true if a signal from this run and step was received.
    pub fn has_received(&self, sender: (u64, u32)) -> bool {
        self.senders.contains(&sender)
    }

    /// Returns the ids of the runs that this history was copied from, the oldest first.
    pub fn origins(&self) -> &[String] {
        &self.origins
    }

    /// Returns the usage of the run in all its histories.
    pub fn spent(&self) -> &Spent {
        &self.spent
    }

    /// Iterates over the sessions that tasks of this history were delivered to.
    pub fn worked(&self) -> impl Iterator<Item = &String> {
        self.sessions.iter()
    }

    /// Returns the sessions that joined the run, each with its party.
    pub fn joined(&self) -> &BTreeMap<String, String> {
        &self.joined
    }

    /// Returns the last status of the flow: its text and progress.
    pub fn status(&self) -> Option<(&str, Option<f64>)> {
        self.status.as_ref().map(|(text, progress)| (text.as_str(), *progress))
    }
}
