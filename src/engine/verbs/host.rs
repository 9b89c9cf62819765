//! The host as people see it: health, room, shards, configuration, and what `doctor` finds.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    engine::{
        Caller, ConfigItem, DoctorLine, DoctorVerdict, Engine, EngineError, HostFacts, NodeView,
        rfc3339,
        shared::{announcements::WebhookQueue, lanes::LaneView, shards::Shared},
        verbs::{engine::UpkeepVerbs, measure::database_bytes},
    },
    operator::ShownSettings,
    token::{Need, Verb},
};

/// The time that an examination may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The host.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct HostView {
    /// The version of the program.
    pub version: String,
    /// The URL that it listens on.
    pub url: String,
    /// RFC 3339, UTC: when it started.
    pub started_at: String,
    /// True if it accepts work.
    pub ready: bool,
    /// The reason why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The number of shards: threads that own runs.
    pub shards: usize,
    /// The runs of this process that have not ended.
    pub open_runs: u64,
    /// The memory that all runs together may hold, in bytes.
    pub memory_budget: u64,
    /// The size of the database with its log, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub database_bytes: Option<u64>,
    /// The space that is free on its disk, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_free_bytes: Option<u64>,
    /// The retention of ended runs.
    pub retention: RetentionView,
    /// The effective configuration; only with the verb `host.inspect`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<Vec<ConfigItem>>,
    /// The findings of `doctor`; only with the verb `host.inspect`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doctor: Option<Vec<DoctorLine>>,
}

/// The retention of ended runs; 0 is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RetentionView {
    /// The age after its end at which a run is deleted, in milliseconds.
    pub age_ms: u64,
    /// The number of ended runs that are kept.
    pub runs: u64,
    /// The size of the database, in bytes, above which the oldest are deleted.
    pub bytes: u64,
}

/// The verdict on the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainView {
    /// The number of lines that were verified.
    pub lines: u64,
    /// True if that were all lines.
    pub whole: bool,
    /// The hash of the last one.
    pub head: String,
    /// The first inconsistency, if there is one.
    pub problem: Option<String>,
}

/// Examines the tasks on their way to webhooks.
fn webhooks(shared: &Shared) -> Vec<DoctorLine> {
    let line = |(name, queue): (&String, &WebhookQueue)| {
        let what = format!("tasks for webhook {name}");
        let waiting = queue.waiting.load(Ordering::Relaxed);
        let lost = queue.lost.load(Ordering::Relaxed);
        match (&*queue.trouble.lock(), lost) {
            (Some(trouble), _) if waiting > 0 => {
                let says = format!("it takes none: {trouble}; {waiting} wait");
                DoctorLine::new(DoctorVerdict::Warn, &what, says)
                    .next("they are posted again for a day")
            }
            (_, lost) if lost > 0 => {
                let says = format!("{lost} were given up since the start");
                DoctorLine::new(DoctorVerdict::Warn, &what, says)
                    .next("`moonswarm inbox` lists them")
            }
            _ => DoctorLine::new(DoctorVerdict::Ok, &what, format!("{waiting} wait")),
        }
    };
    shared.announcements.iter().map(line).collect()
}

/// Examines the changes on their way to stores that are not the host's.
fn stores(shared: &Shared) -> Vec<DoctorLine> {
    let line = |lane: LaneView| {
        let what = format!("store of {}", lane.scope);
        let LaneView { waiting, trouble, refused, .. } = lane;
        match (trouble, refused) {
            (Some(trouble), _) => {
                let says = format!("takes no changes: {trouble}; {waiting} changes wait");
                DoctorLine::new(DoctorVerdict::Fail, &what, says)
                    .next("they are made as soon as a store of the host takes them")
            }
            (None, Some((count, error))) => {
                let says = format!("refused {count} changes since the start; the last: {error}");
                DoctorLine::new(DoctorVerdict::Warn, &what, says)
                    .next("`change_refused` in the events of the run names each")
            }
            (None, None) => {
                DoctorLine::new(DoctorVerdict::Ok, &what, format!("{waiting} changes wait"))
            }
        }
    };
    shared.lanes.views().into_iter().map(line).collect()
}

/// The sizes of the database and of its disk, as far as they are known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskView {
    /// The size of the database, in bytes.
    pub database_bytes: Option<u64>,
    /// The free space on its disk, in bytes.
    pub free_bytes: Option<u64>,
}

impl Engine {
    /// Sets what the host knows of itself. The first call counts.
    pub fn set_facts(&self, facts: Arc<dyn HostFacts>) {
        let _ = self.shared().facts.set(facts);
    }
}

impl UpkeepVerbs<'_> {
    /// Returns the host as it is now.
    ///
    /// # Errors
    /// Fails when the caller lacks permission.
    pub async fn host(self, caller: &Caller) -> Result<HostView, EngineError> {
        caller.grant.check(Verb::HostRead, &[])?;
        let shared = self.engine.shared();
        let reason = self
            .engine
            .ready()
            .and_then(|()| self.engine.safe_mode().taking_up().map_or(Ok(()), Err));
        let facts = shared.facts.get();
        let DiskView { database_bytes, free_bytes: disk_free_bytes } = self.disk(caller).await?;
        let inspects = facts.filter(|_| caller.grant.check(Verb::HostInspect, &[]).is_ok());
        let doctor = match inspects {
            Some(facts) => {
                tokio::time::timeout(PATIENCE, facts.examine()).await.ok().map(|lines| {
                    lines.into_iter().chain(stores(shared)).chain(webhooks(shared)).collect()
                })
            }
            None => None,
        };
        let crate::engine::Retention { age_ms, runs, bytes } = shared.settings.retention;
        let up_ms = shared.clock.steady_ms().saturating_sub(shared.booted_ms);
        Ok(HostView {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            url: self.engine.url().to_owned(),
            started_at: rfc3339(shared.clock.now_ms().saturating_sub(up_ms)),
            ready: reason.is_ok(),
            reason: reason.err(),
            shards: shared.shards.len(),
            open_runs: self.engine.open_runs(),
            memory_budget: shared.settings.memory as u64,
            database_bytes,
            disk_free_bytes,
            retention: RetentionView { age_ms, runs, bytes },
            config: inspects.map(|facts| facts.config()),
            doctor,
        })
    }

    /// Returns the nodes of the cluster that have not ended; none for a host that is alone.
    ///
    /// # Errors
    /// Fails when the caller lacks permission.
    pub fn nodes(self, caller: &Caller) -> Result<Vec<NodeView>, EngineError> {
        caller.grant.check(Verb::HostRead, &[])?;
        let shared = self.engine.shared();
        let mut nodes = shared.facts.get().map(|facts| facts.nodes()).unwrap_or_default();
        let helpers = shared.lending.helpers();
        for node in &mut nodes {
            let links = helpers.iter().filter(|(of, _)| *of == node.node);
            node.runs = links.map(|(_, runs)| runs).sum();
        }
        Ok(nodes)
    }

    /// Returns the effective settings of the operators that the configuration declares, by name: those
    /// that the caller reaches.
    ///
    /// # Errors
    /// Fails when the caller lacks permission.
    pub fn operator_settings(
        self,
        caller: &Caller,
    ) -> Result<BTreeMap<String, ShownSettings>, EngineError> {
        caller.grant.check(Verb::OperatorRead, &[])?;
        caller.grant.check(Verb::HostInspect, &[])?;
        let facts = self.engine.shared().facts.get();
        let mut all = facts.map(|facts| facts.operators()).unwrap_or_default();
        all.retain(|name, _| caller.grant.scopes.cover(&Need::Operator(name)));
        Ok(all)
    }

    /// Returns the sizes of the database and of its disk.
    ///
    /// # Errors
    /// Fails when the caller lacks permission.
    pub async fn disk(self, caller: &Caller) -> Result<DiskView, EngineError> {
        caller.grant.check(Verb::HostRead, &[])?;
        let shared = self.engine.shared();
        let Some(facts) = shared.facts.get().cloned() else { return Ok(DiskView::default()) };
        let inner = Arc::clone(&self.engine.inner);
        let measure = move || {
            let dir = facts.data();
            let bytes = database_bytes(&inner.shared, &dir);
            let free = rustix::fs::statvfs(&dir).ok();
            DiskView {
                database_bytes: bytes.map(|(database, log)| database + log),
                free_bytes: free.map(|it| it.f_bavail.saturating_mul(it.f_frsize)),
            }
        };
        shared.tasks.spawn_blocking(measure).await.map_err(|_| EngineError::Stopping)
    }

    /// Verifies the hashes of the audit log, at most `most` lines from its beginning.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or the store cannot be read.
    pub async fn verify_audit(self, caller: &Caller, most: u64) -> Result<ChainView, EngineError> {
        use crate::middleware::{Chained, GENESIS};
        let mut view =
            ChainView { lines: 0, whole: false, head: GENESIS.to_owned(), problem: None };
        while view.lines < most {
            let page = self.audit(caller, view.lines, 1_000).await?;
            for it in page.items {
                let line = Chained { seq: it.seq, at: it.at, line: it.line, hash: it.hash };
                if let Err(error) = line.follows(view.lines, &view.head) {
                    view.problem = Some(format!("failed to {error}"));
                    return Ok(view);
                }
                (view.lines, view.head) = (line.seq, line.hash);
            }
            if page.next_cursor.is_none() {
                view.whole = true;
                break;
            }
        }
        Ok(view)
    }
}
