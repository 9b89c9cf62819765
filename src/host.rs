//! The host: the only place where the rooms are put together.
//!
//! Read it from top to bottom: open the data directory, start the engine, listen, watch; and the
//! same backwards to stop.

mod boot;
mod embed;
mod file_watch;
mod files;
mod restore;
mod watch;

pub use restore::{Restored, restore};
pub use watch::{blueprints_in, main_file};

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use tokio::net::TcpListener;

use crate::{
    api,
    clock::Clock,
    door::{self, Door, DoorConfig},
    engine::{
        CustomEffects, Engine, EngineError, EngineParts, Middleware, Recovery, Retention,
        Schedules, Settings, Sweeper,
    },
    environment::{self, Environments},
    fault,
    flow::RunLimits,
    lua::Limits,
    memory,
    operator::{Builtin, BundleDir, Coded, Declared, QueueHub, Registry, lua_calls},
    protocol::RunId,
    respond::multi_step::{LlmModel, NoModel},
    session,
    spawner::Spawners,
    store::{self, Migrated, Opened, Options, Store, Upkeep},
    tasks::Tasks,
};

/// Runs of an earlier process that an embedded host names.
const LEFT_OPEN: usize = 100;

/// How often old answers are forgotten.
const HOUSEKEEPING: Duration = Duration::from_secs(3_600);
/// How often the host looks whether ended runs are to go, and how long it rests where some do.
const SWEEP: Duration = Duration::from_secs(15);
/// How long the host waits when it could not look at the schedules, in milliseconds.
const SCHEDULES_AGAIN_MS: u64 = 10_000;
const BETWEEN_STEPS: Duration = Duration::from_millis(50);

/// What to open.
#[derive(Debug, Clone)]
pub struct HostConfig {
    /// The data directory; made if it is not there.
    pub data: PathBuf,
    /// Where to listen; port 0 picks one.
    pub listen: SocketAddr,
    /// A directory of blueprints to watch.
    pub blueprints: Option<PathBuf>,
    /// Directories, by name, whose files any blueprint may watch.
    pub watch: BTreeMap<String, PathBuf>,
    /// Whether runs that were open before go on by themselves.
    pub recover: bool,
    /// Whether a host that died three times in a row, each time soon after its start, takes its runs
    /// up one at a time.
    pub safe_mode: bool,
    /// What all runs together may make the host hold in memory, in bytes; by the machine if absent.
    pub memory: Option<u64>,
    /// What one run may make the host hold in memory, in bytes; 64 MiB if absent.
    pub run_memory: Option<u64>,
    /// How long a pull worker keeps a task without a heartbeat.
    pub lease: Duration,
    /// Shards; 0 for one a core.
    pub shards: usize,
    /// How long ended runs are kept.
    pub retention: Retention,
    /// What becomes of effects that the host has no word for.
    pub effects: CustomEffects,
    /// How the database syncs.
    pub store: Options,
    /// Who may come in over HTTP, and how much.
    pub door: DoorConfig,
    /// The operators beside the built-in ones.
    pub operators: Declared,
    /// Secrets, and environments by name.
    pub environments: environment::Config,
    /// Operators that are code, by name; one of a name that is there already takes its place.
    pub code: Coded,
    /// What stands between runs and what they reach.
    pub middleware: Middleware,
    /// Who starts workers, by the name or kind of an operator, where that is somebody else than
    /// the operators themselves.
    pub spawners: Spawners,
}

impl HostConfig {
    /// A host in the directory `data`, on a port of its own choosing, with what `serve` would do by
    /// default; for programs that have a host inside.
    pub fn new(data: impl Into<PathBuf>) -> Self {
        Self {
            data: data.into(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            blueprints: None,
            watch: BTreeMap::new(),
            recover: true,
            safe_mode: true,
            memory: None,
            run_memory: None,
            lease: crate::config::LEASE,
            shards: 0,
            retention: Retention::default(),
            effects: CustomEffects::default(),
            store: Options::default(),
            door: DoorConfig::default(),
            operators: Declared::default(),
            code: Coded::default(),
            middleware: Middleware::default(),
            spawners: Spawners::default(),
            environments: environment::Config::default(),
        }
    }
}

/// A running host.
pub struct Host {
    engine: Engine,
    upkeep: Arc<dyn Upkeep>,
    tasks: Tasks,
    files: files::DataFiles,
    url: String,
    admin: String,
    left_open: Vec<RunId>,
    _watch: Option<watch::Watch>,
}

/// Why a host could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The store.
    #[error(transparent)]
    Store(#[from] crate::store::StoreError),
    /// The engine.
    #[error(transparent)]
    Engine(#[from] crate::engine::EngineError),
    /// A file of the data directory.
    #[error("{what} {path}: {reason}")]
    File {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: String,
        /// Why it failed, and what helps.
        reason: String,
    },
    /// The address.
    #[error("listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
}

impl Host {
    /// Opens the data directory, starts the engine and listens.
    ///
    /// # Errors
    /// When another process owns the directory, a newer release wrote it, its keys can be read by
    /// others, or the address is taken.
    pub async fn open(config: HostConfig) -> Result<Self, HostError> {
        let Opened { store, upkeep } = store::open(&config.data, &config.store)?;
        let tasks = Tasks::new(tokio::runtime::Handle::current());
        let opened = Self::open_on(config, store, Arc::clone(&upkeep), tasks.clone()).await;
        if opened.is_err() {
            // A start that fails in order is no death: the next one is told so.
            tasks.stopping().cancel();
            if let Err(error) = upkeep.close() {
                tracing::warn!(%error, "could not close the database");
            }
        }
        opened
    }

    async fn open_on(
        config: HostConfig,
        store: Arc<dyn Store>,
        upkeep: Arc<dyn Upkeep>,
        tasks: Tasks,
    ) -> Result<Self, HostError> {
        let files = files::DataFiles::open(&config.data)?;
        let incarnation = incarnation(&*store).await?;
        let (keys, handles) = files.keys(incarnation)?;
        fault::point("host.keys");

        let hub = Arc::new(QueueHub::default());
        let sessions = Arc::new(session::Hub::default());
        let environments = Arc::new(environments(&config));
        // Before anything runs: what is there now is of a host that was cut off.
        environments.sweep();
        if config.recover {
            warn_of_children(&environments, &tasks);
        }
        let registry = registry(&config, &tasks, &hub, &sessions, environments);

        let boot = boot::Boot::begin(&*store, upkeep.owner_died(), config.recover).await?;
        fault::point("host.boot_counted");
        let careful = config.safe_mode && boot.is_a_crash_loop();
        let engine = Engine::start_up(EngineParts {
            store: Arc::clone(&store),
            clock: Clock::system_ahead(boot::clock_offset(&*store)?),
            tasks: tasks.clone(),
            registry,
            hub,
            sessions,
            keys,
            handles,
            key_files: Arc::new(files.clone()),
            limits: Limits::default(),
            settings: settings(&config),
            middleware: config.middleware.clone(),
            spawners: config.spawners.clone(),
            shards: shards(config.shards),
            recovery: match (config.recover, careful) {
                (false, _) => Recovery::Asked,
                (true, false) => Recovery::All,
                (true, true) => Recovery::Careful,
            },
        })?;
        let left_open =
            if config.recover { Vec::new() } else { engine.unfinished(LEFT_OPEN).await? };
        boot::keep_clock_offset(&engine, &tasks);
        engine.set_taking_up(config.recover && careful);

        let admin = match files.admin_token()?.filter(|token| engine.is_lasting(token)) {
            Some(token) => token,
            None => {
                let token = engine.mint_admin().await?.token;
                fault::point("host.admin_minted");
                files.put_admin_token(&token)?;
                token
            }
        };

        let listener = TcpListener::bind(config.listen)
            .await
            .map_err(|source| HostError::Listen { address: config.listen, source })?;
        let address = listener
            .local_addr()
            .map_err(|source| HostError::Listen { address: config.listen, source })?;
        let url = format!("http://{address}");
        engine.set_url(&url);
        fault::point("host.listening");
        // Whoever finds this host finds the names of its directory as well.
        let watch = match &config.blueprints {
            Some(dir) => Some(watch::Watch::start(dir, engine.clone(), &tasks).await?),
            None => None,
        };
        let door = Arc::new(Door::new(&config.door, address));
        let behind = api::router(engine.clone(), Arc::clone(&door), &tasks);
        let served_by = tasks.clone();
        tasks.spawn(async move { door::serve(listener, behind, &door, &served_by).await });
        files.put_server(&url, incarnation)?;
        fault::point("host.announced");

        keep_house(&engine, &tasks);
        sweep(&engine, &tasks);
        if config.recover {
            let watched =
                (watch.is_some() || !config.watch.is_empty()).then(|| config.watch.clone());
            recover(&engine, &tasks, careful.then_some(boot), watched);
        }
        Ok(Self { engine, upkeep, tasks, files, url, admin, left_open, _watch: watch })
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The model of an operator, for a response loop of one's own.
    ///
    /// # Errors
    /// When there is no such operator, or it asks no model itself.
    pub fn model(&self, operator: &str) -> Result<LlmModel, NoModel> {
        LlmModel::of(self.engine.registry(), operator)
    }

    /// Where it listens: `http://127.0.0.1:7700`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The admin token.
    pub fn admin_token(&self) -> &str {
        &self.admin
    }

    /// Runs that were open before and do not go on by themselves in this process.
    pub fn left_open(&self) -> Vec<RunId> {
        self.left_open.clone()
    }

    /// What opening the data directory changed of its format, if anything.
    pub fn migrated(&self) -> Option<Migrated> {
        self.upkeep.migrated()
    }

    /// How many runs of this process have not ended.
    pub fn busy(&self) -> u64 {
        self.engine.open_runs()
    }

    /// Waits until nothing can be stored any more, and says why: the disk failed under a write, and
    /// only another start can know what it has.
    pub async fn lost(&self) -> crate::store::StoreError {
        self.upkeep.lost().await
    }

    /// Stops: no new connections, everything asked to end, what is left given up after `grace`,
    /// the store closed last.
    pub async fn stop(self, grace: Duration) {
        fault::point("host.stop");
        self.files.remove_server(&self.url);
        self.tasks.stopping().cancel();
        if let Err(error) = boot::end_well(&self.engine).await {
            tracing::warn!(%error, "could not note the clean end");
        }
        self.engine.stop().await;
        if !self.tasks.stop(grace).await {
            tracing::warn!("some work did not end within the grace");
        }
        if let Err(error) = self.upkeep.close() {
            tracing::error!(%error, "could not close the database");
        }
    }
}

/// Takes runs up, with care if a boot asks for it, and then begins what starts more of them.
/// Requests are answered meanwhile.
fn recover(
    engine: &Engine,
    tasks: &Tasks,
    careful: Option<boot::Boot>,
    watched: Option<BTreeMap<String, PathBuf>>,
) {
    let (engine, tasks_of) = (engine.clone(), tasks.clone());
    tasks.spawn(async move {
        if let Some(boot) = careful {
            tracing::warn!("the host died again and again: its runs are taken up with care");
            match engine.take_up_with_care(boot.follows_a_death()).await {
                Ok(Some(run)) => tracing::warn!(run, "quarantined; see it with `moonswarm show`"),
                Ok(None) => {}
                Err(EngineError::Stopping) => return,
                Err(error) => tracing::error!(%error, "could not take runs up with care"),
            }
            if let Err(error) = engine.take_up_the_rest().await {
                tracing::error!(%error, "could not take up what was on its way to runs");
            }
            engine.set_taking_up(false);
        }
        fault::point("host.recovered");
        boot::Boot::watch(&engine, &tasks_of);
        if let Err(error) = engine.take_up_unstored().await {
            tracing::warn!(%error, "could not look for runs that are not to be stored");
        }
        keep_time(&engine, &tasks_of);
        if let Some(roots) = watched {
            file_watch::start(&engine, &tasks_of, roots);
        }
    });
}

/// Forgets, once an hour, what is only kept for a day.
fn keep_house(engine: &Engine, tasks: &Tasks) {
    let (engine, stopping) = (engine.clone(), tasks.stopping().clone());
    tasks.spawn(async move {
        loop {
            tokio::select! {
                () = stopping.cancelled() => return,
                () = tokio::time::sleep(HOUSEKEEPING) => {}
            }
            if let Err(error) = engine.expire_answers().await {
                tracing::warn!(%error, "could not forget old answers");
            }
            if let Err(error) = engine.expire_kept().await {
                tracing::warn!(%error, "could not forget what layers kept");
            }
            if let Err(error) = engine.let_go_left().await {
                tracing::warn!(%error, "could not let go what is not to be stored");
            }
            if let Err(error) = engine.forget_sessions().await {
                tracing::warn!(%error, "could not forget closed sessions");
            }
        }
    });
}

/// Lets ended runs go when the policy says so, a few at a time.
fn sweep(engine: &Engine, tasks: &Tasks) {
    let (engine, stopping) = (engine.clone(), tasks.stopping().clone());
    tasks.spawn(async move {
        let mut sweeper = Sweeper::default();
        let mut rest = SWEEP;
        loop {
            tokio::select! {
                () = stopping.cancelled() => return,
                () = tokio::time::sleep(rest) => {}
            }
            rest = match engine.sweep(&mut sweeper).await {
                Ok(true) => BETWEEN_STEPS,
                Ok(false) => SWEEP,
                Err(error) => {
                    tracing::warn!(%error, "could not let ended runs go");
                    SWEEP
                }
            };
        }
    });
}

/// Starts what is scheduled, when it is due. Only a host that takes up all runs does: one that was
/// opened for a single run leaves the others alone.
fn keep_time(engine: &Engine, tasks: &Tasks) {
    let (engine, stopping, clock) = (engine.clone(), tasks.stopping().clone(), Clock::system());
    tasks.spawn(async move {
        let mut known = Schedules::default();
        loop {
            let next = engine.run_schedules(&mut known).await.unwrap_or_else(|error| {
                tracing::warn!(%error, "could not look at the schedules");
                clock.now_ms() + SCHEDULES_AGAIN_MS
            });
            tokio::select! {
                () = stopping.cancelled() => return,
                () = clock.sleep_until(next) => {}
            }
        }
    });
}

/// Logs that children can read what is in the data directory, where it cannot be hidden from them.
fn warn_of_children(environments: &Arc<Environments>, tasks: &Tasks) {
    let environments = Arc::clone(environments);
    drop(tasks.spawn_blocking(move || {
        if let Err(reason) = environments.hides() {
            tracing::warn!(
                reason,
                "children of the same user can read the keys and tokens of the data directory, \
                 unless their agent has an `environment`"
            );
        }
    }));
}

/// The environments of a host.
fn environments(config: &HostConfig) -> Environments {
    let data = std::path::absolute(&config.data).unwrap_or_else(|_| config.data.clone());
    Environments::new(config.environments.clone(), &data, Clock::system())
}

/// The operators of a host.
fn registry(
    config: &HostConfig,
    tasks: &Tasks,
    hub: &Arc<QueueHub>,
    sessions: &Arc<session::Hub>,
    environments: Arc<Environments>,
) -> Registry {
    let data = std::path::absolute(&config.data).unwrap_or_else(|_| config.data.clone());
    Builtin {
        lua: lua_calls(tasks.clone()),
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

/// The operators that always exist, where no host runs; none of them is called.
pub fn builtin_operators() -> Registry {
    known_operators(&Declared::default(), environment::Config::default())
}

/// The operators that a blueprint is checked against where no host runs; none of them is called.
pub fn known_operators(declared: &Declared, environments: environment::Config) -> Registry {
    Builtin::alone(environments).registry(declared)
}

/// Puts the files of a blueprint where its child processes find them.
fn bundle_dirs(data: PathBuf) -> BundleDir {
    Arc::new(move |blueprint| {
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
        open_runs: 2_000_000,
        queued_signals: 1_000,
        retention: config.retention,
        custom_effects: config.effects,
        work: absolute.join("work"),
    }
}

fn shards(asked: usize) -> usize {
    if asked > 0 {
        return asked;
    }
    std::thread::available_parallelism().map_or(1, |cores| cores.get().min(64))
}

/// The number of the data directory's life, a part of every handle: made once, and kept with the
/// database.
async fn incarnation(store: &dyn Store) -> Result<u64, HostError> {
    if let Some(known) = store.meta("incarnation")?.and_then(|text| text.parse().ok()) {
        return Ok(known);
    }
    let fresh = uuid::Uuid::new_v4().as_u64_pair().0 >> 1;
    boot::put_meta(store, "incarnation", fresh.to_string()).await?;
    Ok(fresh)
}
