//! `serve`: the daemon.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::{
    cli::{
        cluster::{self, ClusterFlags},
        connect::{disk_failed, explain, exported, open_daemon, told_of},
        context::Context,
        database, descriptors,
        exit::{Exit, Stop},
        service::ServiceManager,
    },
    config::LogFormat,
    door::TlsFiles,
    environment::Text,
    host::{HostConfig, Node, blueprints_in},
    store::{Durability, Migrated},
    telemetry::otlp,
};

/// Run the daemon
#[derive(Debug, Args)]
pub struct Serve {
    /// Address to listen on [default: 127.0.0.1:7700]
    #[arg(long, value_name = "ADDRESS", env = "MOONSWARM_LISTEN")]
    pub listen: Option<SocketAddr>,
    /// PostgreSQL database for the runs, postgres://HOST/NAME [default: sqlite, in the data directory]
    #[arg(long, value_name = "ADDRESS", env = database::VARIABLE, hide_env_values = true)]
    store: Option<String>,
    /// Commits that a failover of that database may lose: synchronous (none), or asynchronous [default: synchronous]
    #[arg(long, value_name = "KIND", env = "MOONSWARM_DURABILITY")]
    pub durability: Option<Durability>,
    #[command(flatten)]
    pub cluster: ClusterFlags,
    /// Certificate (PEM, with its chain) to serve https with
    #[arg(long, value_name = "FILE", env = "MOONSWARM_TLS_CERT", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key (PEM) of the certificate
    #[arg(long, value_name = "FILE", env = "MOONSWARM_TLS_KEY", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Let other machines send tokens in plain text, without TLS and without a proxy
    #[arg(long, env = "MOONSWARM_INSECURE", value_parser = clap::builder::BoolishValueParser::new())]
    pub insecure: bool,
    /// Directory of blueprints to watch [default: the current one, if it has any]
    #[arg(long, value_name = "DIR", env = "MOONSWARM_BLUEPRINTS")]
    pub blueprints: Option<PathBuf>,
    /// The time that a pull worker keeps a task without a heartbeat [default: 30s]
    #[arg(long, value_name = "DURATION", env = "MOONSWARM_LEASE", value_parser = crate::cli::values::lease)]
    pub lease: Option<Duration>,
    /// Memory limit for all runs together [default: half of the machine's memory]
    #[arg(long, value_name = "SIZE", env = "MOONSWARM_MEMORY", value_parser = crate::cli::values::size)]
    pub memory: Option<u64>,
    /// Maximum number of connections, including WebSockets of sessions [default: 8192]
    #[arg(long, value_name = "N", env = "MOONSWARM_CONNECTIONS")]
    pub connections: Option<usize>,
    /// Open a data directory whose write-ahead log is missing; its commits are lost
    #[arg(long)]
    accept_loss: bool,
    /// Time for work in progress to finish at shutdown
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = crate::cli::values::duration)]
    grace: Duration,
}

/// The addresses and the state that a daemon announces once it listens.
struct Greeting<'a> {
    url: &'a str,
    metrics: Option<SocketAddr>,
    served: Option<&'a Path>,
}

impl Serve {
    /// The certificate that the flags name.
    pub fn tls(&self) -> Option<TlsFiles> {
        let (cert, key) = (self.tls_cert.clone()?, self.tls_key.clone()?);
        Some(TlsFiles { cert, key })
    }

    /// The database that the flag or its variable names.
    pub fn store(&self) -> Option<Text> {
        self.store.as_deref().map(database::named)
    }

    /// Does it, until it is told to stop.
    ///
    /// # Errors
    /// A data directory that cannot be opened, an address that cannot be listened on.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        let mut stop = Stops::listen()?;
        let manager = ServiceManager::of_environment();
        let (connections, note) = descriptors::connections(cx.config.connections);
        if let Some(note) = note {
            say(cx, &note);
        }
        let served = served(cx.config.blueprints.as_deref())?;
        let export = exported()?;
        let mut shown = cx.beside.shown(&cx.config);
        shown.extend(otlp::Settings::shown(export.as_ref()));
        let config = HostConfig {
            data: cx.config.data.clone(),
            listen: cx.config.listen,
            blueprints: served.clone(),
            watch: cx.config.watch.clone(),
            recover: true,
            shards: cx.config.shards,
            retention: cx.config.retention,
            effects: cx.config.effects,
            store: crate::store::Options {
                accept_loss: self.accept_loss,
                ..crate::store::Options::default()
            },
            postgres: match &cx.config.store {
                Some(address) => Some(database::options(address, cx.config.durability)?),
                None => None,
            },
            cluster: cluster::settings(&cx.config)?,
            door: crate::door::DoorConfig {
                limits: crate::door::Limits::for_connections(connections),
                ..cx.config.door()
            },
            safe_mode: cx.config.safe_mode,
            memory: cx.config.memory,
            run_memory: cx.config.run_memory,
            lease: cx.config.lease,
            metrics: cx.config.metrics,
            export,
            fallback: cx.config.fallback.clone(),
            operators: cx.config.operators.clone(),
            webhooks: cx.config.webhooks.clone(),
            environments: cx.config.environments.clone(),
            shown,
            code: crate::operator::Coded::default(),
            spawners: Default::default(),
            middleware: crate::engine::Middleware::of(cx.config.middleware.clone()),
        };
        if config.cluster.is_some() {
            return Box::pin(self.execute_node(cx, config, served.as_deref(), (stop, manager)))
                .await;
        }
        let opened = open_daemon(config, |line| say(cx, line), stop.next()).await?;
        let Some(host) = opened else { return Ok(Exit::Ok) };
        let about =
            Greeting { url: host.url(), metrics: host.metrics_at(), served: served.as_deref() };
        self.greet(cx, &about, host.migrated());
        manager.ready(host.url());
        let lost = tokio::select! {
            () = stop.next() => None,
            error = host.lost() => Some(error),
            never = manager.keep_alive() => match never {},
        };
        manager.stopping();
        match &lost {
            None => say(cx, "stopping; once more stops at once"),
            Some(_) => say(cx, "stopping: nothing can be stored any more"),
        }
        let stopped = tokio::select! {
            () = host.stop(self.grace) => Exit::Ok,
            () = stop.next() => Exit::Interrupted,
        };
        match lost {
            None => Ok(stopped),
            Some(error) => Err(disk_failed(&error).into()),
        }
    }

    /// Runs as a node of a cluster, until it is told to stop.
    async fn execute_node(
        &self,
        cx: &Context,
        config: HostConfig,
        served: Option<&Path>,
        (mut stop, manager): (Stops, ServiceManager),
    ) -> Result<Exit> {
        let explained = |error| explain(&cx.config.data, error);
        let node = Node::open(config).await.map_err(explained)?;
        let stopping = CancellationToken::new();
        let ready = |node: &Node| {
            let about = Greeting { url: node.url(), metrics: node.metrics_at(), served };
            self.greet(cx, &about, None);
            manager.ready(node.url());
        };
        let run = node.run(stopping.cancelled(), self.grace, ready);
        let mut run = std::pin::pin!(run);
        let ended = tokio::select! {
            ended = &mut run => ended,
            never = manager.keep_alive() => match never {},
            () = stop.next() => {
                manager.stopping();
                say(cx, "handing over and stopping; once more stops at once");
                stopping.cancel();
                tokio::select! {
                    ended = &mut run => ended,
                    () = stop.next() => return Ok(Exit::Interrupted),
                }
            }
        };
        ended.map_err(explained)?;
        Ok(Exit::Ok)
    }

    /// Prints the address. A closed stdout stops no daemon: its runs need none.
    fn greet(&self, cx: &Context, about: &Greeting<'_>, migrated: Option<Migrated>) {
        if let Err(error) = self.try_to_greet(cx, about, migrated) {
            tracing::warn!(%error, "failed to print the address");
        }
    }

    fn try_to_greet(
        &self,
        cx: &Context,
        about: &Greeting<'_>,
        migrated: Option<Migrated>,
    ) -> Result<()> {
        let &Greeting { url, metrics, served } = about;
        let data = cx.config.data.canonicalize().context("find the data directory")?;
        let token = data.join("admin.token");
        if cx.terminal.json || cx.config.log_format == LogFormat::Json {
            let mut greeting = json!({
                "url": url,
                "pid": std::process::id(),
                "version": env!("CARGO_PKG_VERSION"),
                "data": data,
                "token_file": token,
                "blueprints": served,
            });
            if let Some(metrics) = metrics {
                greeting["metrics"] = json!(format!("http://{metrics}/metrics"));
            }
            if let Some(Migrated { from, to, backup }) = &migrated {
                greeting["migrated"] = json!({ "from": from, "to": to, "backup": backup });
            }
            if cx.terminal.json {
                cx.terminal.print_json_line(&greeting)?;
            } else {
                // Beside log lines that are JSON, it is one of them.
                let line = json!({"message": "serving", "serving": greeting});
                cx.terminal.say(&line.to_string());
            }
            return Ok(());
        }
        let say = |line: &str| cx.terminal.say(line);
        say(&format!("moonswarm {} at {url}", env!("CARGO_PKG_VERSION")));
        say(&format!("  data        {}", data.display()));
        if let Some(migrated) = &migrated {
            say(&format!("  migrated    {}", told_of(migrated)));
        }
        say(&format!("  token       cat {}", token.display()));
        say(&format!("  dashboard   {url}/ui, or `moonswarm open` signs in"));
        say(&format!("  API docs    {url}/docs"));
        if let Some(metrics) = metrics {
            say(&format!("  metrics     http://{metrics}/metrics (no token)"));
        }
        match served {
            Some(dir) => say(&format!("  blueprints  {} (watched)", dir.display())),
            None => say("  blueprints  none here; --blueprints DIR names a directory to watch"),
        }
        say("  Ctrl-C stops it; open runs go on at the next start");
        Ok(())
    }
}

/// Prints a line to stderr, as a log record if the log is JSON.
fn say(cx: &Context, line: &str) {
    match cx.config.log_format {
        LogFormat::Json => tracing::info!("{line}"),
        LogFormat::Text => cx.terminal.say(line),
    }
}

/// The directory that is watched: the named one, which must be there, or this one if it has blueprints.
fn served(named: Option<&Path>) -> Result<Option<PathBuf>, Stop> {
    match named {
        Some(dir) if !dir.is_dir() => {
            let shown = dir.display();
            Err(Stop::usage(format!("there is no directory {shown} to watch")).next(format!(
                "`mkdir {shown}`, or leave --blueprints out to serve the blueprints of this directory"
            )))
        }
        Some(dir) => Ok(Some(dir.to_owned())),
        None => {
            let here = Path::new(".");
            Ok((!blueprints_in(here).is_empty()).then(|| here.to_owned()))
        }
    }
}

/// The signals that stop a program.
struct Stops {
    interrupt: Signal,
    terminate: Signal,
}

impl Stops {
    fn listen() -> std::io::Result<Self> {
        let interrupt = signal(SignalKind::interrupt())?;
        Ok(Self { interrupt, terminate: signal(SignalKind::terminate())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
