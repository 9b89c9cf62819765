//! Questions over a chain that change nothing of it.

use std::collections::BTreeMap;

use super::{Chain, Spent};
use crate::protocol::Json;

impl Chain {
    /// The first queued signal of a name.
    pub fn first_signal(&self, name: &str) -> Option<&Json> {
        self.signals.get(name)?.front()
    }

    /// Every queued signal, by name and then in order.
    pub fn signals(&self) -> Vec<(String, Json)> {
        let mut names: Vec<_> = self.signals.keys().collect();
        names.sort();
        let of = |name: &String| {
            let name = name.clone();
            self.signals[&name].iter().map(move |payload| (name.clone(), payload.clone()))
        };
        names.into_iter().flat_map(of).collect()
    }

    /// The step that waits for a name longest.
    pub fn first_waiter(&self, name: &str) -> Option<u32> {
        self.waiters.get(name)?.front().copied()
    }

    /// Whether a signal of that sending run and step was received.
    pub fn has_received(&self, sender: (u64, u32)) -> bool {
        self.senders.contains(&sender)
    }

    /// The ids of the runs that this history was copied from, the first first.
    pub fn origins(&self) -> &[String] {
        &self.origins
    }

    /// What the run used, in all its histories.
    pub fn spent(&self) -> &Spent {
        &self.spent
    }

    /// The sessions that worked, or work, on tasks of this history.
    pub fn worked(&self) -> impl Iterator<Item = &String> {
        self.sessions.iter()
    }

    /// The sessions that took part and are noted with who stands behind them.
    pub fn joined(&self) -> &BTreeMap<String, String> {
        &self.joined
    }

    /// What the flow last said of itself.
    pub fn status(&self) -> Option<(&str, Option<f64>)> {
        self.status.as_ref().map(|(text, progress)| (text.as_str(), *progress))
    }
}
