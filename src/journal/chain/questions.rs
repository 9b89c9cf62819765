//! Read-only queries on a chain.

use std::collections::{BTreeMap, BTreeSet};

use super::{Chain, SeatHolder, Spent};
use crate::protocol::{Json, Tags, TraceParent};

impl Chain {
    /// Returns the seat holders by operator.
    pub fn seats(&self) -> &BTreeMap<String, SeatHolder> {
        &self.seats
    }

    /// Returns the number of queued signals, of all names.
    pub fn queued_signals(&self) -> usize {
        self.queued
    }

    /// Returns the total size in bytes of the queued signals.
    pub fn signal_bytes(&self) -> usize {
        self.signal_bytes
    }

    /// Returns the total size in bytes of the failures and plans that steps hold.
    pub fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }

    /// Returns the approximate size in bytes of this history's entries.
    pub fn history_bytes(&self) -> u64 {
        self.history_bytes
    }

    /// Returns the tags of the run.
    pub fn tags(&self) -> &Tags {
        &self.tags
    }

    /// Returns the span of a distributed trace that the start of the run is a part of.
    pub fn trace(&self) -> Option<TraceParent> {
        self.trace
    }

    /// Returns the tags of the run that an open step calls.
    pub fn tags_of_child(&self, step: u32) -> Tags {
        self.called_with.get(&step).cloned().unwrap_or_default()
    }

    /// Returns the agents of the tasks of this history, 64 at most.
    pub fn agents(&self) -> &BTreeSet<String> {
        &self.agents
    }

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
        self.senders.contains(&sender) || self.earlier_senders.contains(&sender)
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
