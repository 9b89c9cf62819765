//! A reading of all metrics: the counters of the host, and what it knows at this moment.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use serde::Deserialize;

use crate::{
    engine::{Caller, EngineError, shared::shards::Shared, verbs::engine::UpkeepVerbs},
    metrics::{Scrape, collect_process, log_lines},
    middleware::Per,
    store::StoreError,
    token::Verb,
};

/// The maximum number of groups of tasks of each kind.
const GROUPS: usize = 1_000;
/// The maximum number of series of a family that is read here.
const SERIES: usize = 200;
/// The maximum number of circuit breakers of a layer that are looked at.
const CIRCUITS: usize = 500;
/// A worker that was seen this recently counts as there, in milliseconds.
const THERE_MS: u64 = 60_000;
/// The name of everything beyond a limit.
const OTHER: &str = crate::metrics::OTHER;

/// The stored state of a circuit breaker.
#[derive(Deserialize)]
struct Circuit {
    open_until_ms: Option<u64>,
}

/// The stored window of a budget.
#[derive(Deserialize)]
struct Window {
    spent: WindowSpent,
}

#[derive(Default, Deserialize)]
struct WindowSpent {
    tokens: u64,
    usd: rust_decimal::Decimal,
}

impl UpkeepVerbs<'_> {
    /// Returns a reading of all metrics.
    ///
    /// # Errors
    /// Fails when the caller may not read the host, or the store cannot be read.
    pub async fn measure(self, caller: &Caller) -> Result<Scrape, EngineError> {
        caller.grant.check(Verb::HostRead, &[])?;
        self.reading().await
    }

    /// Returns a reading of all metrics for who needs no token: the listener of the metrics, and
    /// their export.
    ///
    /// # Errors
    /// Fails when the store cannot be read.
    pub async fn reading(self) -> Result<Scrape, EngineError> {
        let ready = self.engine.ready().is_ok() && self.engine.safe_mode().taking_up().is_none();
        let inner = Arc::clone(&self.engine.inner);
        let read = move || {
            let shared = &inner.shared;
            let mut scrape = Scrape::default();
            scrape.count("moonswarm_build_info", &[env!("CARGO_PKG_VERSION")], 1);
            scrape.count("moonswarm_ready", &[], ready.into());
            let died = shared.store.upkeep().owner_died();
            scrape.count("moonswarm_started_after_crash", &[], died.into());
            shared.counts.collect(&mut scrape);
            if let Some(commits) = shared.store.commits() {
                commits.collect(&mut scrape);
            }
            if let Some(facts) = shared.facts.get() {
                facts.measure(&mut scrape);
            }
            shared.lending.measure(&mut scrape);
            memory(shared, &mut scrape);
            disk(shared, &mut scrape);
            tasks(shared, &mut scrape)?;
            sessions(shared, &mut scrape);
            layers(shared, &mut scrape)?;
            log_lines::collect(&mut scrape);
            collect_process(&mut scrape);
            Ok::<_, StoreError>(scrape)
        };
        let read = self.engine.shared().tasks.spawn_blocking(read).await;
        Ok(read.map_err(|_| EngineError::Stopping)??)
    }
}

fn memory(shared: &Shared, scrape: &mut Scrape) {
    let open = shared.open_runs.load(std::sync::atomic::Ordering::Relaxed);
    scrape.count("moonswarm_runs_open", &[], open);
    scrape.count("moonswarm_memory_used_bytes", &[], shared.memory.used() as u64);
    scrape.count("moonswarm_memory_limit_bytes", &[], shared.memory.limit() as u64);
    for (shard, gauges) in shared.gauges.iter().enumerate() {
        gauges.collect(shard, scrape);
    }
}

fn disk(shared: &Shared, scrape: &mut Scrape) {
    let Some(facts) = shared.facts.get() else { return };
    let dir = facts.data();
    if let Some((database, log)) = database_bytes(shared, &dir) {
        scrape.count("moonswarm_database_bytes", &[], database);
        scrape.count("moonswarm_database_log_bytes", &[], log);
    }
    if let Ok(disk) = rustix::fs::statvfs(&dir) {
        let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
        scrape.count("moonswarm_disk_bytes", &[], bytes(disk.f_blocks));
        scrape.count("moonswarm_disk_free_bytes", &[], bytes(disk.f_bavail));
    }
}

/// Returns the bytes of the database and of its log; `None` if it cannot be asked. A server's log is its own.
pub(super) fn database_bytes(shared: &Shared, dir: &Path) -> Option<(u64, u64)> {
    let size = |name: &str| Some(std::fs::metadata(dir.join(name)).ok()?.len());
    match size("moonswarm.db") {
        Some(file) => Some((file, size("moonswarm.db-wal").unwrap_or_default())),
        None => Some((shared.store.upkeep().space().ok()?.used, 0)),
    }
}

/// The numbers of one queue.
#[derive(Default)]
struct QueueNow {
    waiting: u64,
    in_work: u64,
    oldest_ms: Option<u64>,
    workers: u64,
    pollers: u64,
}

fn tasks(shared: &Shared, scrape: &mut Scrape) -> Result<(), StoreError> {
    let now_ms = shared.clock.now_ms();
    let mut queues: BTreeMap<String, QueueNow> = BTreeMap::new();
    for row in shared.store.queued(GROUPS)? {
        let queue = entry(&mut queues, row.queue);
        if row.worker.is_some() {
            queue.in_work += row.tasks;
        } else {
            queue.waiting += row.tasks;
            queue.oldest_ms = queue.oldest_ms.into_iter().chain([row.oldest_ms]).min();
        }
    }
    for (name, (_, pollers)) in shared.hub.lines() {
        entry(&mut queues, name).pollers += pollers as u64;
    }
    for seen in shared.hub.book().list(now_ms) {
        let there = now_ms.saturating_sub(seen.last_ms) < THERE_MS;
        entry(&mut queues, seen.queue).workers += u64::from(there);
    }
    for (name, queue) in queues {
        scrape.count("moonswarm_queue_tasks", &[&name, "waiting"], queue.waiting);
        scrape.count("moonswarm_queue_tasks", &[&name, "in_work"], queue.in_work);
        let oldest = queue.oldest_ms.map_or(0.0, |at| age_s(now_ms, at));
        scrape.number("moonswarm_queue_oldest_seconds", &[&name], oldest);
        scrape.count("moonswarm_queue_workers", &[&name], queue.workers);
        scrape.count("moonswarm_queue_pollers", &[&name], queue.pollers);
    }
    for row in shared.store.open_tasks(SERIES)? {
        let labels = [row.operator.as_str(), &row.kind];
        scrape.count("moonswarm_open_tasks", &labels, row.tasks);
        let age = age_s(now_ms, row.oldest_ms);
        scrape.number("moonswarm_open_task_oldest_seconds", &labels, age);
    }
    Ok(())
}

/// Returns the numbers of a queue; those of all others, if there are too many.
fn entry(queues: &mut BTreeMap<String, QueueNow>, name: String) -> &mut QueueNow {
    let full = queues.len() >= SERIES && !queues.contains_key(&name);
    queues.entry(if full { OTHER.to_owned() } else { name }).or_default()
}

#[expect(clippy::cast_precision_loss, reason = "an age in milliseconds is small")]
fn age_s(now_ms: u64, at_ms: u64) -> f64 {
    now_ms.saturating_sub(at_ms) as f64 / 1_000.0
}

fn sessions(shared: &Shared, scrape: &mut Scrape) {
    let mut operators: BTreeMap<String, [u64; 4]> = BTreeMap::new();
    for it in shared.sessions.all() {
        let full = operators.len() >= SERIES && !operators.contains_key(it.row.operator.as_str());
        let name = if full { OTHER.to_owned() } else { it.row.operator.clone() };
        let sums = operators.entry(name).or_default();
        sums[usize::from(!it.connected)] += 1;
        sums[2] += it.open_tasks as u64;
        sums[3] += it.unacknowledged as u64;
    }
    for (name, [connected, disconnected, tasks, frames]) in operators {
        scrape.count("moonswarm_sessions", &[&name, "connected"], connected);
        scrape.count("moonswarm_sessions", &[&name, "disconnected"], disconnected);
        scrape.count("moonswarm_session_tasks", &[&name], tasks);
        scrape.count("moonswarm_session_frames_unacknowledged", &[&name], frames);
    }
}

/// Reads what the layers of the host keep: the circuits of breakers, and the windows of budgets.
fn layers(shared: &Shared, scrape: &mut Scrape) -> Result<(), StoreError> {
    use rust_decimal::prelude::ToPrimitive as _;
    let now_ms = shared.clock.now_ms();
    for layer in shared.stacks.list(None).into_iter().take(SERIES) {
        let settings = layer.settings.as_deref().unwrap_or("{}");
        let settings: serde_json::Value = serde_json::from_str(settings).unwrap_or_default();
        match settings["kind"].as_str() {
            Some("circuit_breaker") => {
                let kept = shared.store.kept_by(&layer.name, "", CIRCUITS)?;
                let circuits = kept.iter().filter_map(|it| serde_json::from_str(&it.value).ok());
                let open = |it: &Circuit| it.open_until_ms.is_some_and(|at| at > now_ms);
                let open = circuits.filter(open).count() as u64;
                scrape.count("moonswarm_breakers_open", &[&layer.name], open);
            }
            // The amounts of one run each have no sum.
            Some("budget") => {
                let per = Per::deserialize(&settings["per"]).unwrap_or_default();
                if per == Per::Run {
                    continue;
                }
                let mut kept = None;
                for key in per.window_keys() {
                    if kept.is_none() {
                        kept = shared.store.kept(&layer.name, key)?;
                    }
                }
                let live = kept.filter(|(_, expires_ms)| expires_ms.is_none_or(|at| at > now_ms));
                let window =
                    live.and_then(|(value, _)| serde_json::from_str::<Window>(&value).ok());
                let WindowSpent { usd, tokens } = window.map(|it| it.spent).unwrap_or_default();
                let usd = usd.to_f64().unwrap_or(0.0);
                scrape.number("moonswarm_budget_used_usd", &[&layer.name], usd);
                scrape.count("moonswarm_budget_used_tokens", &[&layer.name], tokens);
                let limit = settings["usd"].as_str().and_then(|it| it.parse::<f64>().ok());
                if let Some(limit) = limit {
                    scrape.number("moonswarm_budget_limit_usd", &[&layer.name], limit);
                }
                if let Some(limit) = settings["tokens"].as_u64() {
                    scrape.count("moonswarm_budget_limit_tokens", &[&layer.name], limit);
                }
            }
            _ => {}
        }
    }
    Ok(())
}
