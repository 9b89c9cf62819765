//! The queues of pull workers, and the workers themselves.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    blueprint::Labels,
    engine::{Caller, EngineError, rfc3339, verbs::engine::TaskVerbs},
    store::QueuedRow,
    token::{Need, Verb},
};

/// The maximum number of groups of tasks that are read: each queue, and each worker with tasks.
const GROUPS: usize = 5_000;
/// A worker that was seen this recently counts as there, in milliseconds.
const THERE_MS: u64 = 60_000;

/// A queue.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueueView {
    /// Its name.
    pub queue: String,
    /// The number of tasks that wait.
    pub waiting: u64,
    /// The number of tasks that workers hold.
    pub in_work: u64,
    /// RFC 3339, UTC: when the oldest task that waits was scheduled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_at: Option<String>,
    /// The waiting tasks by the labels that they require of a worker.
    pub lines: Vec<LineView>,
    /// The number of workers that were seen in the last minute.
    pub workers: u64,
    /// The number of workers that wait for a task now.
    pub polling: u64,
}

/// Tasks of a queue that require the same labels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LineView {
    /// The labels.
    #[schema(value_type = Object)]
    pub labels: Labels,
    /// The number of tasks.
    pub waiting: u64,
}

/// A pull worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WorkerView {
    /// The name that it gave itself.
    pub worker: String,
    /// Its queue.
    pub queue: String,
    /// Its labels.
    #[schema(value_type = Object)]
    pub labels: Labels,
    /// The number of tasks that it holds.
    pub tasks: u64,
    /// RFC 3339, UTC: when it was first seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_seen_at: Option<String>,
    /// RFC 3339, UTC: when it asked for work or sent a heartbeat last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen_at: Option<String>,
}

impl TaskVerbs<'_> {
    /// Lists the queues that have tasks or workers, as far as the token reaches.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or the store cannot be read.
    pub async fn queues(self, caller: &Caller) -> Result<Vec<QueueView>, EngineError> {
        caller.grant.check(Verb::OperatorRead, &[])?;
        let shared = self.engine.shared();
        let now_ms = shared.clock.now_ms();
        let mut queues: BTreeMap<String, QueueView> = BTreeMap::new();
        for row in self.engine.read(|store| store.queued(GROUPS)).await? {
            let queue = queues.entry(row.queue).or_default();
            match row.worker {
                None => {
                    queue.waiting += row.tasks;
                    queue.oldest_at = Some(rfc3339(row.oldest_ms));
                }
                Some(_) => queue.in_work += row.tasks,
            }
        }
        for (name, (lines, polling)) in shared.hub.lines() {
            let queue = queues.entry(name).or_default();
            queue.polling = polling as u64;
            let view = |it: crate::operator::WaitingLine| LineView {
                labels: it.labels,
                waiting: it.tasks as u64,
            };
            queue.lines = lines.into_iter().map(view).collect();
        }
        for seen in shared.hub.book().list(now_ms) {
            let there = now_ms.saturating_sub(seen.last_ms) < THERE_MS;
            queues.entry(seen.queue).or_default().workers += u64::from(there);
        }
        let named = queues.into_iter().map(|(queue, view)| QueueView { queue, ..view });
        Ok(named.filter(|it| caller.grant.scopes.cover(&Need::Queue(&it.queue))).collect())
    }

    /// Lists the workers that were seen in the last hour, or that hold tasks, as far as the token
    /// reaches.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or the store cannot be read.
    pub async fn workers(self, caller: &Caller) -> Result<Vec<WorkerView>, EngineError> {
        caller.grant.check(Verb::OperatorRead, &[])?;
        let shared = self.engine.shared();
        let mut workers: BTreeMap<(String, String), WorkerView> = BTreeMap::new();
        for seen in shared.hub.book().list(shared.clock.now_ms()) {
            let key = (seen.queue.clone(), seen.worker.clone());
            let view = WorkerView {
                worker: seen.worker,
                queue: seen.queue,
                labels: seen.labels,
                tasks: 0,
                first_seen_at: Some(rfc3339(seen.first_ms)),
                last_seen_at: Some(rfc3339(seen.last_ms)),
            };
            workers.insert(key, view);
        }
        for row in self.engine.read(|store| store.queued(GROUPS)).await? {
            let QueuedRow { queue, worker: Some(worker), tasks, .. } = row else { continue };
            let view = workers.entry((queue.clone(), worker.clone())).or_insert(WorkerView {
                worker,
                queue,
                labels: Labels::default(),
                tasks: 0,
                first_seen_at: None,
                last_seen_at: None,
            });
            view.tasks = tasks;
        }
        let reached = |it: &WorkerView| caller.grant.scopes.cover(&Need::Queue(&it.queue));
        Ok(workers.into_values().filter(reached).collect())
    }
}
