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
    /// The sessions that are being closed, and by how many calls.
    closing: BTreeMap<String, usize>,
    workers: BTreeSet<(String, String)>,
}

impl Presence {
    /// Posts the event of a session that connects, unless it was there, is being closed, or is not open
    /// any more: it has no `operator` then.
    pub(crate) fn arrives(
        &self,
        session: &str,
        operator: impl FnOnce() -> Option<String>,
        now_ms: u64,
        post: impl FnOnce(HostFact),
    ) {
        let mut seen = self.0.lock();
        if seen.closing.contains_key(session) || seen.sessions.contains_key(session) {
            return;
        }
        let Some(operator) = operator() else { return };
        post(of_session("session.connected", (session, &operator), now_ms));
        seen.sessions.insert(session.to_owned(), operator);
    }

    /// Notes that a session is about to be closed, which is an event of its own: from here on, none
    /// about its connection is posted.
    pub(crate) fn closing(&self, session: &str) {
        *self.0.lock().closing.entry(session.to_owned()).or_default() += 1;
    }

    /// Notes that a session could not be closed by one of the calls that do.
    pub(crate) fn stays(&self, session: &str) {
        self.0.lock().no_longer_closing(session);
    }

    /// Forgets a session that was closed, and that is not open any more.
    pub(crate) fn closed(&self, session: &str) {
        let mut seen = self.0.lock();
        seen.no_longer_closing(session);
        seen.sessions.remove(session);
    }

    /// Compares who was there with who is there now, and posts what changed. `sessions` returns the
    /// open ones: it is called, and events are posted, while no session can close or connect.
    pub(crate) fn look(
        &self,
        sessions: impl FnOnce() -> Vec<Looks>,
        workers: &[WorkerSeen],
        now_ms: u64,
        mut post: impl FnMut(HostFact),
    ) {
        let mut seen = self.0.lock();
        let sessions = sessions();
        let is_closing = |id: &String| seen.closing.contains_key(id);
        let connected = sessions.iter().filter(|it| it.connected && !is_closing(&it.row.id));
        let connected = connected.map(|it| (it.row.id.clone(), it.row.operator.clone()));
        let closing = seen.sessions.iter().filter(|(id, _)| is_closing(id));
        let closing = closing.map(|(id, operator)| (id.clone(), operator.clone()));
        let there: BTreeMap<String, String> = connected.chain(closing).collect();
        for (id, operator) in seen.sessions.iter().filter(|(id, _)| !there.contains_key(*id)) {
            post(of_session("session.disconnected", (id, operator), now_ms));
        }
        for (id, operator) in there.iter().filter(|(id, _)| !seen.sessions.contains_key(*id)) {
            post(of_session("session.connected", (id, operator), now_ms));
        }
        seen.sessions = there;
        let is_there = |it: &&WorkerSeen| now_ms.saturating_sub(it.last_ms) < THERE_MS;
        let mut there = BTreeSet::new();
        for worker in workers.iter().filter(is_there) {
            let key = (worker.queue.clone(), worker.worker.clone());
            if !seen.workers.contains(&key) {
                post(of_worker("worker.connected", &key, Some(&worker.labels), now_ms));
            }
            there.insert(key);
        }
        for key in seen.workers.difference(&there) {
            post(of_worker("worker.left", key, None, now_ms));
        }
        seen.workers = there;
    }
}

impl Seen {
    /// Notes that one of the calls that close a session is over.
    fn no_longer_closing(&mut self, session: &str) {
        let Some(calls) = self.closing.get_mut(session) else { return };
        *calls -= 1;
        if *calls == 0 {
            self.closing.remove(session);
        }
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
    use crate::store::SessionRow;

    fn arrival(presence: &Presence, is_open: bool) -> Vec<String> {
        let mut kinds = Vec::new();
        let operator = || is_open.then(|| "coder".to_owned());
        presence.arrives("ses_a", operator, 1, |fact| kinds.push(fact.kind));
        kinds
    }

    fn look(presence: &Presence, sessions: impl FnOnce() -> Vec<Looks>) -> Vec<String> {
        let mut kinds = Vec::new();
        presence.look(sessions, &[], 2, |fact| kinds.push(fact.kind));
        kinds
    }

    /// A session that is connected.
    fn there() -> Looks {
        let row = SessionRow {
            id: "ses_a".to_owned(),
            operator: "coder".to_owned(),
            principal: "ada".to_owned(),
            jti: "j".to_owned(),
            until_ms: 9,
            created_ms: 1,
            expires_ms: 9,
            direct: false,
            last_seq: 0,
            acked_seq: 0,
            closed_ms: None,
            reason: None,
        };
        Looks { row, connected: true, open_tasks: 0, unacknowledged: 0, seen_ms: None }
    }

    #[test]
    fn a_worker_is_there_until_it_was_not_seen_for_two_minutes() {
        let presence = Presence::default();
        let at = |last_ms| WorkerSeen {
            queue: "q".into(),
            worker: "ann".into(),
            last_ms,
            ..WorkerSeen::default()
        };
        let kinds = |workers: &[WorkerSeen], now_ms| {
            let mut kinds = Vec::new();
            presence.look(Vec::new, workers, now_ms, |fact| kinds.push(fact.kind));
            kinds
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
        assert_eq!(arrival(&presence, true), ["session.connected"]);
        assert!(arrival(&presence, true).is_empty());
        assert_eq!(look(&presence, Vec::new), ["session.disconnected"]);
        assert_eq!(arrival(&presence, true), ["session.connected"]);
        presence.closing("ses_a");
        presence.closed("ses_a");
        assert!(look(&presence, Vec::new).is_empty(), "that it was closed is an event of its own");
    }

    #[test]
    fn no_connection_is_told_of_while_a_session_closes_and_after() {
        let presence = Presence::default();
        arrival(&presence, true);
        presence.closing("ses_a");
        assert!(look(&presence, Vec::new).is_empty(), "its connection has ended");
        assert!(look(&presence, || vec![there()]).is_empty(), "it has not yet");
        presence.stays("ses_a");
        assert!(look(&presence, || vec![there()]).is_empty(), "it was there all the time");
        presence.closing("ses_a");
        presence.closed("ses_a");
        assert!(arrival(&presence, false).is_empty(), "it connected, and was closed before this");
        presence.closing("ses_b");
        assert!(look(&presence, Vec::new).is_empty());
    }

    #[test]
    fn a_session_that_is_closed_twice_at_once_is_closing_until_both_are_over() {
        let presence = Presence::default();
        arrival(&presence, true);
        presence.closing("ses_a");
        presence.closing("ses_a");
        presence.stays("ses_a");
        assert!(look(&presence, Vec::new).is_empty(), "the other one goes on");
        presence.closed("ses_a");
        assert_eq!(arrival(&presence, true), ["session.connected"], "nothing of it is left");
    }
}
