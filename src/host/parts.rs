//! The parts of an engine, as the configuration makes them: for a host, and for a node that helps another.

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use tokio::sync::mpsc;

use super::{HostConfig, listen};
use crate::{
    clock::Clock,
    engine::{self, EngineParts, FromHelper, KeyFiles, Lend, Recovery, Settings},
    environment::Environments,
    flow::RunLimits,
    lua::{Limits, TaskLimits},
    memory,
    operator::{Builtin, BundleDir, QueueHub, Registry, lua_calls},
    session,
    store::{Store, StoreError},
    tasks::Tasks,
    token::{HandleKey, KeyRing},
};

/// The parts of an engine that are opened, and not configured.
pub(super) struct EngineBase {
    pub(super) store: Arc<dyn Store>,
    pub(super) clock: Clock,
    pub(super) tasks: Tasks,
    pub(super) environments: Arc<Environments>,
    pub(super) keys: (KeyRing, HandleKey),
    pub(super) key_files: Arc<dyn KeyFiles>,
    pub(super) recovery: Recovery,
    /// The link to the node that drives, for an engine that has no other runs.
    pub(super) helps: Option<mpsc::UnboundedSender<FromHelper>>,
}

impl EngineBase {
    /// Returns all parts.
    pub(super) fn parts(self, config: &HostConfig) -> EngineParts {
        let hub = Arc::new(QueueHub::default());
        let sessions = Arc::new(session::Hub::default().falling_back(&config.fallback));
        let registry = registry(config, &self.tasks, &hub, &sessions, self.environments);
        let (keys, handles) = self.keys;
        EngineParts {
            store: self.store,
            clock: self.clock,
            tasks: self.tasks,
            registry,
            hub,
            sessions,
            keys,
            handles,
            key_files: self.key_files,
            limits: Limits::default(),
            settings: settings(config),
            middleware: config.middleware.clone(),
            spawners: config.spawners.clone(),
            shards: shards(config.shards),
            recovery: self.recovery,
            helps: self.helps,
        }
    }
}

/// Returns the environments of a host.
pub(super) fn environments(config: &HostConfig) -> Environments {
    let data = std::path::absolute(&config.data).unwrap_or_else(|_| config.data.clone());
    Environments::new(config.environments.clone(), &data, Clock::system())
        .with_code(config.code.environments())
}

/// Returns the operators of a host.
fn registry(
    config: &HostConfig,
    tasks: &Tasks,
    hub: &Arc<QueueHub>,
    sessions: &Arc<session::Hub>,
    environments: Arc<Environments>,
) -> Registry {
    let data = std::path::absolute(&config.data).unwrap_or_else(|_| config.data.clone());
    Builtin {
        lua: lua_calls(tasks.clone(), TaskLimits::default()),
        bundle_dir: bundle_dirs(data),
        queues: Arc::clone(hub),
        environments,
        clock: Clock::system(),
        stopping: tasks.stopping().clone(),
        sessions: Arc::clone(sessions),
    }
    .registry(&config.operators)
    .with(&config.code)
}

/// Writes the files of a blueprint to the directory where its child processes find them.
fn bundle_dirs(data: PathBuf) -> BundleDir {
    Arc::new(move |blueprint| {
        // `Settings::bundles` of the engine, which removes the directories of deleted versions.
        let dir = data.join("bundles").join(blueprint.hash());
        blueprint.bundle().write_to(&dir).map_err(std::io::Error::other)?;
        Ok(dir)
    })
}

fn settings(config: &HostConfig) -> Settings {
    let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let absolute = std::path::absolute(&config.data).unwrap_or_else(|_| config.data.clone());
    Settings {
        memory: config.memory.map_or_else(memory::by_default, bytes),
        limits: RunLimits {
            held: config.run_memory.map_or(RunLimits::default().held, bytes),
            ..RunLimits::default()
        },
        lease_ms: u64::try_from(config.lease.as_millis()).unwrap_or(u64::MAX),
        park_ms: 24 * 3_600 * 1_000,
        compensation_ms: 300_000,
        live_runs: 512,
        lend: config.cluster.as_ref().map_or(Lend::Off, |cluster| cluster.lend),
        open_runs: 2_000_000,
        queued_signals: 1_000,
        retention: config.retention.unwrap_or_default(),
        custom_effects: config.effects,
        webhooks: config.webhooks.clone(),
        work: absolute.join("work"),
    }
}

fn shards(asked: usize) -> usize {
    if asked > 0 {
        return asked;
    }
    std::thread::available_parallelism().map_or(1, |cores| cores.get().min(64))
}

/// Returns the address for workers: that of the cluster, or else the one of this process.
pub(super) fn url(config: &HostConfig, url: &str, address: SocketAddr) -> String {
    let of_cluster = config.cluster.as_ref().and_then(|it| it.url.clone());
    of_cluster.unwrap_or_else(|| listen::url_of(&config.door, url, address))
}

/// Returns the incarnation of a database, a number that is part of every handle, if it has one yet. Blocks.
pub(super) fn incarnation(store: &dyn Store) -> Result<Option<u64>, StoreError> {
    Ok(store.meta(engine::INCARNATION)?.and_then(|text| text.parse().ok()))
}
