//! The host: the only place where the rooms are wired together.
//!
//! Reads from top to bottom: open the data directory, start the engine, listen, watch. Stopping
//! goes the other way round.

mod boot;
mod cluster_keys;
pub mod doctor;
mod embed;
mod error;
mod file_watch;
mod files;
mod frames;
mod helping;
mod house;
mod lending;
mod listen;
mod node;
mod parts;
mod restore;
mod socket;
mod watch;

pub use error::HostError;
pub use node::{ClusterConfig, Node};
pub use restore::{Restored, restore};
pub use socket::Socket;
pub use watch::{blueprints_in, left_out_of, main_file};

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use crate::{
    api,
    clock::Clock,
    dashboard,
    door::{Door, DoorConfig},
    engine::{
        ConfigItem, CustomEffects, Engine, EngineError, Middleware, Recovery, Retention, Schedules,
    },
    environment::{self, Environments},
    fault, mcp,
    operator::{Builtin, Coded, Declared, Registry, TaskWebhook},
    protocol::RunId,
    respond::multi_step::{LlmModel, NoModel},
    session,
    spawner::Spawners,
    store::{self, Migrated, Opened, Options, Postgres, PostgresOptions, Store, Upkeep},
    tasks::Tasks,
    telemetry::otlp,
};

/// The maximum number of runs of an earlier process that an embedded host lists.
const LEFT_OPEN: usize = 100;
/// The maximum time that children have to end with their host.
const CHILDREN: Duration = Duration::from_secs(10);

/// The delay before the schedules are read again after an error, in milliseconds.
const SCHEDULES_AGAIN_MS: u64 = 10_000;

/// The configuration of a host.
#[derive(Debug, Clone)]
pub struct HostConfig {
    /// The data directory; created if it does not exist.
    pub data: PathBuf,
    /// The address to listen on; port 0 picks a free port.
    pub listen: SocketAddr,
    /// A directory of blueprints to watch.
    pub blueprints: Option<PathBuf>,
    /// Directories, by name, whose files any blueprint may watch.
    pub watch: BTreeMap<String, PathBuf>,
    /// True if runs that were open before continue without a request.
    pub recover: bool,
    /// True if a host that died three times in a row, each time soon after its start, takes up its
    /// runs one at a time.
    pub safe_mode: bool,
    /// The limit on the memory that is held for all runs together, in bytes; derived from the
    /// machine if absent.
    pub memory: Option<u64>,
    /// The limit on the memory that is held for one run, in bytes; 64 MiB if absent.
    pub run_memory: Option<u64>,
    /// The time for which a pull worker keeps a task without a heartbeat.
    pub lease: Duration,
    /// The number of shards; 0 for one per core.
    pub shards: usize,
    /// The retention of ended runs. If absent, it is the default, and without `recover` that of the
    /// last host with `recover` in this directory.
    pub retention: Option<Retention>,
    /// The policy for effects that the host does not know.
    pub effects: CustomEffects,
    /// The options of the database in the data directory.
    pub store: Options,
    /// The PostgreSQL database that takes its place, if there is one.
    pub postgres: Option<PostgresOptions>,
    /// The settings of this node, if it is one of several over that database. [`Node`] opens it then.
    pub cluster: Option<ClusterConfig>,
    /// Access to the HTTP API, and its limits.
    pub door: DoorConfig,
    /// The order in which others take over the tasks of a delegate, or of the holder of a seat, whose
    /// session is closed. If empty, the tasks wait.
    pub fallback: Vec<session::Fallback>,
    /// The operators in addition to the built-in ones.
    pub operators: Declared,
    /// The webhooks that are called when a task for people has opened, by name.
    pub webhooks: BTreeMap<String, TaskWebhook>,
    /// Secrets, and named environments.
    pub environments: environment::Config,
    /// Operators implemented in code, by name; they replace an existing operator of the same name.
    pub code: Coded,
    /// The layers around tasks and state.
    pub middleware: Middleware,
    /// The settings with their origins, for people: `/v1/host` shows them.
    pub shown: Vec<ConfigItem>,
    /// The address on which the metrics are served without a token, if they are.
    pub metrics: Option<SocketAddr>,
    /// The export of traces and metrics over OTLP, if there is one.
    pub export: Option<otlp::Settings>,
    /// The programs that start workers, by the name or kind of an operator, if these are others
    /// than the operators themselves.
    pub spawners: Spawners,
}

impl HostConfig {
    /// Returns the configuration of a host in the directory `data`, on a free port, with the
    /// defaults of `serve`; for programs that embed a host.
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
            retention: None,
            effects: CustomEffects::default(),
            store: Options::default(),
            postgres: None,
            cluster: None,
            door: DoorConfig::default(),
            fallback: Vec::new(),
            operators: Declared::default(),
            webhooks: BTreeMap::new(),
            code: Coded::default(),
            middleware: Middleware::default(),
            spawners: Spawners::default(),
            environments: environment::Config::default(),
            shown: Vec::new(),
            metrics: None,
            export: None,
        }
    }

    /// Refuses what no host can have, before anything is opened.
    fn check(&self) -> Result<(), HostError> {
        crate::config::check_shards(self.shards).map_err(HostError::Config)?;
        crate::config::check_lease(self.lease).map_err(HostError::Config)?;
        listen::check_exposure(self.listen, &self.door)
    }
}

/// A running host.
pub struct Host {
    engine: Engine,
    upkeep: Arc<dyn Upkeep>,
    tasks: Tasks,
    environments: Arc<Environments>,
    /// Absent for a host of a node, which listens itself.
    listens: Option<(files::DataFiles, Option<socket::Bound>)>,
    url: String,
    admin: String,
    left_open: Vec<RunId>,
    metrics_at: Option<SocketAddr>,
    _watch: Option<watch::Watch>,
}

impl Host {
    /// Opens the data directory, starts the engine and listens.
    ///
    /// # Errors
    /// Fails when a setting is out of its bounds, another process owns the directory, a newer
    /// release wrote it, its keys can be read by others, or the address is taken.
    pub async fn open(config: HostConfig) -> Result<Self, HostError> {
        config.check()?;
        // Before anything is opened, or migrated, for nothing.
        let ports = listen::Ports::bind(&config).await?;
        let opened = store::open(&config.data, &config.store, config.postgres.as_ref())?;
        // Opening takes many steps; without the box, every command would be as large as all of them.
        Box::pin(Self::open_or_close(config, opened, (Some(ports), None))).await
    }

    /// Opens the host of a node, over the database that it took over.
    async fn open_joined(
        config: HostConfig,
        store: Arc<Postgres>,
        joined: &node::Joined,
    ) -> Result<Self, HostError> {
        let opened = Opened { store: Arc::clone(&store) as Arc<dyn Store>, upkeep: store };
        Self::open_or_close(config, opened, (None, Some(joined))).await
    }

    async fn open_or_close(
        config: HostConfig,
        Opened { store, upkeep }: Opened,
        listens: (Option<listen::Ports>, Option<&node::Joined>),
    ) -> Result<Self, HostError> {
        let tasks = Tasks::new(tokio::runtime::Handle::current());
        let (on, by) = ((store, Arc::clone(&upkeep)), tasks.clone());
        let opened = Self::open_on(config, on, by, listens).await;
        if opened.is_err() {
            // A start that fails in an orderly way does not count as a crash: closing the database
            // records that.
            tasks.stopping().cancel();
            if let Err(error) = upkeep.close() {
                tracing::warn!(%error, "could not close the database");
            }
        }
        opened
    }

    async fn open_on(
        mut config: HostConfig,
        (store, upkeep): (Arc<dyn Store>, Arc<dyn Upkeep>),
        tasks: Tasks,
        (ports, joined): (Option<listen::Ports>, Option<&node::Joined>),
    ) -> Result<Self, HostError> {
        let files = files::DataFiles::open(&config.data)?;
        let incarnation = incarnation(&*store).await?;
        files.claim_work(incarnation, Clock::system().now_ms());
        let key_files: Arc<dyn files::HostKeys> = match joined {
            None => Arc::new(files.clone()),
            Some(it) => {
                let member = Arc::clone(&it.member);
                Arc::new(cluster_keys::ClusterKeys::new(member, files.clone()))
            }
        };
        let keys = key_files.open(incarnation)?;
        fault::point("host.keys");

        let environments = Arc::new(parts::environments(&config));
        // This must come before anything runs: what exists now belongs to a host that was killed.
        let sweeping = Arc::clone(&environments);
        if let Err(error) = tasks.spawn_blocking(move || sweeping.sweep()).await {
            tracing::warn!(%error, "what the host before has left may still be there");
        }
        if config.recover {
            warn_of_children(&environments, &tasks);
        }

        let boot = boot::Boot::begin(&*store, upkeep.owner_died(), config.recover).await?;
        fault::point("host.boot_counted");
        let careful = config.safe_mode && boot.is_a_crash_loop();
        let kept = boot::retention(&*store, config.retention, config.recover);
        config.retention = Some(Box::pin(kept).await?);
        let base = parts::EngineBase {
            store: Arc::clone(&store),
            clock: Clock::system_ahead(boot::clock_offset(&*store, &*upkeep)?),
            tasks: tasks.clone(),
            environments: Arc::clone(&environments),
            keys,
            key_files: Arc::clone(&key_files) as _,
            recovery: match (config.recover, careful) {
                (false, _) => Recovery::Asked,
                (true, false) => Recovery::All,
                (true, true) => Recovery::Careful,
            },
            helps: None,
        };
        let engine = Engine::start_up(base.parts(&config))?;
        let left_open =
            if config.recover { Vec::new() } else { engine.unfinished(LEFT_OPEN).await? };
        boot::keep_clock_offset(&engine, &upkeep, &tasks);
        if let Some(export) = config.export.clone() {
            otlp::start(&engine, &tasks, export);
        }
        engine.safe_mode().set_taking_up(config.recover && careful);

        let admin = match key_files.admin_token()?.filter(|token| engine.tokens().is_lasting(token))
        {
            Some(token) => token,
            None => {
                let token = engine.tokens().mint_admin().await?.token;
                fault::point("host.admin_minted");
                key_files
                    .keep_admin(&token)
                    .map_err(|reason| files::unkept(&config.data, reason))?;
                token
            }
        };

        let of_ports = ports.as_ref().map(|it| (it.address, it.url.clone()));
        let of_node = joined.map(|it| (it.address, it.url.clone()));
        let (address, url) = of_ports.or(of_node).expect("a host has ports, or its node has");
        engine.set_url(&parts::url(&config, &url, address));
        engine.set_facts(Arc::new(doctor::Facts::of(&config, joined.map(|it| it.facts.clone()))));
        fault::point("host.listening");
        // A client that finds this host must also find the blueprints of its directory.
        let watch = match &config.blueprints {
            Some(dir) => {
                Some(watch::Watch::start(dir, &config.data, engine.clone(), &tasks).await?)
            }
            None => None,
        };
        let site = dashboard::Site::of(incarnation);
        let mut names = config.door.clone();
        names.hosts.push(site.host().to_owned());
        let connections = Arc::clone(&engine.counts().http.connections);
        let door = Arc::new(Door::new(&names, address).counting(connections));
        let api = api::router(engine.clone(), Arc::clone(&door), &tasks);
        let tools = mcp::router(api.clone(), engine.clone(), Arc::clone(&door), &tasks);
        let pages = dashboard::router(engine.clone(), Arc::clone(&door), &tasks, site);
        let behind = api.merge(tools).merge(pages);
        let metrics_of = |at| listen::metrics_routes(&engine, &config.door, at);
        let (metrics_at, listens) = match (ports, joined) {
            (Some(ports), _) => {
                let socket = listen::serve_local(&config.data, behind.clone(), &door, &tasks);
                let metrics_at = ports.metrics_at();
                let metrics = metrics_at.map(metrics_of);
                ports.serve(behind, metrics, &door, (&files, incarnation), &tasks)?;
                (metrics_at, Some((files, socket)))
            }
            (None, Some(joined)) => {
                let on_help = joined.on_help(&engine, &tasks);
                (joined.drive(behind, metrics_of, on_help), None)
            }
            (None, None) => (None, None),
        };
        fault::point("host.announced");

        house::keep(&engine, &tasks);
        house::sweep(&engine, &tasks);
        if config.recover {
            let watched = (watch.is_some() || !config.watch.is_empty())
                .then(|| (config.data.clone(), config.watch.clone()));
            recover(&engine, &tasks, careful.then_some(boot), watched);
        }
        let _watch = watch;
        Ok(Self {
            engine,
            upkeep,
            tasks,
            environments,
            listens,
            url,
            admin,
            left_open,
            metrics_at,
            _watch,
        })
    }

    /// Returns the address on which the metrics are served without a token, if they are.
    pub fn metrics_at(&self) -> Option<SocketAddr> {
        self.metrics_at
    }

    /// Returns the engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the model of an operator, for a response loop outside of the host.
    ///
    /// # Errors
    /// Fails when there is no such operator, or it calls no model itself.
    pub fn model(&self, operator: &str) -> Result<LlmModel, NoModel> {
        LlmModel::of(self.engine.registry(), operator)
    }

    /// Returns the base URL: `http://127.0.0.1:7700`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the admin token.
    pub fn admin_token(&self) -> &str {
        &self.admin
    }

    /// Returns runs that were open before and do not continue by themselves in this process.
    pub fn left_open(&self) -> Vec<RunId> {
        self.left_open.clone()
    }

    /// Returns the change of the storage format made when the data directory was opened, if any.
    pub fn migrated(&self) -> Option<Migrated> {
        self.upkeep.migrated()
    }

    /// Returns the number of runs of this process that have not ended.
    pub fn busy(&self) -> u64 {
        self.engine.open_runs()
    }

    /// Waits until the store is lost, and returns the reason: a write to the disk failed, and only
    /// a restart can determine what is stored.
    pub async fn lost(&self) -> crate::store::StoreError {
        self.upkeep.lost().await
    }

    /// Stops the host: refuses new connections, cancels everything, gives up what remains after
    /// `grace`, and closes the store last.
    pub async fn stop(self, grace: Duration) {
        fault::point("host.stop");
        if let Some((files, socket)) = self.listens {
            files.remove_server(&self.url);
            drop(socket);
        }
        self.tasks.stopping().cancel();
        if let Err(error) = boot::end_well(&self.engine).await {
            tracing::warn!(%error, "could not note the clean end");
        }
        self.engine.stop().await;
        if !self.tasks.stop(grace).await {
            tracing::warn!("some work did not end within the grace");
        }
        let environments = self.environments;
        let ended = self.tasks.spawn_blocking(move || environments.end());
        if tokio::time::timeout(CHILDREN, ended).await.is_err() {
            tracing::warn!("some children did not end");
        }
        if let Err(error) = self.upkeep.close() {
            tracing::error!(%error, "could not close the database");
        }
    }
}

/// Takes up runs, with care if a boot asks for it, and then starts schedules and file watches.
/// Requests are served in the meantime.
fn recover(
    engine: &Engine,
    tasks: &Tasks,
    careful: Option<boot::Boot>,
    watched: Option<(PathBuf, BTreeMap<String, PathBuf>)>,
) {
    let (engine, tasks_of) = (engine.clone(), tasks.clone());
    tasks.spawn(async move {
        if let Some(boot) = careful {
            tracing::warn!("the host died again and again: its runs are taken up with care");
            match engine.safe_mode().take_up_with_care(boot.follows_a_death()).await {
                Ok(Some(run)) => tracing::warn!(run, "quarantined; see it with `moonswarm show`"),
                Ok(None) => {}
                Err(EngineError::Stopping) => return,
                Err(error) => tracing::error!(%error, "could not take runs up with care"),
            }
            if let Err(error) = engine.safe_mode().take_up_the_rest().await {
                tracing::error!(%error, "could not take up what was on its way to runs");
            }
            engine.safe_mode().set_taking_up(false);
        }
        fault::point("host.recovered");
        boot::Boot::watch(&engine, &tasks_of);
        if let Err(error) = engine.responses().take_up_unstored().await {
            tracing::warn!(%error, "could not look for runs that are not to be stored");
        }
        keep_time(&engine, &tasks_of);
        let deletes = engine.clone();
        tasks_of.spawn(async move {
            if let Err(error) = deletes.take_up_deletions().await {
                tracing::warn!(%error, "could not look for what deletions before have left");
            }
        });
        if let Some((data, roots)) = watched {
            file_watch::start(&engine, &tasks_of, &data, roots);
        }
    });
}

/// Starts scheduled runs when they are due. Runs only on a host that takes up all runs: one that
/// was opened for a single run leaves the others alone.
fn keep_time(engine: &Engine, tasks: &Tasks) {
    let (engine, stopping, clock) = (engine.clone(), tasks.stopping().clone(), Clock::system());
    tasks.spawn(async move {
        let mut known = Schedules::default();
        loop {
            let next = engine.triggers().run_schedules(&mut known).await.unwrap_or_else(|error| {
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

/// Logs a warning if child processes can read the data directory because it cannot be hidden from
/// them.
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

/// Returns the built-in operators, for use without a host; none of them is called.
pub fn builtin_operators() -> Registry {
    known_operators(&Declared::default(), environment::Config::default())
}

/// Returns the operators that a blueprint is checked against without a host; none of them is
/// called.
pub fn known_operators(declared: &Declared, environments: environment::Config) -> Registry {
    Builtin::alone(environments).registry(declared)
}

/// Returns the incarnation of the data directory, a number that is part of every handle: created
/// once, and stored in the database.
async fn incarnation(store: &dyn Store) -> Result<u64, HostError> {
    if let Some(known) = parts::incarnation(store)? {
        return Ok(known);
    }
    let fresh = uuid::Uuid::new_v4().as_u64_pair().0 >> 1;
    boot::put_meta(store, crate::engine::INCARNATION, fresh.to_string()).await?;
    Ok(fresh)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_host_that_cannot_be_is_refused_before_its_directory_is_touched() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let refused = async |config: HostConfig| Host::open(config).await.err().expect("an error");
        let many = HostConfig { shards: 257, ..HostConfig::new(&data) };
        assert!(matches!(refused(many).await, HostError::Config(_)));
        let timeless = HostConfig { lease: Duration::ZERO, ..HostConfig::new(&data) };
        assert!(matches!(refused(timeless).await, HostError::Config(_)));
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let busy = HostConfig { listen: taken.local_addr().unwrap(), ..HostConfig::new(&data) };
        assert!(matches!(refused(busy).await, HostError::Listen { .. }));
        assert!(!data.exists());
    }
}
