//! The sessions and workers that the feed of the host has shown as connected.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use serde::Serialize;
use serde_json::json;

use crate::{
    blueprint::Labels, engine::shared::host_log::HostFact, operator::WorkerSeen, session::Looks,
};

/// A worker that was seen this recently is there, in milliseconds. A worker that waits for a task is
/// seen once a minute at least.
const THERE_MS: u64 = 120_000;

/// The sessions and workers that were connected at the last look.
#[derive(Default)]
pub(crate) struct Presence(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    /// The operator of each session.
    sessions: BTreeMap<String, String>,
    workers: BTreeSet<(String, String)>,
}

impl Presence {
    /// Returns the event of a session that connects, unless it was there.
    pub(crate) fn arrives(&self, session: &str, operator: &str, now_ms: u64) -> Option<HostFact> {
        let before = self.0.lock().sessions.insert(session.to_owned(), operator.to_owned());
        before.is_none().then(|| of_session("session.connected", (session, operator), now_ms))
    }

    /// Forgets a session that was closed.
    pub(crate) fn closed(&self, session: &str) {
        self.0.lock().sessions.remove(session);
    }

    /// Compares who was there with who is there now, and returns what changed.
    pub(crate) fn look(
        &self,
        sessions: &[Looks],
        workers: &[WorkerSeen],
        now_ms: u64,
    ) -> Vec<HostFact> {
        let mut seen = self.0.lock();
        let mut facts = Vec::new();
        let connected = sessions.iter().filter(|it| it.connected);
        let there: BTreeMap<String, String> =
            connected.map(|it| (it.row.id.clone(), it.row.operator.clone())).collect();
        for (id, operator) in seen.sessions.iter().filter(|(id, _)| !there.contains_key(*id)) {
            facts.push(of_session("session.disconnected", (id, operator), now_ms));
        }
        for (id, operator) in there.iter().filter(|(id, _)| !seen.sessions.contains_key(*id)) {
            facts.push(of_session("session.connected", (id, operator), now_ms));
        }
        seen.sessions = there;
        let is_there = |it: &&WorkerSeen| now_ms.saturating_sub(it.last_ms) < THERE_MS;
        let mut there = BTreeSet::new();
        for worker in workers.iter().filter(is_there) {
            let key = (worker.queue.clone(), worker.worker.clone());
            if !seen.workers.contains(&key) {
                facts.push(of_worker("worker.connected", &key, Some(&worker.labels), now_ms));
            }
            there.insert(key);
        }
        for key in seen.workers.difference(&there) {
            facts.push(of_worker("worker.left", key, None, now_ms));
        }
        seen.workers = there;
        facts
    }
}

fn of_session(kind: &str, (session, operator): (&str, &str), now_ms: u64) -> HostFact {
    HostFact::new(kind, now_ms, json!({ "session": session, "operator": operator }))
}

/// A worker, as an event shows it.
#[derive(Serialize)]
struct WorkerFact<'a> {
    worker: &'a str,
    queue: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    labels: Option<&'a Labels>,
}

fn of_worker(
    kind: &str,
    (queue, worker): &(String, String),
    labels: Option<&Labels>,
    now_ms: u64,
) -> HostFact {
    let data = serde_json::to_value(WorkerFact { worker, queue, labels });
    HostFact::new(kind, now_ms, data.expect("a worker is plain data"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_there_until_it_was_not_seen_for_two_minutes() {
        let presence = Presence::default();
        let at = |last_ms| WorkerSeen {
            queue: "q".into(),
            worker: "ann".into(),
            last_ms,
            ..WorkerSeen::default()
        };
        let kinds = |workers: &[WorkerSeen], now_ms| -> Vec<String> {
            presence.look(&[], workers, now_ms).into_iter().map(|it| it.kind).collect()
        };
        assert_eq!(kinds(&[at(5)], 10), ["worker.connected"]);
        assert!(kinds(&[at(5)], THERE_MS).is_empty(), "it is there still");
        assert_eq!(kinds(&[at(5)], THERE_MS + 5), ["worker.left"]);
        assert!(kinds(&[], THERE_MS + 6).is_empty());
        assert_eq!(kinds(&[at(THERE_MS * 2)], THERE_MS * 2), ["worker.connected"]);
    }

    #[test]
    fn a_session_connects_once_until_it_is_gone() {
        let presence = Presence::default();
        let kinds =
            |facts: Vec<HostFact>| -> Vec<String> { facts.into_iter().map(|it| it.kind).collect() };
        assert!(presence.arrives("ses_a", "coder", 1).is_some());
        assert!(presence.arrives("ses_a", "coder", 2).is_none());
        assert_eq!(kinds(presence.look(&[], &[], 3)), ["session.disconnected"]);
        assert!(presence.arrives("ses_a", "coder", 4).is_some());
        presence.closed("ses_a");
        assert!(presence.look(&[], &[], 5).is_empty(), "that it was closed is an event of its own");
    }
}
